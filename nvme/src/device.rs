//! A controller's PCI function, as user space reaches it: registers, memory for DMA,
//! interrupts, time. Knows no queues.
//!
//! unsafe: declares the unsafe method that exposes memory to a device.
#![expect(unsafe_code, reason = "declares the unsafe method")]

// The order of registers and memory is written for these two.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod vfio;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::dma::{DmaRun, Iova};
use crate::error::Result;
use crate::memory::{Pages, RawMemory, TargetMemory};

/// What a driver needs of a controller. Real ones stand behind VFIO; the emulator is one too.
///
/// Registers are BAR 0's, little-endian as the machine reads them. A device that is gone reads
/// as all ones ([`nvme_sys::register::GONE`]); writes to it go nowhere.
pub trait Device: fmt::Debug + Send + Sync {
    /// For messages: an address or a name.
    fn name(&self) -> &str;

    /// Reads a register of 4 bytes.
    fn read_u32(&self, offset: u64) -> u32;

    /// Writes a register of 4 bytes. What was written to memory before is seen by the device
    /// when it sees this.
    fn write_u32(&self, offset: u64, value: u32);

    /// Bytes of BAR 0 that can be accessed; an access beyond them is a bug of whoever makes it.
    /// How many the doorbells take depends on the controller's stride and on the queues.
    fn register_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Reads a register of 8 bytes.
    fn read_u64(&self, offset: u64) -> u64 {
        // Two halves, which every controller takes (Base 3.1.1).
        u64::from(self.read_u32(offset)) | u64::from(self.read_u32(offset + 4)) << 32
    }

    /// Writes a register of 8 bytes.
    fn write_u64(&self, offset: u64, value: u64) {
        let [low, high] = halves(value);
        self.write_u32(offset, low);
        self.write_u32(offset + 4, high);
    }

    /// Lets the device read and write memory: whole pages. The runs are the memory's bytes in
    /// order; all but the last end with a page, and all begin with one.
    ///
    /// # Errors
    /// InvalidInput (not whole pages), NoSpace (addresses, locked memory), Unsupported (this
    /// kind of memory). Memory may be mapped several times, in parts too.
    ///
    /// # Safety
    /// The memory stays mapped at its address until [`unmap`](Self::unmap) has succeeded.
    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>>;

    /// Ends what [`map`](Self::map) allowed: when this returns, the device does not reach the
    /// memory any more.
    ///
    /// # Errors
    /// Io: then it may, and the memory must be kept.
    fn unmap(&self, runs: &[DmaRun]) -> Result<()>;

    /// How many interrupt vectors can be had.
    fn vectors(&self) -> u16;

    /// An eventfd that becomes readable when the device raises `vector`.
    ///
    /// # Errors
    /// NoSpace (descriptors), Unsupported (no such vector).
    fn interrupt(&self, vector: u16) -> Result<Arc<OwnedFd>>;

    /// Ends all DMA for good, where the controller itself does not listen any more: bus
    /// mastering off, function reset.
    ///
    /// # Errors
    /// Io: then DMA may go on, and memory must be kept.
    fn quiesce(&self) -> Result<()>;

    /// Whether somebody waits for the device to be let go: the kernel, to whom it is being
    /// removed. What belongs to it is to be dropped then.
    fn is_wanted_back(&self) -> bool {
        false
    }

    /// Becomes readable when the device is [wanted back](Self::is_wanted_back); `None` where
    /// nobody says so.
    fn removal_event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The time, from some start on. An emulator may have a clock of its own.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Waits.
    fn pause(&self, span: Duration) {
        std::thread::sleep(span);
    }
}

/// Low and high dword.
#[must_use]
pub(crate) fn halves(value: u64) -> [u32; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "each half on its own")]
    [value as u32, (value >> 32) as u32]
}

/// Memory that a device reaches, for as long as this lives.
pub struct Mapping {
    device: Arc<dyn Device>,
    /// `None` once given up.
    memory: Option<Arc<dyn TargetMemory>>,
    raw: RawMemory,
    runs: Vec<DmaRun>,
    /// Where in the memory each run begins.
    begins: Vec<u64>,
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("raw", &self.raw)
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl Mapping {
    /// Maps memory: whole pages.
    ///
    /// # Errors
    /// As [`Device::map`].
    pub fn new(device: &Arc<dyn Device>, memory: Arc<dyn TargetMemory>) -> Result<Self> {
        let raw = memory.raw();
        // SAFETY: the memory lives until the mapping is gone (or for good).
        let runs = unsafe { device.map(raw) }?;
        debug_assert_eq!(
            runs.iter().map(|run| run.len_bytes).sum::<u64>(),
            raw.len_bytes()
        );
        let mut at = 0;
        let begins = runs.iter().map(|run| {
            at += run.len_bytes;
            at - run.len_bytes
        });
        Ok(Self {
            begins: begins.collect(),
            device: Arc::clone(device),
            memory: Some(memory),
            raw,
            runs,
        })
    }

    /// Fresh zeroed pages, mapped.
    ///
    /// # Errors
    /// As [`Device::map`].
    pub fn pages(device: &Arc<dyn Device>, len_bytes: u64) -> Result<Self> {
        Self::new(device, Arc::new(Pages::new(len_bytes)?))
    }

    /// The memory as this process sees it.
    #[must_use]
    pub fn raw(&self) -> RawMemory {
        self.raw
    }

    /// The memory as the device sees it.
    #[must_use]
    pub fn runs(&self) -> &[DmaRun] {
        &self.runs
    }

    /// The device's address of a byte.
    ///
    /// # Panics
    /// If it is not inside.
    #[must_use]
    pub fn address(&self, offset: u64) -> Iova {
        self.run_at(offset).start
    }

    /// The rest of the run that a byte is in, from that byte on.
    ///
    /// # Panics
    /// If it is not inside.
    #[inline]
    #[must_use]
    pub fn run_at(&self, offset: u64) -> DmaRun {
        let after = match self.runs.len() {
            1 => 1,
            _ => self.begins.partition_point(|&begin| begin <= offset),
        };
        let run = self.runs[after - 1];
        let inside = offset - self.begins[after - 1];
        assert!(inside < run.len_bytes, "offset {offset} beyond the mapping");
        DmaRun {
            start: Iova(run.start.0 + inside),
            len_bytes: run.len_bytes - inside,
        }
    }

    /// Leaves the memory to a device that cannot be stopped: it is never freed.
    pub fn give_up(mut self) {
        if let Some(memory) = self.memory.take() {
            let _leaked = Box::leak(Box::new(memory));
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        if self.device.unmap(&self.runs).is_err() {
            // The device may still reach it.
            let _leaked = Box::leak(Box::new(memory));
        }
    }
}
