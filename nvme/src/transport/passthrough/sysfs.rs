//! What sysfs says of a namespace's generic device: which disk is beside it, its queue's
//! limits, who it is. Reads files below a root; opens no device.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::limits::QueueLimits;
use crate::command::NamespaceId;
use crate::error::{Error, ErrorKind, Result};

/// Who a namespace is. Names and numbers of devices change from boot to boot; what
/// [`is_same_namespace`](Self::is_same_namespace) compares does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The generic device: `ng0n1`.
    pub node: String,
    /// The disk beside it: `nvme0n1`.
    pub disk: String,
    /// The disk's device number, major and minor, as `st_dev` of files on it has it.
    pub disk_device: (u32, u32),
    /// The controller's PCI address, where it is a PCI device with a path of its own.
    pub pci_address: Option<String>,
    /// The controller's serial number.
    pub serial: String,
    /// The controller's model.
    pub model: String,
    /// The namespace's identifier.
    pub namespace: NamespaceId,
    /// NGUID, where there is one.
    pub guid: Option<[u8; 16]>,
    /// EUI64, where there is one.
    pub eui64: Option<[u8; 8]>,
    /// The kernel's name for the namespace, made of the best of the above.
    pub wwid: Option<String>,
}

impl Identity {
    /// Whether both are the same namespace, whatever its devices are called.
    #[must_use]
    pub fn is_same_namespace(&self, other: &Self) -> bool {
        let of = |who: &Self| {
            (
                who.serial.clone(),
                who.model.clone(),
                who.namespace,
                who.guid,
                who.eui64,
                who.wwid.clone(),
            )
        };
        of(self) == of(other)
    }
}

/// Where sysfs is mounted.
#[derive(Clone, Debug)]
pub(super) struct Sysfs {
    root: PathBuf,
}

/// A generic device's place in sysfs.
#[derive(Clone, Debug)]
pub(super) struct GenericDevice {
    /// `ng0n1`.
    pub(super) name: String,
    /// The controller's (or, where a namespace has several, the subsystem's) folder.
    parent: PathBuf,
    /// The folder of the disk beside it.
    disk: PathBuf,
}

impl Sysfs {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The generic device of a number.
    ///
    /// # Errors
    /// InvalidInput: it is some other device. NotFound: sysfs does not have it.
    pub(super) fn generic(&self, path: &Path, device: (u32, u32)) -> Result<GenericDevice> {
        let dir = self.resolve(path, "char", device)?;
        let (name, class) = (file_name(&dir), link_name(&dir.join("subsystem")));
        if class.as_deref() != Some("nvme-generic") {
            let error = Error::new(
                ErrorKind::InvalidInput,
                format!("{} is no NVMe generic device", path.display()),
            );
            return Err(match class.as_deref() {
                Some("nvme") => error.remedy(format!(
                    "it is a controller; name one of its namespaces, like /dev/{}n1",
                    name.replacen("nvme", "ng", 1)
                )),
                _ => error.remedy(WANTED),
            });
        }
        let disk_name = name.replacen("ng", "nvme", 1);
        let parent = dir.parent().unwrap_or(&dir).to_path_buf();
        let disk = parent.join(&disk_name);
        if !disk.join("queue").is_dir() {
            let what =
                format!("sysfs has no disk {disk_name} beside {name}: its limits are not known");
            return Err(Error::new(ErrorKind::NotFound, what).remedy(
                "the namespace must have a disk (nvme list), and all of sysfs must be mounted",
            ));
        }
        Ok(GenericDevice { name, parent, disk })
    }

    /// The error for a block device: which generic device to open instead.
    pub(super) fn refuse_block(&self, path: &Path, device: (u32, u32)) -> Error {
        let what = format!("{} is a block device", path.display());
        let error = Error::new(ErrorKind::InvalidInput, what);
        let generic = self.resolve(path, "block", device).ok().and_then(|dir| {
            // A partition's folder is inside of its disk's.
            let disk = if dir.join("partition").exists() {
                dir.parent()?.to_path_buf()
            } else {
                dir
            };
            let name = file_name(&disk);
            name.starts_with("nvme")
                .then(|| name.replacen("nvme", "ng", 1))
        });
        match generic {
            Some(generic) => error.remedy(format!(
                "open /dev/{generic} instead; offsets count from the start of the whole \
                 namespace, not of a partition"
            )),
            None => error.remedy(WANTED),
        }
    }

