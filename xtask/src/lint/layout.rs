//! The top level: nothing there that is not documented, nothing missing that is promised.

use std::collections::BTreeSet;

use super::{Finding, Tree, finding};

/// What every checkout has.
const REQUIRED: [&str; 16] = [
    ".cargo",
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "deny.toml",
    "examples",
    "fs-adapter",
    "ubio",
    "xtask",
];

/// What may be there too.
const OPTIONAL: [&str; 10] = [
    ".config",
    ".gitattributes",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "clippy.toml",
    "docs",
    "lab",
    "nvme",
    "python",
    "rustfmt.toml",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let present: BTreeSet<&str> = tree
        .files()
        .map(|(path, _)| path.split('/').next().unwrap_or(path))
        .collect();
    let missing = REQUIRED
        .iter()
        .filter(|name| !present.contains(*name))
        .map(|name| finding("layout", name, 1, "missing: every checkout has it"));
    let known = |name: &&&str| !REQUIRED.contains(*name) && !OPTIONAL.contains(*name);
    let stray = present.iter().filter(known).map(|name| {
        let message = "not part of the documented top level: move it, or add it to \
                       xtask/src/lint/layout.rs and ARCHITECTURE.md";
        finding("layout", name, 1, message)
    });
    missing.chain(stray).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_entry_and_a_missing_one_are_found() {
        let mut files: Vec<(String, &str)> =
            REQUIRED.iter().map(|n| (format!("{n}/x"), "")).collect();
        let check_these = |files: &[(String, &str)]| {
            let borrowed: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), *t)).collect();
            check(&Tree::of(&borrowed))
                .into_iter()
                .map(|f| f.file)
                .collect::<Vec<_>>()
        };
        assert!(check_these(&files).is_empty());
        files.push(("helpers/x.rs".into(), ""));
        assert_eq!(check_these(&files), ["helpers"]);
        files.retain(|(path, _)| !path.starts_with("README.md"));
        assert_eq!(check_these(&files), ["README.md", "helpers"]);
    }
}
