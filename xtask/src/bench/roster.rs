//! Who takes part in a comparison, and how each is run and read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{fio, repo, run, ubcp};

/// One run of one contender.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// What it moved, by its own count.
    pub(crate) bytes: u64,
    /// Its own measure: the load alone, without imports and start-up.
    pub(crate) seconds: f64,
    /// From exec to exit, everything included.
    pub(crate) process_seconds: f64,
    pub(crate) cpu_user_s: f64,
    pub(crate) cpu_sys_s: f64,
    /// Beyond what the process had before it began to load.
    pub(crate) peak_rss_bytes: u64,
}

impl Sample {
    pub(crate) fn rate(&self) -> f64 {
        repo::rate_gib(self.bytes, self.seconds)
    }

    pub(crate) fn cpu_s_per_gib(&self) -> f64 {
        let gib = repo::rate_gib(self.bytes, 1.0);
        if gib > 0.0 {
            (self.cpu_user_s + self.cpu_sys_s) / gib
        } else {
            0.0
        }
    }
}

/// How a contender is run.
#[derive(Clone, Debug)]
pub(crate) enum How {
    Fio(fio::Config),
    Ubcp(&'static [&'static str]),
    /// The same with destination and windows on reserved huge pages, which were touched once.
    UbcpReserved(&'static [&'static str]),
    /// A subcommand of `xtask contender`, and its options.
    Own(&'static [&'static str]),
    /// The same on reserved huge pages.
    OwnReserved(&'static [&'static str]),
    /// A program that prints one JSON line, as `benches/peers/common.py` describes it.
    Peer {
        program: PathBuf,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
        /// What it loads, where that is a conversion of the subject.
        source: Option<PathBuf>,
    },
}

/// One side of the comparison.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) how: How,
}

impl Contender {
    pub(crate) fn new(name: impl Into<String>, how: How) -> Self {
        Self {
            name: name.into(),
            how,
        }
    }

    pub(crate) fn fio(config: fio::Config) -> Self {
        Self::new(format!("fio, {config}"), How::Fio(config))
    }
}

/// The engine's ways, cold: from storage.
pub(crate) const UBCP_COLD: [(&str, &[&str]); 7] = [
    ("ubcp --via ub", &["--via", "ub"]),
    ("ubcp --via in-place", &["--via", "in-place"]),
    ("ubcp --via auto", &["--via", "auto"]),
    ("ubcp --via ub --prefault", &["--via", "ub", "--prefault"]),
    (
        "ubcp --via in-place --prefault",
        &["--via", "in-place", "--prefault"],
    ),
    ("ubcp --via map", &["--via", "map"]),
    (
        "ubcp --via ub --route traditional",
        &["--via", "ub", "--route", "traditional"],
    ),
];

/// Those whose destination's page faults vary least: the host of a virtual machine leaves
/// reserved pages alone.
pub(crate) const UBCP_RESERVED: [(&str, &[&str]); 2] = [
    ("ubcp --via ub, reserved huge pages", &["--via", "ub"]),
    (
        "ubcp --via in-place, reserved huge pages",
        &["--via", "in-place"],
    ),
];

/// The engine's ways, warm: the page cache holds the files.
pub(crate) const UBCP_WARM: [(&str, &[&str]); 6] = [
    ("ubcp --via ub", &["--via", "ub"]),
    ("ubcp --via in-place", &["--via", "in-place"]),
    ("ubcp --via auto", &["--via", "auto"]),
    ("ubcp --via map", &["--via", "map"]),
    (
        "ubcp --via ub --route cached",
        &["--via", "ub", "--route", "cached"],
    ),
    (
        "ubcp --via ub --route traditional",
        &["--via", "ub", "--route", "traditional"],
    ),
];

/// The one that users get without options; peers are compared with it.
pub(crate) const OURS: &str = "ubcp --via auto";

/// Plain buffered reads into fresh memory.
pub(crate) const BUFFERED: &str = "buffered read, fresh memory";

/// The least that filling memory of one's own takes here, on either size of page.
pub(crate) const FLOORS_WARM: [(&str, &[&str]); 2] = [
    ("floor: fault in, then copy, on all cores", &["floor"]),
    ("floor on transparent huge pages", &["floor", "--huge"]),
];

/// The same from storage: through buffers, and in place.
pub(crate) const FLOORS_COLD: [(&str, &[&str]); 2] = [
    ("floor: read, fault, copy", &["floor-buffers"]),
    ("floor: fault, read in place", &["floor-in-place"]),
];

/// What a way through windows has to pay beyond one in place.
pub(crate) const MEMCPY: (&str, &[&str]) = ("memcpy, memory faulted in", &["memcpy"]);

pub(crate) const FLOORS_RESERVED: [(&str, &[&str]); 2] = [
    (
        "floor: read, fault, copy, reserved huge pages",
        &["floor-buffers"],
    ),
    (
        "floor: fault, read in place, reserved huge pages",
        &["floor-in-place"],
    ),
];

/// What is loaded, and with which `ubcp`.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) ubcp: PathBuf,
    /// What a person would name: a folder or a file.
    pub(crate) source: PathBuf,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) bytes: u64,
}

/// What a contender prints.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    seconds: f64,
    bytes: u64,
    cpu_user: Option<f64>,
    cpu_sys: Option<f64>,
    peak_rss: Option<u64>,
    base_rss: u64,
}

