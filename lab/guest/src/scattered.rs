//! Memory of the worst kind for a device: no page lies right behind the page before it in
//! physical memory, which root can look at. And memory whose pages are exchanged under its
//! address, which shows what a command goes by. Knows no devices.
//!
//! unsafe: maps pages over each other.
#![expect(unsafe_code, reason = "maps pages of a file over a mapping of its own")]

use std::cmp::Reverse;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

use anyhow::{Context, Result, ensure};
use nvme::memory::{RawMemory, TargetMemory};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: u64 = 4096;

/// Pages of a file in memory, the one with the highest frame first.
#[derive(Debug)]
pub(crate) struct Scattered {
    file: OwnedFd,
    /// Which page of the file each page is.
    order: Vec<u64>,
    raw: RawMemory,
}

impl Scattered {
    /// So many bytes: whole pages.
    pub(crate) fn new(len_bytes: u64) -> Result<Self> {
        let file = memfd_create("scattered", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len_bytes)?;
        let in_order = Self::of(file, (0..len_bytes / PAGE).collect())?;
        let mut order = in_order.order.clone();
        let frames = in_order.frames()?;
        order.sort_by_key(|&page| Reverse(frames.get(usize::try_from(page).unwrap_or(0))));
        Self::of(in_order.file.try_clone()?, order)
    }

    /// The same pages at another address.
    pub(crate) fn again(&self) -> Result<Self> {
        Self::of(self.file.try_clone()?, self.order.clone())
    }

    fn of(file: OwnedFd, order: Vec<u64>) -> Result<Self> {
        let len = order.len() * usize::try_from(PAGE)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::SHARED) }?;
        let start = NonNull::new(start.cast()).context("a mapping at null")?;
        // SAFETY: mapped above, until the drop; nobody else knows of it.
        let raw = unsafe { RawMemory::new(start, len) };
        let this = Self { file, order, raw };
        for (page, of_file) in (0..).zip(&this.order) {
            let at = raw.at(page * PAGE, PAGE).cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let place = of_file * PAGE;
            // SAFETY: over a page of this mapping, into which no reference was ever made.
            unsafe { mmap(at, usize::try_from(PAGE)?, access, flags, &this.file, place) }?;
        }
        Ok(this)
    }

    /// How many of its pages lie right behind the page before them in physical memory, too.
    ///
    /// # Errors
    /// The kernel does not tell: root may know.
    pub(crate) fn neighbours(&self) -> Result<usize> {
        let frames = self.frames()?;
        ensure!(
            !frames.contains(&0),
            "the kernel does not tell where pages are"
        );
        let pairs = frames.windows(2);
        Ok(pairs.filter(|pair| pair[0] + 1 == pair[1]).count())
    }

    /// Where its pages are in physical memory, in pages; zeros for those who may not know.
    fn frames(&self) -> Result<Vec<u64>> {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        let first = self.raw.start().addr().get() as u64 / PAGE;
        let mut entries = vec![0; usize::try_from(self.raw.len_bytes() / PAGE * 8)?];
        File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, first * 8)?;
        let (entries, _) = entries.as_chunks::<8>();
        let mut frames = Vec::new();
        for entry in entries {
            let entry = u64::from_le_bytes(*entry);
            ensure!(entry & PRESENT != 0, "a page is not there: {entry:#x}");
            frames.push(entry & FRAME);
        }
        Ok(frames)
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
