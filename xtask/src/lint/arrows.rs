//! Which crate may use which: arrows point one way, and terminals and plots stay out of libraries.

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};

use super::tokens::{self, is_word};
use super::{Finding, Tree, finding};
use crate::repo;

/// The workspace as the rules see it.
#[derive(Debug)]
pub(super) struct Workspace {
    packages: Vec<Package>,
    /// Every file that cargo compiles by itself, relative to the root.
    pub(super) roots: Vec<String>,
}

/// One crate and what it names in its manifest.
#[derive(Debug)]
struct Package {
    name: String,
    manifest: String,
    manifest_text: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    dev: bool,
    ours: bool,
}

/// Our crates that each of our crates may use. Tests may also use the testkit.
const ARROWS: [(&str, &[&str]); 11] = [
    ("fs-adapter", &[]),
    ("nvme-sys", &[]),
    ("nvme", &["nvme-sys"]),
    ("nvme-emulator", &["nvme", "nvme-sys"]),
    ("ubio-core", &[]),
    (
        "ubio",
        &[
            "fs-adapter",
            "nvme",
            "nvme-emulator",
            "nvme-sys",
            "ubio-core",
        ],
    ),
    (
        "ubio-testkit",
        &["fs-adapter", "nvme", "nvme-emulator", "ubio", "ubio-core"],
    ),
    (
        "ubio-benches",
        &[
            "fs-adapter",
            "nvme",
            "nvme-emulator",
            "nvme-sys",
            "ubio",
            "ubio-core",
            "ubio-testkit",
        ],
    ),
    ("ubio-lab-spec", &[]),
    (
        "ubio-lab",
        &[
            "fs-adapter",
            "nvme",
            "nvme-sys",
            "ubio",
            "ubio-core",
            "ubio-lab-spec",
            "ubio-testkit",
        ],
    ),
    ("xtask", &["ubio-lab-spec"]),
];

/// Programs and bindings, by the folder they lie in, and what they may use.
const PROGRAM_FOLDERS: [&str; 2] = ["examples/", "python/"];
const PROGRAMS_USE: [&str; 2] = ["fs-adapter", "ubio"];

/// For tests only, so cycles through it are fine.
const FOR_TESTS: [&str; 2] = ["nvme-emulator", "ubio-testkit"];

/// Crates that draw: on terminals, or plots.
const DRAWING: [&str; 16] = [
    "anstream",
    "colored",
    "comfy-table",
    "console",
    "crossterm",
    "dialoguer",
    "indicatif",
    "nu-ansi-term",
    "owo-colors",
    "plotters",
    "prettytable",
    "ratatui",
    "tabled",
    "termcolor",
    "termion",
    "textplots",
];

/// What a core without syscalls, clocks and threads has no use for.
const NOT_IN_CORE: [&str; 10] = [
    "crossbeam",
    "io-uring",
    "libc",
    "memmap2",
    "mio",
    "nix",
    "parking_lot",
    "rayon",
    "rustix",
    "tokio",
];

impl Workspace {
    /// Asks cargo; manifests outside the workspace (fuzz targets) add roots only.
    pub(super) fn load(tree: &Tree) -> Result<Self> {
        let root = repo::root();
        let metadata = MetadataCommand::new()
            .current_dir(&root)
            .no_deps()
            .exec()
            .context("cargo metadata failed")?;
        let relative = |path: &cargo_metadata::camino::Utf8Path| {
            path.strip_prefix(&metadata.workspace_root)
                .unwrap_or(path)
                .to_string()
        };
        let mut roots = Vec::new();
        let mut packages = Vec::new();
        for package in metadata.workspace_packages() {
            roots.extend(
                package
                    .targets
                    .iter()
                    .map(|target| relative(&target.src_path)),
            );
            let manifest = relative(&package.manifest_path);
            packages.push(Package {
                name: package.name.to_string(),
                manifest_text: tree.get(&manifest).unwrap_or_default().to_string(),
                manifest,
                dependencies: package
                    .dependencies
                    .iter()
                    .map(|dependency| Dependency {
                        name: dependency.name.clone(),
                        dev: dependency.kind == DependencyKind::Development,
                        ours: dependency.path.is_some(),
                    })
                    .collect(),
            });
        }
        let known: Vec<&str> = packages
            .iter()
            .map(|package| package.manifest.as_str())
            .collect();
        for (path, text) in tree
            .files()
            .filter(|(path, _)| path.ends_with("Cargo.toml"))
        {
            if path != "Cargo.toml" && !known.contains(&path) {
                roots.extend(outside_roots(path, text));
            }
        }
        Ok(Self { packages, roots })
    }
}

