//! Memory of the worst kind for a device: no two neighbouring pages are neighbours in physical
//! memory. And memory whose pages are exchanged under its address, which shows what a command
//! goes by. Knows no devices.
//!
//! unsafe: maps pages over each other.
#![expect(unsafe_code, reason = "maps pages of a file over a mapping of its own")]

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use anyhow::{Context, Result};
use nvme::memory::{RawMemory, TargetMemory};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: u64 = 4096;

/// Every second page of a file in memory, the last one first.
#[derive(Debug)]
pub(crate) struct Scattered {
    file: OwnedFd,
    raw: RawMemory,
}

impl Scattered {
    /// So many bytes: whole pages.
    pub(crate) fn new(len_bytes: u64) -> Result<Self> {
        let file = memfd_create("scattered", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, 2 * len_bytes)?;
        Self::of(file, len_bytes)
    }

    /// The same pages at another address.
    pub(crate) fn again(&self) -> Result<Self> {
        Self::of(self.file.try_clone()?, self.raw.len_bytes())
    }

    fn of(file: OwnedFd, len_bytes: u64) -> Result<Self> {
        let len = usize::try_from(len_bytes)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::SHARED) }?;
        let start = NonNull::new(start.cast()).context("a mapping at null")?;
        // SAFETY: mapped above, until the drop; nobody else knows of it.
        let raw = unsafe { RawMemory::new(start, len) };
        let this = Self { file, raw };
        let pages = len_bytes / PAGE;
        for page in (0..pages).rev() {
            let at = raw.at(page * PAGE, PAGE).cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let place = 2 * (pages - 1 - page) * PAGE;
            // SAFETY: over a page of this mapping, into which no reference was ever made.
            unsafe { mmap(at, usize::try_from(PAGE)?, access, flags, &this.file, place) }?;
        }
        Ok(this)
    }

    /// Puts fresh zero pages at the address.
    pub(crate) fn replace(&self) -> Result<()> {
        let start = self.raw.start().as_ptr().cast();
        let len = usize::try_from(self.raw.len_bytes())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: over this mapping's own pages, into which no reference was ever made.
        unsafe { mmap_anonymous(start, len, access, flags) }?;
        Ok(())
    }
}

// SAFETY: one range of addresses that is mapped from `new` to the drop; `replace` exchanges what
// is there in one step.
unsafe impl TargetMemory for Scattered {
    fn raw(&self) -> RawMemory {
        self.raw
    }
}

impl Drop for Scattered {
    fn drop(&mut self) {
        let start = self.raw.start().as_ptr().cast();
        let len = usize::try_from(self.raw.len_bytes()).expect("as it was made");
        // SAFETY: mapped by `of` with this start and length, and nobody uses it any more.
        let _cannot_fail = unsafe { munmap(start, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_pages_at_two_addresses_until_they_are_replaced() {
        let one = Scattered::new(3 * PAGE).unwrap();
        let other = one.again().unwrap();
        for page in 0..3 {
            one.raw.write(page * PAGE, page + 7);
        }
        let seen = [0, 1, 2].map(|page| other.raw.read::<u64>(page * PAGE));
        assert_eq!(seen, [7, 8, 9]);
        one.replace().unwrap();
        assert_eq!(one.raw.read::<u64>(PAGE), 0);
        assert_eq!(other.raw.read::<u64>(PAGE), 8);
    }
}
