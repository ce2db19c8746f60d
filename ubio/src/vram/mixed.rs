//! Destinations in host memory and in a function's memory side by side, for an engine that has
//! both: one set of copies, each settled as its memory wants it. Knows no function.
//!
//! unsafe: hands operations on to the copies.
#![expect(unsafe_code, reason = "submit is an unsafe method")]

use std::sync::Arc;

use super::copies::Copies;
use super::host::allocate;
use super::{BufferId, Vram, VramBuffer, VramDone, VramWork, WindowsId};
use crate::error::{Error, ErrorKind, Result};
use crate::source::Waker;
use crate::window::WindowMemory;
use crate::workers::Workers;

/// The backend.
#[derive(Debug)]
pub(crate) struct MixedVram {
    copies: Copies,
    /// Windows are a device's: what lands there is for devices' memory alone.
    device_windows: bool,
}

impl MixedVram {
    /// For at most `capacity` operations under way; `waker` is woken for each finished one.
    pub(crate) fn new(workers: Arc<Workers>, capacity: usize, waker: Waker) -> Self {
        Self {
            copies: Copies::new(workers, capacity, waker),
            device_windows: false,
        }
    }
}

impl Vram for MixedVram {
    fn allocate(&self, len_bytes: u64) -> Result<VramBuffer> {
        allocate(len_bytes).map(VramBuffer::Host)
    }

    fn adopt(&mut self, buffer: VramBuffer) -> Result<BufferId> {
        let region = buffer.region();
        if self.device_windows && !region.kind().is_device() {
            let what = "bytes in a device's windows cannot go to host memory: the processor would \
                        have to read them there";
            return Err(Error::new(ErrorKind::Unsupported, what)
                .remedy("keep windows in host memory for loads into host memory"));
        }
        Ok(self.copies.adopt(Arc::clone(region)))
    }

    fn release(&mut self, buffer: BufferId) {
        self.copies.release(buffer);
    }

    fn attach(&mut self, windows: &WindowMemory) -> Result<WindowsId> {
        self.device_windows |= windows.kind().is_device();
        Ok(self.copies.attach(windows))
    }

    fn in_place(&self, buffer: BufferId) -> Option<WindowMemory> {
        Some(self.copies.in_place(buffer))
    }

    unsafe fn submit(&mut self, id: u64, work: VramWork) {
        // SAFETY: promised by the caller.
        unsafe { self.copies.submit(id, work) };
    }

    fn poll(&mut self, done: &mut Vec<VramDone>) {
        self.copies.poll(done);
    }

    fn is_ready(&self) -> bool {
        self.copies.is_ready()
    }
}
