//! What runs counted: steps, completions, faults that struck. Numbers only; decides nothing.

use std::fmt;

/// A fault that may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Late,
    Reordered,
    Short,
    Zero,
    Transient,
    Device,
    NotResident,
    Truncated,
    Fatal,
    Overlong,
    Cut,
    Prepare,
    Flush,
    Cancel,
    Duplicate,
    Stale,
    Unknown,
    StaleReport,
    Knob,
    Busy,
    Overdue,
}

/// The words of the report, each at its fault's index.
const NAMES: [&str; 21] = [
    "late",
    "reordered",
    "short",
    "zero",
    "transient",
    "device",
    "not-resident",
    "truncated",
    "fatal",
    "overlong",
    "cut",
    "prepare",
    "flush",
    "cancel",
    "duplicate",
    "stale",
    "unknown",
    "stale-report",
    "knob",
    "busy",
    "overdue",
];

/// Counts of one run, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events.
    pub steps: u64,
    /// Commands that came back.
    pub completions: u64,
    /// Streams that ended whole, cancelled and failed.
    pub outcomes: [u64; 3],
    /// A word that depends on every event and its order.
    pub digest: u64,
    faults: [u64; NAMES.len()],
}

impl Tally {
    /// Counts a fault.
    pub(crate) fn strike(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// Each fault that may strike, and how often it did.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.faults)
    }
}

impl super::Sum for Tally {
    fn add(&mut self, other: &Tally) {
        self.steps += other.steps;
        self.completions += other.completions;
        for (sum, more) in self.outcomes.iter_mut().zip(other.outcomes) {
            *sum += more;
        }
        for (sum, more) in self.faults.iter_mut().zip(other.faults) {
            *sum += more;
        }
        self.digest ^= other.digest;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [complete, cancelled, failed] = self.outcomes;
        write!(
            out,
            "{} completions, {} steps; streams: complete {complete}, cancelled {cancelled}, failed {failed}; faults:",
            self.completions, self.steps
        )?;
        for (index, (name, count)) in self.faults().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma} {name} {count}")?;
        }
        Ok(())
    }
}
