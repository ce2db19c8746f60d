//! The summary for people: a few aligned lines.

use std::io::{self, Write};
use std::time::Duration;

use crate::exit::printable;
use crate::report::{Outcome, Subject};
use crate::size::human;

/// Writes what happened; of several repetitions each one's time, and all else of the last.
pub(crate) fn write(
    out: &mut dyn Write,
    subject: &Subject,
    outcomes: &[Outcome],
) -> io::Result<()> {
    let Some(last) = outcomes.last() else {
        return Ok(());
    };
    let source = printable(&subject.source.to_string_lossy());
    let destination = printable(&subject.destination.to_string_lossy());
    let mut row = |label: &str, text: &str| writeln!(out, "{label:>10}  {text}");
    row("loaded", &format!("{source} → {destination}"))?;
    if let Some(result) = &subject.result {
        row("result", &printable(&result.to_string_lossy()))?;
    }
    row(
        "bytes",
        &match subject.files {
            0 => format!("{} ({}) of blocks", subject.bytes, human(subject.bytes)),
            files => format!(
                "{} ({}), {} of {}, {}",
                subject.bytes,
                human(subject.bytes),
                counted(subject.tensors as u64, "tensor"),
                counted(files as u64, "file"),
                subject.format
            ),
        },
    )?;
    for outcome in outcomes {
        row("time", &time(subject, outcome))?;
    }
    row(
        "memory",
        &format!("{} at most", human(last.measured.peak_rss_bytes)),
    )?;
    match subject.via_reason {
        Some(reason) => row("via", &format!("{} ({reason})", subject.via))?,
        None => row("via", subject.via)?,
    }
    if let Some(lease) = &subject.explain.lease {
        row("lease", &printable(lease))?;
    }
    if let Some(drive) = &subject.explain.drive {
        row("drive", &printable(drive))?;
    }
    if let Some(peer) = &subject.explain.peer {
        row("peer", &printable(peer))?;
    }
    engine(&mut row, last)?;
    if let Some(digest) = &last.digest {
        row("digest", digest)?;
    }
    if last.verified {
        row("verified", "every byte equals a reread of the source")?;
    }
    Ok(())
}

type Row<'a> = dyn FnMut(&str, &str) -> io::Result<()> + 'a;

fn engine(row: &mut Row<'_>, last: &Outcome) -> io::Result<()> {
    let report = &last.report;
    let routes: Vec<String> = report
        .route_bytes
        .iter()
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(route, bytes)| format!("{route} {}", human(*bytes)))
        .collect();
    if !routes.is_empty() {
        row("routes", &routes.join(", "))?;
    }
    for (reason, count) in &report.fallbacks {
        if *count > 0 {
            row(
                "fallback",
                &format!("{} ({count}x): {}", reason.code(), reason.explain()),
            )?;
        }
    }
    let drive = &report.drive;
    let incidents: Vec<String> = [
        (drive.resets, "reset"),
        (drive.overdue, "overdue command"),
        (drive.aborts, "abort"),
        (drive.strays, "stray completion"),
        (drive.events, "event"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| counted(count, what))
    .collect();
    if !incidents.is_empty() {
        row("incidents", &incidents.join(", "))?;
    }
    let windows = &report.windows;
    if windows.switches > 0 {
        row(
            "windows",
            &format!(
                "{} of {}, {} switches, at most {} in use; reads in flight {:.1}, at most {}",
                windows.count,
                human(windows.size_bytes),
                windows.switches,
                windows.peak_in_use,
                report.in_flight.mean,
                report.in_flight.max
            ),
        )?;
    } else if report.in_flight.max > 0 {
        row(
            "in flight",
            &format!(
                "{:.1} reads, at most {}",
                report.in_flight.mean, report.in_flight.max
            ),
        )?;
    }
    let stalls: Vec<String> = [
        ("source", report.stalls.source),
        ("window", report.stalls.window),
        ("copy", report.stalls.copy),
        ("compute", report.stalls.compute),
    ]
    .into_iter()
    .filter(|(_, span)| *span >= Duration::from_millis(1))
    .map(|(what, span)| format!("{what} {:.3} s", span.as_secs_f64()))
    .collect();
    if stalls.is_empty() {
        return Ok(());
    }
    row("waited for", &stalls.join(", "))
}

fn time(subject: &Subject, outcome: &Outcome) -> String {
    let measured = &outcome.measured;
    format!(
        "{:.3} s, {:.2} GiB/s, cpu {:.3} s user + {:.3} s system",
        measured.elapsed.as_secs_f64(),
        outcome.gib_per_s(subject.bytes),
        measured.cpu.user,
        measured.cpu.sys
    )
}

fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
