//! Opening a namespace's generic device, `/dev/ngXnY`, and finding out what is behind it.
//! Knows no rings.
//!
//! unsafe: ioctls take raw addresses.
#![expect(unsafe_code, reason = "ioctls take raw addresses")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nvme_sys::identify::{IDENTIFY_BYTES, IdentifyController, IdentifyNamespace};
use nvme_sys::ioctl::{IOCTL_ADMIN_CMD, IOCTL_ID};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zerocopy::FromZeros;

use super::encode::{Data, passthru_cmd};
use super::limits::{QueueLimits, mdts_bytes};
use super::sysfs::{GenericDevice, Identity, Sysfs};
use crate::command::{Command, NamespaceId};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Pages, TargetMemory};
use crate::namespace::Namespace;
use crate::status::Status;

/// What a node is opened for. The kernel holds a process to it unless that has CAP_SYS_ADMIN;
/// the transport always does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    #[default]
    Read,
    /// Writes and compares too.
    ReadWrite,
}

/// An open node and what is known of its namespace.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) file: OwnedFd,
    pub(super) namespace: Namespace,
    pub(super) identity: Identity,
    pub(super) queue: QueueLimits,
    pub(super) controller: ControllerFacts,
}

/// What the controller says of itself; the defaults where it may not be asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ControllerFacts {
    pub(super) mdts_bytes: Option<u64>,
    /// Delays before retries, milliseconds, as completions name them.
    pub(super) retry_delays_ms: [u32; 3],
}

impl Node {
    /// Opens and identifies.
    ///
    /// # Errors
    /// NotFound (no such path), InvalidInput (no generic device), Permission, Gone (removed
    /// meanwhile), Unsupported (metadata, or blocks of an unknown size), Device (the controller
    /// fails to identify).
    pub(super) fn open(path: &Path, access: Access, sysfs: &Sysfs) -> Result<Self> {
        let device = check_kind(path, &stat(path)?, sysfs)?;
        let generic = sysfs.generic(path, device)?;
        let file = open(path, access)?;
        // What the path names may have changed since it was looked at.
        let opened = rustix::fs::fstat(&file).map_err(|errno| Error::os("fstat", errno))?;
        if check_kind(path, &opened, sysfs)? != device {
            let what = format!("{} changed while it was opened", path.display());
            return Err(Error::new(ErrorKind::Busy, what).remedy("try again"));
        }
        let id = namespace_id(&file, path)?;
        let (data, controller) = match identify(&file, id, path)? {
            Some(identified) => identified,
            None => (from_sysfs(&generic)?, ControllerFacts::default()),
        };
        Ok(Self {
            namespace: Namespace::new(id, &data)?,
            identity: generic.identity(id)?,
            queue: generic.queue_limits()?,
            controller,
            file,
        })
    }
}

fn stat(path: &Path) -> Result<Stat> {
    rustix::fs::stat(path).map_err(|errno| {
        let what = format!("{} cannot be looked at", path.display());
        Error::os(what, errno)
            .remedy("nvme list shows the namespaces; their generic devices are /dev/ngXnY")
    })
}

/// The number of a character device.
fn check_kind(path: &Path, stat: &Stat, sysfs: &Sysfs) -> Result<(u32, u32)> {
    let device = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => return Ok(device),
        FileType::BlockDevice => return Err(sysfs.refuse_block(path, device)),
        FileType::Directory => "a folder",
        FileType::RegularFile => "a file",
        _ => "neither file nor device",
    };
    let what = format!("{} is {kind}", path.display());
    Err(Error::new(ErrorKind::InvalidInput, what)
        .remedy("name the generic device of a namespace, like /dev/ng0n1 (nvme list)"))
}

fn open(path: &Path, access: Access) -> Result<OwnedFd> {
    let mode = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let flags = mode | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
        let what = format!("{} cannot be opened", path.display());
        match errno {
            Errno::ACCESS | Errno::PERM => Error::os(what, errno).remedy(
                "run it as root, or give this user the right to the device; who may read it \
                 reads every file on the drive",
            ),
            Errno::NXIO | Errno::NODEV => Error::new(ErrorKind::Gone, what)
                .because(io::Error::from(errno))
                .remedy("the drive was removed or is failing: see dmesg"),
            Errno::MFILE | Errno::NFILE => {
                Error::os(what, errno).remedy("raise the open-files limit (ulimit -n)")
            }
            _ => Error::os(what, errno),
        }
    })
}

/// `NVME_IOCTL_ID`.
fn namespace_id(file: &OwnedFd, path: &Path) -> Result<NamespaceId> {
    // SAFETY: this ioctl takes no argument.
    let id = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ID.into()) };
    match u32::try_from(id) {
        Ok(id) if id != 0 => Ok(NamespaceId(id)),
        _ => {
            let what = format!("{} does not tell its namespace", path.display());
            Err(refused(what, io::Error::last_os_error()))
        }
    }
}

