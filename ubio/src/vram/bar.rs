//! Memory of a PCI function, for destinations and for windows: a BAR, or peer-to-peer memory that
//! its driver gave to the kernel. Real peer-to-peer DMA lands here. Knows no NVMe and no GPU.
//!
//! Rules, and where they are from:
//!
//! - **Stores are posted.** A store that the processor has retired may still lie in a
//!   write-combining buffer (Intel SDM vol. 3, "Write Combining (WC) Memory Location": they
//!   are weakly ordered and drained by SFENCE, among others), and behind that in any bridge
//!   on the way: posted requests get no answer (PCI Express Base, "Transaction Ordering
//!   Rules"). A read cannot pass a posted write, so a read from the same device returns only
//!   when all writes in front of it are there (Linux `Documentation/driver-api/device-io.rst`,
//!   "posted writes"). So nothing is reported done before a fence and a read of the last word
//!   written ([`Region::settle`]), once for an operation and not for each of its pieces.
//! - **Stores are wide**, a line of 64 bytes where its place allows: that is one burst on a
//!   write-combining mapping. `resourceN_wc` is taken where the kernel has it, which is for
//!   prefetchable BARs (Linux `Documentation/PCI/sysfs-pci.rst`); else `resourceN`, uncached,
//!   where each store goes out alone. [`BarMemory::mapping`] says which it was.
//! - **Loads are round trips** of at most 8 bytes, volatile, one behind the other: to gather
//!   from a BAR is slow, and no route for bulk data. No reference ever points here, since a
//!   device writes the memory, and since the compiler may read through one what it likes.
//! - **Nothing is widened**: a store touches the bytes asked for and no others. There are no
//!   masks here, and to read, change and write back would lose what a device wrote meanwhile.
//! - **No pages, no page tricks.** A BAR has no struct pages: it is not faulted in, advised,
//!   registered, or read into by the kernel. p2pmem has `ZONE_DEVICE` pages: direct reads and
//!   passthrough can fill it, but not registered and not through the page cache.
//! - **Side effects.** Only prefetchable BARs are taken: others may be registers, whose reads
//!   change something. And only those that no driver of the kernel uses.
//!
//! unsafe: zeroes memory that nobody has yet.
#![expect(unsafe_code, reason = "zeroes fresh parts")]

use std::fmt;
use std::fs::File;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use self::free::FreeList;
use self::open::OpenedMemory;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::memory::{MemoryKind, PAGE_BYTES, Region, round_up};
use crate::topology::{MemoryPart, PciAddress};
use crate::window::WindowMemory;

pub use emulated::EmulatedBar;

mod emulated;
mod free;
mod open;

/// Which memory of which function: `bar:0000:00:06.0/2`, `bar:0000:01:00.0/p2pmem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BarLocation {
    /// Whose.
    pub address: PciAddress,
    /// Which of it.
    pub part: MemoryPart,
}

const PREFIX: &str = "bar:";

impl FromStr for BarLocation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            let what = format!("{text:?} names no memory of a PCI function");
            Error::new(ErrorKind::InvalidInput, what)
                .remedy("write bar:ADDRESS/NUMBER or bar:ADDRESS/p2pmem, as in bar:0000:00:06.0/2")
        };
        let (address, part) = text
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(invalid)?;
        let address = address.parse().map_err(|cause| invalid().because(cause))?;
        let part = match part.as_bytes() {
            b"p2pmem" => MemoryPart::P2pmem,
            [digit @ b'0'..=b'5'] => MemoryPart::Bar(digit - b'0'),
            _ => return Err(invalid()),
        };
        Ok(Self { address, part })
    }
}

impl fmt::Display for BarLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/", self.address)?;
        match self.part {
            MemoryPart::Bar(number) => write!(f, "{number}"),
            MemoryPart::P2pmem => f.write_str("p2pmem"),
        }
    }
}

/// How device memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mapping {
    /// Stores are combined to lines (`resourceN_wc`).
    WriteCombining,
    /// Every access goes out alone (`resourceN`, `p2pmem/allocate`).
    Uncached,
    /// Somebody else mapped it, and knows.
    Adopted,
    /// Ordinary memory that stands in for a device's.
    Emulated,
}

impl Mapping {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteCombining => "write-combining",
            Self::Uncached => "uncached",
            Self::Adopted => "mapped by its owner",
            Self::Emulated => "emulated",
        }
    }
}

/// Mapped memory of a PCI function, given out in parts: first fit, in pages of 4 KiB.
#[derive(Debug)]
pub struct BarMemory {
    name: String,
    /// `None` if somebody else mapped it.
    location: Option<BarLocation>,
    mapping: Mapping,
    region: Arc<Region>,
    free: Mutex<FreeList>,
    /// After the mapping.
    _lock: Option<File>,
}

/// A part that somebody has; it goes back when the last who uses it is done.
struct Lent {
    memory: Arc<BarMemory>,
    offset: u64,
    len_bytes: u64,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.memory.lock().give_back(self.offset, self.len_bytes);
    }
}

impl BarMemory {
    /// A function's memory.
    fn at(location: BarLocation, opened: OpenedMemory) -> Arc<Self> {
        let OpenedMemory {
            region,
            mapping,
            lock,
        } = opened;
        Arc::new(Self {
            location: Some(location),
            _lock: lock,
            ..Self::of(location.to_string(), mapping, Arc::new(region))
        })
    }

    fn new(name: String, mapping: Mapping, region: Arc<Region>) -> Arc<Self> {
        Arc::new(Self::of(name, mapping, region))
    }

