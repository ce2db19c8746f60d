//! What backends whose copies are made by the workers have in common: their buffers, their
//! windows, and the jobs. Whether stores have to be settled is the memory's business; which
//! buffers are welcome is the backend's.
//!
//! unsafe: makes worker jobs over raw memory.
#![expect(
    unsafe_code,
    reason = "worker jobs take raw memory whose exclusivity the caller promised"
)]

use std::sync::Arc;

use super::{BufferId, VramDone, VramWork, WindowsId};
use crate::source::Waker;
use crate::sys::memory::Region;
use crate::window::WindowMemory;
use crate::workers::{DoneQueue, Job, Work, Workers};

/// Copies by the workers.
#[derive(Debug)]
pub(super) struct Copies {
    buffers: Vec<Option<Arc<Region>>>,
    windows: Vec<Arc<Region>>,
    workers: Arc<Workers>,
    done: Arc<DoneQueue>,
}

impl Copies {
    /// For at most `capacity` operations under way; `waker` is woken for each finished one.
    pub(super) fn new(workers: Arc<Workers>, capacity: usize, waker: Waker) -> Self {
        Self {
            buffers: Vec::new(),
            windows: Vec::new(),
            workers,
            done: DoneQueue::new(capacity, waker),
        }
    }

    pub(super) fn buffer(&self, id: BufferId) -> &Arc<Region> {
        self.buffers[id.0 as usize]
            .as_ref()
            .expect("adopted buffer")
    }

    pub(super) fn adopt(&mut self, region: Arc<Region>) -> BufferId {
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
        BufferId(u32::try_from(index).expect("few buffers"))
    }

    pub(super) fn release(&mut self, buffer: BufferId) {
        if let Some(slot) = self.buffers.get_mut(buffer.0 as usize) {
            *slot = None;
        }
    }

    pub(super) fn attach(&mut self, windows: &WindowMemory) -> WindowsId {
        self.windows.push(Arc::clone(windows.region()));
        WindowsId(u32::try_from(self.windows.len() - 1).expect("few pools"))
    }

    /// A buffer as memory that a source may fill.
    pub(super) fn in_place(&self, buffer: BufferId) -> WindowMemory {
        let region = self.buffer(buffer);
        WindowMemory::of(Arc::clone(region), region.len_bytes().max(1))
    }

    /// Starts an operation.
    ///
    /// # Safety
    /// As [`Vram::submit`](super::Vram::submit).
    pub(super) unsafe fn submit(&mut self, id: u64, work: VramWork) {
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

    pub(super) fn poll(&mut self, done: &mut Vec<VramDone>) {
        while let Some(job) = self.done.pop() {
            done.push(VramDone {
                id: job.id,
                result: job.result.map(|_bytes| ()),
            });
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.done.is_empty()
    }
}
