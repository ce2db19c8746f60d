//! Memory that devices and workers write to: mapped regions with a known page size. Gives
//! out addresses and bounded raw operations, never references into memory still in flight.
//!
//! unsafe: maps memory and touches it through raw pointers.
#![expect(
    unsafe_code,
    reason = "mmap and raw memory operations are this file's purpose"
)]

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::claim::Claims;
use crate::error::{Error, ErrorKind, Result};

pub use device::{MemoryKind, Posted};

mod device;

/// Bytes of the huge pages regions are aligned to.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Bytes of a base page.
pub const PAGE_BYTES: u64 = 4096;

/// What pages a region stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// Reserved huge pages (`MAP_HUGETLB`).
    HugeTlb,
    /// Transparent huge pages were asked for; whether the kernel gave them is only known
    /// after the memory was touched ([`Region::huge_bytes`]).
    Transparent,
    /// Base pages.
    Base,
}

impl Pages {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::HugeTlb => "hugetlb",
            Self::Transparent => "transparent",
            Self::Base => "base",
        }
    }
}

/// Memory a caller hands over for the engine to fill.
///
/// # Safety
/// `as_raw` must give the same address and length every time, for as long as the value
/// lives and however it is moved, and nobody but the holder of the value may touch the
/// memory.
pub unsafe trait StableMemory: Send + Sync + 'static {
    /// Address of the first byte, and the length in bytes.
    fn as_raw(&mut self) -> (NonNull<u8>, usize);
}

// SAFETY: a box's contents stay where they are when the box is moved, and the box owns them.
unsafe impl StableMemory for Box<[u8]> {
    fn as_raw(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }
}

// SAFETY: as for the box; the vector is never grown while it is held here.
unsafe impl StableMemory for Vec<u8> {
    fn as_raw(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }
}

enum Backing {
    /// Mapped here: unmapped on drop.
    Mapped { start: NonNull<u8>, len: usize },
    /// Somebody's memory, kept alive.
    Adopted { _owner: Box<dyn Any + Send + Sync> },
}

/// A stretch of memory with a stable address.
pub struct Region {
    base: NonNull<u8>,
    len_bytes: u64,
    pages: Pages,
    claims: Claims,
    /// All of it was faulted in once: to do so again, piece by piece, would be work for nothing.
    faulted_in: AtomicBool,
    /// What else there is to it where it is memory of a device.
    device: Option<device::Device>,
    backing: Backing,
}

// SAFETY: the region is only an address and a length; every access goes through unsafe
// methods whose callers promise that nobody else touches the same bytes.
unsafe impl Send for Region {}
// SAFETY: as for Send.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base)
            .field("len_bytes", &self.len_bytes)
            .field("pages", &self.pages)
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// Bytes rounded up to a multiple of `unit` (a power of two); what is beyond the largest one
/// becomes that, which no memory has either.
pub fn round_up(bytes: u64, unit: u64) -> u64 {
    debug_assert!(unit.is_power_of_two());
    bytes.saturating_add(unit - 1) & !(unit - 1)
}

impl Region {
    fn new(base: NonNull<u8>, len_bytes: u64, pages: Pages, backing: Backing) -> Self {
        Self {
            base,
            len_bytes,
            pages,
            claims: Claims::default(),
            faulted_in: AtomicBool::new(false),
            device: None,
            backing,
        }
    }

    /// Fresh anonymous memory, zero, not faulted in: on reserved huge pages if `huge` and
    /// enough of them are free, else with transparent ones asked for, else on base pages.
    /// The address is a multiple of 2 MiB.
    ///
    /// # Errors
    /// NoSpace: the kernel has no address space or memory for it.
    pub fn anonymous(len_bytes: u64, huge: bool) -> Result<Self> {
        let no_space = |errno: rustix::io::Errno| {
            Error::os(format!("cannot reserve {len_bytes} bytes of memory"), errno)
                .remedy("free memory, raise the address-space limit (ulimit -v), or load less")
        };
        let len_bytes = round_up(len_bytes.max(1), PAGE_BYTES);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        if huge
            && len_bytes.is_multiple_of(HUGE_PAGE_BYTES)
            && free_huge_pages().saturating_mul(HUGE_PAGE_BYTES) >= len_bytes
        {
            let len = usize::try_from(len_bytes).expect("64-bit address space");
            // No NORESERVE: the pages are set aside now, so a later fault cannot SIGBUS.
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
            // SAFETY: a new mapping at an address the kernel chooses; nothing else is there.
            let mapped =
                unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
            if let Ok(start) = mapped {
                let start = NonNull::new(start.cast()).expect("mmap gives no null");
                let backing = Backing::Mapped { start, len };
                return Ok(Self::new(start, len_bytes, Pages::HugeTlb, backing));
            }
        }
        // One huge page more, so that an aligned start exists in any mapping.
        let span = len_bytes
            .checked_add(HUGE_PAGE_BYTES)
            .and_then(|span| usize::try_from(span).ok())
            .ok_or_else(|| no_space(rustix::io::Errno::NOMEM))?;
        // SAFETY: as above.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), span, protection, flags) }
            .map_err(no_space)?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap gives no null");
        let slack =
            (start.as_ptr() as u64).next_multiple_of(HUGE_PAGE_BYTES) - start.as_ptr() as u64;
        // SAFETY: slack < HUGE_PAGE_BYTES, which the span has more than `len_bytes`.
        let base = unsafe { start.add(usize::try_from(slack).expect("below 2 MiB")) };
        let backing = Backing::Mapped { start, len: span };
        let mut region = Self::new(base, len_bytes, Pages::Base, backing);
        if huge && len_bytes >= HUGE_PAGE_BYTES && region.advise_huge() {
            region.pages = Pages::Transparent;
        }
        Ok(region)
    }

