//! What the machine asks for ([`Action`]) and what drivers report back. Plain values.

use crate::plan::{Landing, Route};
use crate::units::{ItemIndex, Lease, Nanos, ObjectId, StreamId, Token};

/// One thing to be done by a driver. Each is asked for exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the destination of this fill ready for DMA (fault it in). Answer with
    /// `Core::on_prepared`.
    Prepare {
        /// The ticket held.
        lease: Lease,
        /// The stream.
        stream: StreamId,
        /// Index into the stream's `StreamPlan::fills`.
        fill: u32,
    },
    /// Submit one command to the source. Answer with `Core::on_fill`.
    Fill {
        /// To be handed back with the completion.
        token: Token,
        /// The window or ticket to fill.
        lease: Lease,
        /// The stream.
        stream: StreamId,
        /// Index into the stream's `StreamPlan::fills`.
        fill: u32,
        /// What to read.
        object: ObjectId,
        /// First byte, from the object's start.
        offset: u64,
        /// Where in the window the first byte goes, in bytes from the fill's first byte.
        lease_offset: u32,
        /// Bytes.
        len: u32,
        /// The way to take.
        route: Route,
        /// Where the bytes land.
        landing: Landing,
    },
    /// Copy the fill's pieces from the window to the destination. Answer with
    /// `Core::on_flushed`.
    Flush {
        /// The window, landed and proven complete.
        lease: Lease,
        /// The stream.
        stream: StreamId,
        /// Index into the stream's `StreamPlan::fills`.
        fill: u32,
    },
    /// Hand the window's bytes to the caller. Answer with `Core::on_returned` when the
    /// caller has let go of them.
    Lend {
        /// The window, landed and proven complete.
        lease: Lease,
        /// The stream.
        stream: StreamId,
        /// Index into the stream's `StreamPlan::fills`.
        fill: u32,
    },
    /// Zero the window. Answer with `Core::on_scrubbed`.
    Scrub {
        /// The window. The lease may be one that no other action named: of a fill that was to
        /// be done over in the same window, and was not begun.
        lease: Lease,
    },
    /// Items `from..to` may be used by the consumer from now on.
    Visible {
        /// The stream.
        stream: StreamId,
        /// First item.
        from: ItemIndex,
        /// One past the last item.
        to: ItemIndex,
    },
    /// The stream is over: no lease, command or flush of it is left anywhere.
    Finished {
        /// The stream; the machine has forgotten it.
        stream: StreamId,
        /// How it ended.
        outcome: Outcome,
        /// How many of its fills were done by their second way.
        fallbacks: u32,
    },
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every item is visible (or, for lent fills, was lent and returned).
    Complete,
    /// The caller left.
    Cancelled,
    /// A fill or flush could not be done. The first failure is kept.
    Failed(Failure),
}

/// The first failure of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index into the stream's `StreamPlan::fills`.
    pub fill: u32,
    /// What was read.
    pub object: ObjectId,
    /// The command's first byte, from the object's start.
    pub offset: u64,
    /// The command's length, bytes.
    pub len: u32,
    /// How often it was tried.
    pub tries: u8,
    /// What went wrong.
    pub error: FillError,
}

/// Why a command (or flush, or preparation) did not succeed, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillError {
    /// For the retry rules.
    pub kind: FillErrorKind,
    /// The source's own code (errno, NVMe status), kept for the message; 0: none.
    pub code: i32,
}

/// Kinds of failure the retry rules tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FillErrorKind {
    /// The device was busy or interrupted; the same command may succeed. Retried after
    /// `delay`, a few times.
    Transient {
        /// How long to wait first; 0: at once.
        delay: Nanos,
    },
    /// A media or transport error: retried once, then final.
    Device,
    /// The bytes are not in the page cache: take the fill's other way.
    NotResident,
    /// The object ended before the bytes it promised. Final.
    Truncated,
    /// The command was refused as wrong, or the object is gone. Final.
    Fatal,
    /// The copy to the destination, or its preparation, failed. Final.
    Destination,
    /// The command took longer than its stream may wait. Final; never a completion's.
    Overdue,
}

/// What a driver that has nothing left to do is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stall {
    /// Commands are with the source.
    Source,
    /// No window is free because of quarantine or scrubbing.
    Window,
    /// Windows are landed, the copy engine has them.
    Copy,
    /// The consumer holds lent windows, or has not consumed what it was given.
    Compute,
    /// There is no work.
    Idle,
}