/// The targets of a manifest that is not in the workspace.
fn outside_roots(manifest: &str, text: &str) -> Vec<String> {
    let folder = manifest.rsplit_once('/').map_or("", |(folder, _)| folder);
    let named = text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        let path = value.trim().strip_prefix('"')?.strip_suffix('"')?;
        (key.trim() == "path" && path.ends_with(".rs")).then_some(path)
    });
    named
        .chain(["src/main.rs", "src/lib.rs", "build.rs"])
        .map(|path| super::orphans::join(folder, path))
        .collect()
}

pub(super) fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace.packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |rule, message: String| {
        findings.push(finding(rule, &package.manifest, 1, message));
    };
    let is_program = PROGRAM_FOLDERS
        .iter()
        .any(|folder| package.manifest.starts_with(folder));
    let allowed = ARROWS
        .iter()
        .find(|(name, _)| *name == package.name)
        .map(|(_, uses)| *uses)
        .or(is_program.then_some(&PROGRAMS_USE[..]));
    let Some(allowed) = allowed else {
        let message = "a crate that the arrows do not know: add it to xtask/src/lint/arrows.rs";
        found("arrows", message.into());
        return findings;
    };
    let may_draw = package.manifest.starts_with("examples/") || package.name == "xtask";
    for dependency in &package.dependencies {
        let name = dependency.name.as_str();
        let through_tests = dependency.dev && FOR_TESTS.contains(&name);
        if dependency.ours && !allowed.contains(&name) && !through_tests {
            found("arrows", format!("{} must not use {name}", package.name));
        }
        if DRAWING.contains(&name) && !may_draw {
            let message = format!("{name} draws on terminals or plots: examples/ and xtask/ only");
            found("drawing", message);
        }
        if package.name == "ubio-core" && !dependency.dev && NOT_IN_CORE.contains(&name) {
            found(
                "core-is-pure",
                format!("the core decides and does nothing else: no {name}"),
            );
        }
    }
    if !inherits_lints(&package.manifest_text) {
        found("workspace-lints", "add `[lints] workspace = true`".into());
    }
    findings
}

fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]");
    lines.next().is_some()
        && lines
            .take_while(|line| !line.starts_with('['))
            .any(|l| l == "workspace = true")
}

