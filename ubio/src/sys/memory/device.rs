//! Regions that are memory of a device: mapped from its file, filled with posted stores that
//! have to be settled, read with volatile loads. Knows no devices: whoever opens one brings
//! the file and says what kind of memory it is.
//!
//! unsafe: maps device memory and touches it through raw pointers.
#![expect(
    unsafe_code,
    reason = "mmap and device accesses are this file's purpose"
)]

use std::any::Any;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{self, MapFlags, ProtFlags};

use super::{Backing, PAGE_BYTES, Pages, Region, StableMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::mmio;

/// What kind of memory it is, and so which sources can fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Host memory: every source can fill it, and it can be registered.
    Host,
    /// Peer-to-peer memory that the kernel has pages for (`ZONE_DEVICE`): direct reads and
    /// passthrough can fill it, unregistered.
    P2p,
    /// A PCI BAR without pages: only our own queues can fill it.
    Bar,
}

impl MemoryKind {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::P2p => "p2pmem",
            Self::Bar => "BAR",
        }
    }

    /// Whether it lies in a device, and so is no place for references and ordinary copies.
    pub fn is_device(self) -> bool {
        self != Self::Host
    }
}

/// What a region of device memory has beside its address.
#[derive(Debug)]
pub(super) struct Device {
    kind: MemoryKind,
    /// Bytes stored and not settled.
    posted_bytes: AtomicU64,
    read_backs: AtomicU64,
}

impl Device {
    fn new(kind: MemoryKind) -> Self {
        assert!(kind.is_device(), "host memory has constructors of its own");
        Self {
            kind,
            posted_bytes: AtomicU64::new(0),
            read_backs: AtomicU64::new(0),
        }
    }
}

/// Stores into a region that need not have reached it: see [`Region::settle`]. For host memory
/// there is nothing to wait for.
#[must_use = "stores are not at the device before they are settled"]
#[derive(Debug, Default)]
pub struct Posted {
    bytes: u64,
    /// The last byte that was stored.
    last: Option<u64>,
}

impl Posted {
    /// Together with later stores of the same thread into the same region.
    pub fn and(self, later: Self) -> Self {
        Self {
            bytes: self.bytes + later.bytes,
            last: later.last.or(self.last),
        }
    }
}

impl Region {
    /// Maps `len_bytes` from `offset` of a device's file, shared: whole pages, no advice, no
    /// faulting in ahead.
    ///
    /// # Errors
    /// InvalidInput (no whole pages), else the kernel's reason: no permission, no mappable
    /// file, too small.
    pub fn of_device(
        file: &impl AsFd,
        offset: u64,
        len_bytes: u64,
        kind: MemoryKind,
    ) -> Result<Self> {
        let device = Device::new(kind);
        check_pages(offset, len_bytes)?;
        let len = usize::try_from(len_bytes).expect("64-bit address space");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address the kernel chooses.
        let start = unsafe { mm::mmap(std::ptr::null_mut(), len, protection, flags, file, offset) }
            .map_err(|errno| {
                Error::os(format!("cannot map {len_bytes} bytes of the device"), errno)
            })?;
        let start = NonNull::new(start.cast()).expect("mmap gives no null");
        let mut region = Self::new(
            start,
            len_bytes,
            Pages::Base,
            Backing::Mapped { start, len },
        );
        region.device = Some(device);
        Ok(region)
    }

    /// Takes device memory over that somebody else has mapped.
    ///
    /// # Errors
    /// InvalidInput: no whole pages.
    pub fn adopt_device<M: StableMemory>(memory: M, kind: MemoryKind) -> Result<Self> {
        let device = Device::new(kind);
        let mut region = Self::adopt(memory);
        check_pages(region.base.as_ptr() as u64, region.len_bytes)?;
        region.device = Some(device);
        Ok(region)
    }

    /// Part of a region of device memory, as one of its own; `owner` is dropped when nobody
    /// uses the part any more.
    ///
    /// # Panics
    /// If it is no device memory, or the part is not inside or no whole pages.
    pub(crate) fn part_of_device(
        whole: &Arc<Self>,
        offset: u64,
        len_bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        check_pages(offset, len_bytes).expect("parts are whole pages");
        let base = NonNull::new(whole.address(offset, len_bytes)).expect("inside a mapping");
        let owner = Box::new((Arc::clone(whole), owner));
        let mut part = Self::new(
            base,
            len_bytes,
            Pages::Base,
            Backing::Adopted { _owner: owner },
        );
        part.device = Some(Device::new(whole.kind()));
        part
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        self.device
            .as_ref()
            .map_or(MemoryKind::Host, |device| device.kind)
    }

    /// Bytes that were stored into it and are not known to have reached the device: more than
    /// none only while somebody is at it.
    pub fn posted_bytes(&self) -> u64 {
        let device = self.device.as_ref();
        device.map_or(0, |device| device.posted_bytes.load(Ordering::Relaxed))
    }

