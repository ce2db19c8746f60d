//! What becomes of a command that came back, and the queue of commands to be submitted again.
//! Knows commands and times; no leases, no streams.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use crate::action::{FillError, FillErrorKind};
use crate::commands::Command;
use crate::limits::{MAX_TRIES_DEVICE, MAX_TRIES_TRANSIENT};
use crate::ring::Ring;
use crate::units::Nanos;

/// What becomes of a command that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All bytes that count are there.
    Landed,
    /// The first `landed` bytes are there; ask for the rest at once.
    Rest {
        /// A multiple of the alignment, never 0.
        landed: u32,
    },
    /// Ask for the same again, after a delay.
    Again {
        /// 0: at once.
        delay: Nanos,
    },
    /// Take the fill's other way.
    NotResident,
    /// Final.
    Failed(FillError),
}

/// Judges a completion. `needed` are the command's bytes that must arrive (fewer than its
/// length only where the object ends), `alignment` is a power of two.
#[inline]
pub(crate) fn judge(
    command: &mut Command,
    needed: u32,
    alignment: u32,
    result: Result<u32, FillError>,
) -> Verdict {
    match result {
        // More than was asked for: the driver wrote, or counted, past the command's end.
        Ok(bytes) if bytes > command.len => Verdict::Failed(FillError {
            kind: FillErrorKind::Fatal,
            code: 0,
        }),
        Ok(bytes) if bytes >= needed => Verdict::Landed,
        Ok(0) => Verdict::Failed(FillError {
            kind: FillErrorKind::Truncated,
            code: 0,
        }),
        Ok(bytes) => match bytes & !(alignment - 1) {
            // Less than one unit: the device is at a loss, or the object ends here.
            0 => again(
                &mut command.transient_errors,
                MAX_TRIES_TRANSIENT,
                Nanos(0),
                FillError {
                    kind: FillErrorKind::Truncated,
                    code: 0,
                },
            ),
            landed => Verdict::Rest { landed },
        },
        Err(error) => match error.kind {
            FillErrorKind::Transient { delay } => again(
                &mut command.transient_errors,
                MAX_TRIES_TRANSIENT,
                delay,
                error,
            ),
            FillErrorKind::Device => again(
                &mut command.device_errors,
                MAX_TRIES_DEVICE,
                Nanos(0),
                error,
            ),
            FillErrorKind::NotResident => Verdict::NotResident,
            FillErrorKind::Truncated
            | FillErrorKind::Fatal
            | FillErrorKind::Destination
            | FillErrorKind::Overdue => Verdict::Failed(error),
        },
    }
}

/// One more error of a sort that may be tried `max_tries` times.
fn again(errors: &mut u8, max_tries: u8, delay: Nanos, error: FillError) -> Verdict {
    *errors += 1;
    if *errors < max_tries {
        Verdict::Again { delay }
    } else {
        Verdict::Failed(error)
    }
}

/// Commands to be submitted again: at once, or from a moment on.
#[derive(Debug)]
pub(crate) struct Retries {
    ready: Ring<u16>,
    delayed: BinaryHeap<Reverse<(Nanos, u64, u16)>>,
    /// Orders equal moments by arrival.
    arrivals: u64,
    capacity: usize,
}

impl Retries {
    /// Takes room for all commands of a slab.
    pub(crate) fn new(commands: u16) -> Retries {
        let capacity = usize::from(commands);
        Retries {
            ready: Ring::new(capacity),
            delayed: BinaryHeap::with_capacity(capacity),
            arrivals: 0,
            capacity,
        }
    }

    /// Queues a command.
    #[inline]
    pub(crate) fn push(&mut self, command: u16, delay: Nanos, now: Nanos) {
        if delay == Nanos(0) {
            self.ready.push(command);
        } else {
            assert!(
                self.delayed.len() < self.capacity,
                "more retries than commands"
            );
            let due = Nanos(now.0.saturating_add(delay.0));
            self.delayed.push(Reverse((due, self.arrivals, command)));
            self.arrivals += 1;
        }
    }

    /// The next command that may go now; delayed ones first.
    #[inline]
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u16> {
        if let Some(Reverse((due, _, command))) = self.delayed.peek().copied()
            && due <= now
        {
            self.delayed.pop();
            return Some(command);
        }
        self.ready.pop()
    }

    /// Whether no command is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.delayed.is_empty()
    }

    /// When the earliest delayed command is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.delayed.peek().map(|Reverse((due, _, _))| *due)
    }

    /// Keeps what `keep` says; linear, for the rare paths.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u16) -> bool) {
        self.ready.retain(&mut keep);
        self.delayed
            .retain(|Reverse((_, _, command))| keep(*command));
    }

    /// Commands queued.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.delayed.len()
    }
}
