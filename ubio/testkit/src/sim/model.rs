//! What the simulator itself knows of leases, commands and streams: a second, slower telling
//! of the machine's rules, from the plan and the reports alone. Never asks the machine.

use std::sync::Arc;

use ubio_core::limits::{MAX_TRIES_DEVICE, MAX_TRIES_TRANSIENT};
use ubio_core::{
    FillError, FillErrorKind, FillPlan, ItemIndex, Landing, Lease, Outcome, Route, StreamId,
    StreamPlan, Token,
};

/// Whether a landing stands on a window.
pub(crate) fn on_window(landing: Landing) -> bool {
    matches!(landing, Landing::Window | Landing::Lent)
}

/// One window or ticket.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The window's memory; empty for a ticket.
    pub(crate) bytes: Vec<u8>,
    /// The youngest generation seen.
    pub(crate) generation: u32,
    pub(crate) held: Option<Held>,
    /// It was scrubbed and not leased since.
    pub(crate) zeroed: bool,
}

/// Where a lease that was seen is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Preparing,
    /// Commands may be, or are, submitted.
    Filling,
    /// Through with its first way; the same slot is to be leased for the second.
    Rearm,
    Landed,
    Flushing,
    Lent,
    Scrub,
    Scrubbing,
}

/// A lease that was seen.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) stream: usize,
    pub(crate) fill: usize,
    pub(crate) second_way: bool,
    pub(crate) landing: Landing,
    pub(crate) at: At,
    /// Bytes asked for.
    pub(crate) next: u32,
    /// Bytes to ask for.
    pub(crate) end: u32,
    pub(crate) in_flight: u32,
    pub(crate) retries: Vec<Retry>,
    /// A command was answered with "not resident".
    pub(crate) redo: bool,
    /// When it is to be flushed: need, then arrival.
    pub(crate) ready: (u64, u64),
}

impl Held {
    /// Whether every byte has been asked for and answered.
    pub(crate) fn is_whole(&self) -> bool {
        self.next == self.end && self.in_flight == 0 && self.retries.is_empty()
    }
}

/// A range to be asked for again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) tries: Tries,
    /// Not before this moment.
    pub(crate) due: u64,
}

/// How often a range was tried, and why again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    pub(crate) all: u8,
    transient: u8,
    device: u8,
}

/// A command with the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) token: Token,
    pub(crate) lease: Lease,
    pub(crate) stream: usize,
    pub(crate) fill: usize,
    /// From the fill's first byte.
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) route: Route,
    pub(crate) landing: Landing,
    pub(crate) tries: Tries,
}

/// What becomes of a command that came back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Landed,
    /// To be asked for again, without the first bytes, after a while.
    Again {
        landed: u32,
        delay: u64,
    },
    NotResident,
    Failed(FillError),
}

impl Command {
    /// The rules of retrying, from their documentation.
    pub(crate) fn judge(
        &mut self,
        needed: u32,
        alignment: u32,
        result: Result<u32, FillError>,
    ) -> Verdict {
        let fail = |kind| Verdict::Failed(FillError { kind, code: 0 });
        let again = |error, delay, errors: &mut u8, most: u8| {
            *errors += 1;
            if *errors < most {
                Verdict::Again { landed: 0, delay }
            } else {
                Verdict::Failed(error)
            }
        };
        match result {
            Ok(bytes) if bytes > self.len => fail(FillErrorKind::Fatal),
            Ok(bytes) if bytes >= needed => Verdict::Landed,
            Ok(0) => fail(FillErrorKind::Truncated),
            Ok(bytes) if bytes >= alignment => Verdict::Again {
                landed: bytes / alignment * alignment,
                delay: 0,
            },
            Ok(_) => {
                let error = FillError {
                    kind: FillErrorKind::Truncated,
                    code: 0,
                };
                again(error, 0, &mut self.tries.transient, MAX_TRIES_TRANSIENT)
            }
            Err(error) => match error.kind {
                FillErrorKind::Transient { delay } => again(
                    error,
                    delay.0,
                    &mut self.tries.transient,
                    MAX_TRIES_TRANSIENT,
                ),
                FillErrorKind::Device => again(error, 0, &mut self.tries.device, MAX_TRIES_DEVICE),
                FillErrorKind::NotResident => Verdict::NotResident,
                _ => Verdict::Failed(error),
            },
        }
    }
}

/// How far one fill is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Todo,
    Held,
    /// To be leased anew, on the other kind of lease.
    Redo,
    Delivered,
}

