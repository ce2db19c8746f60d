//! One IOMMU domain for several functions: groups, device addresses, mappings. What is mapped
//! is reached by every function of the container. Knows no registers.
//!
//! unsafe: exposes memory to devices.
#![expect(unsafe_code, reason = "DMA maps expose raw memory to devices")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::process::{Resource, getrlimit};
use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_GROUP_FLAGS_VIABLE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES,
    vfio_iommu_type1_info,
};

use super::capability;
use super::iova::{IovaSpace, Range};
use super::sys;
use super::sysfs::Sysfs;
use crate::dma::{DmaRun, Iova};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{PAGE_BYTES, RawMemory};

const NODE: &str = "/dev/vfio/vfio";

/// Where a kernel does not say which addresses its IOMMU takes: what the smallest one of x86
/// does (39 bits).
const UNSAID: Range = 0..=(1 << 39) - 1;

/// A VFIO container with the type 1 IOMMU, and the IOMMU groups in it.
#[derive(Debug)]
pub struct VfioContainer {
    file: File,
    state: Mutex<State>,
    sysfs: Sysfs,
}

#[derive(Debug)]
struct State {
    /// Kept until the end: with its last group a container loses its mappings.
    groups: BTreeMap<u32, File>,
    /// Functions that are open, by address.
    open: BTreeSet<String>,
    iova: IovaSpace,
    /// As bits: page sizes of the IOMMU.
    page_sizes: u64,
}

