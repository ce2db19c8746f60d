//! Opening a function's memory through sysfs: everything that can be wrong is looked at
//! first, and named with its remedy. Knows no VFIO: what vfio-pci has is opened there and
//! handed in by [`BarMemory::adopt`].

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{BarLocation, BarMemory, Mapping};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::memory::{MemoryKind, PAGE_BYTES, Region, round_up};
use crate::topology::{MemoryPart, PciFunction, Topology};

impl BarMemory {
    /// Maps a function's memory: all of a BAR or its first `len_bytes`, all of the free p2pmem
    /// or `len_bytes` of it.
    ///
    /// # Errors
    /// InvalidInput: no such function or BAR, or I/O ports. Unsupported: registers, no p2pmem,
    /// decoding off, or VFIO has it. Busy: a driver uses the BAR, or another program that asked
    /// in this way, or this one; it is free again when the last part of it is dropped. NoSpace: it is smaller.
    /// Permission: only root may.
    pub fn open(location: &BarLocation, len_bytes: Option<u64>) -> Result<Arc<Self>> {
        Self::open_in(&Topology::system(), location, len_bytes)
    }

    /// As [`open`](Self::open), with a topology of the caller's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_in(
        topology: &Topology,
        location: &BarLocation,
        len_bytes: Option<u64>,
    ) -> Result<Arc<Self>> {
        let function = topology.function(location.address)?;
        let folder = topology.folder(location.address);
        let opened = match location.part {
            MemoryPart::Bar(number) => open_bar(&folder, &function, number, len_bytes),
            MemoryPart::P2pmem => open_p2pmem(&folder, &function, len_bytes),
        };
        let opened = opened.map_err(|error| error.at(location.to_string()))?;
        Ok(Self::at(*location, opened))
    }
}

/// Memory as it was opened.
pub(super) struct OpenedMemory {
    pub(super) region: Region,
    pub(super) mapping: Mapping,
    /// Held against others who would give the same bytes out.
    pub(super) lock: Option<File>,
}

fn open_bar(
    folder: &Path,
    function: &PciFunction,
    number: u8,
    len_bytes: Option<u64>,
) -> Result<OpenedMemory> {
    let has_bytes = check_bar(function, number)?;
    let len_bytes = wanted(len_bytes, has_bytes)?;
    let combining = folder.join(format!("resource{number}_wc"));
    let (path, mapping) = if combining.exists() {
        (combining, Mapping::WriteCombining)
    } else {
        (folder.join(format!("resource{number}")), Mapping::Uncached)
    };
    let file = open_file(&path)?;
    lock(&file)?;
    let region = Region::of_device(&file, 0, len_bytes, MemoryKind::Bar);
    let region = region.map_err(|error| {
        error.remedy(
            "the kernel gives no BAR that a driver has claimed (iomem=relaxed), and none at all \
             in lockdown (a boot without Secure Boot)",
        )
    })?;
    Ok(OpenedMemory {
        region,
        mapping,
        lock: Some(file),
    })
}

/// Takes a BAR for this program alone, as far as others ask.
fn lock(file: &File) -> Result<()> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::new(ErrorKind::Busy, "another load uses this BAR")
            .remedy("wait for it to end, or take another BAR")),
        // It is a courtesy: where it is not to be had nothing is worse than without.
        Err(_) => Ok(()),
    }
}

/// Bytes of a BAR that may be mapped.
fn check_bar(function: &PciFunction, number: u8) -> Result<u64> {
    let error = |kind, what: &str| Error::new(kind, format!("BAR {number} {what}"));
    let bar = function.bars[usize::from(number)].ok_or_else(|| {
        error(ErrorKind::InvalidInput, "is not implemented").remedy(
            "lspci -v shows those there are; a 64-bit BAR takes two numbers and has the lower",
        )
    })?;
    if bar.is_io {
        return Err(error(ErrorKind::InvalidInput, "is I/O ports, not memory")
            .remedy("choose one that lspci -v shows as Memory"));
    }
    match function.driver.as_deref() {
        None => {}
        // These map nothing of their own.
        Some(driver) if driver.starts_with("uio") || driver == "pci-stub" => {}
        Some("vfio-pci") => {
            return Err(error(ErrorKind::Unsupported, "belongs to vfio-pci").remedy(
                "unbind it: echo the address to /sys/bus/pci/drivers/vfio-pci/unbind; a program \
                     may open it through VFIO and hand the mapping in (BarMemory::adopt)",
            ));
        }
        Some(driver) => {
            let what = format!("may be in use by the driver {driver}");
            return Err(error(ErrorKind::Busy, &what).remedy(
                "take p2pmem if the driver offers it, or unbind the driver: echo the address to \
                 its unbind file",
            ));
        }
    }
    if !bar.is_prefetchable {
        let what = "is not prefetchable: it may be registers, and no place for data";
        return Err(error(ErrorKind::Unsupported, what)
            .remedy("choose one that lspci -v shows as prefetchable"));
    }
    if function.memory_decoding == Some(false) {
        return Err(
            error(ErrorKind::Unsupported, "is not decoded by its function")
                .remedy("enable the function: echo 1 to the file enable in its sysfs folder"),
        );
    }
    Ok(bar.len_bytes)
}

