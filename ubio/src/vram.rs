//! The joint between the engine and where bytes end: memory to be filled, and the copy
//! engine that flushes windows into it (and gathers it back for writes). Like a source, a
//! backend takes operations and reports completions; nothing blocks.
//!
//! A CUDA backend fits so: `attach` pins the windows, `adopt` takes a device pointer,
//! `submit` enqueues on a CUDA stream of its own followed by an event, `poll` queries
//! events. The BAR backend copies by the workers like the host's, with write-combining stores
//! and a read-back before it reports.
//!
//! unsafe: `submit` is an unsafe method, since memory is written after it returns.
#![expect(unsafe_code, reason = "declares the unsafe method")]

use std::sync::Arc;

use ubio_core::{FillError, StreamPlan};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::memory::{MemoryKind, Region};
use crate::window::WindowMemory;

pub mod bar;
mod copies;
pub mod host;
pub(crate) mod mixed;
pub mod shared;

/// Memory that bytes end in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum VramBuffer {
    /// Host memory.
    Host(Arc<Region>),
    /// Memory of a PCI function: a BAR or p2pmem ([`bar::BarMemory`]).
    Bar(Arc<Region>),
}

impl VramBuffer {
    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.region().len_bytes()
    }

    /// The memory, of whatever kind.
    pub fn region(&self) -> &Arc<Region> {
        match self {
            Self::Host(region) | Self::Bar(region) => region,
        }
    }

    /// The memory, if the processor may look at it as it is.
    ///
    /// # Errors
    /// Unsupported: it lies in a device.
    pub fn host_region(&self) -> Result<&Arc<Region>> {
        let region = self.region();
        match region.kind() {
            MemoryKind::Host => Ok(region),
            kind => Err(Error::new(
                ErrorKind::Unsupported,
                format!("tensors cannot be looked at in {} memory", kind.name()),
            )
            .remedy("load into host memory, or read single ranges (Engine::read_range)")),
        }
    }
}

impl VramBuffer {
    /// Makes all of it ready to be written, so that no later write has to: faults host
    /// memory in. A load does this itself, piece by piece and off its critical path. A BAR is
    /// always there.
    ///
    /// # Errors
    /// NoSpace.
    pub fn fault_in(&self) -> Result<()> {
        let region = self.region();
        region.populate(0, region.len_bytes())?;
        region.note_faulted_in();
        Ok(())
    }
}

/// A buffer known to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// Windows known to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowsId(pub u32);

/// One operation of the copy engine.
#[derive(Clone, Debug)]
pub enum VramWork {
    /// Window → VRAM: each piece of `plan.fills[fill]` to its destination.
    Flush {
        /// Which windows.
        windows: WindowsId,
        /// Where the fill starts, bytes from the start of the windows.
        window_offset: u64,
        /// Where to.
        buffer: BufferId,
        /// The stream's tables.
        plan: Arc<StreamPlan>,
        /// Index into `plan.fills`.
        fill: u32,
    },
    /// VRAM → window: the same pieces, the other way.
    Gather {
        /// Which windows.
        windows: WindowsId,
        /// Where the fill starts, bytes from the start of the windows.
        window_offset: u64,
        /// Where from.
        buffer: BufferId,
        /// The stream's tables.
        plan: Arc<StreamPlan>,
        /// Index into `plan.fills`.
        fill: u32,
    },
    /// Makes a range ready to be written by a device (faults it in).
    Prepare {
        /// Which buffer.
        buffer: BufferId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
    },
    /// Zeroes part of the windows.
    Scrub {
        /// Which windows.
        windows: WindowsId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
    },
}

/// A finished operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VramDone {
    /// What it was submitted as.
    pub id: u64,
    /// Done and visible to whoever reads the buffer, or why not.
    pub result: Result<(), FillError>,
}

/// A backend. Lives on the ring thread.
pub trait Vram {
    /// Memory of this backend, `len_bytes` long or a little longer, zero.
    ///
    /// # Errors
    /// NoSpace.
    fn allocate(&self, len_bytes: u64) -> Result<VramBuffer>;

    /// Takes a buffer, its own or a caller's.
    ///
    /// # Errors
    /// Unsupported (another backend's buffer).
    fn adopt(&mut self, buffer: VramBuffer) -> Result<BufferId>;

    /// Forgets a buffer; no operation on it may be under way.
    fn release(&mut self, buffer: BufferId);

    /// Takes windows to flush from.
    ///
    /// # Errors
    /// Unsupported (this kind of memory).
    fn attach(&mut self, windows: &WindowMemory) -> Result<WindowsId>;

    /// The buffer as memory a source can fill itself, if sources can.
    fn in_place(&self, buffer: BufferId) -> Option<WindowMemory>;

    /// Starts an operation named `id`.
    ///
    /// # Safety
    /// Until its completion was polled nobody else touches what it writes or writes what
    /// it reads.
    unsafe fn submit(&mut self, id: u64, work: VramWork);

    /// Appends what has completed to `done`. Never blocks: the waker given at open is woken.
    fn poll(&mut self, done: &mut Vec<VramDone>);

    /// Whether a poll would find something.
    fn is_ready(&self) -> bool;
}
