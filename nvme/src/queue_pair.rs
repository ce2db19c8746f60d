//! A submission queue and its completion queue, and what is in flight between them. Command
//! identifiers carry a generation, so that a completion of an earlier use of a slot is told
//! from one of its present use. Knows no memory and no deadlines: an operation is whatever the
//! owner keeps with it.

use nvme_sys::cqe::CompletionEntry;

use crate::command::{Command, QueueId};
use crate::planted::{self, PlantedBug};
use crate::ring::{CompletionRing, SubmissionRing};
use crate::status::Status;

/// Bits of a command identifier that name the slot; the others are the generation.
const SLOT_BITS: u16 = 10;
/// Most operations in flight. One fewer than there are slot numbers, so that no identifier is
/// 0xffff, which an error log uses for "none" (Base 5.16.1.2).
const MAX_SLOTS: u32 = (1 << SLOT_BITS) - 1;

/// Entries of a queue beyond which none could be used.
pub(crate) const MAX_ENTRIES: u32 = MAX_SLOTS + 1;

/// A command in flight, as the controller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(pub u16);

impl CommandId {
    fn new(slot: u16, generation: u16) -> Self {
        Self(generation << SLOT_BITS | slot)
    }

    fn slot(self) -> usize {
        usize::from(self.0 & ((1 << SLOT_BITS) - 1))
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Dword 0 of the completion.
    pub result: u32,
    /// Success, or the status.
    pub status: Result<(), Status>,
}

#[derive(Debug)]
struct Slot<O> {
    generation: u16,
    operation: Option<O>,
}

/// Two rings, and the operations between them.
#[derive(Debug)]
pub struct QueuePair<O> {
    id: QueueId,
    submission: SubmissionRing,
    completion: CompletionRing,
    slots: Vec<Slot<O>>,
    free: Vec<u16>,
    strays: u64,
}

impl<O> QueuePair<O> {
    /// Over two rings; as many operations may be in flight as both have room for.
    #[must_use]
    pub fn new(id: QueueId, submission: SubmissionRing, completion: CompletionRing) -> Self {
        let (sq, cq) = (submission.entries().get(), completion.entries().get());
        // A full ring would look empty.
        let count = (sq - 1).min(cq - 1).min(MAX_SLOTS);
        let count = u16::try_from(count).expect("at most 1023");
        let slots = (0..count).map(|_| Slot {
            generation: 0,
            operation: None,
        });
        Self {
            id,
            submission,
            completion,
            slots: slots.collect(),
            free: (0..count).rev().collect(),
            strays: 0,
        }
    }

    /// Its identifier.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The ring that commands go to.
    pub fn submission(&mut self) -> &mut SubmissionRing {
        &mut self.submission
    }

    /// The ring that completions come from.
    pub fn completion(&mut self) -> &mut CompletionRing {
        &mut self.completion
    }

    /// Most operations in flight.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Operations in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a completion has come.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.completion.is_ready()
    }

    /// Completions that named nothing in flight.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Queues a command; [`send`](Self::send) tells the controller.
    ///
    /// # Errors
    /// The operation, when there is no room.
    #[inline]
    pub fn submit(&mut self, command: Command, operation: O) -> Result<CommandId, O> {
        let Some(index) = self.free.pop() else {
            return Err(operation);
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.operation = Some(operation);
        let id = CommandId::new(index, slot.generation);
        self.submission.push(command.entry(id.0));
        Ok(id)
    }

    /// Tells the controller of queued commands.
    #[inline]
    pub fn send(&mut self) {
        self.submission.tell();
    }

    /// The next operation that has ended. After the last one, [`acknowledge`](Self::acknowledge)
    /// makes room for more completions.
    #[inline]
    pub fn pop(&mut self) -> Option<(O, Outcome)> {
        loop {
            let entry = self.completion.pop()?;
            match self.end(&entry) {
                Some(ended) => return Some(ended),
                // Unknown, twice, or of an earlier use: nothing may be touched for it.
                None => self.strays += 1,
            }
        }
    }

    #[inline]
    fn end(&mut self, entry: &CompletionEntry) -> Option<(O, Outcome)> {
        let id = CommandId(entry.command_id.get());
        if entry.sq_id.get() != self.id.0 || !self.is_in_flight(id) {
            return None;
        }
        let index = id.slot();
        let operation = self.release(index)?;
        let outcome = Outcome {
            result: entry.result.get(),
            status: Status::check(entry.status()),
        };
        Some((operation, outcome))
    }

    fn release(&mut self, index: usize) -> Option<O> {
        let slot = &mut self.slots[index];
        let operation = slot.operation.take()?;
        slot.generation = (slot.generation + 1) & (u16::MAX >> SLOT_BITS);
        self.free.push(u16::try_from(index).expect("at most 1023"));
        Some(operation)
    }

    /// Ends an operation that the controller still has: a planted bug.
    pub(crate) fn end_early(&mut self, id: CommandId) -> Option<O> {
        self.release(id.slot())
    }

    /// Whether a command is still in flight.
    #[must_use]
    pub fn is_in_flight(&self, id: CommandId) -> bool {
        self.slots.get(id.slot()).is_some_and(|slot| {
            slot.operation.is_some()
                && (id == CommandId::new(id.0 & ((1 << SLOT_BITS) - 1), slot.generation)
                    || planted::is(PlantedBug::IgnoreGeneration))
        })
    }

    /// Gives the room of what was taken back to the controller.
    #[inline]
    pub fn acknowledge(&mut self) {
        self.completion.tell();
    }

    /// What is in flight.
    pub fn operations(&mut self) -> impl Iterator<Item = (CommandId, &mut O)> {
        (0..).zip(&mut self.slots).filter_map(|(index, slot)| {
            let id = CommandId::new(index, slot.generation);
            slot.operation.as_mut().map(|operation| (id, operation))
        })
    }

    /// Ends everything in flight and begins anew. Only for when the controller does no more
    /// DMA: after a finished reset.
    pub fn restart(&mut self, ended: &mut Vec<O>) {
        for index in 0..self.slots.len() {
            ended.extend(self.release(index));
        }
        self.submission.clear();
        self.completion.clear();
    }
}
