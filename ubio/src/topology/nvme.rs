//! Which PCI functions stand behind an NVMe device node, name or serial number. Knows sysfs
//! only: opens no node and asks no controller.
//!
//! Controllers come up in another order from boot to boot: what must mean the same drive next
//! time is a serial number or a PCI address, never a node's number. A namespace that several
//! controllers reach (multipath) has one node for all of them, below no controller; its paths
//! `nvmeXcYnZ` are hidden disks without nodes (Linux `drivers/nvme/host/multipath.c`).

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::address::PciAddress;
use super::pci::{Topology, names, read};
use crate::error::{Error, ErrorKind, Result};

/// An NVMe name's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    /// The controller's or, where the namespace has several, the subsystem's.
    instance: u32,
    /// The controller, in the name of one path of several.
    path: Option<u32>,
    namespace: Option<u32>,
}

/// `nvme0`, `nvme0n1`, `nvme0n1p2`, `nvme0c1n1`, `ng0n1`.
fn name(text: &str) -> Option<Name> {
    fn number<'a>(text: &mut &'a str, letter: &str) -> Option<u32> {
        let rest = text.strip_prefix(letter)?;
        let end = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: &'a str = &rest[..end];
        *text = &rest[end..];
        number.parse().ok()
    }
    let mut rest = text;
    let instance = number(&mut rest, "nvme").or_else(|| number(&mut rest, "ng"))?;
    let mut optional = |letter| {
        rest.starts_with(letter)
            .then(|| number(&mut rest, letter))
            .map_or(Some(None), |found| found.map(Some))
    };
    let path = optional("c")?;
    let namespace = optional("n")?;
    let _partition = optional("p")?;
    rest.is_empty().then_some(Name {
        instance,
        path,
        namespace,
    })
}

/// The last PCI function on the way to a folder.
fn function_above(folder: &Path) -> Option<PciAddress> {
    let parts = folder.components().rev();
    parts
        .filter_map(|part| part.as_os_str().to_str()?.parse().ok())
        .next()
}

impl Topology {
    /// The functions behind a device node: one, or for a multipath namespace one for each
    /// controller that reaches it.
    ///
    /// # Errors
    /// InvalidInput: no device node, or not one of an NVMe drive. Unsupported: the drive is
    /// no PCI function (NVMe over fabrics). Io: the node cannot be looked at.
    pub fn functions_of_node(&self, node: &Path) -> Result<Vec<PciAddress>> {
        let found = std::fs::metadata(node)
            .map_err(|cause| Error::os("cannot look at the device node", cause).at(node))?;
        let kind = found.file_type();
        let kind = if kind.is_char_device() {
            "char"
        } else if kind.is_block_device() {
            "block"
        } else {
            return Err(Error::new(ErrorKind::InvalidInput, "no device node")
                .at(node)
                .remedy("name a node such as /dev/ng0n1 or /dev/nvme0n1"));
        };
        let (major, minor) = (
            rustix::fs::major(found.rdev()),
            rustix::fs::minor(found.rdev()),
        );
        let entry = self.sys.join(format!("dev/{kind}/{major}:{minor}"));
        let folder = entry.canonicalize().map_err(|cause| {
            Error::os(
                format!("sysfs knows no {kind} device {major}:{minor}"),
                cause,
            )
            .at(node)
            .remedy("the drive has gone, or sysfs is another machine's or a container's")
        })?;
        self.functions_of_folder(&folder)
            .map_err(|error| error.at(node))
    }

    /// The functions behind a name as sysfs has it: `nvme0`, `nvme0n1`, `ng0n1`, and the paths
    /// of multipath namespaces, `nvme0c0n1`, which have no node.
    ///
    /// # Errors
    /// As [`functions_of_node`](Self::functions_of_node).
    pub fn functions_of_name(&self, name: &str) -> Result<Vec<PciAddress>> {
        let unknown = || {
            Error::new(
                ErrorKind::InvalidInput,
                format!("no NVMe device has the name {name:?}"),
            )
            .remedy(
                "the folders of /sys/class/nvme and /sys/class/nvme-generic name those there are",
            )
        };
        // What has no such name must not become a path.
        self::name(name).ok_or_else(unknown)?;
        let folder = ["nvme", "nvme-generic", "block"]
            .iter()
            .find_map(|class| {
                let entry = self.sys.join("class").join(class).join(name);
                entry.canonicalize().ok()
            })
            .ok_or_else(unknown)?;
        self.functions_of_folder(&folder)
    }

