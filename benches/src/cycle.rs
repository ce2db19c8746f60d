//! The core under a driver that does nothing: every command and flush succeeds, one report at
//! a time, so that what is measured is the core's deciding and little else.

use std::sync::Arc;

use ubio_core::{
    Action, Core, FillPlan, ItemIndex, Landing, Lease, Limits, Nanos, ObjectId, Piece, Route,
    StreamPlan, Token,
};

/// Bytes of a window.
pub const WINDOW_BYTES: u32 = 4 << 20;
/// Windows of the pool.
const WINDOWS: u16 = 8;
/// Commands in flight: two windows' worth of the smallest.
const DEPTH: u16 = 32;

/// What one window's life consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Commands that fill a window; a power of two.
    pub commands: u32,
    /// Pieces a window is flushed in, each of an item of its own.
    pub pieces: u32,
    /// Whether the core adapts its commands. Their size stays here: more of them than fit the
    /// depth would have to be in flight for another to be tried.
    pub tuned: bool,
}

impl Shape {
    /// The shape every bound starts from.
    pub const BASE: Shape = Shape {
        commands: 8,
        pieces: 1,
        tuned: false,
    };

    /// The machine's limits for this shape.
    pub fn limits(self) -> Limits {
        Limits {
            windows: WINDOWS,
            window_bytes: WINDOW_BYTES,
            tickets: 32,
            depth: DEPTH,
            command_bytes: WINDOW_BYTES / self.commands,
            alignment: 4096,
            streams: 16,
        }
    }

    /// A plan of full windows.
    pub fn plan(self, fills: u32) -> Arc<StreamPlan> {
        let len = WINDOW_BYTES / self.pieces;
        let fill = |fill: u32| FillPlan {
            object: ObjectId(0),
            offset: u64::from(fill) * u64::from(WINDOW_BYTES),
            len: WINDOW_BYTES,
            expected: WINDOW_BYTES,
            route: Route::Direct,
            landing: Landing::Window,
            otherwise: None,
            pieces: fill * self.pieces..(fill + 1) * self.pieces,
        };
        let piece = |piece: u32| Piece {
            fill_offset: piece % self.pieces * len,
            len,
            destination: u64::from(piece) * u64::from(len),
            item: ItemIndex(piece),
        };
        Arc::new(StreamPlan {
            fills: (0..fills).map(fill).collect(),
            pieces: (0..fills * self.pieces).map(piece).collect(),
            items: fills * self.pieces,
            ..StreamPlan::default()
        })
    }
}

/// A core and the reports it waits for, oldest first.
#[derive(Debug)]
pub struct Cycle {
    core: Core,
    now: u64,
    /// Commands with the source: a ring of a power of two.
    commands: [(Token, u32); DEPTH as usize],
    submitted: usize,
    completed: usize,
    flush: Option<Lease>,
    /// Items told to be visible.
    pub visible: u64,
    /// Streams that are over.
    pub finished: u64,
}

impl Cycle {
    /// A machine of the shape without a stream.
    ///
    /// # Panics
    /// The shape is not within the core's limits.
    pub fn new(shape: Shape) -> Cycle {
        let mut core = Core::new(shape.limits()).expect("limits of a valid machine");
        core.tune(shape.tuned);
        Cycle {
            core,
            now: 0,
            commands: [(Token(0), 0); DEPTH as usize],
            submitted: 0,
            completed: 0,
            flush: None,
            visible: 0,
            finished: 0,
        }
    }

    /// The machine.
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Opens a stream.
    ///
    /// # Panics
    /// The plan is refused.
    pub fn open(&mut self, plan: Arc<StreamPlan>) {
        self.core
            .open_stream(plan, Nanos(self.now))
            .expect("a valid plan");
    }

    /// Does what the core asks for, then makes one report: a flush's end before a command's.
    /// False when there was none to make.
    #[inline(always)]
    pub fn step(&mut self) -> bool {
        while let Some(action) = self.core.next_action(Nanos(self.now)) {
            match action {
                Action::Fill { token, len, .. } => {
                    self.commands[self.submitted % usize::from(DEPTH)] = (token, len);
                    self.submitted += 1;
                }
                Action::Flush { lease, .. } => self.flush = Some(lease),
                Action::Visible { from, to, .. } => self.visible += u64::from(to.0 - from.0),
                Action::Finished { .. } => self.finished += 1,
                Action::Prepare { .. } | Action::Lend { .. } | Action::Scrub { .. } => {
                    unreachable!("nothing of the kind was planned")
                }
            }
        }
        self.now += 1000;
        let now = Nanos(self.now);
        if let Some(lease) = self.flush.take() {
            self.core.on_flushed(lease, Ok(()), now);
        } else if self.completed < self.submitted {
            let (token, len) = self.commands[self.completed % usize::from(DEPTH)];
            self.completed += 1;
            self.core.on_fill(token, Ok(len), now);
        } else {
            return false;
        }
        true
    }

    /// Goes on until so many more items are visible.
    #[inline]
    pub fn advance(&mut self, items: u64) {
        let until = self.visible + items;
        while self.visible < until && self.step() {}
    }

    /// Goes on until every stream is over.
    #[inline]
    pub fn finish(&mut self) {
        while self.step() {}
    }
}