    /// Maps the first `len_bytes` of a file, shared, for reading and (if `write`) writing.
    ///
    /// # Errors
    /// The kernel's reason: no permission, no mappable file, no address space.
    pub(crate) fn of_file(
        file: &impl AsFd,
        len_bytes: u64,
        write: bool,
        huge: bool,
    ) -> Result<Self> {
        let len = usize::try_from(len_bytes.max(1)).expect("64-bit address space");
        let protection = if write {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address the kernel chooses.
        let start = unsafe {
            mm::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map_err(|errno| {
            let error = Error::os(format!("cannot map {len_bytes} bytes of the file"), errno);
            match errno {
                rustix::io::Errno::NOMEM => {
                    error.remedy("raise the address-space limit (ulimit -v), or load less")
                }
                _ => error,
            }
        })?;
        let start = NonNull::new(start.cast()).expect("mmap gives no null");
        let backing = Backing::Mapped { start, len };
        let mut region = Self::new(start, len_bytes, Pages::Base, backing);
        if huge && len_bytes >= HUGE_PAGE_BYTES && region.advise_huge() {
            region.pages = Pages::Transparent;
        }
        Ok(region)
    }

    /// Takes a caller's memory over.
    pub fn adopt<M: StableMemory>(memory: M) -> Self {
        // Boxed first: the value is not moved any more once its address was taken.
        let mut owner = Box::new(memory);
        let (base, len) = owner.as_raw();
        let backing = Backing::Adopted { _owner: owner };
        Self::new(base, len as u64, Pages::Base, backing)
    }

    fn advise_huge(&mut self) -> bool {
        self.advise(0, self.len_bytes, Advice::LinuxHugepage)
            .is_ok()
    }

    fn advise(&self, offset: u64, len_bytes: u64, advice: Advice) -> rustix::io::Result<()> {
        let at = self.address(offset, len_bytes);
        let len = usize::try_from(len_bytes).expect("64-bit address space");
        // SAFETY: the range lies in this region; the advices used here (huge pages,
        // populate) never change the bytes a reader sees.
        unsafe { mm::madvise(at.cast(), len, advice) }
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The pages it was made on.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Address of `offset`, after checking that `len_bytes` from there lie in the region.
    ///
    /// # Panics
    /// If they do not: that is a bug of ours, and a device must never get such an address.
    pub fn address(&self, offset: u64, len_bytes: u64) -> *mut u8 {
        let end = offset.checked_add(len_bytes).expect("range overflows");
        assert!(
            end <= self.len_bytes,
            "range {offset}+{len_bytes} beyond {}",
            self.len_bytes
        );
        // SAFETY: offset <= len_bytes, and the region is one mapping of that length.
        unsafe {
            self.base
                .as_ptr()
                .add(usize::try_from(offset).expect("64-bit"))
        }
    }

    /// Faults the range in for writing, if the kernel can: before Linux 5.14 it is left to
    /// be faulted in by whoever writes it first. Device memory is always there.
    ///
    /// # Errors
    /// NoSpace: no memory.
    pub fn populate(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.is_faulted_in() {
            return Ok(());
        }
        match self.populate_write(offset, len_bytes) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(errno) => Err(no_memory(errno)),
        }
    }

    /// Whether all of it was faulted in for writing once; device memory always is.
    pub(crate) fn is_faulted_in(&self) -> bool {
        self.device.is_some() || self.faulted_in.load(Ordering::Relaxed)
    }

    /// Notes that all of it was faulted in for writing.
    pub(crate) fn note_faulted_in(&self) {
        self.faulted_in.store(true, Ordering::Relaxed);
    }

    /// Faults the range in for writing, for certain.
    ///
    /// # Errors
    /// NoSpace: no memory, or the file system under a shared mapping is full. Unsupported:
    /// before Linux 5.14 there is no call that would say so.
    pub fn populate_or_fail(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.populate_write(offset, len_bytes)
            .map_err(|errno| match errno {
                rustix::io::Errno::INVAL => Error::new(
                    ErrorKind::Unsupported,
                    "the kernel cannot fault memory in ahead",
                )
                .remedy("Linux 5.14 or newer is needed for shared destinations"),
                errno => no_memory(errno),
            })
    }

    fn populate_write(&self, offset: u64, len_bytes: u64) -> rustix::io::Result<()> {
        if self.device.is_some() {
            return Ok(());
        }
        let start = offset / PAGE_BYTES * PAGE_BYTES;
        let end =
            round_up(offset + len_bytes, PAGE_BYTES).min(round_up(self.len_bytes, PAGE_BYTES));
        let at = self.address(start, 0);
        let len = usize::try_from(end - start).expect("64-bit");
        // SAFETY: populating does not change what the memory holds; the range, rounded to
        // the pages it touches, lies in the mapping.
        unsafe { mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) }
    }

    /// Faults the range in for reading: for a file mapping, brings the bytes into the page
    /// cache and maps them.
    ///
    /// # Errors
    /// The read failed, or the file ended (`EFAULT`). `EINVAL` from old kernels is passed on.
    pub fn populate_read(&self, offset: u64, len_bytes: u64) -> io::Result<()> {
        Ok(self.advise(offset, len_bytes, Advice::LinuxPopulateRead)?)
    }

    /// How many of the region's touched bytes stand on huge pages, as the kernel counts
    /// them now; `None` where `/proc/self/smaps` cannot tell.
    pub fn huge_bytes(&self) -> Option<u64> {
        if self.pages == Pages::HugeTlb {
            return Some(self.len_bytes);
        }
        let from = self.base.as_ptr() as u64;
        let to = from + self.len_bytes;
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut inside = false;
        let mut sum = 0;
        for line in smaps.lines() {
            if let Some((start, end)) = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'))
                .and_then(|(a, b)| {
                    Some((
                        u64::from_str_radix(a, 16).ok()?,
                        u64::from_str_radix(b, 16).ok()?,
                    ))
                })
            {
                inside = start < to && end > from;
            } else if inside
                && let Some(rest) = line
                    .strip_prefix("AnonHugePages:")
                    .or_else(|| line.strip_prefix("ShmemPmdMapped:"))
            {
                let kib: u64 = rest.trim().trim_end_matches("kB").trim().parse().ok()?;
                sum += kib << 10;
            }
        }
        Some(sum)
    }

    /// Reads the bytes of a range.
    ///
    /// # Safety
    /// While the slice lives nobody (thread, worker or device) writes to the range.
    ///
    /// # Panics
    /// If it is memory of a device, which no reference may point to.
    pub unsafe fn bytes(&self, offset: u64, len_bytes: u64) -> &[u8] {
        assert!(self.device.is_none(), "device memory is copied out");
        let at = self.address(offset, len_bytes);
        // SAFETY: in bounds (checked); mapped memory is initialised; no writer by contract.
        unsafe { std::slice::from_raw_parts(at, usize::try_from(len_bytes).expect("64-bit")) }
    }

    /// Copies `len_bytes` from `from` into this region; they are there when it returns.
    ///
    /// # Safety
    /// Nobody else writes the source range or touches the target range meanwhile, and the
    /// two do not overlap.
    pub unsafe fn copy_from(&self, offset: u64, from: &Region, from_offset: u64, len_bytes: u64) {
        // SAFETY: promised by the caller.
        let posted = unsafe { self.post(offset, from, from_offset, len_bytes) };
        self.settle(posted);
    }

    /// Copies a slice into this region.
    ///
    /// # Safety
    /// Nobody else touches the target range meanwhile.
    pub unsafe fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.address(offset, bytes.len() as u64);
        // SAFETY: in bounds (checked); a slice of ours cannot overlap memory nobody else
        // may hold.
        unsafe {
            if self.device.is_some() {
                self.settle(self.post_bytes(offset, bytes));
            } else {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
    }

    /// Zeroes a range.
    ///
    /// # Safety
    /// Nobody else touches the range meanwhile.
    pub unsafe fn zero(&self, offset: u64, len_bytes: u64) {
        let at = self.address(offset, len_bytes);
        // SAFETY: in bounds (checked), not shared by contract.
        unsafe {
            if self.device.is_some() {
                self.settle(self.post_zeros(offset, len_bytes));
            } else {
                std::ptr::write_bytes(at, 0, usize::try_from(len_bytes).expect("64-bit"));
            }
        }
    }

    /// Reads from a file into several ranges, as one call: the file's bytes from
    /// `file_offset` on go to `ranges` (offset, length) one after the other. With `nowait`
    /// only what is in the page cache is read.
    ///
    /// # Errors
    /// The errno; `EAGAIN` with `nowait` when the first byte is not in the page cache,
    /// `EOPNOTSUPP` for a BAR, whose memory has no pages that the kernel could read into.
    ///
    /// # Safety
    /// Nobody else touches the ranges meanwhile.
    pub unsafe fn read_file(
        &self,
        ranges: &[(u64, u64)],
        file: &impl AsFd,
        file_offset: u64,
        nowait: bool,
    ) -> io::Result<u64> {
        const MOST: usize = 64;
        if self.kind() == MemoryKind::Bar {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut vectors = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MOST];
        assert!(ranges.len() <= MOST, "at most {MOST} ranges a call");
        for (vector, &(offset, len_bytes)) in vectors.iter_mut().zip(ranges) {
            vector.iov_base = self.address(offset, len_bytes).cast();
            vector.iov_len = usize::try_from(len_bytes).expect("64-bit");
        }
        let offset = i64::try_from(file_offset)
            .map_err(|_overflow| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        let flags = if nowait { libc::RWF_NOWAIT } else { 0 };
        let count = i32::try_from(ranges.len()).expect("at most 64");
        // SAFETY: the vectors point into this region (checked), which outlives the call;
        // nobody else touches the bytes, by contract.
        let read = unsafe {
            libc::preadv2(
                file.as_fd().as_raw_fd(),
                vectors.as_ptr(),
                count,
                offset,
                flags,
            )
        };
        u64::try_from(read).map_err(|_negative| io::Error::last_os_error())
    }
}

// SAFETY: a region is one mapping (or an owner's stable memory), at one address from its making
// to its drop.
unsafe impl nvme::memory::TargetMemory for Region {
    fn raw(&self) -> nvme::memory::RawMemory {
        let len = usize::try_from(self.len_bytes).expect("64-bit");
        // SAFETY: mapped as long as the region, which whoever asks holds; nobody holds a
        // reference into memory that a device was given.
        unsafe { nvme::memory::RawMemory::new(self.base, len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Backing::Mapped { start, len } = self.backing {
            // SAFETY: mapped by us with exactly this start and length; the last holder of
            // the region is gone, so no address into it is in use.
            let _cannot_fail = unsafe { mm::munmap(start.as_ptr().cast(), len) };
        }
    }
}

fn no_memory(errno: rustix::io::Errno) -> Error {
    // A fault that would have been a SIGBUS is reported as EFAULT: the tmpfs is full.
    let kind = match errno {
        rustix::io::Errno::FAULT | rustix::io::Errno::NOMEM => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::new(kind, "cannot fault the destination in")
        .because(std::io::Error::from(errno))
        .remedy("free memory, or raise the container's memory limit or the size of /dev/shm")
}

/// Reserved huge pages of 2 MiB that nobody has yet.
pub(crate) fn free_huge_pages() -> u64 {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_aligned_zero_and_bounded() {
        for len in [1, PAGE_BYTES, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 5 << 20] {
            for huge in [false, true] {
                let region = Region::anonymous(len, huge).expect("small memory");
                assert!(region.len_bytes() >= len);
                assert_eq!(region.address(0, 1) as u64 % HUGE_PAGE_BYTES, 0);
                region.populate(0, region.len_bytes()).expect("populate");
                // SAFETY: nobody else has this region.
                let bytes = unsafe { region.bytes(0, len) };
                assert!(bytes.iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn an_address_past_the_end_is_never_given_out() {
        let region = Region::anonymous(PAGE_BYTES, false).expect("small memory");
        let _address = region.address(PAGE_BYTES - 1, 2);
    }

    #[test]
    fn a_file_is_read_into_scattered_ranges() {
        let mut file = tempfile::tempfile().expect("temp file");
        std::io::Write::write_all(&mut file, b"abcdefghij").expect("write");
        let region = Region::anonymous(PAGE_BYTES, false).expect("small memory");
        // SAFETY: nobody else has this region.
        let read = unsafe { region.read_file(&[(100, 3), (0, 2), (50, 5)], &file, 1, false) };
        assert_eq!(read.expect("read"), 9);
        // SAFETY: as above.
        let (a, b, c) = unsafe {
            (
                region.bytes(100, 3),
                region.bytes(0, 2),
                region.bytes(50, 5),
            )
        };
        assert_eq!((a, b, c), (&b"bcd"[..], &b"ef"[..], &b"ghij\0"[..]));
    }
}
