//! A stand-in for device memory on machines without any: a file in memory, mapped in the same
//! way and filled by the same stores. It is no device: nothing is posted, nothing is slow, and
//! whatever uses it says that it is emulated.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{BarMemory, Mapping};
use crate::error::{Error, Result};
use crate::sys::memory::{MemoryKind, PAGE_BYTES, Region, round_up};

/// An emulated BAR, and the device's view of it.
#[derive(Debug)]
pub struct EmulatedBar {
    memory: Arc<BarMemory>,
    file: OwnedFd,
}

impl EmulatedBar {
    /// One of at least `len_bytes`; they take memory when they are written.
    ///
    /// # Errors
    /// NoSpace, or no descriptor to be had.
    pub fn new(len_bytes: u64) -> Result<Self> {
        Self::of_kind(len_bytes, MemoryKind::Bar)
    }

    /// One that stands in for peer-to-peer memory with pages.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn p2pmem(len_bytes: u64) -> Result<Self> {
        Self::of_kind(len_bytes, MemoryKind::P2p)
    }

    fn of_kind(len_bytes: u64, kind: MemoryKind) -> Result<Self> {
        let len_bytes = round_up(len_bytes.max(1), PAGE_BYTES);
        let failed = |errno| Error::os("cannot make an emulated BAR", errno);
        let file = memfd_create("ubio-emulated-bar", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, len_bytes).map_err(failed)?;
        let region = Region::of_device(&file, 0, len_bytes, kind)?;
        let name = format!("EmulatedBar ({}, {len_bytes} bytes)", kind.name());
        Ok(Self {
            memory: BarMemory::new(name, Mapping::Emulated, Arc::new(region)),
            file,
        })
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<BarMemory> {
        &self.memory
    }

    /// What the device would see of a part of the memory: through the file, not through the
    /// mapping.
    ///
    /// # Panics
    /// If the part is not of this memory, or cannot be read.
    pub fn seen_by_device(&self, part: &Region, offset: u64, len_bytes: u64) -> Vec<u8> {
        let whole = self.memory.region();
        let from = part.address(offset, len_bytes) as u64;
        let at = from
            .checked_sub(whole.address(0, 0) as u64)
            .filter(|at| at + len_bytes <= whole.len_bytes())
            .expect("a part of this memory");
        let mut bytes = vec![0; usize::try_from(len_bytes).expect("64-bit")];
        let mut done = 0;
        while done < bytes.len() {
            let read = rustix::io::pread(&self.file, &mut bytes[done..], at + done as u64);
            done += read.expect("a file in memory is read");
        }
        bytes
    }
}
