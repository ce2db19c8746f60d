//! One open stream: how far its fills are armed, its items visible and its caller. Knows its
//! plan and its own counters; no windows' states, no commands.

use alloc::collections::BinaryHeap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::action::Outcome;
use crate::limits::Limits;
use crate::plan::{Landing, Route, StreamPlan};
use crate::units::{Nanos, StreamId};
use crate::window_table::{Kind, NO_LEASE};

/// Where in its life a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Fills are armed and items become visible.
    Running,
    /// Failed or cancelled: waits until every lease is back.
    Draining(Outcome),
    /// Over, to be told.
    Over(Outcome),
}

/// A fill and the way it is to be brought in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextFill {
    pub(crate) fill: u32,
    pub(crate) route: Route,
    pub(crate) landing: Landing,
    /// It is the fill's second way.
    pub(crate) fallen_back: bool,
}

/// A stream that is open.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) plan: Arc<StreamPlan>,
    pub(crate) phase: Phase,
    pub(crate) needed_by: Option<Nanos>,
    /// Whether anything of it lands at its destination.
    pub(crate) in_place: bool,
    /// The first fill not armed yet.
    next_fill: u32,
    /// Fills that wait to be done by their second way, earliest first.
    redo: BinaryHeap<Reverse<u32>>,
    /// Leases held, windows being scrubbed included.
    pub(crate) leases: u16,
    /// Oldest and youngest lent window not handed out yet, chained in fill order.
    pub(crate) lend_head: u16,
    pub(crate) lend_tail: u16,
    /// Pieces of each item that have not arrived.
    pieces_left: Vec<u32>,
    /// One past the last item that is whole, and whose predecessors are.
    done: u32,
    /// One past the last item told to be visible.
    announced: u32,
    /// Whether the stream is in the queue of those with news of visible items.
    pub(crate) announcing: bool,
    /// Fills done by their second way.
    pub(crate) fallbacks: u32,
    lookahead: Option<Lookahead>,
}

/// How far the consumer lets fills run ahead, in bytes of pieces in plan order.
#[derive(Debug)]
struct Lookahead {
    bytes: u64,
    /// Where each fill's first item starts.
    fill_starts: Vec<u64>,
    /// Where each item starts; one more for the end.
    item_starts: Vec<u64>,
    /// One past the last item consumed.
    consumed: u32,
    /// Fills whose first item starts before here may be armed.
    limit: u64,
}

impl Stream {
    /// A stream over a validated plan. Takes all the room it will ever have.
    pub(crate) fn new(id: StreamId, plan: Arc<StreamPlan>, limits: &Limits) -> Stream {
        let mut pieces_left = alloc::vec![0; plan.items as usize];
        for piece in &plan.pieces {
            pieces_left[piece.item.0 as usize] += 1;
        }
        let leases = usize::from(limits.windows) + usize::from(limits.tickets);
        let redos = plan
            .fills
            .iter()
            .filter(|fill| fill.otherwise.is_some())
            .count();
        let mut stream = Stream {
            id,
            phase: Phase::Running,
            needed_by: plan.needed_by,
            in_place: plan.fills.iter().any(|fill| {
                fill.landings()
                    .any(|landing| landing == Landing::Destination)
            }),
            next_fill: 0,
            redo: BinaryHeap::with_capacity(redos.min(leases)),
            leases: 0,
            lend_head: NO_LEASE,
            lend_tail: NO_LEASE,
            pieces_left,
            done: 0,
            announced: 0,
            announcing: false,
            fallbacks: 0,
            lookahead: plan
                .lookahead_bytes
                .map(|bytes| Lookahead::new(&plan, bytes)),
            plan,
        };
        stream.skip_whole_items();
        stream
    }

    /// The fill to be armed next, if the stream wants one armed now.
    #[inline]
    pub(crate) fn next(&self) -> Option<NextFill> {
        if self.phase != Phase::Running {
            return None;
        }
        if let Some(Reverse(fill)) = self.redo.peek().copied() {
            let (route, landing) = self.plan.fills[fill as usize].otherwise?;
            return Some(NextFill {
                fill,
                route,
                landing,
                fallen_back: true,
            });
        }
        let fill = self.next_fill;
        let shape = self.plan.fills.get(fill as usize)?;
        if let Some(lookahead) = &self.lookahead
            && lookahead.fill_starts[fill as usize] >= lookahead.limit
        {
            return None;
        }
        Some(NextFill {
            fill,
            route: shape.route,
            landing: shape.landing,
            fallen_back: false,
        })
    }