    fn resolve(&self, path: &Path, kind: &str, (major, minor): (u32, u32)) -> Result<PathBuf> {
        let link = self.root.join(format!("dev/{kind}/{major}:{minor}"));
        std::fs::canonicalize(&link).map_err(|cause| {
            let what = format!(
                "{} (device {major}:{minor}) is not in sysfs",
                path.display()
            );
            let error = Error::new(ErrorKind::NotFound, what).because(cause);
            if self.root.join("dev").is_dir() {
                error.remedy(WANTED)
            } else {
                error.remedy("mount sysfs")
            }
        })
    }

    /// Whether the driver has been given queues to poll.
    pub(super) fn poll_queues(&self) -> u32 {
        number(&self.root.join("module/nvme/parameters/poll_queues")).unwrap_or(0)
    }
}

const WANTED: &str = "name the generic device of a namespace, like /dev/ng0n1 (nvme list)";

impl GenericDevice {
    /// The limits of the disk's queue, which passthrough goes through too.
    ///
    /// # Errors
    /// NotFound: sysfs is incomplete.
    pub(super) fn queue_limits(&self) -> Result<QueueLimits> {
        let queue = self.disk.join("queue");
        let need = |name: &str| {
            number::<u64>(&queue.join(name)).ok_or_else(|| {
                let what = format!("{} cannot be read", queue.join(name).display());
                Error::new(ErrorKind::NotFound, what).remedy("all of sysfs must be mounted")
            })
        };
        let saturate = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        // Without this attribute (older kernels) what block devices ask for by default.
        let alignment = number::<u64>(&queue.join("dma_alignment")).unwrap_or(511);
        Ok(QueueLimits {
            transfer_bytes: need("max_hw_sectors_kb")?.saturating_mul(1024),
            segments: saturate(need("max_segments")?),
            segment_bytes: need("max_segment_size")?,
            alignment: saturate(alignment.saturating_add(1)),
            requests: saturate(need("nr_requests")?),
            polls: number(&queue.join("io_poll")) == Some(1),
        })
    }

    /// Bytes of a block, blocks, and bytes of each block's metadata: the geometry where the
    /// controller cannot be asked.
    ///
    /// # Errors
    /// Unsupported: this kernel's sysfs does not say whether there is metadata (before 6.8).
    pub(super) fn geometry(&self) -> Result<(u32, u64, u16)> {
        let read = || {
            let block_bytes: u32 = number(&self.disk.join("queue/logical_block_size"))?;
            let sectors: u64 = number(&self.disk.join("size"))?;
            let metadata: u16 = number(&self.disk.join("metadata_bytes"))?;
            let blocks = sectors.checked_mul(512)?.checked_div(block_bytes.into())?;
            Some((block_bytes, blocks, metadata))
        };
        read().ok_or_else(|| {
            let what = format!("sysfs does not say all of the geometry of {}", self.name);
            Error::new(ErrorKind::Unsupported, what)
                .remedy("let the process send Identify (CAP_SYS_ADMIN), or boot 6.8 or newer")
        })
    }

