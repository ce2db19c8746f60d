//! Who is in flight: each command's token and memory, by a slot and its generation. Knows no
//! rings and no devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::memory::TargetMemory;
use crate::transport::Io;

/// Generations are below this, so that a number's highest bit is free.
const GENERATIONS: u32 = 1 << 31;

struct Slot {
    generation: u32,
    operation: Option<Operation>,
}

/// What a slot is taken for.
pub(super) struct Taken {
    /// Handed back with the end.
    pub(super) token: u64,
    /// Kept until the command has ended.
    pub(super) memory: Option<Arc<dyn TargetMemory>>,
    /// What is in a registered buffer, and may be sent again without.
    pub(super) registered: Option<Io>,
}

struct Operation {
    taken: Taken,
    start: Instant,
    is_overdue: bool,
}

/// A fixed number of slots.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// No command in flight began before this.
    oldest: Option<Instant>,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots")
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Slots {
    pub(super) fn new(depth: u16) -> Self {
        let slot = |_| Slot {
            generation: 0,
            operation: None,
        };
        Self {
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            oldest: None,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot and gives its number; `None` where all are taken.
    pub(super) fn take(&mut self, taken: Taken, now: Instant) -> Option<u64> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.operation = Some(Operation {
            taken,
            start: now,
            is_overdue: false,
        });
        self.oldest.get_or_insert(now);
        Some(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Ends a command: what it was taken for, unless nothing of that number is in flight.
    pub(super) fn end(&mut self, number: u64) -> Option<Taken> {
        let index = u32::try_from(number & u64::from(u32::MAX)).ok()?;
        let slot = self.slots.get_mut(usize::try_from(index).ok()?)?;
        if u64::from(slot.generation) != number >> 32 {
            return None;
        }
        let operation = slot.operation.take()?;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.push(u16::try_from(index).ok()?);
        if self.in_flight() == 0 {
            self.oldest = None;
        }
        Some(operation.taken)
    }

    /// Frees a slot whose command was not started.
    pub(super) fn put_back(&mut self, number: u64) {
        assert!(self.end(number).is_some(), "just taken");
    }

    /// How many commands have become overdue since it was last asked.
    pub(super) fn count_overdue(&mut self, now: Instant, timeout: Duration) -> u64 {
        let may_be = |start: Instant| now.saturating_duration_since(start) > timeout;
        if !self.oldest.is_some_and(may_be) {
            return 0;
        }
        let mut count = 0;
        let mut oldest = None;
        for operation in self.slots.iter_mut().filter_map(|s| s.operation.as_mut()) {
            if operation.is_overdue {
                continue;
            }
            if may_be(operation.start) {
                operation.is_overdue = true;
                count += 1;
            } else {
                let start = operation.start;
                oldest = Some(oldest.map_or(start, |oldest: Instant| oldest.min(start)));
            }
        }
        self.oldest = oldest;
        count
    }

    /// Whether a command in flight uses that memory.
    pub(super) fn uses(&self, memory: &Arc<dyn TargetMemory>) -> bool {
        let operations = self.slots.iter().filter_map(|s| s.operation.as_ref());
        operations
            .filter_map(|operation| operation.taken.memory.as_ref())
            .any(|used| Arc::ptr_eq(used, memory))
    }

    /// Leaves the memory of what is in flight to devices: it is never freed.
    pub(super) fn give_up(&mut self) {
        for slot in &mut self.slots {
            if let Some(memory) = slot.operation.take().and_then(|op| op.taken.memory) {
                let _leaked = Box::leak(Box::new(memory));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Pages, RawMemory};

    fn memory() -> Arc<dyn TargetMemory> {
        Arc::new(Pages::new(1).expect("memory"))
    }

    fn token(token: u64) -> Taken {
        Taken {
            token,
            memory: None,
            registered: None,
        }
    }

    fn with(memory: &Arc<dyn TargetMemory>) -> Taken {
        Taken {
            memory: Some(Arc::clone(memory)),
            ..token(1)
        }
    }

    fn end(slots: &mut Slots, number: u64) -> Option<u64> {
        slots.end(number).map(|taken| taken.token)
    }

    #[test]
    fn a_number_ends_once() {
        let mut slots = Slots::new(2);
        let now = Instant::now();
        let first = slots.take(token(10), now).expect("free");
        let second = slots.take(token(11), now).expect("free");
        assert_eq!(slots.take(token(12), now), None);
        assert_eq!(slots.in_flight(), 2);
        assert_eq!(
            (end(&mut slots, first), end(&mut slots, first)),
            (Some(10), None)
        );
        let third = slots.take(token(12), now).expect("free");
        assert_ne!(first, third, "the same slot, a later generation");
        assert_eq!(end(&mut slots, first), None);
        assert_eq!(
            (end(&mut slots, second), end(&mut slots, third)),
            (Some(11), Some(12))
        );
        for unknown in [2, 1 << 32 | 2, u64::from(u32::MAX), 1 << 62] {
            assert_eq!(end(&mut slots, unknown), None);
        }
        assert_eq!(slots.in_flight(), 0);
    }

    #[test]
    fn generations_wrap_below_the_highest_bit() {
        let mut slots = Slots::new(1);
        slots.slots[0].generation = GENERATIONS - 1;
        let number = slots.take(token(1), Instant::now()).expect("free");
        assert_eq!(number >> 63, 0);
        assert_eq!(end(&mut slots, number), Some(1));
        assert_eq!(slots.take(token(2), Instant::now()), Some(0));
    }

    #[test]
    fn memory_is_kept_while_in_flight_and_given_up_for_good() {
        let memory = memory();
        let mut slots = Slots::new(2);
        let now = Instant::now();
        let number = slots.take(with(&memory), now).expect("free");
        assert_eq!((Arc::strong_count(&memory), slots.uses(&memory)), (2, true));
        end(&mut slots, number).expect("in flight");
        assert_eq!(
            (Arc::strong_count(&memory), slots.uses(&memory)),
            (1, false)
        );
        slots.take(with(&memory), now).expect("free");
        slots.give_up();
        drop(slots);
        assert_eq!(Arc::strong_count(&memory), 2);
        let _: RawMemory = memory.raw();
    }

    #[test]
    fn each_is_overdue_once() {
        let mut slots = Slots::new(4);
        let start = Instant::now();
        let timeout = Duration::from_secs(2);
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = slots.take(token(1), at(0)).expect("free");
        slots.take(token(2), at(1)).expect("free");
        assert_eq!(slots.count_overdue(at(2), timeout), 0);
        assert_eq!(slots.count_overdue(at(3), timeout), 1);
        assert_eq!(slots.count_overdue(at(3), timeout), 0);
        slots.take(token(3), at(3)).expect("free");
        assert_eq!(slots.count_overdue(at(10), timeout), 2);
        end(&mut slots, first).expect("in flight");
        assert_eq!(slots.count_overdue(at(20), timeout), 0);
    }
}