    /// How often stores were settled by a read.
    pub fn read_backs(&self) -> u64 {
        let device = self.device.as_ref();
        device.map_or(0, |device| device.read_backs.load(Ordering::Relaxed))
    }

    /// Copies `len_bytes` from `from` into this region. For device memory they are on their
    /// way afterwards, until they are settled.
    ///
    /// # Safety
    /// Nobody else writes the source range or touches the target range meanwhile, and the
    /// two do not overlap.
    pub unsafe fn post(
        &self,
        offset: u64,
        from: &Region,
        from_offset: u64,
        len_bytes: u64,
    ) -> Posted {
        let to = self.address(offset, len_bytes);
        let at = from.address(from_offset, len_bytes);
        let len = usize::try_from(len_bytes).expect("64-bit");
        // SAFETY: both in bounds (checked); not overlapping and not shared by contract.
        unsafe {
            match (&from.device, &self.device) {
                (None, None) => crate::sys::stream::copy(at, to, len),
                (Some(_), None) => mmio::load(at, to, len),
                (None, Some(_)) => mmio::store(at, to, len),
                (Some(_), Some(_)) => mmio::load_and_store(at, to, len),
            }
        }
        self.note_posted(offset, len_bytes)
    }

    /// Zeroes a range, as [`post`](Self::post) copies.
    ///
    /// # Safety
    /// Nobody else touches the range meanwhile.
    pub(super) unsafe fn post_zeros(&self, offset: u64, len_bytes: u64) -> Posted {
        let to = self.address(offset, len_bytes);
        let len = usize::try_from(len_bytes).expect("64-bit");
        // SAFETY: in bounds (checked), not shared by contract.
        unsafe { mmio::store_zeros(to, len) };
        self.note_posted(offset, len_bytes)
    }

    /// Copies a slice, as [`post`](Self::post) does.
    ///
    /// # Safety
    /// Nobody else touches the range meanwhile.
    pub(super) unsafe fn post_bytes(&self, offset: u64, bytes: &[u8]) -> Posted {
        let to = self.address(offset, bytes.len() as u64);
        // SAFETY: in bounds (checked), not shared by contract; a slice of ours is no device's.
        unsafe { mmio::store(bytes.as_ptr(), to, bytes.len()) };
        self.note_posted(offset, bytes.len() as u64)
    }

    fn note_posted(&self, offset: u64, len_bytes: u64) -> Posted {
        let Some(device) = self.device.as_ref().filter(|_| len_bytes > 0) else {
            return Posted::default();
        };
        device.posted_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        Posted {
            bytes: len_bytes,
            last: Some(offset + len_bytes - 1),
        }
    }

    /// Makes this thread's stores reach the device: a fence empties the processor's buffers,
    /// and a read of the last word written comes back only behind them. Gives that word;
    /// `None` where there was nothing to wait for.
    pub fn settle(&self, posted: Posted) -> Option<u32> {
        let device = self.device.as_ref()?;
        let last = posted.last?;
        let fenced = mmio::store_fence();
        // SAFETY: the byte lies in this region (checked), which is whole pages, so its
        // aligned word does too.
        let word = unsafe { mmio::read_back(fenced, self.address(last, 1)) };
        device
            .posted_bytes
            .fetch_sub(posted.bytes, Ordering::Relaxed);
        device.read_backs.fetch_add(1, Ordering::Relaxed);
        Some(word)
    }

    /// Copies a range out, by volatile loads where it is device memory.
    ///
    /// # Safety
    /// Nobody writes the range meanwhile.
    pub unsafe fn copy_out(&self, offset: u64, bytes: &mut [u8]) {
        let at = self.address(offset, bytes.len() as u64);
        // SAFETY: in bounds (checked); no writer by contract; a slice of ours is elsewhere.
        unsafe {
            match self.device {
                None => std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()),
                Some(_) => mmio::load(at, bytes.as_mut_ptr(), bytes.len()),
            }
        }
    }
}