/// Asks the controller for the namespace's data and its largest transfer; `None` where the
/// process may not ask.
fn identify(
    file: &OwnedFd,
    id: NamespaceId,
    path: &Path,
) -> Result<Option<(IdentifyNamespace, ControllerFacts)>> {
    let page = Pages::new(IDENTIFY_BYTES as u64)?;
    let asked = [
        Command::identify_namespace(id),
        Command::identify_controller(),
    ];
    let mut namespace = None;
    for command in asked {
        match admin(file, command, &page) {
            Ok(()) => {}
            Err(AdminError::Os(cause))
                if matches!(cause.raw_os_error(), Some(libc::EACCES | libc::EPERM)) =>
            {
                return Ok(None);
            }
            Err(AdminError::Os(cause)) => {
                let what = format!("{} does not identify itself", path.display());
                return Err(refused(what, cause));
            }
            Err(AdminError::Status(status)) => {
                let what = format!("the controller of {} fails Identify", path.display());
                return Err(Error::new(ErrorKind::Device, what).because(status));
            }
        }
        if namespace.is_none() {
            namespace = Some(page.raw().read::<IdentifyNamespace>(0));
        }
    }
    let controller = page.raw().read::<IdentifyController>(0);
    let facts = ControllerFacts {
        mdts_bytes: mdts_bytes(controller.max_data_transfer),
        retry_delays_ms: controller
            .retry_delays
            .map(|delay| u32::from(delay.get()) * 100),
    };
    Ok(namespace.map(|namespace| (namespace, facts)))
}

#[derive(Debug)]
enum AdminError {
    Os(io::Error),
    Status(Status),
}

/// Runs a command that returns [`IDENTIFY_BYTES`].
fn admin(file: &OwnedFd, command: Command, page: &Pages) -> Result<(), AdminError> {
    let len_bytes = u32::try_from(IDENTIFY_BYTES).expect("small");
    let address = page.raw().at(0, len_bytes.into()) as u64;
    let mut cmd = passthru_cmd(command, Data { address, len_bytes });
    // SAFETY: the structure is the ioctl's; the page it names lives on, and only the device
    // writes it until the ioctl has returned.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), IOCTL_ADMIN_CMD.into(), &raw mut cmd) };
    match u16::try_from(result) {
        Ok(field) => Status::check(field).map_err(AdminError::Status),
        Err(_negative) => Err(AdminError::Os(io::Error::last_os_error())),
    }
}

/// Identify data, as far as sysfs knows them.
fn from_sysfs(generic: &GenericDevice) -> Result<IdentifyNamespace> {
    let (block_bytes, blocks, metadata_bytes) = generic.geometry()?;
    let mut data = IdentifyNamespace::new_zeroed();
    data.size = blocks.into();
    let format = &mut data.lba_formats[0];
    format.metadata_bytes = metadata_bytes.into();
    // No power of two gets a shift that is refused.
    let shift = block_bytes.is_power_of_two().then(|| block_bytes.ilog2());
    format.block_shift = shift.and_then(|shift| shift.try_into().ok()).unwrap_or(0);
    Ok(data)
}

/// What an errno of the node's first calls means.
fn refused(what: String, cause: io::Error) -> Error {
    match cause.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO | libc::EIO) => Error::new(ErrorKind::Gone, what)
            .because(cause)
            .remedy("the drive was removed or is failing: see dmesg"),
        Some(libc::ENOTTY) => Error::new(ErrorKind::Unsupported, what)
            .because(cause)
            .remedy("this kernel has no NVMe passthrough on generic devices: boot a newer one"),
        _ => Error::os(what, cause),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::sysfs;
    use super::*;

    fn fails(path: &Path) -> Error {
        let error = Node::open(path, Access::Read, &Sysfs::new("/sys"));
        error.expect_err("no generic device")
    }

    #[test]
    fn what_is_no_generic_device_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").expect("written");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("made");
        for (path, kind) in [
            (dir.path().join("none"), ErrorKind::NotFound),
            (dir.path().to_path_buf(), ErrorKind::InvalidInput),
            (file, ErrorKind::InvalidInput),
            (fifo, ErrorKind::InvalidInput),
            (PathBuf::from("/dev/null"), ErrorKind::InvalidInput),
            (PathBuf::from("/dev/zero"), ErrorKind::InvalidInput),
        ] {
            let error = fails(&path);
            assert_eq!(error.kind(), kind, "{error}");
            let advice = error.advice().unwrap_or_default();
            assert!(advice.contains("/dev/ng"), "{error}");
        }
    }

    #[test]
    fn block_devices_are_refused() {
        let (_root, sysfs) = sysfs::tests::tree();
        let mut stat = stat(Path::new("/dev/null")).expect("there");
        stat.st_mode = stat.st_mode & 0o7777 | libc::S_IFBLK;
        stat.st_rdev = rustix::fs::makedev(259, 1);
        let error = check_kind(Path::new("/dev/nvme0n1p1"), &stat, &sysfs);
        let error = error.expect_err("a block device");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("open /dev/ng0n1"), "{error}");
    }

    #[test]
    fn another_device_behind_the_path_does_not_identify() {
        let null = open(Path::new("/dev/null"), Access::Read).expect("there");
        let error = namespace_id(&null, Path::new("/dev/null")).expect_err("no namespace");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = identify(&null, NamespaceId(1), Path::new("/dev/null"));
        assert_eq!(error.expect_err("no NVMe").kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn sysfs_stands_in_for_identify() {
        let (root, sysfs) = sysfs::tests::tree();
        let generic = sysfs.generic(Path::new("x"), (241, 0)).expect("there");
        let data = from_sysfs(&generic).expect("complete");
        let namespace = Namespace::new(NamespaceId(1), &data).expect("legal");
        assert_eq!(namespace.len_bytes(), 256 << 20);
        let disk = "devices/pci0000:00/0000:03:00.0/nvme/nvme0/nvme0n1";
        for (name, text) in [("metadata_bytes", "8"), ("queue/logical_block_size", "520")] {
            std::fs::write(root.path().join(disk).join(name), text).expect("written");
            let data = from_sysfs(&generic).expect("complete");
            let error = Namespace::new(NamespaceId(1), &data).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            std::fs::write(root.path().join(disk).join("metadata_bytes"), "0").expect("written");
        }
    }
}
