//! Memory that this process has mapped as VRAM: host memory, which is the embedded default and
//! what CPU inference really uses, and memory of PCI functions. Copies by the workers; whether
//! stores have to be settled is the memory's business. Knows no streams and no functions.
//!
//! unsafe: makes worker jobs over raw memory.
#![expect(
    unsafe_code,
    reason = "worker jobs take raw memory whose exclusivity the caller promised"
)]

use std::sync::Arc;

use super::bar::BarMemory;
use super::host::allocate;
use super::{BufferId, Vram, VramBuffer, VramDone, VramWork, WindowsId};
use crate::error::{Error, ErrorKind, Result};
use crate::source::Waker;
use crate::sys::memory::Region;
use crate::window::WindowMemory;
use crate::workers::{DoneQueue, Job, Work, Workers};

/// The backend. One engine's destinations may be of several kinds, side by side.
#[derive(Debug)]
pub struct MappedVram {
    buffers: Vec<Option<Arc<Region>>>,
    windows: Vec<Arc<Region>>,
    /// Windows are a device's: what lands there is for devices' memory alone.
    device_windows: bool,
    /// What is allocated here is part of it; else it is host memory.
    bar: Option<Arc<BarMemory>>,
    workers: Arc<Workers>,
    done: Arc<DoneQueue>,
}

impl MappedVram {
    /// For at most `capacity` operations under way; `waker` is woken for each finished one.
    pub fn new(workers: Arc<Workers>, capacity: usize, waker: Waker) -> Self {
        Self {
            buffers: Vec::new(),
            windows: Vec::new(),
            device_windows: false,
            bar: None,
            workers,
            done: DoneQueue::new(capacity, waker),
        }
    }

    /// Allocates from a function's memory instead of host memory.
    #[must_use]
    pub fn allocating_from(mut self, bar: Arc<BarMemory>) -> Self {
        self.bar = Some(bar);
        self
    }

    fn buffer(&self, id: BufferId) -> &Arc<Region> {
        self.buffers[id.0 as usize]
            .as_ref()
            .expect("adopted buffer")
    }
}

impl Vram for MappedVram {
    fn allocate(&self, len_bytes: u64) -> Result<VramBuffer> {
        match &self.bar {
            Some(bar) => bar.allocate(len_bytes).map(VramBuffer::Bar),
            None => allocate(len_bytes).map(VramBuffer::Host),
        }
    }

    fn adopt(&mut self, buffer: VramBuffer) -> Result<BufferId> {
        let region = Arc::clone(buffer.region());
        if self.device_windows && !region.kind().is_device() {
            let what = "bytes in a device's windows cannot go to host memory: the processor would \
                        have to read them there";
            return Err(Error::new(ErrorKind::Unsupported, what)
                .remedy("keep windows in host memory for loads into host memory"));
        }
        let index = match self.buffers.iter().position(Option::is_none) {
            Some(index) => {
                self.buffers[index] = Some(region);
                index
            }
            None => {
                self.buffers.push(Some(region));
                self.buffers.len() - 1
            }
        };
        Ok(BufferId(u32::try_from(index).expect("few buffers")))
    }

    fn release(&mut self, buffer: BufferId) {
        if let Some(slot) = self.buffers.get_mut(buffer.0 as usize) {
            *slot = None;
        }
    }

    fn attach(&mut self, windows: &WindowMemory) -> Result<WindowsId> {
        self.device_windows |= windows.kind().is_device();
        self.windows.push(Arc::clone(windows.region()));
        let index = u32::try_from(self.windows.len() - 1).expect("few pools");
        Ok(WindowsId(index))
    }

    fn in_place(&self, buffer: BufferId) -> Option<WindowMemory> {
        let region = self.buffer(buffer);
        let whole = region.len_bytes().max(1);
        Some(WindowMemory::of(Arc::clone(region), whole))
    }

    unsafe fn submit(&mut self, id: u64, work: VramWork) {
        let work = match work {
            VramWork::Flush {
                windows,
                window_offset,
                buffer,
                plan,
                fill,
            } => Work::Flush {
                window: Arc::clone(&self.windows[windows.0 as usize]),
                window_offset,
                to: Arc::clone(self.buffer(buffer)),
                plan,
                fill,
            },
            VramWork::Gather {
                windows,
                window_offset,
                buffer,
                plan,
                fill,
            } => Work::Gather {
                window: Arc::clone(&self.windows[windows.0 as usize]),
                window_offset,
                from: Arc::clone(self.buffer(buffer)),
                plan,
                fill,
            },
            VramWork::Prepare {
                buffer,
                offset,
                len_bytes,
            } => Work::Populate {
                region: Arc::clone(self.buffer(buffer)),
                offset,
                len_bytes,
            },
            VramWork::Scrub {
                windows,
                offset,
                len_bytes,
            } => Work::Zero {
                region: Arc::clone(&self.windows[windows.0 as usize]),
                offset,
                len_bytes,
            },
        };
        // SAFETY: promised by the caller.
        let job = unsafe { Job::new(work, id, &self.done) };
        self.workers.submit(job);
    }

    fn poll(&mut self, done: &mut Vec<VramDone>) {
        while let Some(job) = self.done.pop() {
            done.push(VramDone {
                id: job.id,
                result: job.result.map(|_bytes| ()),
            });
        }
    }

    fn is_ready(&self) -> bool {
        !self.done.is_empty()
    }
}
