//! A PCI function opened through VFIO: regions, configuration space, interrupts, reset. Knows
//! no NVMe, and of the IOMMU only the container it is in.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
    VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};

use super::capability;
use super::container::VfioContainer;
use super::sys::{self, FileMapping};
use super::sysfs::Role;
use crate::error::{Error, ErrorKind, Result};

/// Offset of the command register, and its bits (PCI Local Bus 3.0, 6.2.2).
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_INTX: u16 = 1 << 10;

/// BARs of a function that is no bridge.
const BARS: u8 = 6;

/// A region of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Bytes.
    pub(super) len_bytes: u64,
    /// Where it is in the function's file.
    pub(super) file_offset: u64,
    /// The stretches that can be mapped, as (offset, bytes).
    pub(super) areas: Vec<(u64, u64)>,
}

impl Region {
    fn parse(answer: &sys::Answer<vfio_region_info>) -> Result<Self, capability::Malformed> {
        let info = &answer.info;
        let first = if info.flags & VFIO_REGION_INFO_FLAG_CAPS == 0 {
            0
        } else {
            info.cap_offset
        };
        let wanted =
            VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
        let areas = if info.flags & wanted != wanted {
            Vec::new()
        } else {
            let head_bytes = size_of::<vfio_region_info>();
            let mut areas = capability::sparse_areas(&answer.bytes, first, head_bytes)?
                .unwrap_or_else(|| vec![(0, info.size)]);
            let inside = |&(offset, len_bytes): &(u64, u64)| {
                offset
                    .checked_add(len_bytes)
                    .is_some_and(|end| end <= info.size)
            };
            if !areas.iter().all(inside) {
                return Err(capability::Malformed);
            }
            // What shares its last page with another BAR is not mapped.
            let page_bytes = rustix::param::page_size() as u64;
            for (_, len_bytes) in &mut areas {
                *len_bytes -= *len_bytes % page_bytes;
            }
            areas.retain(|&(offset, len_bytes)| len_bytes > 0 && offset.is_multiple_of(page_bytes));
            areas
        };
        Ok(Self {
            len_bytes: info.size,
            file_offset: info.offset,
            areas,
        })
    }

    /// The longest stretch that can be mapped.
    pub(super) fn longest_area(&self) -> Option<(u64, u64)> {
        self.areas
            .iter()
            .copied()
            .max_by_key(|&(offset, len_bytes)| (len_bytes, std::cmp::Reverse(offset)))
    }
}

/// A PCI function that belongs to this process until the value is dropped. Its bus mastering
/// is off when it is opened, and again when it is closed.
#[derive(Debug)]
pub(super) struct Function {
    device: File,
    address: String,
    can_reset: bool,
    /// Where the configuration space is in the function's file, once that is known.
    config_offset: Option<u64>,
    /// Dropped after the device: a group outlives its functions.
    container: Arc<VfioContainer>,
}

