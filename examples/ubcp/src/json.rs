//! The JSON that `--json` prints. Its keys are a promise to scripts: add, never rename.

use std::collections::BTreeMap;

use serde::Serialize;
use ubio::stats::{Incidents, Latency, Stalls};

use crate::exit::Failure;
use crate::output;
use crate::report::{Outcome, Subject};

#[derive(Serialize)]
struct Run<'a> {
    bytes: u64,
    tensors: usize,
    seconds: f64,
    gib_per_s: f64,
    cpu_seconds: CpuSeconds,
    peak_rss_bytes: u64,
    via: &'static str,
    via_reason: Option<&'static str>,
    layout: &'static str,
    route_bytes: &'a BTreeMap<&'static str, u64>,
    fallbacks: Vec<Fallback>,
    windows: Windows,
    in_flight: InFlight,
    stalls_s: StallSeconds,
    fill_latency_us: LatencyUs,
    flush_latency_us: LatencyUs,
    digest: Option<&'a str>,
    verified: bool,
    format: &'static str,
    files: usize,
    source: String,
    destination: String,
    result: Option<String>,
    retries: u64,
    stale_completions: u64,
    drive: Drive,
    explain: Explain<'a>,
}

#[derive(Serialize)]
struct CpuSeconds {
    user: f64,
    sys: f64,
}

#[derive(Serialize)]
struct Fallback {
    reason: &'static str,
    count: u64,
    explanation: &'static str,
}

#[derive(Serialize)]
struct Windows {
    count: u64,
    size: u64,
    switches: u64,
    peak_in_use: u64,
}

#[derive(Serialize)]
struct InFlight {
    mean: f64,
    max: u64,
}

#[derive(Serialize)]
struct StallSeconds {
    source: f64,
    window: f64,
    copy: f64,
    compute: f64,
}

#[derive(Serialize)]
struct LatencyUs {
    p50: u64,
    p99: u64,
    max: u64,
}

#[derive(Serialize)]
struct Explain<'a> {
    reader: &'a str,
    window_pages: &'static str,
    workers: usize,
    lease: Option<&'a str>,
    drive: Option<&'a str>,
    peer: Option<&'a str>,
}

/// Counts of what happened to the drive beside the commands.
#[derive(Serialize)]
struct Drive {
    strays: u64,
    overdue: u64,
    aborts: u64,
    resets: u64,
    events: u64,
}

#[derive(Serialize)]
struct Failed<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    kind: &'static str,
    exit_code: u8,
    message: &'a str,
    path: Option<String>,
    remedy: Option<&'a str>,
}

impl From<Latency> for LatencyUs {
    fn from(latency: Latency) -> Self {
        Self {
            p50: latency.p50_us,
            p99: latency.p99_us,
            max: latency.max_us,
        }
    }
}

impl From<Stalls> for StallSeconds {
    fn from(stalls: Stalls) -> Self {
        Self {
            source: stalls.source.as_secs_f64(),
            window: stalls.window.as_secs_f64(),
            copy: stalls.copy.as_secs_f64(),
            compute: stalls.compute.as_secs_f64(),
        }
    }
}

impl From<Incidents> for Drive {
    fn from(incidents: Incidents) -> Self {
        let Incidents {
            strays,
            overdue,
            aborts,
            resets,
            events,
        } = incidents;
        Self {
            strays,
            overdue,
            aborts,
            resets,
            events,
        }
    }
}

fn run<'a>(subject: &'a Subject, outcome: &'a Outcome) -> Run<'a> {
    let report = &outcome.report;
    Run {
        bytes: subject.bytes,
        tensors: subject.tensors,
        seconds: outcome.measured.elapsed.as_secs_f64(),
        gib_per_s: outcome.gib_per_s(subject.bytes),
        cpu_seconds: CpuSeconds {
            user: outcome.measured.cpu.user,
            sys: outcome.measured.cpu.sys,
        },
        peak_rss_bytes: outcome.measured.peak_rss_bytes,
        via: subject.via,
        via_reason: subject.via_reason,
        layout: subject.layout,
        route_bytes: &report.route_bytes,
        fallbacks: report
            .fallbacks
            .iter()
            .map(|(reason, count)| Fallback {
                reason: reason.code(),
                count: *count,
                explanation: reason.explain(),
            })
            .collect(),
        windows: Windows {
            count: report.windows.count,
            size: report.windows.size_bytes,
            switches: report.windows.switches,
            peak_in_use: report.windows.peak_in_use,
        },
        in_flight: InFlight {
            mean: report.in_flight.mean,
            max: report.in_flight.max,
        },
        stalls_s: report.stalls.into(),
        fill_latency_us: report.fill_latency.into(),
        flush_latency_us: report.flush_latency.into(),
        digest: outcome.digest.as_deref(),
        verified: outcome.verified,
        format: subject.format.as_str(),
        files: subject.files,
        source: subject.source.to_string_lossy().into_owned(),
        destination: subject.destination.to_string_lossy().into_owned(),
        result: subject
            .result
            .as_ref()
            .map(|path| path.display().to_string()),
        retries: report.retries,
        stale_completions: report.stale_completions,
        drive: report.drive.into(),
        explain: Explain {
            reader: &subject.explain.reader,
            window_pages: subject.explain.window_pages,
            workers: subject.explain.workers,
            lease: subject.explain.lease.as_deref(),
            drive: subject.explain.drive.as_deref(),
            peer: subject.explain.peer.as_deref(),
        },
    }
}

/// Prints one object, or with `array` one per repetition.
pub(crate) fn print(subject: &Subject, outcomes: &[Outcome], array: bool) -> Result<(), Failure> {
    let runs: Vec<_> = outcomes
        .iter()
        .map(|outcome| run(subject, outcome))
        .collect();
    match runs.as_slice() {
        [only] if !array => line(only),
        all => line(all),
    }
}

/// Prints what went wrong.
pub(crate) fn print_failure(failure: &Failure) -> Result<(), Failure> {
    line(&Failed {
        error: ErrorObject {
            kind: failure.kind,
            exit_code: failure.exit as u8,
            message: &failure.message,
            path: failure.path.as_ref().map(|path| path.display().to_string()),
            remedy: failure.remedy.as_deref(),
        },
    })
}

/// Prints any value on one line.
pub(crate) fn line(value: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
    output::write(|out| {
        serde_json::to_writer(&mut *out, value)?;
        writeln!(out)
    })
}