impl VfioContainer {
    /// A container with nothing in it.
    ///
    /// # Errors
    /// NotFound, Unsupported (no VFIO, no type 1), Permission.
    pub fn new() -> Result<Arc<Self>> {
        let file = OpenOptions::new().read(true).write(true).open(NODE);
        let file = file.map_err(|cause| match cause.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                Error::new(ErrorKind::Unsupported, format!("cannot open {NODE}"))
                    .because(cause)
                    .remedy("load the drivers: modprobe vfio-pci, modprobe vfio_iommu_type1")
            }
            _ => Error::os(format!("cannot open {NODE}"), cause)
                .remedy("it is open to all as it comes; see its mode and the sandbox's rules"),
        })?;
        let version = sys::api_version(&file).map_err(|cause| Error::os(NODE, cause))?;
        if u32::try_from(version) != Ok(VFIO_API_VERSION) {
            let what = format!("{NODE} speaks version {version}, not {VFIO_API_VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if !sys::has_type1v2(&file).map_err(|cause| Error::os(NODE, cause))? {
            let what = format!("{NODE} has no IOMMU of type 1");
            return Err(
                Error::new(ErrorKind::Unsupported, what).remedy("modprobe vfio_iommu_type1")
            );
        }
        let state = State {
            groups: BTreeMap::new(),
            open: BTreeSet::new(),
            iova: IovaSpace::new(&[], &[]),
            page_sizes: 0,
        };
        Ok(Arc::new(Self {
            file,
            state: Mutex::new(state),
            sysfs: Sysfs::new(),
        }))
    }

    pub(super) fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic leaves the state half changed.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Opens a function of a group, taking the group into the container first.
    pub(super) fn open(&self, group: u32, address: &str) -> Result<File> {
        let mut state = self.state();
        if state.open.contains(address) {
            let what = format!("{address} is open in this container already");
            return Err(Error::new(ErrorKind::Busy, what).remedy("share what opened it"));
        }
        if !state.groups.contains_key(&group) {
            self.attach(&mut state, group)?;
        }
        let device = sys::device_fd(&state.groups[&group], address).map_err(|cause| {
            let busy = cause.raw_os_error() == Some(libc::EBUSY);
            let error = Error::os(format!("VFIO does not open {address}"), cause);
            if busy {
                error.remedy("end the process that has it (fuser -v /dev/vfio/*)")
            } else {
                error.remedy("see the kernel's log (dmesg | grep vfio)")
            }
        })?;
        state.open.insert(address.to_owned());
        Ok(device)
    }

    /// A function was closed.
    pub(super) fn closed(&self, address: &str) {
        self.state().open.remove(address);
    }

    fn attach(&self, state: &mut State, group: u32) -> Result<()> {
        let file = open_group(group)?;
        let node = format!("/dev/vfio/{group}");
        let flags = sys::group_flags(&file).map_err(|cause| Error::os(&node, cause))?;
        if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            let what = format!("IOMMU group {group} is not viable: the kernel drives some of it");
            return Err(Error::new(ErrorKind::Busy, what).remedy(format!(
                "bind all of /sys/kernel/iommu_groups/{group}/devices to vfio-pci"
            )));
        }
        sys::set_container(&file, &self.file).map_err(|cause| refused(group, cause))?;
        if state.groups.is_empty() {
            sys::set_type1v2(&self.file).map_err(|cause| refused(group, cause))?;
        }
        // If this fails, the group leaves with its descriptor.
        let info = self.info()?;
        let reserved = self.sysfs.memory_windows();
        state.iova.limit(&info.valid, &reserved);
        state.page_sizes = info.page_sizes;
        state.groups.insert(group, file);
        Ok(())
    }

    fn info(&self) -> Result<Info> {
        let answer = sys::iommu_info(&self.file)
            .map_err(|cause| Error::os("VFIO does not say what the IOMMU can do", cause))?;
        Info::parse(&answer).map_err(|cause| {
            Error::new(ErrorKind::Io, "VFIO's description of the IOMMU").because(cause)
        })
    }

    /// How many more mappings the kernel takes, where it says so.
    ///
    /// # Errors
    /// Io.
    pub fn mappings_left(&self) -> Result<Option<u32>> {
        Ok(self.info()?.mappings_left)
    }

    /// Lets every function of the container read and write memory: host memory, or a mapping
    /// of a PCI BAR. Its device addresses are one run.
    ///
    /// # Errors
    /// InvalidInput (no whole pages; no function is open yet), NoSpace (addresses, locked
    /// memory, mappings), Unsupported (memory that cannot be pinned).
    ///
    /// # Safety
    /// The memory stays mapped at its address until [`unmap`](Self::unmap) has succeeded, and
    /// nobody holds a reference into it.
    pub unsafe fn map(&self, memory: RawMemory) -> Result<DmaRun> {
        let mut state = self.state();
        let start = memory.start().addr().get() as u64;
        let len_bytes = memory.len_bytes();
        if state.groups.is_empty() {
            let what = "nothing can be mapped before a function is open";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let page_bytes = smallest_page(state.page_sizes);
        if len_bytes == 0
            || !start.is_multiple_of(page_bytes)
            || !len_bytes.is_multiple_of(page_bytes)
        {
            let what = format!("{len_bytes} bytes at {start:#x} are no whole pages");
            return Err(Error::new(ErrorKind::InvalidInput, what)
                .remedy(format!("the IOMMU maps pages of {page_bytes} bytes")));
        }
        // Address and memory agree modulo the largest page that fits, so that it can be used.
        let alignment = largest_page(state.page_sizes, len_bytes);
        let iova = state.iova.take(len_bytes, alignment, start % alignment);
        let iova = iova.or_else(|| state.iova.take(len_bytes, page_bytes, 0));
        let iova = iova.ok_or_else(|| {
            let what = format!("no device addresses are left for {len_bytes} bytes");
            Error::new(ErrorKind::NoSpace, what).remedy("map less at a time")
        })?;
        // SAFETY: the caller's promise.
        if let Err(cause) = unsafe { sys::map_dma(&self.file, memory, iova) } {
            let gave = state.iova.give(iova, len_bytes);
            assert!(gave, "taken above");
            return Err(map_error(len_bytes, cause));
        }
        Ok(DmaRun {
            start: Iova(iova),
            len_bytes,
        })
    }

    /// Ends a mapping: no function reaches the memory any more when this returns.
    ///
    /// # Errors
    /// InvalidInput (not mapped); Io: then functions may reach it still, and it must be kept.
    pub fn unmap(&self, run: DmaRun) -> Result<()> {
        let mut state = self.state();
        let DmaRun {
            start: Iova(iova),
            len_bytes,
        } = run;
        let what = || format!("cannot unmap {len_bytes} bytes at device address {iova:#x}");
        if !state.iova.is_taken(iova, len_bytes) {
            let error = Error::new(ErrorKind::InvalidInput, what());
            return Err(error.remedy("unmap what was mapped, as it was mapped, and once"));
        }
        let unmapped = sys::unmap_dma(&self.file, iova, len_bytes)
            .map_err(|cause| Error::new(ErrorKind::Io, what()).because(cause))?;
        if unmapped != len_bytes {
            let what = format!("{}: the kernel unmapped {unmapped}", what());
            return Err(Error::new(ErrorKind::Io, what));
        }
        let gave = state.iova.give(iova, len_bytes);
        assert!(gave, "asked above");
        Ok(())
    }
}

/// What a container says of its IOMMU.
#[derive(Debug, PartialEq, Eq)]
struct Info {
    valid: Vec<Range>,
    page_sizes: u64,
    mappings_left: Option<u32>,
}

