//! The joint between the engine and whatever fills windows. A source is attached to memory
//! once, then takes commands and reports completions; it is never asked to `read(&mut [u8])`.
//!
//! How the five sources of the design meet these signatures:
//!
//! | source | object | `attach` makes | `submit` | `poll` waits on |
//! |---|---|---|---|---|
//! | file | an open file | a registered buffer | `READ_FIXED` / `READ` SQE, or a worker job | the ring |
//! | NVMe passthrough | a namespace | a registered buffer (host), nothing (p2p) | `URING_CMD` SQE | the ring |
//! | NVMe over VFIO | a namespace | IOVAs and a PRP list per window | an SQE in our queue, a doorbell | MSI-X eventfd or polling |
//! | libcufile | an open file | a registered device buffer | an async batch entry | batch events |
//! | emulator | a disk image | a PRP list per window | as VFIO | a thread's eventfd |
//!
//! unsafe: `submit` is an unsafe method, since memory may be written after it returns.

#![expect(unsafe_code, reason = "declares the unsafe method")]

use std::sync::Arc;
use std::time::Duration;

use ubio_core::{FillError, ObjectId, Route, StreamPlan, Token};

use crate::error::Result;
use crate::stats::{Incidents, Reason};
use crate::window::WindowMemory;

pub use waker::Waker;
use waker::wait_readable;

pub mod file;
pub mod nvme;
mod waker;

/// What a source can do; asked, never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Offsets, lengths and memory places of DMA commands must be multiples of this, bytes.
    pub alignment: u32,
    /// Largest command, bytes.
    pub command_bytes: u32,
    /// Most commands in flight.
    pub depth: u16,
}

/// How the source reads direct, and why not better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// io_uring with these features.
    Uring {
        /// `SINGLE_ISSUER` and `DEFER_TASKRUN` (Linux 6.1).
        deferred: bool,
        /// Files are registered.
        files: bool,
    },
    /// A pool of pread threads; io_uring could not be had for this reason.
    Threads {
        /// The kernel's words.
        reason: String,
    },
    /// NVMe commands.
    Nvme(nvme::NamespaceInfo),
}

/// What a source is asked to read from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Object {
    /// An open file.
    File(file::FileObject),
    /// A range of the namespace that the source was opened for.
    Namespace {
        /// First byte; of a block.
        offset: u64,
        /// Bytes; any number of them.
        len_bytes: u64,
    },
}

/// Memory attached to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryId(pub u32);

/// Where a command's bytes go.
#[derive(Clone, Debug)]
pub enum Target {
    /// One run, `offset` bytes into attached memory.
    Memory {
        /// Which memory.
        memory: MemoryId,
        /// Bytes from its start.
        offset: u64,
    },
    /// Piece by piece: the pieces of `plan.fills[fill]`, each to its `destination` in the
    /// attached memory. The command's offset is the fill's.
    Scatter {
        /// Which memory.
        memory: MemoryId,
        /// The stream's tables.
        plan: Arc<StreamPlan>,
        /// Index into `plan.fills`.
        fill: u32,
    },
}

/// One command: bring `len` bytes from `offset` of `object` to `target`.
///
/// From submit until its completion is polled the device (or a worker) may write the target
/// at any time; whoever submits must keep everyone else away from it.
#[derive(Clone, Debug)]
pub struct FillCommand {
    /// Handed back with the completion.
    pub token: Token,
    /// What to read.
    pub object: ObjectId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The way to take.
    pub route: Route,
    /// Where the bytes go.
    pub target: Target,
}

/// A finished command: bytes brought (fewer than asked only at the object's end or on a
/// short read), or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The command's token.
    pub token: Token,
    /// Bytes, or the error.
    pub result: Result<u32, FillError>,
}

/// How long [`Source::poll`] may block when nothing has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until a completion, the waker, or this long.
    AtMost(Duration),
    /// Until a completion or the waker.
    Forever,
}

/// Fills windows. Lives on one thread, the ring thread, from open to drop; dropping it waits
/// for every command in flight, so memory is never freed under a device.
pub trait Source {
    /// What it can do.
    fn limits(&self) -> SourceLimits;

    /// Takes an object to read from.
    ///
    /// # Errors
    /// Unsupported (this source reads other things), NoSpace (a table is full).
    fn add_object(&mut self, object: Object) -> Result<ObjectId>;

    /// Forgets an object; no command on it may be in flight.
    fn remove_object(&mut self, object: ObjectId);

    /// The drive that an object's bytes come from, as a number: two objects of one drive reach
    /// the same memory. Of a file it is its file system's device.
    fn drive(&self, object: ObjectId) -> u64;

    /// Makes `memory` a legal target, building whatever descriptors commands into it need.
    /// `register` asks for descriptors that outlast one command (registered buffers, whose
    /// pages stay pinned); where they cannot be had the memory is usable all the same and
    /// the source says why.
    ///
    /// # Errors
    /// NoSpace (a table is full), Unsupported (this kind of memory).
    fn attach(&mut self, memory: &WindowMemory, register: bool) -> Result<MemoryId>;

    /// Forgets memory; no command into it may be in flight.
    fn detach(&mut self, memory: MemoryId);

    /// Starts one command. It need not reach the device before the next
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// The command itself when the source is full now; it was not started.
    ///
    /// # Safety
    /// Until the completion was polled nobody else reads or writes the target.
    unsafe fn submit(&mut self, command: FillCommand) -> Result<(), FillCommand>;

    /// Appends what has completed since the last call to `completions`, waiting as told if
    /// there is nothing. Whoever waits has called [`Waker::about_to_sleep`] before and calls
    /// [`Waker::awake`] after: only then do wakes, and commands finished by workers, end it.
    ///
    /// # Errors
    /// Only when the source itself is broken; failed commands are completions.
    fn poll(&mut self, wait: Wait, completions: &mut Vec<Completion>) -> Result<()>;

    /// Commands submitted and not yet polled.
    fn in_flight(&self) -> usize;

    /// Those of them that wait for a device rather than for a worker of this process.
    fn device_in_flight(&self) -> usize;

    /// What did not go the best way since this was last asked, once for each time.
    fn take_fallbacks(&mut self) -> Vec<Reason>;

    /// What happened to the drive beside the commands, since the source was opened.
    fn incidents(&self) -> Incidents {
        Incidents::default()
    }

    /// Ends a blocking [`poll`](Self::poll) from any thread.
    fn waker(&self) -> Waker;
}
