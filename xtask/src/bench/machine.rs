//! What these numbers were measured on, for the head of a report.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::{repo, run};

/// One line: processor, cores, memory, kernel, file system.
pub(crate) fn described() -> String {
    let cpu = value_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".into());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = value_of("/proc/meminfo", "MemTotal").unwrap_or_default();
    let gib = memory
        .split(' ')
        .next()
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or(0)
        >> 20;
    let kernel = read("/proc/sys/kernel/osrelease");
    let mut findmnt = Command::new("findmnt");
    findmnt
        .args(["--noheadings", "--output", "SOURCE,FSTYPE", "--target"])
        .arg(repo::root());
    let disk = run::captured(&mut findmnt)
        .map(|f| f.stdout.split_whitespace().collect::<Vec<_>>().join(" "))
        .unwrap_or_else(|_| "unknown disk".into());
    format!("{cpu}, {cores} cores, {gib} GiB, Linux {kernel}, {disk}")
}

/// The day, in UTC.
pub(crate) fn day() -> String {
    run::captured(Command::new("date").args(["-u", "+%F"])).map_or_else(
        |_| "unknown day".into(),
        |finished| finished.stdout.trim().into(),
    )
}

/// The commit that is measured, and whether there is more than that; as it was when this was
/// first asked, before the programs were built. The figures themselves do not count.
pub(crate) fn commit() -> &'static str {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(|| {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(repo::root()).args(arguments);
            run::captured(&mut git).map(|finished| finished.stdout.trim().to_owned())
        };
        let Ok(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
            return "unknown commit".into();
        };
        match git(&["status", "--porcelain", "--", ":/", ":!/BENCHMARKS.md"]) {
            Ok(changes) if changes.is_empty() => commit,
            _ => format!("{commit}{DIRTY}"),
        }
    })
}

/// Whether the tree has more than its commit.
pub(crate) fn is_dirty() -> bool {
    commit().ends_with(DIRTY)
}

const DIRTY: &str = "-dirty";

/// The command as it can be typed again.
pub(crate) fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).map(quoted).collect();
    format!("cargo xtask {}", words.join(" "))
}

/// A word for a shell: in quotes if it would be taken apart otherwise.
fn quoted(word: String) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_string()
}

fn value_of(path: &str, key: &str) -> Option<String> {
    let text = read(path);
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        let cases = [
            ("--rounds", "--rounds"),
            ("a b,c", "'a b,c'"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
        ];
        for (word, typed) in cases {
            assert_eq!(quoted(word.into()), typed);
        }
    }
}
