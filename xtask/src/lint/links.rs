//! Links between the documents lead somewhere: files exist, headings are there.

use super::orphans::join;
use super::{Finding, Tree, finding};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in links(text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains(':') {
                continue;
            }
            let wanted = if file.is_empty() {
                path.to_string()
            } else {
                join(folder, file)
            };
            if !wanted.is_empty() && !tree.has(&wanted) {
                findings.push(finding("links", path, line, format!("no {wanted} here")));
            } else if let Some(text) = tree.get(&wanted).filter(|_| !anchor.is_empty())
                && wanted.ends_with(".md")
                && !headings(text).any(|heading| heading == anchor)
            {
                let message = format!("{wanted} has no heading for #{anchor}");
                findings.push(finding("links", path, line, message));
            }
        }
    }
    findings
}

/// Line number and target of every inline link outside code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        // Every other part lies between backticks.
        for part in line
            .split('`')
            .step_by(2)
            .flat_map(|part| part.split("](").skip(1))
        {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            found.push((index + 1, target));
        }
        // A link whose text is code has its target after a backtick.
        for part in line.split("`](").skip(1) {
            found.push((index + 1, part.split([')', ' ']).next().unwrap_or_default()));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The anchors of the headings, as GitHub makes them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files))
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_dead_link_is_found() {
        assert_eq!(
            messages(&[("README.md", "see [that](docs/x.md)")]),
            ["no docs/x.md here"]
        );
        assert_eq!(
            messages(&[("README.md", "see [`x`](x.rs)")]),
            ["no x.rs here"]
        );
        let dead = [("README.md", "[a](B.md#none)"), ("B.md", "# Some\n")];
        assert_eq!(messages(&dead), ["B.md has no heading for #none"]);
    }

    #[test]
    fn living_links_code_and_the_web_are_fine() {
        let text = "[a](B.md#the-head-of-it) [b](dir) [w](https://example.invalid) `[c](gone)`\n\
                    ```\n[d](gone)\n```\n[self](#own)\n# Own\n";
        let files = [
            ("README.md", text),
            ("B.md", "## The head, of it\n"),
            ("dir/x.rs", ""),
        ];
        assert_eq!(messages(&files), Vec::<String>::new());
    }
}