/// A stream that was opened.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) plan: Arc<StreamPlan>,
    pub(crate) destination: Vec<u8>,
    pub(crate) fills: Vec<Progress>,
    pub(crate) needed_by: Option<u64>,
    /// How it must end, once that is certain.
    pub(crate) ending: Option<Outcome>,
    pub(crate) finished: bool,
    /// Fills that went their second way.
    pub(crate) fallbacks: u32,
    pub(crate) announced: u32,
    pub(crate) consumed: u32,
    /// Pieces of visible items; pieces are in the order of items.
    pub(crate) pieces_visible: usize,
    /// The next fill to be lent, or a fill before it.
    pub(crate) lend_from: usize,
    /// Whether it has wanted a window since its last one, and how often each other stream was
    /// given one meanwhile.
    pub(crate) waits: bool,
    pub(crate) overtaken: Vec<u32>,
    /// Pieces of each item that have not arrived.
    pieces_left: Vec<u32>,
    /// Items that have arrived, and all before them.
    pub(crate) arrived: u32,
    /// Where each item starts, in bytes of pieces.
    item_starts: Vec<u64>,
}

impl Stream {
    pub(crate) fn new(id: StreamId, plan: Arc<StreamPlan>, bytes: usize) -> Stream {
        let mut pieces_left = vec![0; plan.items as usize];
        let mut item_starts = vec![0; plan.items as usize + 1];
        for piece in &plan.pieces {
            pieces_left[piece.item.0 as usize] += 1;
            for start in &mut item_starts[piece.item.0 as usize + 1..] {
                *start += u64::from(piece.len);
            }
        }
        let mut stream = Stream {
            id,
            destination: vec![0; bytes],
            fills: vec![Progress::Todo; plan.fills.len()],
            needed_by: plan.needed_by.map(|at| at.0),
            ending: None,
            finished: false,
            fallbacks: 0,
            announced: 0,
            consumed: 0,
            pieces_visible: 0,
            lend_from: 0,
            waits: false,
            overtaken: Vec::new(),
            pieces_left,
            arrived: 0,
            item_starts,
            plan,
        };
        stream.skip_arrived();
        stream
    }

    /// Whether fills may still be brought in.
    pub(crate) fn is_running(&self) -> bool {
        self.ending.is_none()
    }

    /// Whether any of its fills may land at its destination.
    pub(crate) fn lands_in_place(&self) -> bool {
        let mut fills = self.plan.fills.iter();
        fills.any(|fill| {
            fill.landings()
                .any(|landing| landing == Landing::Destination)
        })
    }

    /// The pieces of a fill are where they belong.
    pub(crate) fn deliver(&mut self, fill: usize) {
        assert_eq!(self.fills[fill], Progress::Held, "a fill delivered twice");
        self.fills[fill] = Progress::Delivered;
        for piece in pieces(&self.plan, fill) {
            self.pieces_left[self.plan.pieces[piece].item.0 as usize] -= 1;
        }
        self.skip_arrived();
    }

    fn skip_arrived(&mut self) {
        while self.pieces_left.get(self.arrived as usize) == Some(&0) {
            self.arrived += 1;
        }
    }

    /// Whether the consumer lets a fill begin: its first item's first byte is within the
    /// lookahead of what was consumed.
    pub(crate) fn is_allowed(&self, fill: usize) -> bool {
        let Some(lookahead) = self.plan.lookahead_bytes else {
            return true;
        };
        let last = pieces(&self.plan, fill).start.min(self.plan.pieces.len());
        // A fill without pieces goes with the one before it.
        let piece = if pieces(&self.plan, fill).is_empty() {
            let before = (0..fill).rev().map(|fill| pieces(&self.plan, fill));
            before
                .into_iter()
                .find(|range| !range.is_empty())
                .map(|range| range.start)
        } else {
            Some(last)
        };
        let item = piece.map_or(ItemIndex(0), |piece| self.plan.pieces[piece].item);
        let start = piece.map_or(0, |_| self.item_starts[item.0 as usize]);
        start < self.item_starts[self.consumed as usize] + lookahead
    }

    /// Whether it wants a window now, as far as can be seen.
    pub(crate) fn wants_window(&self) -> bool {
        if !self.is_running() {
            return false;
        }
        let first = |wanted| self.fills.iter().position(|fill| *fill == wanted);
        if let Some(fill) = first(Progress::Redo) {
            return on_window(self.way(fill, true).1);
        }
        first(Progress::Todo)
            .is_some_and(|fill| self.is_allowed(fill) && on_window(self.way(fill, false).1))
    }

    /// A fill's route and landing.
    pub(crate) fn way(&self, fill: usize, second: bool) -> (Route, Landing) {
        let shape = &self.plan.fills[fill];
        match shape.otherwise {
            Some(otherwise) if second => otherwise,
            None if second => panic!("fill {fill} has no other way"),
            _ => (shape.route, shape.landing),
        }
    }

    /// A fill of the plan.
    pub(crate) fn shape(&self, fill: usize) -> &FillPlan {
        &self.plan.fills[fill]
    }
}

/// The pieces of a fill.
pub(crate) fn pieces(plan: &StreamPlan, fill: usize) -> std::ops::Range<usize> {
    let range = &plan.fills[fill].pieces;
    range.start as usize..range.end as usize
}
