//! What runs counted: events, completions, faults that struck. Numbers only; decides nothing.

use std::fmt;

/// A fault that may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A command takes its time before it moves data.
    Late,
    /// A completion takes its time after the data moved.
    Linger,
    Reordered,
    Lost,
    Twice,
    /// A completion of an identifier that is not in flight.
    Stray,
    /// A completion under another identifier, or of another queue.
    Foreign,
    Media,
    Transient,
    Final,
    Short,
    Deaf,
    Admin,
    Fatal,
    Stall,
    SlowReady,
    Gone,
    Reset,
    Cancel,
    Overdue,
    Copy,
    Cut,
    Knob,
    Dropped,
}

/// The words of the report, each at its fault's index.
const NAMES: [&str; 24] = [
    "late",
    "linger",
    "reordered",
    "lost",
    "twice",
    "stray",
    "foreign",
    "media",
    "transient",
    "final",
    "short",
    "ignores-abort",
    "admin",
    "fatal",
    "stall",
    "slow-ready",
    "gone",
    "reset",
    "cancel",
    "overdue",
    "copy",
    "cut",
    "knob",
    "dropped",
];

/// Counts of one run, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events.
    pub steps: u64,
    /// Commands that came back.
    pub completions: u64,
    /// Writes of data that were held against what was in flight.
    pub writes: u64,
    /// Commands found overdue, aborts, finished resets, stray completions.
    pub incidents: [u64; 4],
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

    /// Counts the faults that another counted.
    pub(crate) fn add_faults(&mut self, other: &Tally) {
        for (sum, more) in self.faults.iter_mut().zip(other.faults) {
            *sum += more;
        }
    }

    /// Each fault that may strike, and how often it did.
    pub fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.faults)
    }
}

impl super::super::Sum for Tally {
    fn add(&mut self, other: &Tally) {
        self.steps += other.steps;
        self.completions += other.completions;
        self.writes += other.writes;
        self.add_faults(other);
        let pairs = self.outcomes.iter_mut().zip(other.outcomes);
        for (sum, more) in pairs.chain(self.incidents.iter_mut().zip(other.incidents)) {
            *sum += more;
        }
        self.digest ^= other.digest;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [complete, cancelled, failed] = self.outcomes;
        let [overdue, aborts, resets, strays] = self.incidents;
        write!(
            out,
            "{} completions, {} DMA writes, {} steps; streams: complete {complete}, cancelled {cancelled}, \
             failed {failed}; transports: overdue {overdue}, aborts {aborts}, resets {resets}, strays {strays}; \
             faults:",
            self.completions, self.writes, self.steps
        )?;
        for (index, (name, count)) in self.faults().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma} {name} {count}")?;
        }
        Ok(())
    }
}
