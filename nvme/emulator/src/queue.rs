//! Queues from the controller's side: where it reads commands and writes completions. Reads and
//! writes no memory itself.

use std::collections::VecDeque;
use std::time::Duration;

/// Where doorbells are in memory (Base 5.8): the host's value and the controller's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadow {
    pub(crate) doorbell: u64,
    pub(crate) event_index: u64,
}

/// A doorbell value that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue;

/// Places of a queue, counted around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) base: u64,
    pub(crate) entries: u32,
    /// The next to be read.
    pub(crate) head: u32,
    /// The next to be written.
    pub(crate) tail: u32,
}

impl Places {
    fn new(base: u64, entries: u32) -> Self {
        let (head, tail) = (0, 0);
        Self {
            base,
            entries,
            head,
            tail,
        }
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from {
            to - from
        } else {
            to + self.entries - from
        }
    }

    fn after(&self, place: u32) -> u32 {
        if place + 1 == self.entries {
            0
        } else {
            place + 1
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.distance(self.head, self.tail)
    }
}

#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) places: Places,
    pub(crate) completions: u16,
    pub(crate) shadow: Option<Shadow>,
    /// The event index in memory; `None` before it was written.
    pub(crate) event_index: Option<u32>,
    /// A value in memory that cannot be, and was reported.
    pub(crate) refused: Option<u32>,
    /// Nothing is fetched any more.
    pub(crate) closing: bool,
}

impl SubmissionQueue {
    pub(crate) fn new(base: u64, entries: u32, completions: u16) -> Self {
        Self {
            places: Places::new(base, entries),
            completions,
            shadow: None,
            event_index: None,
            refused: None,
            closing: false,
        }
    }

    /// The host has written commands up to `tail`.
    pub(crate) fn ring(&mut self, tail: u32) -> Result<(), InvalidValue> {
        let places = &mut self.places;
        if tail >= places.entries {
            return Err(InvalidValue);
        }
        let added = places.distance(places.tail, tail);
        // One place stays free, or full would look like empty.
        if added + places.used() >= places.entries {
            return Err(InvalidValue);
        }
        places.tail = tail;
        Ok(())
    }

    /// The address of the next command, which is taken.
    pub(crate) fn take(&mut self) -> u64 {
        let places = &mut self.places;
        let address = places.base.wrapping_add(u64::from(places.head) * 64);
        places.head = places.after(places.head);
        address
    }

    /// SQHD.
    pub(crate) fn head(&self) -> u16 {
        u16::try_from(self.places.head).expect("below 65,536")
    }
}

/// A completion that waits for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) result: u32,
    /// The queue that the command came from, and the one that the completion names.
    pub(crate) queue: u16,
    pub(crate) named: u16,
    pub(crate) command_id: u16,
    pub(crate) status: u16,
    /// Where the submission queue's head was, should it be gone by then.
    pub(crate) head: u16,
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) places: Places,
    phase: bool,
    pub(crate) vector: Option<u16>,
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) shadow: Option<Shadow>,
    pub(crate) event_index: Option<u32>,
    /// Completions that no interrupt told of yet, and since when.
    pub(crate) untold: u32,
    pub(crate) untold_since: Duration,
}

impl CompletionQueue {
    pub(crate) fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            places: Places::new(base, entries),
            phase: true,
            vector,
            waiting: VecDeque::new(),
            shadow: None,
            event_index: None,
            untold: 0,
            untold_since: Duration::ZERO,
        }
    }

    /// The host has read completions up to `head`.
    pub(crate) fn ring(&mut self, head: u32) -> Result<(), InvalidValue> {
        let places = &mut self.places;
        if head >= places.entries || places.distance(places.head, head) > places.used() {
            return Err(InvalidValue);
        }
        places.head = head;
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.places.used() + 1 == self.places.entries
    }

    /// The address of the next completion and its phase; the place is taken.
    pub(crate) fn take(&mut self) -> (u64, bool) {
        let places = &mut self.places;
        let address = places.base.wrapping_add(u64::from(places.tail) * 16);
        let phase = self.phase;
        places.tail = places.after(places.tail);
        if places.tail == 0 {
            self.phase = !self.phase;
        }
        (address, phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_queue_takes_one_less_than_its_entries() {
        let mut queue = SubmissionQueue::new(0x1000, 4, 1);
        assert_eq!(queue.ring(4), Err(InvalidValue));
        assert_eq!(queue.ring(3), Ok(()));
        assert_eq!(queue.ring(0), Err(InvalidValue), "full");
        assert_eq!(queue.take(), 0x1000);
        assert_eq!(queue.ring(0), Ok(()));
        assert_eq!(queue.ring(1), Err(InvalidValue), "full again");
        let taken: Vec<_> = (0..3).map(|_| queue.take()).collect();
        assert_eq!(taken, [0x1040, 0x1080, 0x10c0]);
        assert_eq!((queue.places.used(), queue.head()), (0, 0));
    }

    #[test]
    fn a_completion_queue_changes_its_phase_when_it_comes_around() {
        let mut queue = CompletionQueue::new(0, 3, None);
        assert_eq!(queue.ring(1), Err(InvalidValue), "empty");
        assert_eq!((queue.take(), queue.take()), ((0, true), (16, true)));
        assert!(queue.is_full());
        assert_eq!(queue.ring(2), Ok(()));
        assert_eq!(queue.take(), (32, true));
        assert_eq!(queue.ring(1), Err(InvalidValue), "not written yet");
        assert_eq!(queue.take(), (0, false));
        assert_eq!(queue.ring(1), Ok(()));
    }
}
