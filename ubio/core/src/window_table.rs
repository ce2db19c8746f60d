//! The window table: what each window (and in-place ticket) stands for now, and in which
//! state of its life it is. Knows no streams' plans, commands or queues.

use alloc::vec::Vec;

use crate::limits::Limits;
use crate::plan::{Landing, Route};
use crate::units::{Generation, Lease, LeaseId, ObjectId, StreamId};

/// No lease: the end of a chain.
pub(crate) const NO_LEASE: u16 = u16::MAX;

/// A window's (or ticket's) life. `Prepare` and `Scrub` are asked for next, `Preparing` and
/// `Scrubbing` are under way at a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Prepare,
    Preparing,
    Armed,
    Filling,
    Landed,
    Flushing,
    Lent,
    Quarantined,
    Scrub,
    Scrubbing,
}

/// How many states there are.
const STATES: usize = 11;

/// What a fill needs to be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Window,
    Ticket,
}

impl Kind {
    /// What a landing stands on.
    #[inline]
    pub(crate) fn of(landing: Landing) -> Kind {
        match landing {
            Landing::Window | Landing::Lent => Kind::Window,
            Landing::Destination | Landing::Scatter => Kind::Ticket,
        }
    }
}

/// One window or ticket. The fill's shape is copied here when it is leased, so commands need
/// no look at the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) state: State,
    pub(crate) generation: Generation,
    /// Slot of the stream that holds it; meaningless when free.
    pub(crate) stream: u16,
    /// That stream's id.
    pub(crate) stream_id: StreamId,
    /// Index into the stream's fills.
    pub(crate) fill: u32,
    pub(crate) object: ObjectId,
    /// The fill's first byte in the object.
    pub(crate) offset: u64,
    /// Bytes that must arrive.
    pub(crate) expected: u32,
    /// One past the last byte to ask for, from the fill's first byte.
    pub(crate) end: u32,
    /// First byte no command has asked for yet.
    pub(crate) next: u32,
    /// Bytes that arrived and count.
    pub(crate) landed: u32,
    /// Commands with the source.
    pub(crate) in_flight: u16,
    /// Commands to be submitted again.
    pub(crate) waiting: u16,
    /// The next lent window of the stream, in fill order.
    pub(crate) lend_next: u16,
    pub(crate) route: Route,
    pub(crate) landing: Landing,
    /// Taken the fill's `otherwise`.
    pub(crate) fallen_back: bool,
    /// To be done by `otherwise` once the source is through with it.
    pub(crate) redo: bool,
    /// A command was submitted into it: its bytes are no longer what they were.
    pub(crate) touched: bool,
}

impl Slot {
    /// Whether no command of it is with the source or waits to be.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.waiting == 0
    }
}

const FREE: Slot = Slot {
    state: State::Free,
    generation: Generation(0),
    stream: 0,
    stream_id: StreamId(0),
    fill: 0,
    object: ObjectId(0),
    offset: 0,
    expected: 0,
    end: 0,
    next: 0,
    landed: 0,
    in_flight: 0,
    waiting: 0,
    lend_next: NO_LEASE,
    route: Route::Direct,
    landing: Landing::Window,
    fallen_back: false,
    redo: false,
    touched: false,
};

/// All windows, then all tickets.
#[derive(Debug)]
pub(crate) struct WindowTable {
    slots: Vec<Slot>,
    windows: u16,
    /// Windows and tickets.
    total: u16,
    tickets_in_use: u16,
    free_windows: Vec<u16>,
    free_tickets: Vec<u16>,
    /// Windows in each state.
    counts: [u16; STATES],
}

impl WindowTable {
    /// A table of free windows and tickets.
    pub(crate) fn new(limits: &Limits) -> WindowTable {
        let total = limits.windows + limits.tickets;
        let mut counts = [0; STATES];
        counts[State::Free as usize] = limits.windows;
        WindowTable {
            slots: alloc::vec![FREE; usize::from(total)],
            windows: limits.windows,
            total,
            tickets_in_use: 0,
            // The last freed is leased next: its lines may still be in a cache.
            free_windows: (0..limits.windows).rev().collect(),
            free_tickets: (limits.windows..total).rev().collect(),
            counts,
        }
    }

    /// How many windows and tickets there are.
    #[inline]
    pub(crate) fn len(&self) -> u16 {
        self.total
    }

    #[inline]
    pub(crate) fn is_window(&self, id: u16) -> bool {
        id < self.windows
    }

    #[inline]
    pub(crate) fn has_free(&self, kind: Kind) -> bool {
        match kind {
            Kind::Window => !self.free_windows.is_empty(),
            Kind::Ticket => !self.free_tickets.is_empty(),
        }
    }

    /// Leased ones of a kind.
    #[inline]
    pub(crate) fn in_use(&self, kind: Kind) -> u16 {
        match kind {
            Kind::Window => self.windows - self.counts[State::Free as usize],
            Kind::Ticket => self.tickets_in_use,
        }
    }

    /// Takes a free one of the kind; its generation is a new one. The caller sets the rest.
    #[inline]
    pub(crate) fn take(&mut self, kind: Kind) -> Option<u16> {
        let id = match kind {
            Kind::Window => self.free_windows.pop(),
            Kind::Ticket => self.free_tickets.pop(),
        }?;
        self.tickets_in_use += u16::from(kind == Kind::Ticket);
        debug_assert_eq!(self[id].state, State::Free);
        Some(id)
    }

    /// Gives one back.
    #[inline]
    pub(crate) fn give_back(&mut self, id: u16) {
        debug_assert!(self[id].state != State::Free);
        debug_assert!(self[id].in_flight == 0 && self[id].waiting == 0);
        self.set_state(id, State::Free);
        if self.is_window(id) {
            self.free_windows.push(id);
        } else {
            self.free_tickets.push(id);
            self.tickets_in_use -= 1;
        }
    }

    #[inline]
    pub(crate) fn set_state(&mut self, id: u16, state: State) {
        let old = core::mem::replace(&mut self[id].state, state);
        if self.is_window(id) {
            self.counts[old as usize] -= 1;
            self.counts[state as usize] += 1;
        }
    }

    /// Windows in a state.
    #[inline]
    pub(crate) fn windows_in(&self, state: State) -> u16 {
        self.counts[state as usize]
    }

    /// The lease a slot stands for now.
    #[inline]
    pub(crate) fn lease(&self, id: u16) -> Lease {
        Lease {
            id: LeaseId(id),
            generation: self[id].generation,
        }
    }

    /// The slot of a lease in the expected state; `None` when the report is of another
    /// leasing, or out of turn.
    #[inline]
    pub(crate) fn find(&self, lease: Lease, state: State) -> Option<u16> {
        let slot = self.slots.get(usize::from(lease.id.0))?;
        (slot.generation == lease.generation && slot.state == state).then_some(lease.id.0)
    }
}

impl core::ops::Index<u16> for WindowTable {
    type Output = Slot;
    #[inline]
    fn index(&self, id: u16) -> &Slot {
        &self.slots[usize::from(id)]
    }
}

impl core::ops::IndexMut<u16> for WindowTable {
    #[inline]
    fn index_mut(&mut self, id: u16) -> &mut Slot {
        &mut self.slots[usize::from(id)]
    }
}
