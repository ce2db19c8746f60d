//! Every `.rs` file is reached from a crate's root by `mod` or `include!`: the rest is dead text.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::tokens::{self, is_mark, is_word, string};
use super::{Finding, Tree, finding};

/// `roots`: the files that cargo compiles by itself (libraries, binaries, tests, benches).
pub(super) fn check(tree: &Tree, roots: &[String]) -> Vec<Finding> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<(String, bool)> = roots.iter().map(|root| (root.clone(), true)).collect();
    while let Some((path, is_root)) = waiting.pop() {
        let Some(text) = tree.get(&path) else {
            continue;
        };
        if reached.insert(path.clone())
            && let Ok(stream) = tokens::parse(text)
        {
            let (folder, file) = path.rsplit_once('/').unwrap_or(("", &path));
            let stem = file.trim_end_matches(".rs");
            let base = if is_root || stem == "mod" {
                folder.into()
            } else {
                join(folder, stem)
            };
            let mut found = Vec::new();
            modules(stream, folder, &base, &mut found);
            waiting.extend(found.into_iter().map(|path| (path, false)));
        }
    }
    tree.rust()
        .filter(|(path, _)| !reached.contains(*path))
        .map(|(path, _)| {
            let message = "no `mod` or target reaches this file: declare it or delete it";
            finding("orphan", path, 1, message)
        })
        .collect()
}

/// Adds every path that a `mod` or `include!` on this level or below may mean.
fn modules(stream: TokenStream, folder: &str, base: &str, found: &mut Vec<String>) {
    let level: Vec<TokenTree> = stream.into_iter().collect();
    let mut path_attribute = None;
    for (index, token) in level.iter().enumerate() {
        if is_mark(Some(token), '#')
            && let Some(TokenTree::Group(group)) = level.get(index + 1)
        {
            path_attribute = path_attribute.or_else(|| path_of(group.stream()));
        } else if is_word(Some(token), "mod")
            && let Some(TokenTree::Ident(name)) = level.get(index + 1)
        {
            let name = name.to_string();
            if let Some(path) = path_attribute.take() {
                found.push(join(folder, &path));
            } else {
                found.push(join(base, &format!("{name}.rs")));
                found.push(join(base, &format!("{name}/mod.rs")));
            }
        } else if is_word(Some(token), "include")
            && is_mark(level.get(index + 1), '!')
            && let Some(TokenTree::Group(group)) = level.get(index + 2)
        {
            let first = group.stream().into_iter().next();
            found.extend(string(first.as_ref()).map(|path| join(folder, &path)));
        } else if let TokenTree::Group(group) = token {
            let named = index
                .checked_sub(2)
                .filter(|at| is_word(level.get(*at), "mod"));
            let inner = match (named, level.get(index.wrapping_sub(1))) {
                (Some(_), Some(TokenTree::Ident(name))) => join(base, &name.to_string()),
                _ => base.to_string(),
            };
            modules(group.stream(), folder, &inner, found);
            if group.delimiter() == Delimiter::Brace {
                path_attribute = None;
            }
        } else if is_mark(Some(token), ';') {
            path_attribute = None;
        }
    }
}

/// The path in `path = "…"`, the inside of an attribute.
fn path_of(attribute: TokenStream) -> Option<String> {
    let tokens: Vec<TokenTree> = attribute.into_iter().collect();
    let is_path = is_word(tokens.first(), "path") && is_mark(tokens.get(1), '=');
    if is_path { string(tokens.get(2)) } else { None }
}

/// Joins and resolves `..`, so that the result is a key of the tree.
pub(super) fn join(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphans(files: &[(&str, &str)]) -> Vec<String> {
        let roots = ["a/src/lib.rs".to_string()];
        check(&Tree::of(files), &roots)
            .into_iter()
            .map(|finding| finding.file)
            .collect()
    }

    #[test]
    fn an_undeclared_file_is_found() {
        let files = [
            ("a/src/lib.rs", "mod x;"),
            ("a/src/x.rs", ""),
            ("a/src/y.rs", ""),
        ];
        assert_eq!(orphans(&files), ["a/src/y.rs"]);
    }

    #[test]
    fn a_commented_declaration_does_not_count() {
        assert_eq!(
            orphans(&[("a/src/lib.rs", "// mod x;"), ("a/src/x.rs", "")]),
            ["a/src/x.rs"]
        );
    }

    #[test]
    fn nested_inline_path_and_include_are_followed() {
        let files = [
            (
                "a/src/lib.rs",
                "#[cfg(x)] pub(crate) mod x; mod i { mod deep; } mod m;",
            ),
            ("a/src/x.rs", "mod y; #[path = \"../odd/place.rs\"] mod z;"),
            ("a/src/x/y.rs", "include!(\"part.rs\");"),
            ("a/src/x/part.rs", ""),
            ("a/odd/place.rs", ""),
            ("a/src/i/deep.rs", ""),
            ("a/src/m/mod.rs", "mod n;"),
            ("a/src/m/n.rs", ""),
        ];
        assert_eq!(orphans(&files), Vec::<String>::new());
    }

    #[test]
    fn a_declaration_in_a_macro_counts() {
        let files = [
            ("a/src/lib.rs", "cfg_if! { if #[cfg(x)] { mod x; } }"),
            ("a/src/x.rs", ""),
        ];
        assert_eq!(orphans(&files), Vec::<String>::new());
    }
}
