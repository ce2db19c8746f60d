//! The joint between commands and the ways they reach a controller: queues of our own
//! (`user`), the kernel's passthrough (`passthrough`). A transport is of one namespace.
//!
//! | | `user` | `passthrough` |
//! |---|---|---|
//! | opens | a [`Device`](crate::device::Device) | `/dev/ngXnY` |
//! | `attach` makes | a mapping and PRP lists | a registered buffer, or nothing |
//! | `submit` is | a queue entry | a big submission entry of io_uring |
//! | waits on | an interrupt's eventfd, or polls | the ring |
//!
//! unsafe: `submit` is an unsafe method, since memory may be written after it returns.
#![expect(unsafe_code, reason = "declares the unsafe method")]

pub mod passthrough;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::lba::{BlockCount, Lba};
use crate::memory::TargetMemory;
use crate::namespace::Namespace;
use crate::status::Status;

pub mod user;
mod waiting;
pub mod withdrawn;

/// Memory known to a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryId(pub u32);

/// What a transport can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Largest command, bytes; a multiple of the block size.
    pub transfer_bytes: u32,
    /// Places in memory must be multiples of this, bytes.
    pub alignment: u32,
    /// Most commands in flight.
    pub depth: u16,
}

/// What a command does with its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Blocks → memory.
    Read,
    /// Memory → blocks.
    Write,
    /// Compares the two; a difference is the status "Compare Failure".
    Compare,
}

/// One command: blocks from `lba` on, and memory from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Handed back with its end.
    pub token: u64,
    /// Which way.
    pub direction: Direction,
    /// First block.
    pub lba: Lba,
    /// How many; at most the limit.
    pub blocks: BlockCount,
    /// Which memory.
    pub memory: MemoryId,
    /// Bytes from its start.
    pub offset: u64,
}

/// Why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// The controller says so.
    Status(Status),
    /// It was given up by a reset of the controller, which is over: it may be tried again.
    Aborted,
    /// The controller is gone, or dead.
    Gone,
    /// The kernel says so (an errno).
    Os(i32),
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Aborted => f.write_str("aborted by a reset of the controller"),
            Self::Gone => f.write_str("the controller is gone"),
            Self::Os(errno) => std::io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

impl std::error::Error for IoError {}

/// A command that is over: its memory is the caller's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// As it was submitted.
    pub token: u64,
    /// All of its bytes moved, or why not.
    pub result: Result<(), IoError>,
}

/// What happened beside commands; counted from the start on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incidents {
    /// Completions of nothing that is in flight (unknown, twice, of an earlier use), dropped.
    pub strays: u64,
    /// Commands that took longer than they may.
    pub overdue: u64,
    /// Aborts sent.
    pub aborts: u64,
    /// Resets of the controller that were finished.
    pub resets: u64,
    /// Asynchronous events reported by the controller.
    pub events: u64,
}

impl Incidents {
    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            strays: self.strays - before.strays,
            overdue: self.overdue - before.overdue,
            aborts: self.aborts - before.aborts,
            resets: self.resets - before.resets,
            events: self.events - before.events,
        }
    }
}

/// A way to one namespace. Lives on one thread. Dropping it waits for the commands in flight,
/// or stops the device; where neither is possible their memory is given up, never freed.
pub trait Transport: fmt::Debug {
    /// Size, blocks, identity.
    fn namespace(&self) -> &Namespace;

    /// What it can take.
    fn limits(&self) -> TransportLimits;

    /// Makes memory a legal target. `register` asks for descriptors that outlast one command
    /// (pinned pages), where the transport has a choice.
    ///
    /// # Errors
    /// Unsupported (this kind of memory), NoSpace (pinned memory, bus addresses, a table).
    fn attach(&mut self, memory: Arc<dyn TargetMemory>, register: bool) -> Result<MemoryId>;

    /// Whether attached memory has descriptors that outlast one command.
    fn is_registered(&self, memory: MemoryId) -> bool;

    /// Forgets memory; no command on it may be in flight.
    fn detach(&mut self, memory: MemoryId);

    /// Starts a command. It need not reach the device before the next [`poll`](Self::poll).
    ///
    /// # Errors
    /// The command itself when there is no room now; it was not started.
    ///
    /// # Panics
    /// If it breaks the limits, leaves the memory or the namespace: a bug of the caller's.
    ///
    /// # Safety
    /// Until its end was polled nobody else writes its memory, nor reads what it writes.
    unsafe fn submit(&mut self, io: Io) -> Result<(), Io>;

    /// Whether somebody waits for the device to be let go, and nothing comes from it any more:
    /// it is to be dropped then, once everything has ended.
    fn is_wanted_back(&self) -> bool {
        false
    }

    /// Sends what was submitted, appends what has ended, and sees to what is overdue.
    ///
    /// # Errors
    /// Only when the transport itself is broken; failed commands are ends.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<()>;

    /// Blocks until a poll may find something, `other` is readable, or `span` is over; it may
    /// return early.
    ///
    /// # Errors
    /// The wait itself failed.
    fn wait(&mut self, other: BorrowedFd<'_>, span: Option<Duration>) -> Result<()>;

    /// Commands submitted whose end was not polled.
    fn in_flight(&self) -> usize;

    /// How long to wait before a command that ended so is tried again.
    fn retry_delay(&self, status: Status) -> Duration;

    /// What happened beside commands.
    fn incidents(&self) -> Incidents;
}
