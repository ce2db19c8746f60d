//! Builds `ubcp`, runs it, and reads what `--json` says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{repo, run};

/// One load, as `ubcp --json` reports it. Fields that a version lacks stay at their default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: CpuSeconds,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) via: String,
    pub(crate) route_bytes: BTreeMap<String, u64>,
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) verified: Option<bool>,
}

/// CPU time of the whole process, all threads.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CpuSeconds {
    pub(crate) user: f64,
    pub(crate) sys: f64,
}

/// Why something better was not done, and how often.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fallback {
    pub(crate) reason: String,
    pub(crate) count: u64,
}

impl Report {
    /// What carried the bytes: `direct`, or `cached+direct` where two routes did.
    pub(crate) fn routes(&self) -> String {
        let used = self.route_bytes.iter().filter(|(_, bytes)| **bytes > 0);
        used.map(|(route, _)| route.as_str())
            .collect::<Vec<_>>()
            .join("+")
    }
}

/// Builds the release binary, showing cargo's progress, and gives its path.
pub(crate) fn build() -> Result<PathBuf> {
    run::visible(&mut build_command()).context("ubcp does not build")?;
    built()
}

/// Builds the release binary without a word, unless it fails.
pub(crate) fn build_quietly() -> Result<PathBuf> {
    run::captured(&mut build_command()).context("ubcp does not build")?;
    built()
}

fn build_command() -> Command {
    let mut command = run::cargo();
    command.args(["build", "--release", "--package", "ubcp"]);
    command
}

fn built() -> Result<PathBuf> {
    let path = target_folder()?.join("release/ubcp");
    anyhow::ensure!(path.is_file(), "cargo built no {}", repo::shown(&path));
    Ok(path)
}

fn target_folder() -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(repo::root())
        .no_deps()
        .exec()
        .context("cargo metadata failed")?;
    Ok(metadata.target_directory.into_std_path_buf())
}

/// Runs `ubcp OPTIONS --json SRC DST`; the last object where `--repeat` gives several.
pub(crate) fn load(
    ubcp: &Path,
    options: &[&str],
    source: &Path,
    destination: &str,
) -> Result<Report> {
    let mut command = load_command(ubcp, options, source, destination);
    let finished = run::captured(&mut command)?;
    parse(&finished.stdout).with_context(|| format!("`{}` printed no report", run::typed(&command)))
}

/// `ubcp OPTIONS --json SRC DST`, not yet started.
pub(crate) fn load_command(
    ubcp: &Path,
    options: &[&str],
    source: &Path,
    destination: &str,
) -> Command {
    let mut command = Command::new(ubcp);
    command
        .args(options)
        .arg("--json")
        .arg(source)
        .arg(destination);
    command
}

/// Reads an object, or the last of an array of them.
pub(crate) fn parse(text: &str) -> Result<Report> {
    let value: serde_json::Value = serde_json::from_str(text)?;
    let last = match value {
        serde_json::Value::Array(mut all) => all.pop().context("an empty array")?,
        other => other,
    };
    Ok(serde_json::from_value(last)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_object_and_the_last_of_an_array() {
        let one = r#"{"bytes":5,"seconds":0.5,"cpu_seconds":{"user":0.1,"sys":0.2},
            "route_bytes":{"direct":5,"cached":0},"verified":true,"later":"field"}"#;
        let report = parse(one).unwrap();
        assert_eq!((report.bytes, report.verified), (5, Some(true)));
        assert_eq!(report.routes(), "direct");
        let two = format!("[{}, {one}]", one.replace("true", "false"));
        assert_eq!(parse(&two).unwrap().verified, Some(true));
        assert!(parse("[]").is_err());
    }
}