    /// Who it is.
    ///
    /// # Errors
    /// NotFound: sysfs is incomplete.
    pub(super) fn identity(&self, namespace: NamespaceId) -> Result<Identity> {
        let need = |path: PathBuf| {
            text(&path).ok_or_else(|| {
                let what = format!("{} cannot be read", path.display());
                Error::new(ErrorKind::NotFound, what).remedy("all of sysfs must be mounted")
            })
        };
        let device = need(self.disk.join("dev"))?;
        let disk_device = device
            .split_once(':')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .ok_or_else(|| Error::new(ErrorKind::Io, format!("device number {device}")))?;
        let is_pci = text(&self.parent.join("transport")).as_deref() == Some("pcie");
        Ok(Identity {
            node: self.name.clone(),
            disk: file_name(&self.disk),
            disk_device,
            pci_address: text(&self.parent.join("address")).filter(|_| is_pci),
            serial: need(self.parent.join("serial"))?,
            model: need(self.parent.join("model"))?,
            namespace,
            guid: bytes(&self.disk.join("nguid")),
            eui64: bytes(&self.disk.join("eui")),
            wwid: text(&self.disk.join("wwid")),
        })
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn link_name(path: &Path) -> Option<String> {
    Some(file_name(&std::fs::read_link(path).ok()?))
}

fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn number<N: FromStr>(path: &Path) -> Option<N> {
    text(path)?.parse().ok()
}

/// Hexadecimal digits, with or without separators; `None` where all are zero.
fn bytes<const N: usize>(path: &Path) -> Option<[u8; N]> {
    let digits: Vec<u8> = text(path)?
        .chars()
        .filter(|c| !matches!(c, ' ' | '-'))
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let pairs: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect();
    let bytes: [u8; N] = pairs.try_into().ok()?;
    (digits.len() == 2 * N && bytes != [0; N]).then_some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// As Linux 7.2 shows a QEMU drive of 256 MiB, and as it numbers its devices.
    const FILES: &[(&str, &str)] = &[
        ("nvme0/address", "0000:03:00.0\n"),
        ("nvme0/transport", "pcie\n"),
        ("nvme0/serial", "AAA                 \n"),
        ("nvme0/model", "QEMU NVMe Ctrl                          \n"),
        ("nvme0/nvme0n1/dev", "259:0\n"),
        ("nvme0/nvme0n1/size", "524288\n"),
        ("nvme0/nvme0n1/metadata_bytes", "0\n"),
        (
            "nvme0/nvme0n1/nguid",
            "00000000-0000-0000-0000-000000000000\n",
        ),
        ("nvme0/nvme0n1/eui", "00 00 00 00 00 00 00 00\n"),
        (
            "nvme0/nvme0n1/wwid",
            "nvme.1b36-414141-51454d55204e564d65204374726c-00000001\n",
        ),
        ("nvme0/nvme0n1/queue/logical_block_size", "512\n"),
        ("nvme0/nvme0n1/queue/max_hw_sectors_kb", "512\n"),
        ("nvme0/nvme0n1/queue/max_segments", "128\n"),
        ("nvme0/nvme0n1/queue/max_segment_size", "4294967295\n"),
        ("nvme0/nvme0n1/queue/dma_alignment", "3\n"),
        ("nvme0/nvme0n1/queue/nr_requests", "1023\n"),
        ("nvme0/nvme0n1/queue/io_poll", "0\n"),
        ("nvme0/nvme0n1/nvme0n1p1/partition", "1\n"),
        ("nvme0/ng0n1/dev", "241:0\n"),
        ("nvme0/dev", "242:0\n"),
    ];

    /// A sysfs with one controller and its namespace.
    pub(in super::super) fn tree() -> (TempDir, Sysfs) {
        let root = tempfile::tempdir().expect("a folder");
        let devices = root.path().join("devices/pci0000:00/0000:03:00.0/nvme");
        for (name, text) in FILES {
            let path = devices.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, text).expect("written");
        }
        for kind in ["dev/char", "dev/block"] {
            fs::create_dir_all(root.path().join(kind)).expect("created");
        }
        let link = |to: &str, at: &str| symlink(devices.join(to), root.path().join(at));
        link("nvme0/ng0n1", "dev/char/241:0").expect("linked");
        link("nvme0", "dev/char/242:0").expect("linked");
        link("nvme0/nvme0n1", "dev/block/259:0").expect("linked");
        link("nvme0/nvme0n1/nvme0n1p1", "dev/block/259:1").expect("linked");
        let class = |of: &str, name: &str| symlink(name, devices.join(of).join("subsystem"));
        class("nvme0/ng0n1", "../../../../../class/nvme-generic").expect("linked");
        class("nvme0", "../../../../class/nvme").expect("linked");
        let sysfs = Sysfs::new(root.path());
        (root, sysfs)
    }

    fn file(root: &TempDir, name: &str) -> PathBuf {
        let devices = "devices/pci0000:00/0000:03:00.0/nvme/nvme0";
        root.path().join(devices).join(name)
    }

    #[test]
    fn a_namespace_is_read_whole() {
        let (root, sysfs) = tree();
        let device = sysfs.generic(Path::new("/dev/ng0n1"), (241, 0));
        let device = device.expect("a generic device");
        let expected = QueueLimits {
            transfer_bytes: 512 << 10,
            segments: 128,
            segment_bytes: u32::MAX.into(),
            alignment: 4,
            requests: 1023,
            polls: false,
        };
        assert_eq!(device.queue_limits().expect("complete"), expected);
        assert_eq!(device.geometry().expect("complete"), (512, 524_288, 0));
        let identity = device.identity(NamespaceId(1)).expect("complete");
        assert_eq!((&*identity.node, &*identity.disk), ("ng0n1", "nvme0n1"));
        assert_eq!(identity.disk_device, (259, 0));
        assert_eq!(identity.pci_address.as_deref(), Some("0000:03:00.0"));
        assert_eq!((&*identity.serial, identity.guid), ("AAA", None));
        fs::write(file(&root, "nvme0n1/eui"), "00 25 38 aB 00 00 00 01\n").expect("written");
        let other = device.identity(NamespaceId(1)).expect("complete");
        assert_eq!(other.eui64, Some([0, 0x25, 0x38, 0xab, 0, 0, 0, 1]));
        assert!(!identity.is_same_namespace(&other));
        let renamed = Identity {
            node: "ng7n1".to_owned(),
            disk_device: (259, 9),
            ..identity.clone()
        };
        assert!(identity.is_same_namespace(&renamed));
    }

    #[test]
    fn what_is_missing_is_named() {
        let (root, sysfs) = tree();
        let device = sysfs.generic(Path::new("x"), (241, 0)).expect("there");
        fs::remove_file(file(&root, "nvme0n1/queue/dma_alignment")).expect("removed");
        let limits = device.queue_limits().expect("old kernels lack it");
        assert_eq!(limits.alignment, 512);
        fs::write(file(&root, "nvme0n1/queue/max_segments"), "many").expect("written");
        let error = device.queue_limits().expect_err("no number");
        assert!(error.to_string().contains("queue/max_segments"), "{error}");
        fs::remove_file(file(&root, "nvme0n1/metadata_bytes")).expect("removed");
        let error = device.geometry().expect_err("unknown");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        fs::remove_dir_all(file(&root, "nvme0n1")).expect("removed");
        let error = sysfs.generic(Path::new("x"), (241, 0)).expect_err("none");
        assert!(error.to_string().contains("nvme0n1"), "{error}");
        let error = sysfs.generic(Path::new("x"), (1, 3)).expect_err("none");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let nowhere = Sysfs::new(root.path().join("none"));
        let error = nowhere.generic(Path::new("x"), (1, 3)).expect_err("none");
        assert_eq!(error.advice(), Some("mount sysfs"));
    }

    #[test]
    fn other_devices_are_told_what_to_name_instead() {
        let (_root, sysfs) = tree();
        let error = sysfs.generic(Path::new("/dev/nvme0"), (242, 0));
        let error = error.expect_err("a controller");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("like /dev/ng0n1"), "{error}");
        for minor in [0, 1] {
            let error = sysfs.refuse_block(Path::new("x"), (259, minor));
            assert!(error.to_string().contains("open /dev/ng0n1"), "{error}");
        }
        let error = sysfs.refuse_block(Path::new("x"), (8, 0));
        assert!(error.to_string().contains("like /dev/ng0n1"), "{error}");
    }

    #[test]
    fn identifiers_are_hexadecimal_in_full() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("nguid");
        let read = |text: &str| {
            fs::write(&path, text).expect("written");
            bytes::<4>(&path)
        };
        assert_eq!(read("01-02-fF-00\n"), Some([1, 2, 255, 0]));
        assert_eq!(read("01 02 ff 0"), None);
        assert_eq!(read("01 02 ff 00 0"), None);
        assert_eq!(read("01 02 fg 00"), None);
        assert_eq!(read("0000 0000"), None);
    }
}
