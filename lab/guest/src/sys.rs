//! The guest's one piece of memory that is not its own: a PCI BAR mapped into the process.
//!
//! It knows addresses and nothing of what the BAR is good for. No reference into it is ever
//! made: devices and the host write there, so every access is volatile.
#![expect(
    unsafe_code,
    reason = "maps a BAR and reads and writes it by volatile accesses"
)]

use std::fs::OpenOptions;
use std::path::Path;
use std::ptr::{self, NonNull};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped BAR, in words of 8 bytes.
#[derive(Debug)]
pub(crate) struct Bar {
    base: NonNull<u64>,
    len_bytes: usize,
}

impl Bar {
    /// Maps the first `len_bytes` of a BAR's file in sysfs.
    pub(crate) fn map(path: &Path, len_bytes: u64) -> Result<Self> {
        let mapping = || format!("cannot map {}", path.display());
        let len_bytes = usize::try_from(len_bytes).with_context(mapping)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(mapping)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                len_bytes,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let base = NonNull::new(base.with_context(mapping)?.cast()).with_context(mapping)?;
        Ok(Self { base, len_bytes })
    }

    /// The word at a byte offset, which is a multiple of 8.
    pub(crate) fn read(&self, offset: usize) -> u64 {
        let word = self.word(offset);
        // SAFETY: `word` checked that the place is aligned and inside the live mapping.
        unsafe { word.read_volatile() }
    }

    /// Writes the word at a byte offset, which is a multiple of 8.
    pub(crate) fn write(&self, offset: usize, value: u64) {
        let word = self.word(offset);
        // SAFETY: `word` checked that the place is aligned and inside the live mapping.
        unsafe { word.write_volatile(value) }
    }

    fn word(&self, offset: usize) -> NonNull<u64> {
        let inside = offset
            .checked_add(8)
            .is_some_and(|end| end <= self.len_bytes);
        assert!(
            inside && offset.is_multiple_of(8),
            "byte {offset} of a BAR of {}",
            self.len_bytes
        );
        // SAFETY: just asserted to stay inside the one mapping.
        unsafe { self.base.byte_add(offset) }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: ours since `map`, and nothing points into it: no reference was ever given out.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours could not be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_file_has_it() {
        let path = std::env::temp_dir().join(format!("ubio-lab-bar-{}", std::process::id()));
        std::fs::write(&path, [7; 4096]).unwrap();
        let bar = Bar::map(&path, 4096).unwrap();
        assert_eq!(bar.read(4088), 0x0707_0707_0707_0707);
        bar.write(8, 0x0102_0304_0506_0708);
        assert_eq!(bar.read(8), 0x0102_0304_0506_0708);
        drop(bar);
        assert_eq!(std::fs::read(&path).unwrap()[8..10], [8, 7]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    #[should_panic(expected = "byte 4090")]
    fn nothing_outside_is_touched() {
        let path = std::env::temp_dir().join(format!("ubio-lab-edge-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        let bar = Bar::map(&path, 4096).unwrap();
        std::fs::remove_file(&path).unwrap();
        bar.read(4090);
    }
}
