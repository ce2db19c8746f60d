//! Nothing unfinished, and nothing that only makes sense on one machine.

use super::tokens::{self, is_mark, is_word};
use super::{Finding, Tree, finding};

/// Macros that stand for missing code.
const UNFINISHED: [&str; 2] = ["todo", "unimplemented"];

/// Folders of one person's machine. Cut in two here, since this file is looked at as well.
const FOLDERS: [&str; 4] = [
    concat!("/ro", "ot"),
    concat!("/wo", "rk"),
    concat!("/ho", "me"),
    concat!("/Us", "ers"),
];

/// Hosts of package registries: a mirror's user has others.
const HOSTS: [&str; 9] = [
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("repo.maven", ".apache.org"),
];

/// Written by tools, with their own idea of addresses.
const GENERATED: [&str; 1] = ["Cargo.lock"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let Ok(stream) = tokens::parse(text) else {
            continue;
        };
        tokens::walk(stream, &mut |level, index| {
            for name in UNFINISHED {
                if is_word(level.get(index), name) && is_mark(level.get(index + 1), '!') {
                    let message = format!("`{name}!` stands for missing code");
                    findings.push(finding(
                        "unfinished",
                        path,
                        tokens::line(&level[index]),
                        message,
                    ));
                }
            }
        });
    }
    for (path, text) in tree.files() {
        if GENERATED
            .iter()
            .any(|name| path == *name || path.ends_with(&format!("/{name}")))
        {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let folder = FOLDERS.iter().find(|folder| names_folder(line, folder));
            let host = HOSTS.iter().find(|host| line.contains(*host));
            if let Some(found) = folder.or(host) {
                let message =
                    format!("`{found}` belongs to one machine or mirror: say it otherwise");
                findings.push(finding("one-machine", path, index + 1, message));
            }
        }
    }
    findings
}

/// Whether the line has the folder as the start of an absolute path.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && !"_-./})>]*~$".contains(c));
        starts && after == Some('/')
    })
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
    fn missing_code_is_found_and_words_about_it_are_not() {
        assert_eq!(rules("x.rs", "fn f() { todo!() }"), ["unfinished"]);
        assert_eq!(
            rules("x.rs", "fn f() { unimplemented!(\"x\") }"),
            ["unfinished"]
        );
        assert!(rules("x.rs", "// todo!()\nfn todo() {}").is_empty());
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_file() {
        for folder in FOLDERS {
            assert_eq!(rules("a.md", &format!("see `{folder}/x`")), ["one-machine"]);
            assert_eq!(
                rules("a.py", &format!("open(\"{folder}/x\")")),
                ["one-machine"]
            );
            assert!(rules("a.md", &format!("see target{folder}/x or ..{folder}/x")).is_empty());
        }
    }

    #[test]
    fn a_registry_host_is_found_except_in_the_lock_file() {
        let line = format!("https://{}/simple", HOSTS[2]);
        assert_eq!(rules("a.toml", &line), ["one-machine"]);
        assert!(rules("Cargo.lock", &line).is_empty());
        assert!(rules("fuzz/Cargo.lock", &line).is_empty());
    }
}