fn open_p2pmem(
    folder: &Path,
    function: &PciFunction,
    len_bytes: Option<u64>,
) -> Result<OpenedMemory> {
    let p2pmem = function.p2pmem.ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            "the kernel has no p2pmem of this function",
        )
        .remedy(
            "it takes a kernel with CONFIG_PCI_P2PDMA and a driver that offers such memory, as \
             nvme does for a controller memory buffer",
        )
    })?;
    let len_bytes = wanted(len_bytes, p2pmem.available_bytes)?;
    let path = folder.join("p2pmem/allocate");
    if !path.exists() {
        let what = "this kernel does not give p2pmem to programs";
        return Err(Error::new(ErrorKind::Unsupported, what).remedy("Linux 6.2 or newer does"));
    }
    let file = open_file(&path)?;
    // Every mapping of this file is a new allocation, from its first byte on.
    let region = Region::of_device(&file, 0, len_bytes, MemoryKind::P2p).map_err(|error| {
        error.remedy("what is free may lie in several pieces: ask for less of it")
    })?;
    Ok(OpenedMemory {
        region,
        mapping: Mapping::Uncached,
        lock: None,
    })
}

/// Whole pages: those asked for, else all there are.
fn wanted(len_bytes: Option<u64>, has_bytes: u64) -> Result<u64> {
    let needs_bytes = len_bytes.map_or(PAGE_BYTES, |len| round_up(len.max(1), PAGE_BYTES));
    if has_bytes < needs_bytes {
        let what = format!("it has {has_bytes} bytes, {needs_bytes} are needed");
        return Err(Error::new(ErrorKind::NoSpace, what).remedy(
            "use fewer or smaller windows; for a BAR, turn on Resizable BAR in the firmware's \
             setup",
        ));
    }
    Ok(if len_bytes.is_some() {
        needs_bytes
    } else {
        has_bytes / PAGE_BYTES * PAGE_BYTES
    })
}

