//! Whose fill is armed next: round robin over the streams that want a window, and over those
//! that want a ticket, so that lack of one never holds up the other. Knows stream slots only.

use alloc::vec::Vec;

use crate::ring::Ring;
use crate::window_table::Kind;

/// One queue of streams per kind of lease.
///
/// An entry may be out of date (its stream has ended, or wants the other kind by now): whoever
/// pops it looks again. A stream that wants a kind is always in that kind's queue.
#[derive(Debug)]
pub(crate) struct Arbiter {
    windows: Queue,
    tickets: Queue,
}

#[derive(Debug)]
struct Queue {
    ring: Ring<u16>,
    /// Whether a stream slot is in the ring: keeps it there at most once.
    queued: Vec<bool>,
}

impl Arbiter {
    /// Takes room for `streams` stream slots.
    pub(crate) fn new(streams: u16) -> Arbiter {
        let queue = || Queue {
            ring: Ring::new(usize::from(streams)),
            queued: alloc::vec![false; usize::from(streams)],
        };
        Arbiter {
            windows: queue(),
            tickets: queue(),
        }
    }

    #[inline]
    fn queue(&mut self, kind: Kind) -> &mut Queue {
        match kind {
            Kind::Window => &mut self.windows,
            Kind::Ticket => &mut self.tickets,
        }
    }

    /// Puts a stream at the end of a kind's queue, unless it is in it.
    #[inline]
    pub(crate) fn push(&mut self, kind: Kind, stream: u16) {
        let queue = self.queue(kind);
        if !core::mem::replace(&mut queue.queued[usize::from(stream)], true) {
            queue.ring.push(stream);
        }
    }

    /// Takes the stream whose turn it is.
    #[inline]
    pub(crate) fn pop(&mut self, kind: Kind) -> Option<u16> {
        let queue = self.queue(kind);
        let stream = queue.ring.pop()?;
        queue.queued[usize::from(stream)] = false;
        Some(stream)
    }

    /// Whether a stream is in a kind's queue.
    pub(crate) fn contains(&self, kind: Kind, stream: u16) -> bool {
        match kind {
            Kind::Window => self.windows.queued[usize::from(stream)],
            Kind::Ticket => self.tickets.queued[usize::from(stream)],
        }
    }
}
