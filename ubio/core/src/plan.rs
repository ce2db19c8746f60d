//! What a stream wants done, as plain tables made once before the first fill. Knows no
//! tensors, names or files: whoever plans (the engine) keeps those beside it.

use alloc::vec::Vec;
use core::ops::Range;

use crate::units::{ItemIndex, Nanos, ObjectId};

/// The way a fill's bytes take. The machine only counts by it and hands it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Route {
    /// Storage DMA, past the page cache.
    Direct,
    /// Copied from the page cache by a worker.
    Cached,
    /// Read through the page cache, from storage where need be: what remains where a file
    /// has no direct I/O.
    Buffered,
    /// Buffered read into a bounce buffer, then a copy: the slow side of every comparison.
    Traditional,
    /// NVMe commands through the kernel's passthrough.
    Passthrough,
    /// NVMe commands through queues of our own, over VFIO.
    Vfio,
    /// NVMe commands to a controller that is emulated in this process.
    Emulated,
}

impl Route {
    /// How many routes there are.
    pub const COUNT: usize = 7;
    /// All routes, each at its index.
    pub const ALL: [Route; Route::COUNT] = [
        Route::Direct,
        Route::Cached,
        Route::Buffered,
        Route::Traditional,
        Route::Passthrough,
        Route::Vfio,
        Route::Emulated,
    ];

    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Cached => "cached",
            Self::Buffered => "buffered",
            Self::Traditional => "traditional",
            Self::Passthrough => "passthrough",
            Self::Vfio => "vfio",
            Self::Emulated => "emulated",
        }
    }

    /// Whether a device moves the bytes, with commands whose size and number are the engine's
    /// to choose.
    #[inline]
    pub fn is_dma(self) -> bool {
        match self {
            Self::Direct | Self::Passthrough | Self::Vfio | Self::Emulated => true,
            Self::Cached | Self::Buffered | Self::Traditional => false,
        }
    }

    /// Its place in tables by route.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Where a fill's bytes land.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Landing {
    /// In a window; flushed to the destination piece by piece.
    Window,
    /// In a window; then lent to the caller instead of flushed, in the order of the fills. It
    /// holds its window until the caller returns it: a stream of which items are lent and
    /// others need a window goes on only as fast as its caller gives back.
    Lent,
    /// At the destination itself, as one run: the first piece's `destination` is where the
    /// fill's first byte goes. Holds a ticket, no window. The destination is prepared
    /// (faulted in) before the first command.
    Destination,
    /// At the destination itself, each piece to its own place, as a single command, whatever
    /// the size of commands. After a short read the rest is asked for, from a byte inside the
    /// fill on. Holds a ticket, no window.
    Scatter,
}

/// Part of a fill that belongs to one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the piece starts, in bytes from the fill's first byte.
    pub fill_offset: u32,
    /// Bytes; never 0.
    pub len: u32,
    /// Where the piece goes, in bytes from the start of the destination.
    pub destination: u64,
    /// The item it belongs to.
    pub item: ItemIndex,
}

/// One contiguous stretch of one object, brought in under one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillPlan {
    /// What is read.
    pub object: ObjectId,
    /// First byte, from the object's start; a multiple of [`Limits::alignment`](crate::Limits).
    pub offset: u64,
    /// Bytes to ask for; a multiple of the alignment. At most a window, unless neither way
    /// needs one: then at most [`MAX_WINDOW_BYTES`](crate::limits::MAX_WINDOW_BYTES).
    pub len: u32,
    /// Bytes that must arrive: less than `len` only where the object ends inside the fill.
    pub expected: u32,
    /// The way to take first.
    pub route: Route,
    /// Where the bytes land on that way.
    pub landing: Landing,
    /// What to do instead when the source answers
    /// [`NotResident`](crate::FillErrorKind::NotResident); `None`: that is an error. Tried
    /// once. Lands lent exactly where the first way does.
    pub otherwise: Option<(Route, Landing)>,
    /// Its pieces, as indices into [`StreamPlan::pieces`]: from where the fill before it ends.
    /// Empty only where neither way lands at the destination as one run.
    pub pieces: Range<u32>,
}

impl FillPlan {
    /// Where the bytes land on the ways there are.
    pub fn landings(&self) -> impl Iterator<Item = Landing> {
        let otherwise = self.otherwise.map(|(_, landing)| landing);
        core::iter::once(self.landing).chain(otherwise)
    }
}

/// A stream's whole work. Fills are taken in order; items become visible in order.
#[derive(Clone, Debug, Default)]
pub struct StreamPlan {
    /// What to read, in the order compute wants it.
    pub fills: Vec<FillPlan>,
    /// The pieces of all fills, none left out; no piece is of an earlier item than the one
    /// before it.
    pub pieces: Vec<Piece>,
    /// How many items there are. An item without pieces (an empty tensor) is visible as
    /// soon as all items before it are.
    pub items: u32,
    /// When compute needs the stream's next item; ready flushes of the stream with the
    /// earliest moment go first. `None`: after all that have one.
    pub needed_by: Option<Nanos>,
    /// How many bytes of pieces may be under way or visible beyond what the consumer has
    /// called consumed; not 0. An item whose first byte is allowed is allowed whole, and a
    /// fill is taken when its first piece's item is allowed: whoever consumes all that is
    /// visible never waits for ever. `None`: no bound.
    pub lookahead_bytes: Option<u64>,
}
