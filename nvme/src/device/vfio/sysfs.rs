//! What sysfs says of a PCI function before it is opened, and what to do where it cannot be.
//! Reads below a root, which tests fill; opens no device.

use std::fs;
use std::path::{Path, PathBuf};

use super::iova::Range;
use crate::error::{Error, ErrorKind, Result};

/// Mass storage, non-volatile memory, NVM Express (PCI Code and ID Assignment, 1.2).
const NVME_CLASS: u32 = 0x01_08_02;

/// `IORESOURCE_MEM`, as `resource` shows flags.
const RESOURCE_MEMORY: u64 = 0x200;

/// The driver that functions have to be bound to.
const DRIVER: &str = "vfio-pci";

/// What may sit in a group beside functions of ours: nothing that does DMA for the kernel
/// (`driver_managed_dma` in Linux).
const HARMLESS: [&str; 3] = [DRIVER, "pci-stub", "pcieport"];

/// What a function has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An NVMe controller.
    Controller,
    /// Anything: its memory is wanted.
    Memory,
}

/// The file systems that functions are looked for in.
#[derive(Clone, Debug)]
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// The running system's.
    pub(super) fn new() -> Self {
        Self::at(Path::new("/"))
    }

    /// Those below a folder.
    pub(super) fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn function(&self, address: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(address)
    }

    /// Checks that a function is there, is what it has to be, and can be opened through VFIO.
    /// Gives its IOMMU group.
    ///
    /// # Errors
    /// InvalidInput (no address), NotFound, Unsupported (no controller, no IOMMU), Busy (bound
    /// to another driver, or others of its group are).
    pub(super) fn check(&self, address: &str, role: Role) -> Result<u32> {
        if !is_address(address) {
            let what = format!("{address:?} is no PCI address");
            return Err(Error::new(ErrorKind::InvalidInput, what)
                .remedy("write it as lspci -D does: 0000:05:00.0"));
        }
        let folder = self.function(address);
        if !folder.exists() {
            let what = format!("there is no PCI function {address}");
            return Err(Error::new(ErrorKind::NotFound, what).remedy("lspci -D lists them"));
        }
        if role == Role::Controller {
            check_class(&folder, address)?;
        }
        let Some(group) = link_name(&folder.join("iommu_group")) else {
            return Err(no_iommu(address));
        };
        let number = group.parse().map_err(|_| {
            let what = format!("{address} is in an IOMMU group called {group:?}");
            Error::new(ErrorKind::Io, what)
        })?;
        let driver = link_name(&folder.join("driver"));
        if driver.as_deref() != Some(DRIVER) {
            return Err(self.wrong_driver(address, driver.as_deref()));
        }
        self.check_group(address, &group)?;
        Ok(number)
    }

    fn wrong_driver(&self, address: &str, driver: Option<&str>) -> Error {
        let what = driver.map_or_else(
            || format!("{address} is bound to no driver"),
            |driver| format!("{address} is bound to {driver}"),
        );
        let bind = bind_commands(address, driver.is_some());
        let used: Vec<String> = self.uses(address);
        let remedy = if used.is_empty() {
            format!("as root, give it to {DRIVER}: {bind}")
        } else {
            let used = used.join(", ");
            format!(
                "do not take it away while it is in use ({used}); after that, as root, give it to {DRIVER}: {bind}"
            )
        };
        Error::new(ErrorKind::Busy, what).remedy(remedy)
    }

    /// Every other member of the group must be without a driver, or with a harmless one.
    fn check_group(&self, address: &str, group: &str) -> Result<()> {
        let folder = self.root.join("sys/kernel/iommu_groups").join(group);
        let mut strangers: Vec<(String, String)> = names(&folder.join("devices"))
            .into_iter()
            .filter_map(|member| {
                let driver = link_name(&self.function(&member).join("driver"))?;
                let harmless = HARMLESS.contains(&driver.as_str());
                (!harmless).then_some((member, driver))
            })
            .collect();
        strangers.sort();
        let Some((first, _)) = strangers.first() else {
            return Ok(());
        };
        let bind = bind_commands(first, true);
        let list: Vec<String> = strangers
            .iter()
            .map(|(member, driver)| format!("{member} ({driver})"))
            .collect();
        let list = list.join(", ");
        let what = format!(
            "{address} shares IOMMU group {group} with functions that the kernel drives: {list}"
        );
        Err(Error::new(ErrorKind::Busy, what).remedy(format!(
            "give these to {DRIVER} too, as root ({bind}), or move the card to a slot with a group of its own"
        )))
    }

    /// What a controller's namespaces are used for, in words.
    fn uses(&self, address: &str) -> Vec<String> {
        let controllers = self.function(address).join("nvme");
        let mut disks: Vec<String> = names(&controllers)
            .iter()
            .flat_map(|controller| names(&controllers.join(controller)))
            .filter_map(|name| disk_name(&name))
            .collect();
        disks.sort();
        disks.dedup();
        let mut uses = Vec::new();
        for disk in disks {
            let folder = self.root.join("sys/class/block").join(&disk);
            uses.extend(self.uses_of(&disk, &folder));
            let mut parts: Vec<String> = names(&folder)
                .into_iter()
                .filter(|name| folder.join(name).join("partition").exists())
                .collect();
            parts.sort();
            for part in parts {
                uses.extend(self.uses_of(&part, &folder.join(&part)));
            }
        }
        uses
    }

    fn uses_of(&self, name: &str, folder: &Path) -> Vec<String> {
        let read = |path: &str| fs::read_to_string(self.root.join(path)).unwrap_or_default();
        let number = fs::read_to_string(folder.join("dev")).unwrap_or_default();
        let node = format!("/dev/{name}");
        // Fields of a line: id, parent, major:minor, root, mount point, ..., "-", type, source.
        // File systems with numbers of their own (btrfs) are found by their source.
        let mounts = read("proc/self/mountinfo");
        let mut uses: Vec<String> = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ');
                let (own, place) = (fields.nth(2)?, fields.nth(1)?);
                let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
                let ours = own == number.trim() || source == node;
                ours.then(|| format!("{name} is mounted at {place}"))
            })
            .collect();
        let swaps = read("proc/swaps");
        let swap = swaps
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&node));
        uses.extend(swap.then(|| format!("{name} is swap space")));
        let mut holders = names(&folder.join("holders"));
        holders.sort();
        uses.extend(
            holders
                .iter()
                .map(|holder| format!("{name} is part of {holder}")),
        );
        uses
    }

    /// The bus addresses that PCI functions and bridges answer to. A device address among them
    /// may never reach the IOMMU: a switch on the way takes it for a peer's.
    pub(super) fn memory_windows(&self) -> Vec<Range> {
        let folder = self.root.join("sys/bus/pci/devices");
        names(&folder)
            .iter()
            .filter_map(|name| fs::read_to_string(folder.join(name).join("resource")).ok())
            .flat_map(|text| text.lines().filter_map(memory_window).collect::<Vec<_>>())
            .collect()
    }
}

