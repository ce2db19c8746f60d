//! The ioctls of `include/uapi/linux/vfio.h` that this crate needs, and mappings of regions.
//! Gives plain values and errnos; knows no remedies, no policy and no NVMe.
#![expect(unsafe_code, reason = "ioctl and mmap")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_TYPE, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status,
    vfio_iommu_type1_dma_map, vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info, vfio_irq_info,
    vfio_irq_set, vfio_region_info,
};

use crate::memory::RawMemory;

/// Bytes that a `u32` says in `argsz`.
fn argsz<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("a small structure")
}

/// The calls by their number above `VFIO_BASE`; all are `_IO(VFIO_TYPE, n)`, without a
/// direction or a size.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Call {
    ApiVersion = 0,
    CheckExtension = 1,
    SetIommu = 2,
    GroupStatus = 3,
    SetContainer = 4,
    DeviceFd = 6,
    DeviceInfo = 7,
    RegionInfo = 8,
    IrqInfo = 9,
    SetIrqs = 10,
    Reset = 11,
    IommuInfo = 12,
    MapDma = 13,
    UnmapDma = 14,
}

/// # Safety
/// `argument` is what the call takes: a value, or the address of a structure that is whole up
/// to its `argsz`.
unsafe fn ioctl(fd: BorrowedFd<'_>, call: Call, argument: usize) -> io::Result<i32> {
    let number = u32::from(VFIO_TYPE) << 8 | (VFIO_BASE + call as u32);
    // SAFETY: the caller's promise; the descriptor is open while it is borrowed.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(number), argument) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// # Safety
/// The call takes a structure that begins as `T` does, and `T`'s `argsz` is not beyond the
/// `T` (or the stretch that it begins).
unsafe fn ioctl_struct<T>(fd: BorrowedFd<'_>, call: Call, structure: &mut T) -> io::Result<i32> {
    // SAFETY: as promised; the structure outlives the call.
    unsafe { ioctl(fd, call, std::ptr::from_mut(structure).expose_provenance()) }
}

pub(super) fn api_version(container: &File) -> io::Result<i32> {
    // SAFETY: takes nothing.
    unsafe { ioctl(container.as_fd(), Call::ApiVersion, 0) }
}

pub(super) fn has_type1v2(container: &File) -> io::Result<bool> {
    let extension = VFIO_TYPE1v2_IOMMU as usize;
    // SAFETY: takes a value.
    unsafe { ioctl(container.as_fd(), Call::CheckExtension, extension) }.map(|is| is > 0)
}

pub(super) fn set_type1v2(container: &File) -> io::Result<()> {
    let extension = VFIO_TYPE1v2_IOMMU as usize;
    // SAFETY: takes a value.
    unsafe { ioctl(container.as_fd(), Call::SetIommu, extension) }.map(drop)
}

pub(super) fn group_flags(group: &File) -> io::Result<u32> {
    let mut status = vfio_group_status {
        argsz: argsz::<vfio_group_status>(),
        ..Default::default()
    };
    // SAFETY: the structure of this call.
    unsafe { ioctl_struct(group.as_fd(), Call::GroupStatus, &mut status) }?;
    Ok(status.flags)
}

pub(super) fn set_container(group: &File, container: &File) -> io::Result<()> {
    let mut container = container.as_raw_fd();
    // SAFETY: takes the address of a descriptor's number.
    unsafe { ioctl_struct(group.as_fd(), Call::SetContainer, &mut container) }.map(drop)
}

/// The device's descriptor, by its PCI address.
pub(super) fn device_fd(group: &File, name: &str) -> io::Result<File> {
    let name = CString::new(name)?;
    let address = name.as_ptr().expose_provenance();
    // SAFETY: takes the address of a string that ends with a zero.
    let fd = unsafe { ioctl(group.as_fd(), Call::DeviceFd, address) }?;
    // SAFETY: the call made it for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

pub(super) fn device_flags(device: &File) -> io::Result<u32> {
    let mut info = vfio_device_info {
        argsz: argsz::<vfio_device_info>(),
        ..Default::default()
    };
    // SAFETY: the structure of this call.
    unsafe { ioctl_struct(device.as_fd(), Call::DeviceInfo, &mut info) }?;
    Ok(info.flags)
}

/// An answer with a chain of capabilities behind it.
pub(super) struct Answer<T> {
    pub(super) info: T,
    /// All of it, `info` included: capabilities count their offsets from its start.
    pub(super) bytes: Vec<u8>,
}

/// Asks with `info` alone, and once more with room where the kernel wants to say more.
///
/// # Safety
/// As [`ioctl_struct`]; `argsz` gives `T`'s field of that name.
unsafe fn ask<T: Copy>(
    fd: BorrowedFd<'_>,
    call: Call,
    question: T,
    argsz: fn(&mut T) -> &mut u32,
) -> io::Result<Answer<T>> {
    /// More than any kernel says: a chain of a few hundred ranges has some KiB.
    const MOST_BYTES: u32 = 1 << 20;
    let mut info = question;
    // SAFETY: as promised.
    unsafe { ioctl_struct(fd, call, &mut info) }?;
    let wanted = (*argsz(&mut info)).min(MOST_BYTES);
    let whole = wanted as usize;
    if whole <= size_of::<T>() {
        return Ok(Answer {
            info,
            bytes: Vec::new(),
        });
    }
    // Words, for the structure's alignment.
    let mut room = vec![0_u64; whole.div_ceil(8)];
    let at = room.as_mut_ptr().cast::<T>();
    let mut long = question;
    *argsz(&mut long) = wanted;
    // SAFETY: the room is longer than `T` and aligned to 8, as no structure needs more.
    unsafe { at.write(long) };
    // SAFETY: the structure with `argsz` bytes, all of them ours.
    unsafe { ioctl(fd, call, at.expose_provenance()) }?;
    // SAFETY: written above; the kernel's structures take any bytes.
    let info = unsafe { at.read() };
    let bytes = room.iter().flat_map(|word| word.to_ne_bytes());
    Ok(Answer {
        info,
        bytes: bytes.take(whole).collect(),
    })
}

pub(super) fn region_info(device: &File, index: u32) -> io::Result<Answer<vfio_region_info>> {
    let question = vfio_region_info {
        argsz: argsz::<vfio_region_info>(),
        index,
        ..Default::default()
    };
    // SAFETY: the structure of this call.
    unsafe {
        ask(device.as_fd(), Call::RegionInfo, question, |info| {
            &mut info.argsz
        })
    }
}

pub(super) fn iommu_info(container: &File) -> io::Result<Answer<vfio_iommu_type1_info>> {
    let question = vfio_iommu_type1_info {
        argsz: argsz::<vfio_iommu_type1_info>(),
        ..Default::default()
    };
    // SAFETY: the structure of this call.
    unsafe {
        ask(container.as_fd(), Call::IommuInfo, question, |info| {
            &mut info.argsz
        })
    }
}

/// Lets the devices of the container read and write memory.
///
/// # Safety
/// The memory stays mapped at its address until [`unmap_dma`] has succeeded, and is only used
/// as memory that others write.
pub(super) unsafe fn map_dma(container: &File, memory: RawMemory, iova: u64) -> io::Result<()> {
    let mut map = vfio_iommu_type1_dma_map {
        argsz: argsz::<vfio_iommu_type1_dma_map>(),
        flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: memory.start().as_ptr().expose_provenance() as u64,
        iova,
        size: memory.len_bytes(),
    };
    // SAFETY: the structure of this call, and the caller's promise.
    unsafe { ioctl_struct(container.as_fd(), Call::MapDma, &mut map) }.map(drop)
}

/// Gives the bytes that were unmapped.
pub(super) fn unmap_dma(container: &File, iova: u64, len_bytes: u64) -> io::Result<u64> {
    let mut unmap = vfio_iommu_type1_dma_unmap {
        argsz: argsz::<vfio_iommu_type1_dma_unmap>(),
        iova,
        size: len_bytes,
        ..Default::default()
    };
    // SAFETY: the structure of this call; less memory for devices is never a danger.
    unsafe { ioctl_struct(container.as_fd(), Call::UnmapDma, &mut unmap) }?;
    Ok(unmap.size)
}

/// How many interrupts there are of this kind.
pub(super) fn irq_count(device: &File, index: u32) -> io::Result<u32> {
    let mut info = vfio_irq_info {
        argsz: argsz::<vfio_irq_info>(),
        index,
        ..Default::default()
    };
    // SAFETY: the structure of this call.
    unsafe { ioctl_struct(device.as_fd(), Call::IrqInfo, &mut info) }?;
    Ok(info.count)
}

/// Ties the first interrupts of a kind to eventfds. Where that many cannot be had, gives how
/// many could.
pub(super) fn set_irqs(device: &File, index: u32, fds: &[BorrowedFd<'_>]) -> io::Result<u32> {
    let count = u32::try_from(fds.len()).expect("few interrupts");
    let head = size_of::<vfio_irq_set>() / 4;
    let len_bytes = u32::try_from((head + fds.len()) * 4).expect("few interrupts");
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut words = vec![len_bytes, flags, index, 0, count];
    assert_eq!(words.len(), head, "argsz, flags, index, start, count");
    words.extend(fds.iter().map(|fd| fd.as_raw_fd().cast_unsigned()));
    let address = words.as_mut_ptr().expose_provenance();
    // SAFETY: a `vfio_irq_set` with `count` descriptors behind it.
    let fewer = unsafe { ioctl(device.as_fd(), Call::SetIrqs, address) }?;
    Ok(if fewer > 0 {
        fewer.unsigned_abs()
    } else {
        count
    })
}

pub(super) fn reset(device: &File) -> io::Result<()> {
    // SAFETY: takes nothing.
    unsafe { ioctl(device.as_fd(), Call::Reset, 0) }.map(drop)
}

/// Part of a file mapped read-write and shared. For as long as it is there, the kernel keeps
/// the file open.
#[derive(Debug)]
pub(super) struct FileMapping {
    raw: RawMemory,
    /// What was reserved for it; it lies somewhere inside.
    reserved: RawMemory,
}

/// Where huge pages begin: a mapping whose address and offset agree modulo this can have them,
/// in the processor's tables and in the IOMMU's.
const HUGE_BYTES: usize = 2 << 20;

impl FileMapping {
    /// Maps `len_bytes` from `offset` on; both are whole pages. The address is as far into a
    /// huge page as `phase`.
    pub(super) fn new(file: &File, offset: u64, len_bytes: u64, phase: u64) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = usize::try_from(len_bytes).map_err(|_| too_large())?;
        let phase = usize::try_from(phase % HUGE_BYTES as u64).expect("below a huge page");
        let room = len.checked_add(HUGE_BYTES).ok_or_else(too_large)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), flags) }?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap gives no null");
        let skip = (HUGE_BYTES + phase - start.addr().get() % HUGE_BYTES) % HUGE_BYTES;
        // SAFETY: `skip` is less than what was added to the length.
        let at = unsafe { start.add(skip) };
        // SAFETY: mapped above, and used by nobody but `munmap`.
        let reserved = unsafe { RawMemory::new(start, room) };
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
        );
        // SAFETY: replaces memory that was just mapped here and that nobody uses.
        let mapped = unsafe { mmap(at.as_ptr().cast(), len, protection, flags, file, offset) };
        // SAFETY: mapped, until the drop, where `mapped` is a success; else never used.
        let raw = unsafe { RawMemory::new(at, len) };
        let this = Self { raw, reserved };
        mapped?;
        Ok(this)
    }

    pub(super) fn raw(&self) -> RawMemory {
        self.raw
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        let start = self.reserved.start().as_ptr().cast();
        let len = usize::try_from(self.reserved.len_bytes()).expect("was one");
        // SAFETY: mapped by `new`, and nobody uses it any more.
        let _cannot_fail = unsafe { munmap(start, len) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_mapping_is_as_far_into_a_huge_page_as_wished() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 3 * 4096]).expect("written");
        for phase in [0, 0x3000, 0x1f_f000, 0x20_1000, 0x1_0000_5000] {
            let mapping = FileMapping::new(&file, 4096, 8192, phase).expect("mapped");
            let start = mapping.raw().start().addr().get() as u64;
            assert_eq!(start % (2 << 20), phase % (2 << 20));
            assert_eq!(mapping.raw().read::<u8>(8191), 7);
        }
    }

    #[test]
    fn what_cannot_be_mapped_gives_its_errno() {
        let file = tempfile::tempfile().expect("a file");
        let error = FileMapping::new(&file, 1, 4096, 0).expect_err("not aligned");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        let error = FileMapping::new(&file, 0, u64::MAX, 0).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn calls_on_what_is_no_vfio_fail_with_their_errno() {
        let file = tempfile::tempfile().expect("a file");
        let not_a_device = Some(libc::ENOTTY);
        let errno = |result: io::Result<()>| result.expect_err("no VFIO").raw_os_error();
        assert_eq!(errno(api_version(&file).map(drop)), not_a_device);
        assert_eq!(errno(iommu_info(&file).map(drop)), not_a_device);
        assert_eq!(errno(region_info(&file, 0).map(drop)), not_a_device);
        assert_eq!(
            errno(device_fd(&file, "0000:00:00.0").map(drop)),
            not_a_device
        );
        assert_eq!(errno(reset(&file)), not_a_device);
        let nul = device_fd(&file, "a\0b").expect_err("a zero inside");
        assert_eq!(nul.kind(), io::ErrorKind::InvalidInput);
    }
}
