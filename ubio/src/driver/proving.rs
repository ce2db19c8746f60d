//! Before bytes may land in a device's memory, each drive of a stream is seen to reach it; what
//! was seen is kept. Knows no topology: what that says is in [`crate::pairing`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use ubio_core::{Landing, ObjectId, StreamPlan};

use super::{Driver, Origin};
use crate::canary::{Prober, Subject, Unproven, prove};
use crate::error::{Error, Result};
use crate::source::MemoryId;
use crate::sys::memory::Region;
use crate::window::WindowMemory;

/// Longest that a read may take which proves memory: the ring thread waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A stream that is being opened.
#[derive(Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) plan: &'a StreamPlan,
    /// As the source knows them.
    pub(super) objects: &'a [ObjectId],
    pub(super) origin: &'a Origin,
    /// First byte and bytes of the destination that are the stream's alone.
    pub(super) claimed: (u64, u64),
}

impl Opening<'_> {
    /// What the first fill of each of the plan's objects reads that lands in such a way, and
    /// which object that is.
    fn subjects(&self, lands: impl Fn(Landing) -> bool) -> Vec<(Subject, u32)> {
        let mut seen = vec![false; self.objects.len()];
        let fills = self.plan.fills.iter().filter(|fill| lands(fill.landing));
        let first =
            fills.filter(|fill| !std::mem::replace(&mut seen[fill.object.0 as usize], true));
        first
            .map(|fill| {
                let subject = Subject {
                    object: self.objects[fill.object.0 as usize],
                    route: fill.route,
                    offset: fill.offset,
                    len: fill.len,
                };
                (subject, fill.object.0)
            })
            .collect()
    }
}

/// Memory that was not proven, and of the stream's objects the one that did not reach it.
struct Missed {
    unproven: Unproven,
    object: u32,
}

/// What was seen to land: which drive's bytes, and where.
#[derive(Debug, Default)]
pub(super) struct Proofs(Vec<Proof>);

#[derive(Debug)]
struct Proof {
    drive: u64,
    region: Weak<Region>,
    range: (u64, u64),
}

impl Proofs {
    /// Whether a drive was seen to reach all of a range (first byte, bytes) of memory.
    pub(super) fn hold(&self, drive: u64, region: &Arc<Region>, range: (u64, u64)) -> bool {
        let inside = |of: (u64, u64)| of.0 <= range.0 && range.0 + range.1 <= of.0 + of.1;
        self.0.iter().any(|proof| {
            proof.drive == drive
                && std::ptr::eq(proof.region.as_ptr(), &raw const **region)
                && inside(proof.range)
        })
    }

    /// From now on one does.
    pub(super) fn add(&mut self, drive: u64, region: &Arc<Region>, range: (u64, u64)) {
        // Memory that is gone gives its address to other memory.
        self.0.retain(|proof| proof.region.strong_count() > 0);
        self.0.push(Proof {
            drive,
            region: Arc::downgrade(region),
            range,
        });
    }
}

impl Driver {
    /// Windows that are a device's are proven by the first stream of each drive.
    pub(super) fn prove_windows(&mut self, opening: Opening<'_>) -> Result<()> {
        let windows = self.parts.windows.clone();
        let memory = (self.parts.window_memory, &windows);
        let range = (0, windows.region().len_bytes());
        let proven = self.prove(opening, memory, range, needs_window);
        proven.map_err(|missed| self.not_proven(missed, opening.origin))
    }

    /// Proves that each drive of a stream reaches a range of memory that is a device's and that
    /// it reads into, where that was not seen before.
    fn prove(
        &mut self,
        opening: Opening<'_>,
        memory: (MemoryId, &WindowMemory),
        range: (u64, u64),
        lands: impl Fn(Landing) -> bool,
    ) -> Result<(), Missed> {
        if !memory.1.kind().is_device() {
            return Ok(());
        }
        for (subject, object) in opening.subjects(lands) {
            let drive = self.parts.source.drive(subject.object);
            if self.proofs.hold(drive, memory.1.region(), range) {
                continue;
            }
            self.prove_pair(subject, memory, range)
                .map_err(|unproven| Missed { unproven, object })?;
            self.proofs.add(drive, memory.1.region(), range);
        }
        Ok(())
    }

    /// Proves that the source reaches a range of memory that is a device's, with the first read
    /// of a plan that lands there.
    ///
    /// # Errors
    /// It does not: the memory is named, and what is known against it.
    fn prove_pair(
        &mut self,
        subject: Subject,
        memory: (MemoryId, &WindowMemory),
        range: (u64, u64),
    ) -> Result<(), Unproven> {
        let deadline = self.parts.deadline;
        let mut prober = Prober {
            source: &mut *self.parts.source,
            others: &mut self.completions,
            reads: &mut self.probes,
            patience: deadline.map_or(PATIENCE, |deadline| {
                PATIENCE.min(Duration::from_nanos(deadline.0))
            }),
        };
        let proven = prove(&mut prober, subject, memory, range);
        proven.map_err(|unproven| match &self.parts.pair {
            Some(pair) => Unproven {
                error: pair.named(&unproven.error),
                ..unproven
            },
            None => unproven,
        })
    }

    /// The words of a load whose memory was not proven. Where a read for that has not come back
    /// nobody can tell what it will write: the engine gives up.
    fn not_proven(&mut self, missed: Missed, origin: &Origin) -> Error {
        let error = origin.at(missed.object, missed.unproven.error);
        if missed.unproven.in_flight {
            self.fail_all(&error);
        }
        error
    }

    /// A destination as a target of the source, proven where it is a device's.
    pub(super) fn attach_proven(
        &mut self,
        memory: &WindowMemory,
        opening: Opening<'_>,
    ) -> Result<MemoryId> {
        if memory.kind().is_device()
            && let Some(pair) = &self.parts.pair
        {
            // First, since it names both sides and the way out.
            pair.check()?;
        }
        let id = self.parts.source.attach(memory, false)?;
        let in_place = |landing| !needs_window(landing);
        if let Err(missed) = self.prove(opening, (id, memory), opening.claimed, in_place) {
            match missed.unproven.in_flight {
                true => memory.region().claims().give_up(),
                false => self.parts.source.detach(id),
            }
            return Err(self.not_proven(missed, opening.origin));
        }
        Ok(id)
    }
}

/// Whether a fill of this landing goes through a window.
fn needs_window(landing: Landing) -> bool {
    matches!(landing, Landing::Window | Landing::Lent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_drive_and_of_what_it_covers() {
        let region = || Arc::new(Region::anonymous(8192, false).expect("memory"));
        let (one, other) = (region(), region());
        let mut proofs = Proofs::default();
        proofs.add(7, &one, (1000, 500));
        for range in [(1000, 500), (1000, 1), (1499, 1), (1200, 300)] {
            assert!(proofs.hold(7, &one, range), "{range:?}");
            assert!(!proofs.hold(8, &one, range), "another drive");
            assert!(!proofs.hold(7, &other, range), "other memory");
        }
        for range in [(999, 2), (1000, 501), (1499, 2), (0, 8192)] {
            assert!(!proofs.hold(7, &one, range), "{range:?}");
        }
        drop(one);
        proofs.add(7, &other, (0, 1));
        assert_eq!(proofs.0.len(), 1, "kept of memory that is gone");
    }
}
