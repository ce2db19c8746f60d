//! What one open file can do: direct I/O and its alignment, reads held to the page cache.
//! Asked per file, never per host.
//!
//! unsafe: reads into memory by its raw address.
#![expect(unsafe_code, reason = "reads into raw memory that is ours alone")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::FileObject;
use crate::error::{Error, Result};
use crate::sys::memory::{PAGE_BYTES, Region};

/// Direct I/O on one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Possible, with offsets, lengths and addresses in multiples of this, bytes.
    Aligned(u32),
    /// The file lives in memory (tmpfs, ramfs): there is nothing to be direct about.
    InMemory,
    /// Not possible, for this reason.
    Refused(&'static str),
}

/// A file, opened for a source, and what was found about it.
#[derive(Clone, Debug)]
pub struct Probed {
    /// For [`Source::add_object`](crate::source::Source::add_object).
    pub object: FileObject,
    /// Its direct I/O.
    pub direct_io: DirectIo,
    /// Whether a read can be held to what is in the page cache (`RWF_NOWAIT`).
    pub resident_only: bool,
    /// Whether it was looked at: a file that nothing is read from is not.
    pub used: bool,
}

const EXT4_MAGIC: i64 = 0xef53;
const XFS_MAGIC: i64 = 0x5846_5342;
const BTRFS_MAGIC: i64 = 0x9123_683e;
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Looks at an open file and opens it a second time for direct I/O, through
/// `/proc/self/fd`, so that it is the same file whatever its path names by now.
///
/// # Errors
/// Out of descriptors. A file without direct I/O is no error.
pub fn probe(file: &impl AsFd) -> Result<Probed> {
    let buffered = file.as_fd().try_clone_to_owned().map_err(too_many_files)?;
    let buffered = Arc::new(buffered);
    let none = |direct_io| {
        Ok(Probed {
            object: FileObject {
                direct: None,
                buffered: Arc::clone(&buffered),
                in_memory: direct_io == DirectIo::InMemory,
            },
            direct_io,
            resident_only: false,
            used: true,
        })
    };
    if is_in_memory(file) {
        return none(DirectIo::InMemory);
    }
    // fs-verity checks bytes on their way into the page cache; direct reads would miss it.
    let vouched = match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat)
            if stat
                .stx_attributes
                .contains(rustix::fs::StatxAttributes::VERITY) =>
        {
            return none(DirectIo::Refused("fs-verity file"));
        }
        Ok(stat) if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) => {
            if stat.stx_dio_offset_align == 0 {
                return none(DirectIo::Refused(
                    "the file system offers no direct I/O for it",
                ));
            }
            Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align))
        }
        _ => None,
    };
    if vouched
        .is_some_and(|alignment| u64::from(alignment) > PAGE_BYTES || !alignment.is_power_of_two())
    {
        return none(DirectIo::Refused("its alignment is larger than a page"));
    }
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
    let direct = match rustix::fs::open(path.as_str(), flags, Mode::empty()) {
        Ok(direct) => direct,
        Err(rustix::io::Errno::INVAL) => {
            return none(DirectIo::Refused("O_DIRECT is refused at open"));
        }
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
            return none(DirectIo::Refused("/proc is not mounted"));
        }
        Err(errno @ (rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) => {
            return Err(too_many_files(errno.into()));
        }
        Err(_other) => return none(DirectIo::Refused("it cannot be opened a second time")),
    };
    // Some file systems accept the open and refuse the read: ask with one block where the
    // kernel did not vouch for it.
    if vouched.is_none() && !reads_direct(&direct)? {
        return none(DirectIo::Refused("O_DIRECT is refused at the first read"));
    }
    Ok(Probed {
        object: FileObject {
            direct: Some(Arc::new(direct)),
            buffered: Arc::clone(&buffered),
            in_memory: false,
        },
        direct_io: DirectIo::Aligned(vouched.unwrap_or(4096)),
        resident_only: reads_resident_only(&*buffered)?,
        used: true,
    })
}

/// Whether the file lives in memory: no storage is behind its page cache.
pub fn is_in_memory(file: &impl AsFd) -> bool {
    rustix::fs::fstatfs(file)
        .is_ok_and(|stat| matches!(stat.f_type, TMPFS_MAGIC | RAMFS_MAGIC | HUGETLBFS_MAGIC))
}

/// A file that is not read: known, but not looked at.
///
/// # Errors
/// Out of descriptors.
pub fn unused(file: &impl AsFd) -> Result<Probed> {
    let buffered = Arc::new(file.as_fd().try_clone_to_owned().map_err(too_many_files)?);
    Ok(Probed {
        object: FileObject {
            direct: None,
            buffered,
            in_memory: false,
        },
        direct_io: DirectIo::InMemory,
        resident_only: false,
        used: false,
    })
}

fn too_many_files(cause: std::io::Error) -> Error {
    Error::os("cannot open the file again for direct I/O", cause)
        .remedy("raise the open-files limit (ulimit -n)")
}

fn reads_direct(file: &OwnedFd) -> Result<bool> {
    let block = Region::anonymous(PAGE_BYTES, false)?;
    // SAFETY: the region is this function's alone.
    let read = unsafe { block.read_file(&[(0, PAGE_BYTES)], file, 0, false) };
    // Only these say that the file takes no direct I/O; other failures are the load's to meet.
    let refused = |cause: std::io::Error| {
        matches!(cause.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
    };
    Ok(!read.is_err_and(refused))
}

/// Whether `RWF_NOWAIT` is taken. Only asked where it is not known: asking a file whose first
/// page is cold may start its readahead.
fn reads_resident_only(file: &impl AsFd) -> Result<bool> {
    let known = rustix::fs::fstatfs(file)
        .is_ok_and(|stat| matches!(stat.f_type, EXT4_MAGIC | XFS_MAGIC | BTRFS_MAGIC));
    if known {
        return Ok(true);
    }
    let page = Region::anonymous(PAGE_BYTES, false)?;
    // SAFETY: the region is this function's alone.
    let read = unsafe { page.read_file(&[(0, 1)], file, 0, true) };
    Ok(!read.is_err_and(|cause| cause.raw_os_error() == Some(libc::EOPNOTSUPP)))
}