    /// The functions of all controllers with this serial number: several for a drive with
    /// several ports.
    ///
    /// # Errors
    /// InvalidInput: no controller of the kernel's NVMe driver has it. Unsupported: those that
    /// have it are no PCI functions.
    pub fn functions_of_serial(&self, serial: &str) -> Result<Vec<PciAddress>> {
        let class = self.sys.join("class/nvme");
        let controllers: Vec<PathBuf> = names(&class)
            .map(|name| class.join(name))
            .filter(|folder| read(folder, "serial").is_some_and(|found| found == serial.trim()))
            .filter_map(|folder| folder.canonicalize().ok())
            .collect();
        if controllers.is_empty() {
            let what = format!("no NVMe controller has the serial number {serial:?}");
            return Err(Error::new(ErrorKind::InvalidInput, what).remedy(
                "the kernel's nvme driver must have the controller; nvme list shows the numbers",
            ));
        }
        sorted(
            controllers
                .iter()
                .filter_map(|folder| function_above(folder)),
        )
    }

    /// The functions behind the real folder of a device.
    fn functions_of_folder(&self, folder: &Path) -> Result<Vec<PciAddress>> {
        let parts: Vec<String> = folder
            .components()
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect();
        let Some(device) = parts.iter().rev().find_map(|part| name(part)) else {
            return Err(
                Error::new(ErrorKind::InvalidInput, "not a node of an NVMe drive")
                    .remedy("name a node such as /dev/ng0n1 or /dev/nvme0n1"),
            );
        };
        if let Some(function) = function_above(folder) {
            return Ok(vec![function]);
        }
        // A multipath namespace: its subsystem links to its controllers, and each of those
        // that reach the namespace has a folder for its path.
        let subsystem = folder
            .ancestors()
            .find(|folder| {
                let name = folder.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with("nvme-subsys"))
            })
            .map(Path::to_owned);
        let controllers = subsystem.iter().flat_map(|subsystem| {
            names(subsystem)
                .filter(|entry| {
                    name(entry).is_some_and(|name| name.namespace.is_none() && name.path.is_none())
                })
                .filter_map(|entry| subsystem.join(entry).canonicalize().ok())
        });
        let reaches = |controller: &PathBuf| {
            names(controller).any(|entry| {
                name(&entry)
                    .is_some_and(|path| path.path.is_some() && path.namespace == device.namespace)
            })
        };
        sorted(
            controllers
                .filter(reaches)
                .filter_map(|controller| function_above(&controller)),
        )
    }
}

fn sorted(functions: impl Iterator<Item = PciAddress>) -> Result<Vec<PciAddress>> {
    let mut functions: Vec<PciAddress> = functions.collect();
    functions.sort_unstable();
    functions.dedup();
    if functions.is_empty() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "no PCI function stands behind this NVMe drive",
        )
        .remedy("a drive over fabrics cannot write to a BAR: use host windows"));
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let all = |instance, path, namespace| {
            Some(Name {
                instance,
                path,
                namespace,
            })
        };
        assert_eq!(name("nvme12"), all(12, None, None));
        assert_eq!(name("nvme0n1"), all(0, None, Some(1)));
        assert_eq!(name("ng3n2"), all(3, None, Some(2)));
        assert_eq!(name("nvme0c1n2"), all(0, Some(1), Some(2)));
        assert_eq!(name("nvme0n1p3"), all(0, None, Some(1)));
        for text in [
            "",
            "nvme",
            "nvme-subsys0",
            "nvme0x",
            "sda",
            "nvme0n",
            "../nvme0",
            "nvme0n1/x",
        ] {
            assert_eq!(name(text), None, "{text}");
        }
    }
}