impl Contender {
    /// The files that it reads.
    pub(crate) fn files<'a>(&'a self, subject: &'a Subject) -> &'a [PathBuf] {
        match &self.how {
            How::Peer {
                source: Some(file), ..
            } => std::slice::from_ref(file),
            _ => &subject.files,
        }
    }
}

/// A peer that hangs is out after this time.
const PEER_SECONDS: &str = "300";

/// Runs a contender once.
pub(crate) fn sample(contender: &Contender, subject: &Subject) -> Result<Sample> {
    match &contender.how {
        How::Fio(config) => {
            let outcome = fio::read(*config, &subject.files)?;
            Ok(Sample {
                bytes: outcome.bytes,
                seconds: outcome.seconds,
                process_seconds: outcome.process_seconds,
                cpu_user_s: outcome.cpu_user_s,
                cpu_sys_s: outcome.cpu_sys_s,
                peak_rss_bytes: outcome.peak_rss_bytes,
            })
        }
        How::Ubcp(options) => ubcp_sample(ubcp::load_command(
            &subject.ubcp,
            options,
            &subject.source,
            "host:",
        )),
        How::UbcpReserved(options) => {
            let load = ubcp::load_command(&subject.ubcp, options, &subject.source, "host:");
            ubcp_sample(reserved(&load, subject.bytes)?)
        }
        How::OwnReserved(words) => {
            let mut command = own(words)?;
            command.arg("--reserved").args(&subject.files);
            line_sample(&mut reserved(&command, subject.bytes)?)
        }
        How::Own(words) => {
            let mut command = own(words)?;
            line_sample(command.args(&subject.files))
        }
        How::Peer {
            program,
            arguments,
            environment,
            source,
        } => {
            let mut command = Command::new("timeout");
            command
                .arg(PEER_SECONDS)
                .arg(program)
                .args(arguments)
                .arg(source.as_ref().unwrap_or(&subject.source));
            command.envs(environment.iter().map(|(name, value)| (name, value)));
            line_sample(&mut command)
        }
    }
}

fn ubcp_sample(mut command: Command) -> Result<Sample> {
    let finished = run::captured(&mut command)?;
    let report = ubcp::parse(&finished.stdout)
        .with_context(|| format!("`{}` printed no report", run::typed(&command)))?;
    Ok(Sample {
        bytes: report.bytes,
        seconds: report.seconds,
        process_seconds: finished.wall.as_secs_f64(),
        cpu_user_s: report.cpu_seconds.user,
        cpu_sys_s: report.cpu_seconds.sys,
        peak_rss_bytes: report.peak_rss_bytes,
    })
}

/// The load on reserved huge pages, enough for `bytes`, a pool and the rounding of either.
fn reserved(load: &Command, bytes: u64) -> Result<Command> {
    const SLACK_BYTES: u64 = 96 << 20;
    let bytes = (bytes + SLACK_BYTES).next_multiple_of(2 << 20);
    let mut command = fio::with_huge_pages(bytes >> 21);
    command.args(["sh", "-c"]);
    command.arg(format!(
        r#""$0" contender primer --reserved --bytes {bytes} && exec "$@""#
    ));
    command
        .arg(std::env::current_exe().context("cannot find myself")?)
        .arg(load.get_program())
        .args(load.get_args());
    Ok(command)
}

/// `xtask contender NAME`, as a process of its own.
pub(crate) fn own(words: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find myself")?);
    command.arg("contender").args(words);
    Ok(command)
}

fn line_sample(command: &mut Command) -> Result<Sample> {
    let finished = run::captured(command)?;
    let text = finished
        .stdout
        .lines()
        .rev()
        .find(|line| line.starts_with('{'));
    let text = text.with_context(|| format!("`{}` printed no JSON", run::typed(command)))?;
    let line: Line = serde_json::from_str(text)?;
    let peak = line.peak_rss.unwrap_or(finished.peak_rss_bytes);
    Ok(Sample {
        bytes: line.bytes,
        seconds: line.seconds,
        process_seconds: finished.wall.as_secs_f64(),
        cpu_user_s: line.cpu_user.unwrap_or(finished.cpu_user_s),
        cpu_sys_s: line.cpu_sys.unwrap_or(finished.cpu_sys_s),
        peak_rss_bytes: peak.saturating_sub(line.base_rss),
    })
}

/// Brings the programs that are compared into memory.
pub(crate) fn page_in(subject: &Subject) -> Result<()> {
    let mut programs = vec![Command::new(&subject.ubcp), own(&[])?];
    if fio::is_installed() {
        programs.push(Command::new("fio"));
    }
    for program in &mut programs {
        run::captured(program.arg("--help")).context("a contender does not start")?;
    }
    Ok(())
}

/// Touches and frees memory in a process of its own.
pub(crate) fn prime(bytes: u64) -> Result<()> {
    let mut command = own(&["primer"])?;
    command.args(["--bytes", &bytes.to_string()]);
    run::captured(&mut command).context("the primer failed")?;
    Ok(())
}

/// Ends in the files of a folder, or the file itself.
pub(crate) fn files_of(source: &Path) -> Result<Vec<PathBuf>> {
    if source.is_file() {
        return Ok(vec![source.to_path_buf()]);
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(source)
        .with_context(|| format!("cannot read {}", source.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|e| e == "safetensors" || e == "gguf")
        })
        .collect();
    files.sort();
    anyhow::ensure!(
        !files.is_empty(),
        "{} holds no model files",
        source.display()
    );
    Ok(files)
}
