//! The two rings of a queue pair and their doorbells: entries in, entries out, no meaning.
//! Base 3.3.1 and 4; shadow doorbells: Base 5.8.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nvme_sys::cqe::CompletionEntry;
use nvme_sys::sqe::SubmissionEntry;

use crate::command::QueueEntries;
use crate::device::{Device, Mapping};
use crate::dma::Iova;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::RawMemory;

const SUBMISSION_BYTES: u64 = size_of::<SubmissionEntry>() as u64;
const COMPLETION_BYTES: u64 = size_of::<CompletionEntry>() as u64;

/// Tells the controller of a new index.
#[derive(Debug)]
pub struct Doorbell {
    device: Arc<dyn Device>,
    register: u64,
    shadow: Option<Shadow>,
}

/// A doorbell in memory, which the register has to back up only now and then.
#[derive(Clone, Copy, Debug)]
pub struct Shadow {
    /// Where indices are written.
    pub doorbells: RawMemory,
    /// Where the controller says which index it wants to be told of.
    pub event_indices: RawMemory,
    /// The offset of this doorbell in both, bytes.
    pub offset: u64,
}

impl Doorbell {
    /// At a register of BAR 0.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, register: u64) -> Self {
        Self {
            device,
            register,
            shadow: None,
        }
    }

    /// Goes through memory from now on, or no more.
    pub fn set_shadow(&mut self, shadow: Option<Shadow>) {
        self.shadow = shadow;
    }

    /// Says that the index went from `old` to `new`.
    #[inline]
    fn ring(&self, old: u32, new: u32) {
        if let Some(shadow) = &self.shadow {
            shadow
                .doorbells
                .store(shadow.offset, new, Ordering::Release);
            // The controller writes its event index and then reads the doorbell; here it is
            // the other way round, and one of the two sees the other.
            fence(Ordering::SeqCst);
            let event = shadow.event_indices.load(shadow.offset, Ordering::Acquire);
            if !passed(event, old, new) {
                return;
            }
        }
        self.device.write_u32(self.register, new);
    }
}

/// Whether going from `old` to `new` passes `event`, all modulo 2^16.
fn passed(event: u32, old: u32, new: u32) -> bool {
    let distance = |from: u32| new.wrapping_sub(from) & 0xffff;
    distance(event.wrapping_add(1)) < distance(old)
}

/// Memory for `entries` of `entry_bytes`, or as many as lie in one piece on the bus.
fn ring_memory(
    device: &Arc<dyn Device>,
    entries: QueueEntries,
    entry_bytes: u64,
) -> Result<(Mapping, QueueEntries)> {
    let memory = Mapping::pages(device, u64::from(entries.get()) * entry_bytes)?;
    let there = memory.run_at(0).len_bytes / entry_bytes;
    let there = u32::try_from(there).unwrap_or(u32::MAX).min(entries.get());
    let entries = QueueEntries::new(there).ok_or_else(|| {
        Error::new(
            ErrorKind::NoSpace,
            "a queue of two entries does not lie in one piece",
        )
    })?;
    Ok((memory, entries))
}

/// The controller reads commands from here.
#[derive(Debug)]
pub struct SubmissionRing {
    memory: Mapping,
    entries: QueueEntries,
    /// Where the next command goes.
    tail: u32,
    /// The tail that the controller was told of.
    told: u32,
    doorbell: Doorbell,
}

impl SubmissionRing {
    /// With at most `entries`.
    ///
    /// # Errors
    /// NoSpace.
    pub fn new(doorbell: Doorbell, entries: QueueEntries) -> Result<Self> {
        let (memory, entries) = ring_memory(&doorbell.device, entries, SUBMISSION_BYTES)?;
        Ok(Self {
            memory,
            entries,
            tail: 0,
            told: 0,
            doorbell,
        })
    }

    /// Entries; one fewer may be in flight.
    #[must_use]
    pub fn entries(&self) -> QueueEntries {
        self.entries
    }

    /// Where the controller finds it.
    #[must_use]
    pub fn address(&self) -> Iova {
        self.memory.address(0)
    }

    /// The doorbell.
    pub fn doorbell(&mut self) -> &mut Doorbell {
        &mut self.doorbell
    }

