//! `cargo xtask lint`: the house rules that neither rustc nor clippy knows.
//!
//! Each rule is a function from the tree's texts to findings, so that each is tested
//! with a planted violation. No rule reads the disk itself.

mod arrows;
mod hygiene;
mod layout;
mod lengths;
mod links;
mod orphans;
mod tokens;
mod tree;
mod unsafe_rules;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use self::tree::Tree;
use crate::repo;

/// Options of `cargo xtask lint`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Markers, in the `//!` lines at a file's head:\n  \
    //! unsafe: WHY   the file may hold unsafe blocks outside a sys/ folder\n  \
    //! long: WHY     the file, or a function in it, may be longer than the limits\n\n\
    Example:\n  cargo xtask lint")]
pub(crate) struct Args {}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}:{}: {} [{}]",
            self.file, self.line, self.message, self.rule
        )
    }
}

/// Makes findings of one rule.
fn finding(rule: &'static str, file: &str, line: usize, message: impl Into<String>) -> Finding {
    Finding {
        file: file.into(),
        line,
        rule,
        message: message.into(),
    }
}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let (findings, files) = check()?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        println!("lint: {files} files keep the house rules");
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!(
            "lint: {} findings; CONTRIBUTING.md explains the rules",
            findings.len()
        );
        Ok(ExitCode::FAILURE)
    }
}

/// All findings, and how many files were looked at.
pub(crate) fn check() -> Result<(Vec<Finding>, usize)> {
    let tree = Tree::load(&repo::root())?;
    let workspace = arrows::Workspace::load(&tree)?;
    let mut findings = Vec::new();
    findings.extend(arrows::check(&workspace));
    findings.extend(arrows::check_core(&tree));
    findings.extend(layout::check(&tree));
    findings.extend(lengths::check(&tree));
    findings.extend(unsafe_rules::check(&tree));
    findings.extend(orphans::check(&tree, &workspace.roots));
    findings.extend(hygiene::check(&tree));
    findings.extend(links::check(&tree));
    findings.sort();
    Ok((findings, tree.len()))
}