fn open_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|cause| {
            let what = format!("cannot open {}", path.display());
            let error = Error::os(what, cause);
            match error.kind() {
                ErrorKind::Permission => error.remedy(
                    "run as root: whoever may write a BAR controls the device; where root is \
                     refused, the kernel is in lockdown",
                ),
                _ => error.remedy("the mmap files of sysfs may be missing in a container"),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tree::{ENDPOINT, Space, Tree};

    const DEVICE: &str = "pci0000:00/0000:00:06.0";
    const LEN: u64 = 1 << 20;

    /// A function with registers in BAR 0, 1 MiB in BAR 2 and ports in BAR 5.
    fn machine(space: Space) -> Tree {
        let tree = Tree::new();
        tree.function(DEVICE, space);
        let resource = "0x00000000fe800000 0x00000000fe800fff 0x0000000000040200\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000000800000000 0x00000008000fffff 0x000000000014220c\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x00000000fe801000 0x00000000fe8010ff 0x0000000000042208\n\
                        0x000000000000c000 0x000000000000c01f 0x0000000000040101\n";
        tree.write(&format!("{DEVICE}/resource"), resource);
        tree.write(&format!("{DEVICE}/resource2"), vec![0x55; 1 << 20]);
        tree
    }

    fn open(tree: &Tree, part: &str, len_bytes: Option<u64>) -> Result<Arc<BarMemory>> {
        let location = format!("bar:0000:00:06.0/{part}").parse().expect("a name");
        BarMemory::open_in(&tree.topology(), &location, len_bytes)
    }

    #[track_caller]
    fn refused(tree: &Tree, part: &str, kind: ErrorKind, words: &str) {
        let error = open(tree, part, None).expect_err(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.advice().is_some(), "{error}: no remedy");
        assert!(
            error.to_string().starts_with("bar:0000:00:06.0/"),
            "{error}"
        );
    }

    #[test]
    fn a_bar_is_mapped_write_combining_where_that_is_to_be_had() {
        let tree = machine(Space::of(ENDPOINT));
        let memory = open(&tree, "2", None).expect("a BAR");
        assert_eq!(memory.mapping(), Mapping::Uncached);
        assert_eq!((memory.kind(), memory.free_bytes()), (MemoryKind::Bar, LEN));
        assert_eq!(memory.name(), "bar:0000:00:06.0/2");
        tree.write(&format!("{DEVICE}/resource2_wc"), vec![0x66; 1 << 20]);
        let memory = open(&tree, "2", Some(5000)).expect("a BAR");
        assert_eq!(memory.mapping(), Mapping::WriteCombining);
        assert_eq!(memory.free_bytes(), 8192);
        let part = memory.allocate(1).expect("room");
        drop((part, memory));
        let file = tree.sys().join("devices").join(DEVICE).join("resource2_wc");
        let bytes = std::fs::read(file).expect("there");
        assert!(bytes[..4096].iter().all(|&byte| byte == 0));
        assert!(bytes[4096..].iter().all(|&byte| byte == 0x66));
    }

    #[test]
    fn a_bar_is_of_one_at_a_time() {
        let tree = machine(Space::of(ENDPOINT));
        let memory = open(&tree, "2", None).expect("a BAR");
        refused(&tree, "2", ErrorKind::Busy, "another load");
        let part = memory.allocate(1).expect("room");
        drop(memory);
        refused(&tree, "2", ErrorKind::Busy, "another load");
        drop(part);
        assert!(open(&tree, "2", None).is_ok(), "kept");
    }

    #[test]
    fn what_cannot_be_mapped_is_named() {
        let tree = machine(Space::of(ENDPOINT));
        refused(&tree, "1", ErrorKind::InvalidInput, "not implemented");
        refused(&tree, "5", ErrorKind::InvalidInput, "I/O ports");
        refused(&tree, "0", ErrorKind::Unsupported, "registers");
        refused(&tree, "4", ErrorKind::NoSpace, "256 bytes");
        refused(&tree, "p2pmem", ErrorKind::Unsupported, "no p2pmem");
        let error = open(&tree, "2", Some(LEN + 1)).expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let file = tree.sys().join("devices").join(DEVICE).join("resource2");
        std::fs::remove_file(file).expect("there");
        refused(&tree, "2", ErrorKind::NotFound, "cannot open");
        let off = machine(Space::of(ENDPOINT).without_decoding());
        refused(&off, "2", ErrorKind::Unsupported, "not decoded");
        let nowhere = "bar:0000:07:00.0/2".parse().expect("a name");
        let error = BarMemory::open_in(&tree.topology(), &nowhere, None).expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn drivers_keep_their_bars() {
        for (driver, refusal) in [
            (
                "vfio-pci",
                Some((ErrorKind::Unsupported, "BarMemory::adopt")),
            ),
            ("nvme", Some((ErrorKind::Busy, "unbind"))),
            ("uio_pci_generic", None),
            ("pci-stub", None),
        ] {
            let tree = machine(Space::of(ENDPOINT));
            tree.bind(DEVICE, driver);
            match refusal {
                Some((kind, words)) => refused(&tree, "2", kind, words),
                None => assert!(open(&tree, "2", None).is_ok(), "{driver}"),
            }
        }
    }

    #[test]
    fn p2pmem_is_what_the_kernel_has_free() {
        let tree = machine(Space::of(ENDPOINT));
        tree.nvme(DEVICE, 0, "serial");
        refused(&tree, "p2pmem", ErrorKind::Unsupported, "Linux 6.2");
        tree.write(&format!("{DEVICE}/p2pmem/allocate"), vec![0; 1 << 20]);
        let memory = open(&tree, "p2pmem", Some(LEN)).expect("p2pmem");
        assert_eq!((memory.kind(), memory.free_bytes()), (MemoryKind::P2p, LEN));
        tree.write(&format!("{DEVICE}/p2pmem/available"), "4095\n");
        refused(&tree, "p2pmem", ErrorKind::NoSpace, "4095 bytes");
    }
}
