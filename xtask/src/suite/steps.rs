//! The steps of `cargo xtask test`, in order: cheap and likely to fail first.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Counts, Outcome, Suite, interop};
use crate::{apt, lab, lint, repo, run};

/// The version that `cargo xtask test` installs where there is none.
const CARGO_DENY: &str = "cargo-deny@^0.20";
const CARGO_FUZZ: &str = "cargo-fuzz@^0.13";

const SEEDS: &str = "100000";
const SEEDS_FULL: &str = "1000000";
const SEEDS_NVME: &str = "20000";
/// About eight minutes of two threads.
const SEEDS_NVME_FULL: &str = "1000000";
const FUZZ_SECONDS: u32 = 300;

pub(super) fn all(suite: &mut Suite, full: bool) {
    suite.step("programs", |_| {
        Ok(match apt::ensure(&apt::PROGRAMS) {
            Ok(_) => Outcome::Done(Counts::one(true)),
            Err(error) => Outcome::Skipped(format!("{error:#}")),
        })
    });
    suite.step("format", |suite| {
        suite.passes("format", run::cargo().args(["fmt", "--all", "--check"]))
    });
    suite.step("lint", |_| {
        let (findings, _) = lint::check()?;
        findings.iter().for_each(|finding| println!("{finding}"));
        Ok(Outcome::Done(Counts::one(findings.is_empty())))
    });
    suite.step("clippy", |suite| {
        let arguments = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        suite.passes("clippy", run::cargo().args(arguments))
    });
    suite.step("deny", deny);
    suite.step("tests", tests);
    suite.step("doc tests", |suite| {
        let logged = suite.logged(
            "doc-tests",
            run::cargo().args(["test", "--workspace", "--doc"]),
        )?;
        Ok(Outcome::Done(Counts::of_tests(
            &logged.text,
            logged.success,
        )))
    });
    suite.step("docs", |suite| {
        let mut docs = run::cargo();
        docs.args(["doc", "--workspace", "--no-deps"]);
        suite.passes("docs", docs.env("RUSTDOCFLAGS", "-D warnings"))
    });
    suite.step("simulator", |suite| simulator(suite, &[], SEEDS));
    suite.step("simulator over NVMe", |suite| {
        simulator(suite, &NVME, SEEDS_NVME)
    });
    suite.step("simulator's teeth", planted);
    suite.step("instructions", |suite| {
        if run::which("valgrind").is_none() {
            return Ok(Outcome::Skipped("valgrind is not installed".into()));
        }
        let arguments = [
            "bench",
            "--package",
            "ubio-benches",
            "--bench",
            "instructions",
        ];
        suite.passes("instructions", run::cargo().args(arguments))
    });
    suite.step("interop", interop::run);
    suite.step("lab", |suite| lab(suite, full));
    if full {
        suite.step("simulator, full", |suite| simulator(suite, &[], SEEDS_FULL));
        suite.step("simulator over NVMe, full", |suite| {
            simulator(suite, &NVME, SEEDS_NVME_FULL)
        });
        suite.step("fuzz", fuzz);
    }
}

fn tests(suite: &Suite) -> Result<Outcome> {
    let nextest = run::captured(run::cargo().args(["nextest", "--version"])).is_ok();
    let arguments: &[&str] = if nextest {
        &["nextest", "run", "--workspace", "--no-fail-fast"]
    } else {
        &[
            "test",
            "--workspace",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
        ]
    };
    let logged = suite.logged("tests", run::cargo().args(arguments))?;
    Ok(Outcome::Done(Counts::of_tests(
        &logged.text,
        logged.success,
    )))
}

/// The simulator that runs over an emulated controller.
const NVME: [&str; 1] = ["--nvme"];

fn simulator(suite: &Suite, which: &[&str], seeds: &str) -> Result<Outcome> {
    let arguments = [
        "run",
        "--release",
        "--package",
        "ubio-testkit",
        "--bin",
        "ubio-sim",
        "--",
    ];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = run::cargo();
    command.args(arguments).args(which);
    command.args(["--seeds", seeds, "--threads", &threads.to_string()]);
    suite.passes(
        &["simulator", which.concat().as_str()].concat(),
        &mut command,
    )
}

