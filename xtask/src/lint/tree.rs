//! The texts of all files that belong to the repository, by relative path.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Paths and texts; files that are not UTF-8 have an empty text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Tracked files, and new ones that git does not ignore.
    pub(crate) fn load(root: &Path) -> Result<Self> {
        let mut command = Command::new("git");
        command
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others"]);
        let listed = run::captured(command.arg("--exclude-standard"))
            .context("lint asks git for the list of files; is this a git checkout?")?;
        let mut files = BTreeMap::new();
        for path in listed.stdout.split('\0').filter(|path| !path.is_empty()) {
            // A file that was deleted and not yet committed is still listed.
            if let Ok(bytes) = std::fs::read(root.join(path)) {
                files.insert(
                    path.to_string(),
                    String::from_utf8(bytes).unwrap_or_default(),
                );
            }
        }
        Ok(Self { files })
    }

    /// A tree that exists only in a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let owned = |(path, text): &(&str, &str)| ((*path).to_string(), (*text).to_string());
        Self {
            files: files.iter().map(owned).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether the path is a file, or a folder with files in it.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.files.contains_key(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&folder))
    }

    /// All files: path and text.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The files whose names end in `.rs`.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }
}

/// The `//!` lines at the head of a Rust file, without the slashes.
pub(crate) fn head(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
}

/// The reason that a marker such as `unsafe:` gives in the head, if it gives one.
pub(crate) fn marker<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    head(text)
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .filter(|reason| !reason.is_empty())
}
