//! What the ring thread measures on the way: latencies, stalls, spans; and the report of it.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use ubio_core::{FillError, Lease, Nanos, Token};

use super::Driver;
use crate::stats::{InFlight, Incidents, Latency, Reason, Report, Stalls, WindowUse};
use crate::trace::{Activity, Span};

/// What a lease is doing, for latencies and the trace.
#[derive(Clone, Copy, Default)]
pub(super) struct Timing {
    pub(super) leased: Nanos,
    pub(super) landed: Nanos,
    pub(super) generation: u32,
}

/// What was measured since the last report.
pub(super) struct Measured {
    pub(super) fills: Histogram<u64>,
    pub(super) flushes: Histogram<u64>,
    pub(super) stalls: Stalls,
    pub(super) reasons: BTreeMap<Reason, u64>,
    pub(super) core: ubio_core::Stats,
    /// At the last report.
    pub(super) drive: Incidents,
}

/// A command with the source.
#[derive(Clone, Copy)]
pub(super) struct Submitted {
    pub(super) token: Token,
    pub(super) lease: Lease,
    pub(super) at: Nanos,
    /// The core was told that it takes too long.
    pub(super) overdue: bool,
}

impl Driver {
    /// Notes the end of a command. In place each command is a span of its own; those into
    /// windows are shown as one when the window has landed.
    pub(super) fn completed(&mut self, token: Token, result: Result<u32, FillError>, now: Nanos) {
        let found = self
            .submitted
            .iter()
            .position(|submitted| submitted.token == token);
        let Some(Submitted { lease, at, .. }) =
            found.map(|index| self.submitted.swap_remove(index))
        else {
            return;
        };
        let micros = now.0.saturating_sub(at.0) / 1000;
        self.measured.fills.saturating_record(micros.max(1));
        if lease.id.0 >= self.parts.limits.windows {
            let bytes = result.map_or(0, u64::from);
            self.span(Activity::Fill, Some(lease), at, now, bytes);
        }
    }

    pub(super) fn timing(&self, lease: Lease) -> Timing {
        self.timings[usize::from(lease.id.0)]
    }

    /// Notes the first thing done under a lease.
    pub(super) fn leased(&mut self, lease: Lease, now: Nanos) {
        let timing = &mut self.timings[usize::from(lease.id.0)];
        if timing.generation != lease.generation.0 || timing.leased == Nanos(0) {
            *timing = Timing {
                leased: now,
                landed: now,
                generation: lease.generation.0,
            };
        }
    }

    /// Notes that a lease has landed.
    pub(super) fn landed(&mut self, lease: Lease, bytes: u64, now: Nanos) {
        let timing = &mut self.timings[usize::from(lease.id.0)];
        timing.landed = now;
        let leased = timing.leased;
        self.span(Activity::Fill, Some(lease), leased, now, bytes);
    }

    pub(super) fn span(
        &mut self,
        activity: Activity,
        lease: Option<Lease>,
        from: Nanos,
        to: Nanos,
        bytes: u64,
    ) {
        if let Some(trace) = &mut self.trace {
            trace.spans.push(Span {
                activity,
                lease: lease.map(|lease| lease.id.0),
                start_ns: from.0,
                len_ns: to.0.saturating_sub(from.0),
                bytes,
            });
        }
    }

    pub(super) fn report(&mut self) -> Report {
        let (now, before) = (*self.core.stats(), self.measured.core);
        let busy_ns = now.in_flight.busy_ns - before.in_flight.busy_ns;
        let command_ns = now.in_flight.command_ns - before.in_flight.command_ns;
        let mut fallbacks = std::mem::take(&mut self.measured.reasons);
        for reason in self.parts.source.take_fallbacks() {
            *fallbacks.entry(reason).or_default() += 1;
        }
        let lost = now.fallbacks.not_resident - before.fallbacks.not_resident;
        if lost > 0 {
            *fallbacks.entry(Reason::PageCacheLost).or_default() += lost;
        }
        let drive = self.parts.source.incidents();
        let report = Report {
            route_bytes: ubio_core::Route::ALL
                .into_iter()
                .map(|route| (route.name(), now.bytes_by(route) - before.bytes_by(route)))
                .collect(),
            fallbacks,
            windows: WindowUse {
                count: self.parts.limits.windows.into(),
                size_bytes: self.parts.limits.window_bytes.into(),
                switches: now.window_switches - before.window_switches,
                peak_in_use: now.peak_windows_in_use.into(),
            },
            in_flight: InFlight {
                mean: ratio(command_ns, busy_ns),
                max: now.in_flight.max.into(),
            },
            stalls: std::mem::take(&mut self.measured.stalls),
            fill_latency: Latency::of(&self.measured.fills),
            flush_latency: Latency::of(&self.measured.flushes),
            stale_completions: now.stale_completions - before.stale_completions,
            retries: now.retries - before.retries,
            drive: drive.since(&self.measured.drive),
        };
        self.measured.drive = drive;
        self.measured.fills.reset();
        self.measured.flushes.reset();
        self.measured.core = now;
        report
    }
}

pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds are legal")
}

#[expect(clippy::cast_precision_loss, reason = "a mean for people")]
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}
