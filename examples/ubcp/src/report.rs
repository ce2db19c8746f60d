//! What a run has to tell, before it is put into words or JSON.

use std::ffi::OsString;
use std::path::PathBuf;

use fs_adapter::Format;
use ubio::Explanation;
use ubio::source::Reader;
use ubio::stats::Report;

use crate::args::Args;
use crate::exit::Failure;
use crate::meter::Measured;
use crate::{json, output, summary};

/// What was loaded; the same for every repetition.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) source: OsString,
    pub(crate) destination: OsString,
    /// The file that others may open now.
    pub(crate) result: Option<PathBuf>,
    pub(crate) bytes: u64,
    pub(crate) tensors: usize,
    pub(crate) files: usize,
    pub(crate) format: Format,
    pub(crate) via: &'static str,
    pub(crate) via_reason: Option<&'static str>,
    /// `image` (the files' own) or `placed`.
    pub(crate) layout: &'static str,
    pub(crate) explain: Explain,
}

/// What the engine chose when it was opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explain {
    pub(crate) reader: String,
    pub(crate) window_pages: &'static str,
    pub(crate) workers: usize,
    /// Model and serial number of the drive whose blocks are read.
    pub(crate) drive: Option<String>,
    /// What topology says of that drive writing into a function's memory.
    pub(crate) peer: Option<String>,
    /// Whether the files are held against writers; only where they are mapped.
    pub(crate) lease: Option<String>,
}

impl From<&Explanation> for Explain {
    fn from(explanation: &Explanation) -> Self {
        Self {
            reader: match &explanation.reader {
                Reader::Uring { .. } => "io_uring".to_owned(),
                Reader::Threads { reason } => format!("threads ({reason})"),
                Reader::Nvme(info) => format!("{} ({})", info.route.name(), info.how),
            },
            window_pages: explanation.window_pages.name(),
            workers: explanation.workers,
            drive: explanation.namespace().map(|info| info.model.clone()),
            peer: explanation.peer.as_ref().map(ToString::to_string),
            lease: None,
        }
    }
}

/// One load.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) measured: Measured,
    pub(crate) report: Report,
    /// `algorithm:hexadecimal`.
    pub(crate) digest: Option<String>,
    pub(crate) verified: bool,
}

impl Outcome {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub(crate) fn gib_per_s(&self, bytes: u64) -> f64 {
        bytes as f64 / (1u64 << 30) as f64 / self.measured.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Prints it the way `args` want.
pub(crate) fn print(args: &Args, subject: &Subject, outcomes: &[Outcome]) -> Result<(), Failure> {
    if args.json {
        json::print(subject, outcomes, args.repeat.is_some())
    } else if args.quiet {
        Ok(())
    } else {
        output::write(|out| summary::write(out, subject, outcomes))
    }
}
