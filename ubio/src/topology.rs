//! What the machine offers: cores this process may use, what moves a disk's bytes, huge pages;
//! below, PCI functions and whether they reach each other. Reads sysfs and the affinity mask;
//! here missing files mean the plainest answer.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::sys::memory::{HUGE_PAGE_BYTES, free_huge_pages};

pub use address::{MemoryPart, PciAddress};
pub use config::{Acs, PortType};
pub use p2p::{P2pReason, PeerMemory, PeerPath, Verdict, p2p_verdict, peer_path};
pub use pci::{
    Bar, HostBridge, IommuDomain, IommuGroup, Link, P2pmem, PciFunction, Port, Topology,
};

mod address;
mod config;
mod nvme;
mod p2p;
mod pci;
#[cfg(test)]
pub(crate) mod tree;

/// Cores this process may run on; at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Copy workers for this machine: all cores but the ring thread's, at least one, at most
/// eight (memory bandwidth is used up by then).
pub fn copy_workers() -> usize {
    (cores().saturating_sub(1)).clamp(1, 8)
}

/// Whether a file lies on a paravirtual disk (virtio, Xen, Hyper-V), also below a mapped or
/// striped device: its bytes are usually copied by the host's processors, through their
/// caches, and not by a device's DMA. False where the file system hides its device (btrfs,
/// overlay).
pub fn is_on_virtual_disk(file: &impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else {
        return false;
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    device
        .canonicalize()
        .is_ok_and(|device| is_virtual(&device))
}

/// A device's folder below `/sys/devices`.
fn is_virtual(device: &Path) -> bool {
    let buses = ["virtio", "vbd-", "vmbus:"];
    let mut on_virtual_bus = false;
    for part in device.components() {
        let name = part.as_os_str().to_string_lossy().to_ascii_lowercase();
        // A PCI device that is passed through lies below such a bus too, and has DMA.
        on_virtual_bus = !name.starts_with("pci")
            && (on_virtual_bus || buses.iter().any(|bus| name.starts_with(bus)));
    }
    if on_virtual_bus {
        return true;
    }
    // What lies below a mapped device; below itself no device lies.
    std::fs::read_dir(device.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|below| below.path().canonicalize().ok())
        .any(|below| is_virtual(&below))
}

/// Whether the kernel gives huge pages to those who ask: for shared memory transparent ones,
/// for memory of a process also reserved ones if there are enough for `len_bytes`.
pub fn gives_huge_pages(shared: bool, len_bytes: u64) -> bool {
    let setting = |name: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        std::fs::read_to_string(path).unwrap_or_default()
    };
    if shared {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        gives_shared(&mounts, &setting("shmem_enabled"))
    } else {
        free_huge_pages() >= len_bytes.div_ceil(HUGE_PAGE_BYTES) || gives(&setting("enabled"))
    }
}

/// Of a file with all its words, the chosen one, which stands in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

fn gives(enabled: &str) -> bool {
    matches!(chosen(enabled), Some("always" | "madvise"))
}

/// `/dev/shm` goes by the option it was mounted with, unless the setting that is for memory
/// without a mount denies or forces them everywhere (Linux
/// `Documentation/admin-guide/mm/transhuge.rst`, "Hugepages in tmpfs/shmem").
fn gives_shared(mounts: &str, shmem_enabled: &str) -> bool {
    match chosen(shmem_enabled) {
        Some("deny") => false,
        Some("force") => true,
        _ => {
            let mut options = mounts
                .lines()
                .filter(|line| line.split(' ').nth(4) == Some("/dev/shm"))
                .filter_map(|line| line.rsplit(' ').next());
            let huge = options
                .next_back()
                .and_then(|options| options.split(',').find_map(|one| one.strip_prefix("huge=")));
            matches!(huge, Some("always" | "advise" | "within_size"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_given_by_the_word_in_brackets() {
        for text in ["[always] madvise never", "always [madvise] never\n"] {
            assert!(gives(text), "{text}");
        }
        for text in [
            "always madvise [never]",
            "always advise never [deny] force",
            "",
            "always",
        ] {
            assert!(!gives(text), "{text}");
        }
    }

    #[test]
    fn shared_memory_goes_by_its_mount() {
        let never = "always within_size advise [never] deny force";
        let mount = |options: &str| {
            format!(
                "22 1 0:5 / /dev rw - devtmpfs udev rw,huge=always\n\
                 27 22 0:24 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=1024k{options}\n"
            )
        };
        for huge in [",huge=advise", ",huge=within_size,inode64", ",huge=always"] {
            assert!(gives_shared(&mount(huge), never), "{huge}");
            let deny = "always within_size advise never [deny] force";
            assert!(!gives_shared(&mount(huge), deny), "{huge}");
        }
        for huge in ["", ",huge=never", ",inode64"] {
            let advise = "always within_size [advise] never deny force";
            assert!(!gives_shared(&mount(huge), advise), "{huge}");
            let force = "always within_size advise never deny [force]";
            assert!(gives_shared(&mount(huge), force), "{huge}");
        }
        assert!(!gives_shared("", never) && !gives_shared("", ""));
        // The last mount is the one that is seen.
        assert!(gives_shared(&(mount("") + &mount(",huge=advise")), never));
    }

    #[test]
    fn disks_are_told_by_their_bus_also_below_mapped_ones() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path().canonicalize().expect("folder");
        let make = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(&path).expect("folder");
            path
        };
        let virtio = make("pci0000:00/0000:00:02.0/virtio1/block/vda");
        let partition = make("pci0000:00/0000:00:02.0/virtio1/block/vda/vda1");
        let nvme = make("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1");
        let link = |from: &Path, to: &str| {
            let slaves = make(&format!("virtual/block/{to}/slaves"));
            std::os::unix::fs::symlink(from, slaves.join("below")).expect("link");
            root.join("virtual/block").join(to)
        };
        let mapped = link(&virtio, "dm-0");
        let twice = link(&mapped, "dm-1");
        let fast = link(&nvme, "dm-2");
        let xen = make("vbd-51712/block/xvda");
        let hyper = make("LNXSYSTM:00/ACPI0004:00/VMBUS:00/0b1c/host0/target0:0:0/0/block/sda");
        let passed = make("ACPI0004:00/VMBUS:01/0b1c/pci0001:00/0001:00:00.0/nvme/nvme0/nvme0n1");
        for device in [&virtio, &partition, &mapped, &twice, &xen, &hyper] {
            assert!(is_virtual(device), "{}", device.display());
        }
        for device in [&nvme, &fast, &passed] {
            assert!(!is_virtual(device), "{}", device.display());
        }
    }
}