impl Function {
    /// Opens a function that is bound to vfio-pci.
    pub(super) fn open(container: &Arc<VfioContainer>, address: &str, role: Role) -> Result<Self> {
        let group = container.sysfs().check(address, role)?;
        let device = container.open(group, address)?;
        let mut this = Self {
            device,
            address: address.to_owned(),
            can_reset: false,
            config_offset: None,
            container: Arc::clone(container),
        };
        let flags = sys::device_flags(&this.device).map_err(|cause| this.error("info", cause))?;
        this.can_reset = flags & VFIO_DEVICE_FLAGS_RESET != 0;
        let config = this.region(VFIO_PCI_CONFIG_REGION_INDEX)?;
        this.config_offset = Some(config.file_offset);
        // Accesses to mapped BARs raise SIGBUS while memory is off.
        this.change_command(COMMAND_MEMORY | COMMAND_NO_INTX, COMMAND_MASTER)?;
        Ok(this)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn container(&self) -> &Arc<VfioContainer> {
        &self.container
    }

    fn error(&self, what: &str, cause: io::Error) -> Error {
        Error::os(format!("{}: {what}", self.address), cause)
    }

    fn region(&self, index: u32) -> Result<Region> {
        let answer = sys::region_info(&self.device, index)
            .map_err(|cause| self.error(&format!("region {index}"), cause))?;
        Region::parse(&answer).map_err(|cause| {
            let what = format!("{}: VFIO's description of region {index}", self.address);
            Error::new(ErrorKind::Io, what).because(cause)
        })
    }

    /// The BAR of this number.
    pub(super) fn bar(&self, number: u8) -> Result<Region> {
        let missing = |kind| Error::new(kind, format!("{} has no BAR {number}", self.address));
        if number >= BARS {
            return Err(missing(ErrorKind::InvalidInput).remedy("BARs are numbered 0 to 5"));
        }
        let region = self.region(number.into())?;
        if region.len_bytes == 0 {
            return Err(missing(ErrorKind::NotFound)
                .remedy(format!("lspci -v -s {} lists those it has", self.address)));
        }
        Ok(region)
    }

    /// Maps a stretch of a region, whole pages.
    pub(super) fn map(&self, region: &Region, offset: u64, len_bytes: u64) -> Result<FileMapping> {
        let at = region.file_offset + offset;
        FileMapping::new(&self.device, at, len_bytes, offset).map_err(|cause| {
            let what = format!("{}: cannot map {len_bytes} bytes of a BAR", self.address);
            Error::os(what, cause)
        })
    }

    /// Sets and clears bits of the command register, and sees that they are as wished.
    fn change_command(&self, set: u16, clear: u16) -> Result<()> {
        let change = || {
            let at = self.config_offset.ok_or(io::ErrorKind::NotFound)? + COMMAND;
            let read = || {
                let mut bytes = [0; 2];
                self.device.read_exact_at(&mut bytes, at)?;
                io::Result::Ok(u16::from_le_bytes(bytes))
            };
            let command = read()? & !clear | set;
            self.device.write_all_at(&command.to_le_bytes(), at)?;
            read()
        };
        let after = change().map_err(|cause| self.error("configuration space", cause))?;
        if after == u16::MAX {
            let what = format!("{}: configuration space is all ones", self.address);
            return Err(Error::new(ErrorKind::Gone, what)
                .remedy("it is removed, dead, or asleep: rescan the bus or switch it off and on"));
        }
        if after & (set | clear) == set {
            return Ok(());
        }
        let what = format!(
            "{}: the command register is {after:#06x} after setting {set:#06x} and clearing {clear:#06x}",
            self.address
        );
        Err(Error::new(ErrorKind::Io, what))
    }

    /// Lets the function send: DMA and message-signalled interrupts. When switching it off
    /// returns, what was sent before has arrived: the register's value comes back behind it.
    pub(super) fn set_bus_master(&self, on: bool) -> Result<()> {
        let (set, clear) = if on {
            (COMMAND_MASTER, 0)
        } else {
            (0, COMMAND_MASTER)
        };
        self.change_command(set, clear)
    }

    /// Whether [`reset`](Self::reset) can be had.
    pub(super) fn can_reset(&self) -> bool {
        self.can_reset
    }

    /// Resets the function; its configuration is as before after that.
    pub(super) fn reset(&self) -> Result<()> {
        /// The kernel says "try again" while somebody else holds the device's lock.
        const TRIES: u32 = 50;
        const PAUSE: Duration = Duration::from_millis(10);
        for _ in 1..TRIES {
            match sys::reset(&self.device) {
                Err(cause) if cause.raw_os_error() == Some(libc::EAGAIN) => {
                    std::thread::sleep(PAUSE);
                }
                other => return other.map_err(|cause| self.error("reset", cause)),
            }
        }
        sys::reset(&self.device).map_err(|cause| self.error("reset", cause))
    }

    /// How many interrupts of a kind there are; 0 where the kernel does not know the kind.
    pub(super) fn irq_count(&self, index: u32) -> u32 {
        sys::irq_count(&self.device, index).unwrap_or(0)
    }

    /// Eventfds for the first interrupts of a kind: as many as wished, or as can be had.
    pub(super) fn enable_irqs(&self, index: u32, count: u16) -> Result<Vec<Arc<OwnedFd>>> {
        let mut fds = Vec::new();
        for _ in 0..count {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let fd = eventfd(0, flags).map_err(|errno| {
                let what = format!("{}: no descriptor for an interrupt", self.address);
                Error::new(ErrorKind::NoSpace, what)
                    .because(io::Error::from(errno))
                    .remedy("raise the limit on open files (ulimit -n)")
            })?;
            fds.push(Arc::new(fd));
        }
        loop {
            let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            let had = sys::set_irqs(&self.device, index, &borrowed).map_err(|cause| {
                let what = format!("{}: cannot enable {} interrupts", self.address, fds.len());
                Error::os(what, cause).remedy("poll instead")
            })?;
            if had as usize >= fds.len() {
                return Ok(fds);
            }
            fds.truncate(had as usize);
        }
    }

    /// Becomes readable when the kernel wants the function back; `None` before Linux 4.0.
    pub(super) fn removal_request(&self) -> Result<Option<Arc<OwnedFd>>> {
        if self.irq_count(VFIO_PCI_REQ_IRQ_INDEX) == 0 {
            return Ok(None);
        }
        Ok(self.enable_irqs(VFIO_PCI_REQ_IRQ_INDEX, 1)?.pop())
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // The kernel does it, too, once the last mapping is gone; a device that is gone
        // sends nothing.
        let _gone = self.set_bus_master(false);
        self.container.closed(&self.address);
    }
}

#[cfg(test)]
mod tests;