fn check_pages(start: u64, len_bytes: u64) -> Result<()> {
    if len_bytes > 0 && start.is_multiple_of(PAGE_BYTES) && len_bytes.is_multiple_of(PAGE_BYTES) {
        return Ok(());
    }
    let what =
        format!("device memory comes in whole pages, not as {len_bytes} bytes at {start:#x}");
    Err(Error::new(ErrorKind::InvalidInput, what)
        .remedy(format!("round to multiples of {PAGE_BYTES} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 64 << 10;

    fn emulated(len_bytes: u64, offset: u64) -> (std::fs::File, Region) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(offset + len_bytes).expect("room");
        let region = Region::of_device(&file, offset, len_bytes, MemoryKind::Bar).expect("a map");
        (file, region)
    }

    fn of_file(file: &std::fs::File, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, offset).expect("a read");
        bytes
    }

    #[test]
    fn it_is_mapped_at_the_offset_asked_for() {
        let (file, region) = emulated(LEN, 3 * PAGE_BYTES);
        // SAFETY: nobody else has the region.
        unsafe { region.write(5, b"here") };
        assert_eq!(of_file(&file, 3 * PAGE_BYTES + 4, 6), b"\0here\0");
        let whole = |offset, len| Region::of_device(&file, offset, len, MemoryKind::Bar);
        for (offset, len) in [(1, LEN), (0, LEN - 1), (0, 0)] {
            let error = whole(offset, len).expect_err("no whole pages");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn settling_reads_the_last_word_written_once() {
        let (_file, region) = emulated(LEN, 0);
        let host = Region::anonymous(LEN, false).expect("memory");
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        // SAFETY: nobody else has the regions.
        let posted = unsafe {
            host.write(0, &bytes);
            let first = region.post(4096, &host, 0, 500);
            assert_eq!((region.posted_bytes(), region.read_backs()), (500, 0));
            first.and(region.post(100, &host, 200, 75))
        };
        assert_eq!(region.posted_bytes(), 575);
        // The last byte is at 174, in the word from 172 to 175.
        let word = u32::from_le_bytes([bytes[272], bytes[273], bytes[274], 0]);
        assert_eq!(region.settle(posted).map(u32::to_le), Some(word));
        assert_eq!((region.posted_bytes(), region.read_backs()), (0, 1));
        assert_eq!(region.settle(Posted::default()), None);
        assert_eq!(region.read_backs(), 1);
    }

    #[test]
    fn whatever_is_written_is_settled_when_it_returns() {
        let (file, region) = emulated(LEN, 0);
        let host = Region::anonymous(LEN, false).expect("memory");
        // SAFETY: nobody else has the regions.
        unsafe {
            region.write(1, &[7; 3000]);
            region.zero(10, 20);
            host.copy_from(0, &region, 0, 40);
            region.copy_from(3001, &host, 0, 40);
            region.copy_from(8000, &region, 2990, 100);
        }
        assert_eq!((region.posted_bytes(), region.read_backs()), (0, 4));
        let mut wanted = vec![7; 40];
        wanted[0] = 0;
        wanted[10..30].fill(0);
        assert_eq!(of_file(&file, 3001, 40), wanted);
        assert_eq!(of_file(&file, 8000, 11), [7; 11]);
        assert_eq!(of_file(&file, 8011, 40), wanted);
        let mut found = vec![0; 40];
        // SAFETY: as above.
        unsafe { region.copy_out(8011, &mut found) };
        assert_eq!(found, wanted);
    }

    #[test]
    fn nothing_is_faulted_in_read_into_or_looked_at() {
        let (file, region) = emulated(LEN, 0);
        region.populate(0, LEN).expect("nothing to do");
        region.populate_or_fail(0, LEN).expect("nothing to do");
        // SAFETY: nobody else has the region.
        let read = unsafe { region.read_file(&[(0, 10)], &file, 0, false) };
        let refused = read.expect_err("no pages").raw_os_error();
        assert_eq!(refused, Some(libc::EOPNOTSUPP));
        // SAFETY: as above.
        let look = || unsafe { region.bytes(0, 1) }[0];
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        assert!(looked.is_err(), "a reference into device memory");
    }

    #[test]
    fn places_beyond_four_gib() {
        let (file, region) = emulated(6 << 30, 0);
        let at = (5 << 30) + 4093;
        // SAFETY: nobody else has the region.
        unsafe { region.write(at, b"far away") };
        assert_eq!(of_file(&file, at - 1, 10), b"\0far away\0");
    }

    #[test]
    fn a_part_keeps_the_whole_and_lets_its_owner_go() {
        let (file, region) = emulated(LEN, 0);
        let (whole, owner) = (Arc::new(region), Arc::new(()));
        let kept = Box::new(Arc::clone(&owner));
        let part = Region::part_of_device(&whole, 8192, 4096, kept);
        assert_eq!((part.kind(), part.len_bytes()), (MemoryKind::Bar, 4096));
        drop(whole);
        // SAFETY: nobody else has the part.
        unsafe { part.write(4094, b"ab") };
        assert_eq!(of_file(&file, 8192 + 4093, 4), b"\0ab\0");
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn adopted_device_memory_is_whole_pages_too() {
        let page = Region::anonymous(2 * PAGE_BYTES, false).expect("memory");
        struct Lent(Region, u64);
        // SAFETY: the region's memory stays where it is, and it is the only holder.
        unsafe impl StableMemory for Lent {
            fn as_raw(&mut self) -> (NonNull<u8>, usize) {
                let at = self.0.address(self.1, PAGE_BYTES);
                (NonNull::new(at).expect("mapped"), 4096)
            }
        }
        let odd = Region::adopt_device(Lent(page, 64), MemoryKind::Bar);
        assert_eq!(odd.expect_err("odd").kind(), ErrorKind::InvalidInput);
        let page = Region::anonymous(2 * PAGE_BYTES, false).expect("memory");
        let adopted = Region::adopt_device(Lent(page, 4096), MemoryKind::P2p).expect("a page");
        assert_eq!(adopted.kind(), MemoryKind::P2p);
    }
}
