//! `unsafe` only where it is announced, and every block says which conditions hold.

use proc_macro2::{Delimiter, TokenTree};

use super::tokens::{self, is_word};
use super::tree::marker;
use super::{Finding, Tree, finding};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .flat_map(|(path, text)| check_file(path, text))
        .collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let Ok(stream) = tokens::parse(text) else {
        return Vec::new();
    };
    let mut uses = Vec::new();
    tokens::walk(stream, &mut |level, index| {
        if is_word(level.get(index), "unsafe") {
            let next = level.get(index + 1);
            let block =
                matches!(next, Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace);
            uses.push((tokens::line(&level[index]), block || is_word(next, "impl")));
        }
    });

    let announced = marker(text, "unsafe").is_some();
    let mut findings = Vec::new();
    if let Some((line, _)) = uses.first() {
        if !announced && !in_sys(path) {
            let message =
                "unsafe outside sys/: move it there, or state `//! unsafe: WHY` at the head";
            findings.push(finding("unsafe-place", path, *line, message));
        }
    } else if announced {
        let message = "the head announces unsafe, and there is none: remove the marker";
        findings.push(finding("unsafe-place", path, 1, message));
    }
    let lines: Vec<&str> = text.lines().collect();
    for (line, _) in uses
        .iter()
        .filter(|(line, needs)| *needs && !has_safety(&lines, *line))
    {
        let message = "no `// SAFETY:` comment right above: say which conditions hold";
        findings.push(finding("unsafe-comment", path, *line, message));
    }
    findings
}

fn in_sys(path: &str) -> bool {
    path.ends_with("/sys.rs") || path.split('/').any(|part| part == "sys")
}

/// Looks at the line itself and up to the statement's start and the comment above it.
fn has_safety(lines: &[&str], line: usize) -> bool {
    const REACH: usize = 16;
    let above = lines[..line.saturating_sub(1)].iter().rev().take(REACH);
    if lines
        .get(line.saturating_sub(1))
        .is_some_and(|own| own.contains("SAFETY:"))
    {
        return true;
    }
    for text in above.map(|text| text.trim()) {
        let comment = text.starts_with("//");
        if comment && text.contains("SAFETY:") {
            return true;
        }
        if text.is_empty() || (!comment && text.ends_with([';', '{', '}', ','])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn unannounced_unsafe_is_found_even_in_a_macro() {
        let block = "//! Head.\nfn f() {\n    // SAFETY: never called.\n    unsafe { g() }\n}\n";
        assert_eq!(rules("a/src/x.rs", block), ["unsafe-place"]);
        let hidden = "//! Head.\nmacro_rules! m { () => { unsafe fn f() {} } }\n";
        assert_eq!(rules("a/src/x.rs", hidden), ["unsafe-place"]);
    }

    #[test]
    fn announced_or_in_sys_is_fine() {
        let block = "//! Head.\nfn f() {\n    // SAFETY: never called.\n    unsafe { g() }\n}\n";
        assert!(rules("a/src/sys/x.rs", block).is_empty());
        assert!(rules("a/src/sys.rs", block).is_empty());
        assert!(rules("a/src/x.rs", &format!("//! unsafe: maps memory.\n{block}")).is_empty());
        assert_eq!(
            rules("a/src/x.rs", &format!("//! unsafe:\n{block}")),
            ["unsafe-place"]
        );
    }

    #[test]
    fn a_block_without_its_conditions_is_found() {
        let bare = "//! Head.\nfn f() {\n    let x = 1;\n    unsafe { g(x) }\n}\n";
        assert_eq!(rules("a/src/sys.rs", bare), ["unsafe-comment"]);
        let borrowed =
            "//! Head.\nfn f() {\n    // SAFETY: of another.\n    h();\n    unsafe { g() }\n}\n";
        assert_eq!(rules("a/src/sys.rs", borrowed), ["unsafe-comment"]);
        assert_eq!(
            rules("a/src/sys.rs", "//! Head.\nunsafe impl Send for X {}\n"),
            ["unsafe-comment"]
        );
    }

    #[test]
    fn a_statement_may_start_above_its_block() {
        let split = "//! Head.\nfn f() {\n    // SAFETY: g wants\n    // nothing.\n    let x =\n        unsafe { g() };\n}\n";
        assert!(rules("a/src/sys.rs", split).is_empty());
    }

    #[test]
    fn words_in_comments_and_strings_do_not_count() {
        assert!(
            rules(
                "a/src/x.rs",
                "//! unsafe code is elsewhere.\nconst X: &str = \"unsafe {}\";\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn a_stale_marker_is_found() {
        assert_eq!(
            rules("a/src/x.rs", "//! unsafe: once had a reason.\nfn f() {}\n"),
            ["unsafe-place"]
        );
    }
}