    fn of(name: String, mapping: Mapping, region: Arc<Region>) -> Self {
        Self {
            name,
            location: None,
            mapping,
            free: Mutex::new(FreeList::new(region.len_bytes())),
            region,
            _lock: None,
        }
    }

    /// Takes device memory over that is mapped already, for instance a region of a function
    /// that VFIO has. `name` is for reports.
    ///
    /// # Errors
    /// InvalidInput: it is host memory.
    pub fn adopt(name: impl Into<String>, region: Arc<Region>) -> Result<Arc<Self>> {
        if !region.kind().is_device() {
            return Err(Error::new(ErrorKind::InvalidInput, "host memory is no BAR")
                .remedy("say what it is when it is mapped: Region::adopt_device"));
        }
        Ok(Self::new(name.into(), Mapping::Adopted, region))
    }

    /// What it is, for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, unless somebody else mapped it.
    pub fn location(&self) -> Option<&BarLocation> {
        self.location.as_ref()
    }

    /// How it is mapped.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        self.region.kind()
    }

    /// All of it.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes that nobody has, not necessarily in one piece.
    pub fn free_bytes(&self) -> u64 {
        self.lock().free_bytes()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of it, zero, of whole pages. It goes back by itself when it is dropped.
    ///
    /// # Errors
    /// NoSpace: no gap is large enough.
    pub fn allocate(self: &Arc<Self>, len_bytes: u64) -> Result<Arc<Region>> {
        let len_bytes = round_up(len_bytes.max(1), PAGE_BYTES);
        // Of its own statement, so that the lock is free again.
        let taken = self.lock().take(len_bytes);
        let offset = taken.ok_or_else(|| {
            let what = format!(
                "{} has no {len_bytes} bytes in one piece, {} are free",
                self.name,
                self.free_bytes()
            );
            Error::new(ErrorKind::NoSpace, what)
                .remedy("use fewer or smaller windows, or a larger BAR (Resizable BAR)")
        })?;
        let lent = Box::new(Lent {
            memory: Arc::clone(self),
            offset,
            len_bytes,
        });
        let part = Region::part_of_device(&self.region, offset, len_bytes, lent);
        // SAFETY: nobody else has this part yet.
        unsafe { part.zero(0, len_bytes) };
        Ok(Arc::new(part))
    }

    /// Windows made of it.
    ///
    /// # Errors
    /// NoSpace: no gap is large enough.
    pub fn windows(self: &Arc<Self>, count: u64, window_bytes: u64) -> Result<WindowMemory> {
        let len_bytes = count.saturating_mul(window_bytes);
        Ok(WindowMemory::of(self.allocate(len_bytes)?, window_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_taken_as_they_are_written_and_no_other_way() {
        for text in [
            "bar:0000:00:06.0/2",
            "bar:10000:e1:00.0/p2pmem",
            "bar:0000:01:00.0/0",
        ] {
            assert_eq!(text.parse::<BarLocation>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "bar:",
            "0000:00:06.0/2",
            "bar:0000:00:06.0",
            "bar:0000:00:06.0/",
            "bar:0000:00:06.0/6",
            "bar:0000:00:06.0/02",
            "bar:0000:00:06.0/+2",
            "bar:00:06.0/2",
            "bar:0000:00:06.0/2/",
            "bar:0000:00:06.0/P2PMEM",
        ] {
            let error = text.parse::<BarLocation>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn parts_are_zero_apart_and_go_back() {
        let bar = EmulatedBar::new(16 * PAGE_BYTES).expect("memory");
        let memory = bar.memory();
        let parts: Vec<_> = [1, PAGE_BYTES, PAGE_BYTES + 1]
            .iter()
            .map(|&len| memory.allocate(len).expect("room"))
            .collect();
        assert_eq!(memory.free_bytes(), 12 * PAGE_BYTES);
        for (part, byte) in parts.iter().zip(1..) {
            let len = usize::try_from(part.len_bytes()).expect("small");
            // SAFETY: the part is the test's alone.
            unsafe { part.write(0, &vec![byte; len]) };
        }
        for (part, byte) in parts.iter().zip(1..) {
            let found = bar.seen_by_device(part, 0, part.len_bytes());
            assert!(found.iter().all(|&found| found == byte), "{byte}");
        }
        let error = memory.allocate(13 * PAGE_BYTES).expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let kept = Arc::clone(&parts[1]);
        drop(parts);
        assert_eq!(memory.free_bytes(), 15 * PAGE_BYTES);
        drop(kept);
        let all = memory.windows(4, 4 * PAGE_BYTES).expect("all of it");
        assert_eq!((all.windows(), all.kind()), (4, MemoryKind::Bar));
        assert!(memory.allocate(1).is_err());
        let found = bar.seen_by_device(all.region(), 0, 16 * PAGE_BYTES);
        assert!(found.iter().all(|&found| found == 0), "what another left");
    }

    #[test]
    fn what_is_adopted_is_device_memory() {
        let host = Arc::new(Region::anonymous(PAGE_BYTES, false).expect("memory"));
        let error = BarMemory::adopt("host", host).expect_err("host memory");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let bar = EmulatedBar::new(PAGE_BYTES).expect("memory");
        let whole = Arc::clone(bar.memory().region());
        let memory = BarMemory::adopt("vfio:0000:00:06.0/2", whole).expect("a BAR");
        assert_eq!(memory.mapping(), Mapping::Adopted);
        assert!(memory.allocate(1).is_ok());
    }

    #[test]
    fn what_is_emulated_says_so() {
        let bar = EmulatedBar::new(PAGE_BYTES).expect("memory");
        assert!(bar.memory().name().starts_with("EmulatedBar"));
        assert_eq!(bar.memory().mapping(), Mapping::Emulated);
    }
}
