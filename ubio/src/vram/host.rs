//! Host memory as VRAM: the embedded default, and what CPU inference really uses. Copies by
//! the workers. Knows no streams.
//!
//! unsafe: makes worker jobs over raw memory.
#![expect(
    unsafe_code,
    reason = "worker jobs take raw memory whose exclusivity the caller promised"
)]

use std::sync::Arc;

use super::{BufferId, Vram, VramBuffer, VramDone, VramWork, WindowsId};
use crate::error::{Error, ErrorKind, Result};
use crate::source::Waker;
use crate::sys::memory::{HUGE_PAGE_BYTES, Region, round_up};
use crate::window::WindowMemory;
use crate::workers::{DoneQueue, Job, Work, Workers};

/// The backend.
#[derive(Debug)]
pub struct HostVram {
    buffers: Vec<Option<Arc<Region>>>,
    windows: Vec<Arc<Region>>,
    workers: Arc<Workers>,
    done: Arc<DoneQueue>,
}

impl HostVram {
    /// For at most `capacity` operations under way; `waker` is woken for each finished one.
    pub fn new(workers: Arc<Workers>, capacity: usize, waker: Waker) -> Self {
        let done = DoneQueue::new(capacity, waker);
        Self {
            buffers: Vec::new(),
            windows: Vec::new(),
            workers,
            done,
        }
    }

    fn buffer(&self, id: BufferId) -> &Arc<Region> {
        self.buffers[id.0 as usize]
            .as_ref()
            .expect("adopted buffer")
    }
}

/// Anonymous host memory for a destination: on huge pages where there are any, its length
/// rounded up to them where that costs less than an eighth.
///
/// # Errors
/// NoSpace: the kernel gives no address space, or the machine has not that much memory left
/// (by its own estimate, `MemAvailable`): without overcommit limits the load would end in the
/// hands of the out-of-memory killer.
pub fn allocate(len_bytes: u64) -> Result<Arc<Region>> {
    if let Some(available) = available_bytes()
        && available < len_bytes
    {
        let what = format!("{len_bytes} bytes of memory are needed, {available} are available");
        return Err(Error::new(ErrorKind::NoSpace, what)
            .remedy("free memory, load fewer tensors, or map the file instead"));
    }
    // Reserved huge pages come whole; transparent ones leave the rest to base pages.
    let rounded = round_up(len_bytes, HUGE_PAGE_BYTES);
    let little_waste = rounded - len_bytes <= len_bytes / 8;
    let len_bytes = if little_waste { rounded } else { len_bytes };
    Ok(Arc::new(Region::anonymous(len_bytes, true)?))
}

/// What the kernel thinks can be had without swapping, bytes.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

impl Vram for HostVram {
    fn allocate(&self, len_bytes: u64) -> Result<VramBuffer> {
        allocate(len_bytes).map(VramBuffer::Host)
    }

    fn adopt(&mut self, buffer: VramBuffer) -> Result<BufferId> {
        let VramBuffer::Host(region) = buffer;
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
        self.windows.push(Arc::clone(windows.region()));
        Ok(WindowsId(
            u32::try_from(self.windows.len() - 1).expect("few pools"),
        ))
    }

    fn in_place(&self, buffer: BufferId) -> Option<WindowMemory> {
        let region = self.buffer(buffer);
        Some(WindowMemory::host(
            Arc::clone(region),
            region.len_bytes().max(1),
        ))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where rounding up would waste much: whether huge pages are had depends on the
    /// machine, and not on the length.
    #[test]
    fn all_lengths_of_a_huge_page_and_more_stand_on_the_same_pages() {
        let pages = |len_bytes| {
            let region = allocate(len_bytes).expect("little memory");
            (
                region.pages() == crate::sys::memory::Pages::Base,
                region.len_bytes(),
            )
        };
        let (base, _) = pages(16 << 20);
        assert_eq!(pages(3_000_000), (base, 3_002_368));
        assert_eq!(pages(5_000_000).0, base);
        assert!(pages(4096).0);
    }
}
