//! Memory of this process that a device may write at any moment. No references into it are
//! ever made: single values are read and written volatile or atomic, and stretches are copied
//! only when the device has said that it is through with them. Knows no bus addresses.
//!
//! unsafe: reads and writes raw memory.
#![expect(unsafe_code, reason = "memory shared with a device is raw memory")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of the pages that memory for devices is made of and mapped in.
pub const PAGE_BYTES: u64 = 4096;

/// A stretch of mapped memory, by its address. Does not own it.
#[derive(Clone, Copy, Debug)]
pub struct RawMemory {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: it is an address and a length; every access is volatile or atomic, and whoever made
// it promised that the memory stays.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Names `len_bytes` bytes from `start` on.
    ///
    /// # Safety
    /// They stay mapped, readable and writable for as long as the value or a copy of it is
    /// used, and nobody holds a reference into them meanwhile.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len_bytes: usize) -> Self {
        Self { start, len_bytes }
    }

    /// The address of the first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes as u64
    }

    /// Address of `offset`, after checking that `len_bytes` from there lie inside.
    ///
    /// # Panics
    /// If they do not: that is a bug of ours, and a device must never get such an address.
    #[inline]
    #[must_use]
    pub fn at(&self, offset: u64, len_bytes: u64) -> *mut u8 {
        let end = offset.checked_add(len_bytes).expect("range overflows");
        assert!(
            end <= self.len_bytes as u64,
            "range {offset}+{len_bytes} beyond {}",
            self.len_bytes
        );
        // SAFETY: offset <= len_bytes, and the memory is one mapping of that length.
        unsafe { self.start.as_ptr().add(index(offset)) }
    }

    /// Part of it.
    ///
    /// # Panics
    /// If that is not inside.
    #[must_use]
    pub fn part(&self, offset: u64, len_bytes: u64) -> Self {
        let start = NonNull::new(self.at(offset, len_bytes)).expect("inside of a mapping");
        Self {
            start,
            len_bytes: index(len_bytes),
        }
    }

    fn checked<T>(&self, offset: u64) -> *mut T {
        let at = self.at(offset, size_of::<T>() as u64).cast::<T>();
        assert!(at.is_aligned(), "unaligned access at {offset}");
        at
    }

    /// Reads a value.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    #[inline]
    #[must_use]
    pub fn read<T: FromBytes + Copy>(&self, offset: u64) -> T {
        // SAFETY: inside and aligned (checked); any bytes are a value.
        unsafe { self.checked::<T>(offset).read_volatile() }
    }

    /// Writes a value.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    #[inline]
    pub fn write<T: IntoBytes + Immutable + Copy>(&self, offset: u64, value: T) {
        // SAFETY: inside and aligned (checked).
        unsafe { self.checked::<T>(offset).write_volatile(value) }
    }

    /// Reads a 32-bit word that tells whether what lies before it is there.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    #[inline]
    #[must_use]
    pub fn load(&self, offset: u64, order: Ordering) -> u32 {
        // SAFETY: inside and aligned (checked); atomics may be written by others.
        unsafe { AtomicU32::from_ptr(self.checked(offset)) }.load(order)
    }

    /// Writes a 32-bit word that tells others of what was written before.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    #[inline]
    pub fn store(&self, offset: u64, value: u32, order: Ordering) {
        // SAFETY: as for `load`.
        unsafe { AtomicU32::from_ptr(self.checked(offset)) }.store(value, order);
    }

    /// Copies bytes out, after the completion of what wrote them.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn copy_to(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len() as u64);
        // SAFETY: inside (checked); a slice of ours does not overlap memory that nobody holds
        // a reference into.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit inside.
    pub fn copy_from(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len() as u64);
        // SAFETY: as for `copy_to`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Zeroes part of it.
    ///
    /// # Panics
    /// If that is not inside.
    pub fn zero(&self, offset: u64, len_bytes: u64) {
        let to = self.at(offset, len_bytes);
        // SAFETY: inside (checked).
        unsafe { std::ptr::write_bytes(to, 0, index(len_bytes)) }
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit address space")
}

/// Memory that commands may read and write, kept alive by whoever holds it.
///
/// # Safety
/// [`raw`](Self::raw) names the same memory each time, and it stays mapped at its address
/// until the value is dropped.
pub unsafe trait TargetMemory: Send + Sync {
    /// Where it is.
    fn raw(&self) -> RawMemory;
}

// SAFETY: as the value itself promised; it lives as long as the pointer to it.
unsafe impl<M: TargetMemory + ?Sized> TargetMemory for Arc<M> {
    fn raw(&self) -> RawMemory {
        (**self).raw()
    }
}

/// Whole pages of our own: anonymous, zeroed, faulted in.
#[derive(Debug)]
pub struct Pages(RawMemory);

impl Pages {
    /// At least `len_bytes`, rounded up to pages.
    ///
    /// # Errors
    /// NoSpace.
    pub fn new(len_bytes: u64) -> Result<Self> {
        let len = index(len_bytes.max(1).next_multiple_of(PAGE_BYTES));
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            // Shared, so that a fork cannot move the pages under a device.
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
        let start = start.map_err(|errno| {
            Error::new(ErrorKind::NoSpace, format!("no memory for {len} bytes"))
                .because(std::io::Error::from(errno))
                .remedy("free memory, or raise the address-space limit (ulimit -v)")
        })?;
        let start = NonNull::new(start.cast()).expect("mmap gives no null");
        // SAFETY: mapped above, until the drop; nobody else knows of it.
        Ok(Self(unsafe { RawMemory::new(start, len) }))
    }
}

// SAFETY: one mapping from `new` to the drop.
unsafe impl TargetMemory for Pages {
    fn raw(&self) -> RawMemory {
        self.0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let start = self.0.start().as_ptr().cast();
        // SAFETY: mapped by `new` with this start and length, and nobody uses it any more.
        let _cannot_fail = unsafe { munmap(start, self.0.len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_and_hold_what_is_written() {
        let pages = Pages::new(5000).expect("memory");
        let memory = pages.raw();
        assert_eq!(memory.len_bytes(), 8192);
        assert_eq!(memory.read::<u64>(8184), 0);
        memory.write(8, 0x1122_3344_5566_7788_u64);
        assert_eq!(memory.load(8, Ordering::Acquire), 0x5566_7788);
        memory.store(12, 7, Ordering::Release);
        let mut bytes = [0; 4];
        memory.part(8, 8).copy_to(4, &mut bytes);
        assert_eq!(u32::from_ne_bytes(bytes), 7);
        memory.copy_from(8188, &[1; 4]);
        memory.zero(8190, 2);
        assert_eq!(memory.read::<[u8; 4]>(8188), [1, 1, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn nothing_beyond_the_end_is_touched() {
        let _word: u32 = Pages::new(1).expect("memory").raw().read(4096);
    }

    #[test]
    #[should_panic(expected = "unaligned")]
    fn nothing_unaligned_is_touched() {
        let _word: u64 = Pages::new(1).expect("memory").raw().read(4);
    }
}