/// A line of `resource`: first address, last address, flags.
fn memory_window(line: &str) -> Option<Range> {
    let mut fields = line
        .split_whitespace()
        .map(|field| u64::from_str_radix(field.trim_start_matches("0x"), 16).ok());
    let (start, end, flags) = (fields.next()??, fields.next()??, fields.next()??);
    let is = flags & RESOURCE_MEMORY != 0 && start != 0 && start <= end;
    is.then_some(start..=end)
}

fn check_class(folder: &Path, address: &str) -> Result<()> {
    let path = folder.join("class");
    let text = fs::read_to_string(&path)
        .map_err(|cause| Error::os(format!("cannot read {}", path.display()), cause))?;
    let class = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    if class == Ok(NVME_CLASS) {
        return Ok(());
    }
    let class = text.trim();
    let what =
        format!("{address} is no NVMe controller: its class is {class}, not {NVME_CLASS:#08x}");
    Err(Error::new(ErrorKind::Unsupported, what).remedy("lspci -D -d ::0108 lists controllers"))
}

fn no_iommu(address: &str) -> Error {
    let what = format!("{address} is in no IOMMU group: the IOMMU is off, or there is none");
    Error::new(ErrorKind::Unsupported, what).remedy(
        "switch VT-d or AMD-Vi on in the firmware and boot with intel_iommu=on or amd_iommu=on; \
         a virtual machine needs one that its host gives it",
    )
}

fn bind_commands(address: &str, bound: bool) -> String {
    let folder = format!("/sys/bus/pci/devices/{address}");
    let unbind = if bound {
        format!(" && echo {address} > {folder}/driver/unbind")
    } else {
        String::new()
    };
    format!(
        "modprobe {DRIVER} && echo {DRIVER} > {folder}/driver_override{unbind} && echo {address} > /sys/bus/pci/drivers_probe"
    )
}

/// `domain:bus:device.function` in hex digits; nothing that could be a path.
pub(super) fn is_address(text: &str) -> bool {
    let hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((domain, rest)) = text.split_once(':') else {
        return false;
    };
    let Some((bus, rest)) = rest.split_once(':') else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else {
        return false;
    };
    // Domains of more than four digits are real (Intel VMD).
    (hex(domain, 4) || hex(domain, 5)) && hex(bus, 2) && hex(device, 2) && hex(function, 1)
}

/// The block device of a namespace: `nvme0n1`, or the head of its paths for `nvme0c1n1`.
fn disk_name(name: &str) -> Option<String> {
    let rest = name.strip_prefix("nvme")?;
    let (controller, namespace) = rest.split_once('n')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (subsystem, path) = controller.split_once('c').unwrap_or((controller, "0"));
    (digits(subsystem) && digits(path) && digits(namespace))
        .then(|| format!("nvme{subsystem}n{namespace}"))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn link_name(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests;
