//! A first-in first-out queue whose room is taken once. Growing would be a bug of ours, so a
//! full push is an assertion, never an allocation.

use alloc::collections::VecDeque;

/// A queue of fixed capacity.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    entries: VecDeque<T>,
    capacity: usize,
}

impl<T: Copy + PartialEq> Ring<T> {
    /// Takes all the room it will ever have.
    pub(crate) fn new(capacity: usize) -> Ring<T> {
        Ring {
            entries: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    /// Adds at the end. Panics when full.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) {
        assert!(
            self.entries.len() < self.capacity,
            "a ring outgrew its bound"
        );
        self.entries.push_back(entry);
    }

    /// Takes the oldest.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.entries.pop_front()
    }

    /// The oldest.
    #[inline]
    pub(crate) fn front(&self) -> Option<T> {
        self.entries.front().copied()
    }

    /// Whether it has no entry.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps what `keep` says; linear, for the rare paths.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(T) -> bool) {
        self.entries.retain(|entry| keep(*entry));
    }

    /// How many times `entry` is in the queue; linear, for checks.
    pub(crate) fn count(&self, entry: T) -> usize {
        self.entries.iter().filter(|other| **other == entry).count()
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