/// The core is `no_std`, and does not fetch `std` back in.
pub(super) fn check_core(tree: &Tree) -> Vec<Finding> {
    const ROOT: &str = "ubio/core/src/lib.rs";
    let Some(text) = tree.get(ROOT) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let attributes = ["#![no_std]", "#![cfg_attr(not(test), no_std)]"];
    if !text.lines().any(|line| attributes.contains(&line.trim())) {
        let message = "the core must be `#![no_std]`: no I/O, no clock, no threads";
        findings.push(finding("core-is-pure", ROOT, 1, message));
    }
    for (path, text) in tree
        .rust()
        .filter(|(path, _)| path.starts_with("ubio/core/src/"))
    {
        let Ok(stream) = tokens::parse(text) else {
            continue;
        };
        tokens::walk(stream, &mut |level, index| {
            let fetched = is_word(level.get(index), "extern")
                && is_word(level.get(index + 1), "crate")
                && is_word(level.get(index + 2), "std");
            // Line by line, so `#[cfg(test)] extern crate std;` is two lines or one; both are fine.
            let line = tokens::line(&level[index]);
            let above = line.saturating_sub(2);
            let tests = text
                .lines()
                .skip(above)
                .take(2)
                .any(|l| l.contains("cfg(test)"));
            if fetched && !tests {
                let message = "`extern crate std` brings back what no_std keeps out";
                findings.push(finding("core-is-pure", path, line, message));
            }
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[package]\n[lints]\nworkspace = true\n";

    fn rules(name: &str, manifest: &str, dependencies: &[(&str, bool, bool)]) -> Vec<&'static str> {
        let package = Package {
            name: name.into(),
            manifest: manifest.into(),
            manifest_text: LINTS.into(),
            dependencies: dependencies
                .iter()
                .map(|(name, dev, ours)| Dependency {
                    name: (*name).into(),
                    dev: *dev,
                    ours: *ours,
                })
                .collect(),
        };
        check_package(&package)
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn an_arrow_against_the_stream_is_found() {
        assert_eq!(
            rules(
                "fs-adapter",
                "fs-adapter/Cargo.toml",
                &[("ubio", false, true)]
            ),
            ["arrows"]
        );
        assert_eq!(
            rules("nvme", "nvme/Cargo.toml", &[("fs-adapter", false, true)]),
            ["arrows"]
        );
        assert_eq!(
            rules(
                "ubio-core",
                "ubio/core/Cargo.toml",
                &[("fs-adapter", true, true)]
            ),
            ["arrows"]
        );
        assert_eq!(
            rules(
                "ubcp",
                "examples/ubcp/Cargo.toml",
                &[("ubio-core", false, true)]
            ),
            ["arrows"]
        );
        let spec = |name| {
            rules(
                "ubio-lab-spec",
                "lab/spec/Cargo.toml",
                &[(name, false, true)],
            )
        };
        assert_eq!(spec("ubio"), ["arrows"]);
        let host = |name| rules("xtask", "xtask/Cargo.toml", &[(name, false, true)]);
        assert_eq!(host("ubio"), ["arrows"]);
        assert!(host("ubio-lab-spec").is_empty());
        let guest = |name| rules("ubio-lab", "lab/guest/Cargo.toml", &[(name, false, true)]);
        assert!(guest("nvme").is_empty());
        assert_eq!(guest("nvme-emulator"), ["arrows"]);
        assert!(rules("ubio", "ubio/Cargo.toml", &[("fs-adapter", false, true)]).is_empty());
        assert!(rules("ubcp", "examples/ubcp/Cargo.toml", &[("ubio", false, true)]).is_empty());
    }

    #[test]
    fn what_is_for_tests_is_for_tests() {
        for name in FOR_TESTS {
            let uses = |dev| rules("nvme", "nvme/Cargo.toml", &[(name, dev, true)]);
            assert!(uses(true).is_empty());
            assert_eq!(uses(false), ["arrows"]);
        }
    }

    #[test]
    fn an_unknown_crate_is_found() {
        assert_eq!(rules("surprise", "surprise/Cargo.toml", &[]), ["arrows"]);
    }

    #[test]
    fn a_progress_bar_in_a_library_is_found() {
        let bar = [("indicatif", false, false)];
        assert_eq!(rules("ubio", "ubio/Cargo.toml", &bar), ["drawing"]);
        assert!(rules("ubcp", "examples/ubcp/Cargo.toml", &bar).is_empty());
    }

    #[test]
    fn a_syscall_crate_in_the_core_is_found() {
        let libc = [("libc", false, false)];
        assert_eq!(
            rules("ubio-core", "ubio/core/Cargo.toml", &libc),
            ["core-is-pure"]
        );
        assert!(rules("ubio", "ubio/Cargo.toml", &libc).is_empty());
    }

    #[test]
    fn a_crate_with_lints_of_its_own_is_found() {
        assert!(inherits_lints(LINTS));
        assert!(!inherits_lints(
            "[package]\n[lints.rust]\nworkspace = true\n"
        ));
        assert!(!inherits_lints(
            "[package]\n[lints]\n[dependencies]\nworkspace = true\n"
        ));
    }

    #[test]
    fn std_in_the_core_is_found() {
        let core = |text: &str| check_core(&Tree::of(&[("ubio/core/src/lib.rs", text)])).len();
        assert_eq!(core("//! Head.\n"), 1);
        assert_eq!(core("//! Head.\n#![no_std]\n"), 0);
        assert_eq!(core("//! Head.\n#![no_std]\nextern crate std;\n"), 1);
        assert_eq!(
            core("//! Head.\n#![no_std]\n#[cfg(test)]\nextern crate std;\n"),
            0
        );
    }

    #[test]
    fn fuzz_manifests_give_their_targets() {
        let text = "[[bin]]\nname = \"a\"\npath = \"fuzz_targets/a.rs\"\n[dependencies.x]\npath = \"..\"\n";
        let roots = outside_roots("fs-adapter/fuzz/Cargo.toml", text);
        assert!(roots.contains(&"fs-adapter/fuzz/fuzz_targets/a.rs".to_string()));
    }
}