impl Info {
    fn parse(answer: &sys::Answer<vfio_iommu_type1_info>) -> Result<Self, capability::Malformed> {
        let info = &answer.info;
        let head_bytes = size_of::<vfio_iommu_type1_info>();
        let first = if info.flags & VFIO_IOMMU_INFO_CAPS == 0 {
            0
        } else {
            info.cap_offset
        };
        let ranges = capability::iova_ranges(&answer.bytes, first, head_bytes)?;
        let said = info.flags & VFIO_IOMMU_INFO_PGSIZES != 0;
        Ok(Self {
            valid: ranges.unwrap_or_else(|| vec![UNSAID]),
            page_sizes: if said { info.iova_pgsizes } else { PAGE_BYTES },
            mappings_left: capability::mappings_left(&answer.bytes, first, head_bytes)?,
        })
    }
}

/// The unit of mappings. The kernel reports sizes below its own page, too, as one bit.
fn smallest_page(page_sizes: u64) -> u64 {
    let host = rustix::param::page_size() as u64;
    let iommu = 1_u64
        .checked_shl(page_sizes.trailing_zeros())
        .unwrap_or(PAGE_BYTES);
    iommu.max(host)
}

/// The largest page that so many bytes can be made of.
fn largest_page(page_sizes: u64, len_bytes: u64) -> u64 {
    let fitting = page_sizes & (u64::MAX >> len_bytes.leading_zeros());
    if fitting == 0 {
        return smallest_page(page_sizes);
    }
    (1 << fitting.ilog2()).max(smallest_page(page_sizes))
}

fn open_group(group: u32) -> Result<File> {
    let node = format!("/dev/vfio/{group}");
    let file = OpenOptions::new().read(true).write(true).open(&node);
    file.map_err(|cause| {
        let what = format!("cannot open {node}");
        let remedy = match cause.raw_os_error() {
            Some(libc::EBUSY) => format!("end the process that has it: fuser -v {node}"),
            Some(libc::EACCES | libc::EPERM) => {
                format!("run as root, or give the node away: chown USER {node} (udev keeps it so)")
            }
            Some(libc::ENOENT) => "this /dev lacks it: give it to the container".to_owned(),
            _ => "see the kernel's log (dmesg | grep vfio)".to_owned(),
        };
        Error::os(what, cause).remedy(remedy)
    })
}

/// The IOMMU does not take a group in.
fn refused(group: u32, cause: io::Error) -> Error {
    let remedy = match cause.raw_os_error() {
        Some(libc::EPERM) => {
            "no interrupt remapping: switch it on in the firmware; at your own risk, \
             modprobe vfio_iommu_type1 allow_unsafe_interrupts=1"
        }
        Some(libc::ENODEV | libc::ENOENT) => "modprobe vfio_iommu_type1",
        Some(libc::EBUSY) => "another container has the group: end its process",
        _ => {
            "see the kernel's log (dmesg | grep -e vfio -e iommu); a container takes functions behind one kind of IOMMU only"
        }
    };
    Error::os(
        format!("the IOMMU does not take group {group} into the container"),
        cause,
    )
    .remedy(remedy)
}

fn map_error(len_bytes: u64, cause: io::Error) -> Error {
    let what = format!("cannot map {len_bytes} bytes for DMA");
    let (kind, remedy) = match cause.raw_os_error() {
        Some(libc::ENOMEM) => {
            let limit = getrlimit(Resource::Memlock).current;
            let now = limit.map_or_else(
                || "without limit now, so memory is short".to_owned(),
                |bytes| format!("{} KiB now", bytes / 1024),
            );
            let remedy = format!(
                "mapped memory is locked: raise ulimit -l ({now}; LimitMEMLOCK= for services)"
            );
            (ErrorKind::NoSpace, remedy)
        }
        Some(libc::ENOSPC) => {
            let remedy = "map larger pieces, or raise the number of mappings: \
                          modprobe vfio_iommu_type1 dma_entry_limit=N";
            (ErrorKind::NoSpace, remedy.to_owned())
        }
        Some(libc::EFAULT | libc::EOPNOTSUPP) => {
            let remedy = "it is not mapped, not writable, or of a file whose pages cannot be \
                          locked: take anonymous or shared memory, or a BAR";
            (ErrorKind::Unsupported, remedy.to_owned())
        }
        Some(libc::EEXIST) => {
            let remedy = "these device addresses are in use by another user of the container";
            (ErrorKind::Busy, remedy.to_owned())
        }
        Some(libc::EINVAL) => {
            let remedy = "the IOMMU does not take these addresses, or not in these pages";
            (ErrorKind::InvalidInput, remedy.to_owned())
        }
        _ => return Error::os(what, cause),
    };
    Error::new(kind, what).because(cause).remedy(remedy)
}

#[cfg(test)]
mod tests;
