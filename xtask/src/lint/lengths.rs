//! Files and functions of a size to read in one sitting, each file with a head that says what it is.

use proc_macro2::{Delimiter, TokenTree};

use super::tokens::{self, is_mark, is_word};
use super::tree::{head, marker};
use super::{Finding, Tree, finding};

const MAX_FILE_LINES: usize = 600;
const MAX_FN_LINES: usize = 80;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .flat_map(|(path, text)| check_file(path, text))
        .collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if head(text).next().is_none_or(str::is_empty) {
        let message =
            "no `//!` head: say in a line or two what this file is, and what it does not know";
        findings.push(finding("head", path, 1, message));
    }
    let stream = match tokens::parse(text) {
        Ok(stream) => stream,
        Err(message) => {
            findings.push(finding("parse", path, 1, message));
            return findings;
        }
    };
    if marker(text, "long").is_some() {
        return findings;
    }
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        let message = format!(
            "{lines} lines, more than {MAX_FILE_LINES}: split it, or state `//! long: WHY` at the head"
        );
        findings.push(finding("file-length", path, MAX_FILE_LINES, message));
    }
    tokens::walk(stream, &mut |level, index| {
        if let Some((name, first, last)) = function(level, index) {
            let lines = last - first + 1;
            if lines > MAX_FN_LINES {
                let message = format!("`{name}` has {lines} lines, more than {MAX_FN_LINES}");
                findings.push(finding("fn-length", path, first, message));
            }
        }
    });
    findings
}

/// Name, first and last line of the function that starts at this token.
fn function(level: &[TokenTree], index: usize) -> Option<(String, usize, usize)> {
    if !is_word(level.get(index), "fn") {
        return None;
    }
    let TokenTree::Ident(name) = level.get(index + 1)? else {
        return None;
    };
    for token in &level[index + 2..] {
        if let TokenTree::Group(group) = token
            && group.delimiter() == Delimiter::Brace
        {
            let last = group.span_close().start().line;
            return Some((name.to_string(), tokens::line(&level[index]), last));
        }
        if is_mark(Some(token), ';') {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<&'static str> {
        check(&Tree::of(&[("x.rs", text)]))
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn a_missing_head_is_found() {
        assert_eq!(rules("fn f() {}\n"), ["head"]);
        assert_eq!(rules("//!\nfn f() {}\n"), ["head"]);
        assert!(rules("//! Head.\nfn f() {}\n").is_empty());
    }

    #[test]
    fn a_long_file_is_found_unless_it_says_why() {
        let long = "// line\n".repeat(MAX_FILE_LINES);
        assert_eq!(rules(&format!("//! Head.\n{long}")), ["file-length"]);
        assert!(rules(&format!("//! Head.\n//! long: one table.\n{long}")).is_empty());
    }

    #[test]
    fn a_long_function_is_found_and_one_at_the_limit_is_not() {
        let body = |lines| format!("//! Head.\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines));
        assert!(rules(&body(MAX_FN_LINES - 2)).is_empty());
        assert_eq!(rules(&body(MAX_FN_LINES - 1)), ["fn-length"]);
    }

    #[test]
    fn what_is_not_rust_is_found() {
        assert_eq!(rules("//! Head.\nfn f( {}\n"), ["parse"]);
    }
}