/// Every bug planted must be found: a check that lost its hook would be silent.
fn planted(suite: &Suite) -> Result<Outcome> {
    let arguments = [
        "run",
        "--release",
        "--package",
        "ubio-testkit",
        "--features",
        "planted-bugs",
        "--bin",
        "ubio-sim",
        "--",
        "--plant",
        "all",
    ];
    let mut counts = Counts::default();
    for which in [&[][..], &NVME] {
        let mut command = run::cargo();
        command.args(arguments).args(which);
        let log = ["planted", which.concat().as_str()].concat();
        counts += Counts::one(suite.logged(&log, &mut command)?.success);
    }
    Ok(Outcome::Done(counts))
}

/// Licences, banned crates and sources. Advisories need a database from the network: not here.
fn deny(suite: &Suite) -> Result<Outcome> {
    let deny = match tool("cargo-deny", CARGO_DENY) {
        Ok(path) => path,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    // Offline, it still reads the manifests of crates that only other systems need.
    run::captured(run::cargo().args(["fetch", "--quiet"]))?;
    let mut command = Command::new(deny);
    command
        .current_dir(repo::root())
        .args(["--offline", "--all-features", "check"]);
    suite.passes("deny", command.args(["licenses", "bans", "sources"]))
}

/// A cargo subcommand's binary: on `PATH`, in `.xtask/tools`, or built into it now.
fn tool(name: &str, package: &str) -> Result<std::path::PathBuf> {
    let tools = repo::scratch("tools")?;
    let ours = tools.join("bin").join(name);
    if let Some(path) = run::which(name).or_else(|| ours.is_file().then(|| ours.clone())) {
        return Ok(path);
    }
    let mut command = run::cargo();
    command
        .args(["install", "--quiet", "--locked", package, "--root"])
        .arg(&tools);
    run::captured(&mut command).with_context(|| format!("cannot build {package} (no network?)"))?;
    Ok(ours)
}

/// A real kernel on an emulated machine. A failure shows everything, success nothing.
fn lab(suite: &Suite, full: bool) -> Result<Outcome> {
    if let Err(error) = lab::ensure_possible() {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let mut said = Vec::new();
    let counts = lab::all(full, &mut |line| said.push(line.to_string()));
    let text = said.join("\n") + "\n";
    std::fs::write(suite.logs.join("lab.log"), &text)?;
    if !counts.as_ref().is_ok_and(|counts| counts.failed == 0) {
        print!("{text}");
    }
    Ok(Outcome::Done(counts?))
}

/// Workspaces of fuzz targets.
const FUZZ_FOLDERS: [&str; 2] = ["fs-adapter/fuzz", "nvme/fuzz"];

/// Every fuzz target for a while, from its seeds and the corpus that earlier runs left.
fn fuzz(suite: &Suite) -> Result<Outcome> {
    let cargo_fuzz = match tool("cargo-fuzz", CARGO_FUZZ) {
        Ok(path) => path,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    let mut counts = Counts::default();
    for folder in FUZZ_FOLDERS {
        counts += fuzz_folder(suite, &cargo_fuzz, &repo::root().join(folder))?;
    }
    Ok(Outcome::Done(counts))
}

fn fuzz_folder(suite: &Suite, cargo_fuzz: &Path, folder: &Path) -> Result<Counts> {
    let fuzz = |arguments: &[&str]| {
        let mut command = Command::new(cargo_fuzz);
        // Sanitizers are unstable options of a stable compiler.
        command.env("RUSTC_BOOTSTRAP", "1").current_dir(folder);
        // Memory that a device may still write is never freed, on purpose.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command.arg("fuzz").args(arguments);
        command
    };
    let listed = run::captured(&mut fuzz(&["list"]))?.stdout;
    let mut counts = Counts::default();
    for target in listed.lines() {
        let (corpus, seeds) = (format!("corpus/{target}"), format!("seeds/{target}"));
        std::fs::create_dir_all(folder.join(&corpus))?;
        let mut command = fuzz(&["run", target, &corpus]);
        if folder.join(&seeds).is_dir() {
            command.arg(seeds);
        }
        command.args(["--", &format!("-max_total_time={FUZZ_SECONDS}")]);
        counts += Counts::one(
            suite
                .logged(&format!("fuzz-{target}"), &mut command)?
                .success,
        );
    }
    Ok(counts)
}