    /// What kind of lease the stream wants now.
    #[inline]
    pub(crate) fn wants(&self) -> Option<Kind> {
        Some(Kind::of(self.next()?.landing))
    }

    /// Marks what [`next`](Stream::next) gave as armed.
    #[inline]
    pub(crate) fn armed(&mut self, next: NextFill) {
        if next.fallen_back {
            self.redo.pop();
        } else {
            self.next_fill += 1;
        }
        self.leases += 1;
    }

    /// Queues a fill for its second way.
    pub(crate) fn redo(&mut self, fill: u32) {
        assert!(
            self.redo.len() < self.redo.capacity(),
            "more fills to redo than leases"
        );
        self.redo.push(Reverse(fill));
    }

    /// The pieces of a fill arrived. True when there is news of visible items.
    #[inline]
    pub(crate) fn deliver(&mut self, fill: u32) -> bool {
        let range = &self.plan.fills[fill as usize].pieces;
        for piece in &self.plan.pieces[range.start as usize..range.end as usize] {
            self.pieces_left[piece.item.0 as usize] -= 1;
        }
        self.skip_whole_items();
        self.has_news()
    }

    /// Moves past every item that is whole.
    #[inline]
    fn skip_whole_items(&mut self) {
        while self.pieces_left.get(self.done as usize) == Some(&0) {
            self.done += 1;
        }
    }

    /// Whether items are visible that were not told.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.done > self.announced
    }

    /// Takes the range of items to be told, as from and one past the last.
    #[inline]
    pub(crate) fn take_news(&mut self) -> (u32, u32) {
        let from = core::mem::replace(&mut self.announced, self.done);
        (from, self.done)
    }

    /// The consumer is done with all items before `items`. Items not visible yet cannot be
    /// consumed, and nothing is consumed twice: such counts are cut to what can be.
    pub(crate) fn consumed(&mut self, items: u32) {
        let items = items.min(self.announced);
        if let Some(lookahead) = &mut self.lookahead
            && items > lookahead.consumed
        {
            lookahead.consumed = items;
            lookahead.limit = lookahead.item_starts[items as usize].saturating_add(lookahead.bytes);
        }
    }

    /// Whether only the consumer keeps the next fill from being armed.
    pub(crate) fn waits_for_consumer(&self) -> bool {
        self.phase == Phase::Running
            && (self.next_fill as usize) < self.plan.fills.len()
            && self.next().is_none()
    }

    /// Whether nothing is left to arm, to arrive or to be given back.
    #[inline]
    pub(crate) fn is_through(&self) -> bool {
        self.leases == 0 && self.next_fill as usize == self.plan.fills.len() && self.redo.is_empty()
    }

    /// Ends the stream's work; the first ending is kept. False when it had ended already.
    pub(crate) fn end(&mut self, outcome: Outcome) -> bool {
        if self.phase != Phase::Running {
            return false;
        }
        self.phase = Phase::Draining(outcome);
        self.redo.clear();
        self.lend_head = NO_LEASE;
        self.lend_tail = NO_LEASE;
        true
    }

    /// Items that were told to be visible, and how many there are; for checks.
    pub(crate) fn progress(&self) -> (u32, u32, u32) {
        (self.announced, self.done, self.plan.items)
    }
}

impl Lookahead {
    fn new(plan: &StreamPlan, bytes: u64) -> Lookahead {
        let mut item_starts = alloc::vec![0_u64; plan.items as usize + 1];
        for piece in &plan.pieces {
            item_starts[piece.item.0 as usize + 1] += u64::from(piece.len);
        }
        for item in 1..item_starts.len() {
            item_starts[item] += item_starts[item - 1];
        }
        // A fill without pieces goes with the one before it.
        let mut start = 0;
        let fill_starts = plan
            .fills
            .iter()
            .map(|fill| {
                if !fill.pieces.is_empty() {
                    let first = plan.pieces[fill.pieces.start as usize].item;
                    start = item_starts[first.0 as usize];
                }
                start
            })
            .collect();
        Lookahead {
            bytes,
            fill_starts,
            item_starts,
            consumed: 0,
            limit: bytes,
        }
    }
}