    /// Appends a command. Whoever calls this has fewer in flight than there are entries.
    #[inline]
    pub fn push(&mut self, entry: SubmissionEntry) {
        let at = u64::from(self.tail) * SUBMISSION_BYTES;
        self.memory.raw().write(at, entry);
        self.tail = next(self.tail, self.entries);
    }

    /// Tells the controller of what was appended.
    #[inline]
    pub fn tell(&mut self) {
        if self.told != self.tail {
            self.doorbell.ring(self.told, self.tail);
            self.told = self.tail;
        }
    }

    /// Empty again, as after a reset of the controller.
    pub fn clear(&mut self) {
        (self.tail, self.told) = (0, 0);
    }
}

/// The controller writes completions here.
#[derive(Debug)]
pub struct CompletionRing {
    memory: Mapping,
    entries: QueueEntries,
    /// Where the next completion comes.
    head: u32,
    /// The head that the controller was told of.
    told: u32,
    /// Completions taken since then.
    taken: u32,
    /// The phase tag of new entries.
    phase: bool,
    doorbell: Doorbell,
}

impl CompletionRing {
    /// With at most `entries`.
    ///
    /// # Errors
    /// NoSpace.
    pub fn new(doorbell: Doorbell, entries: QueueEntries) -> Result<Self> {
        let (memory, entries) = ring_memory(&doorbell.device, entries, COMPLETION_BYTES)?;
        Ok(Self {
            memory,
            entries,
            head: 0,
            told: 0,
            taken: 0,
            phase: true,
            doorbell,
        })
    }

    /// Entries.
    #[must_use]
    pub fn entries(&self) -> QueueEntries {
        self.entries
    }

    /// Where the controller finds it.
    #[must_use]
    pub fn address(&self) -> Iova {
        self.memory.address(0)
    }

    /// The doorbell.
    pub fn doorbell(&mut self) -> &mut Doorbell {
        &mut self.doorbell
    }

    /// Whether there is a completion.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.last_dword() >> 16 & 1 == u32::from(self.phase)
    }

    /// Command identifier and, above it, phase and status: what the controller writes last.
    #[inline]
    fn last_dword(&self) -> u32 {
        let at = u64::from(self.head) * COMPLETION_BYTES + 12;
        u32::from_le(self.memory.raw().load(at, Ordering::Acquire))
    }

    /// The next completion, if there is one. No more at once than there is room for before the
    /// controller is [told](Self::tell): one that goes on writing all the same keeps nobody here.
    #[inline]
    pub fn pop(&mut self) -> Option<CompletionEntry> {
        if self.taken + 1 == self.entries.get() || !self.is_ready() {
            return None;
        }
        self.taken += 1;
        let entry = self
            .memory
            .raw()
            .read(u64::from(self.head) * COMPLETION_BYTES);
        self.head = next(self.head, self.entries);
        if self.head == 0 {
            self.phase = !self.phase;
        }
        Some(entry)
    }

    /// Tells the controller of what was taken.
    #[inline]
    pub fn tell(&mut self) {
        if self.told != self.head {
            self.doorbell.ring(self.told, self.head);
            self.told = self.head;
            self.taken = 0;
        }
    }

    /// Empty again, as after a reset of the controller, which must be over.
    pub fn clear(&mut self) {
        (self.head, self.told, self.taken, self.phase) = (0, 0, 0, true);
        let memory = self.memory.raw();
        memory.zero(0, memory.len_bytes());
    }
}

#[inline]
fn next(index: u32, entries: QueueEntries) -> u32 {
    match index + 1 {
        end if end == entries.get() => 0,
        index => index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_index_is_passed_between_old_and_new() {
        for (event, old, new, expected) in [
            (0, 0, 1, true),
            (1, 0, 1, false),
            (5, 3, 6, true),
            (6, 3, 6, false),
            (2, 3, 6, false),
            // Around the ring's end.
            (62, 60, 2, true),
            (1, 60, 2, true),
            (2, 60, 2, false),
            (30, 60, 2, false),
        ] {
            assert_eq!(passed(event, old, new), expected, "{event} {old} {new}");
        }
    }
}
