//! Named host memory that outlives its maker: `/dev/shm/ubio.NAME`. It has no name until it
//! is published, so a killed load leaves nothing, and its space is taken before the first
//! byte is written, so a full `/dev/shm` is an error and never a SIGBUS.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::VramBuffer;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::memory::{PAGE_BYTES, Region, round_up};
use crate::sys::parallel::in_parallel;
use crate::sys::rights;
use crate::topology::{self, gives_huge_pages};

const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "ubio.";
/// Longest name, bytes: file names end at 255, and a replacement needs a suffix.
const MAX_NAME_BYTES: usize = 200;
/// What one thread takes of the reservation at a time.
const RESERVE_BYTES: u64 = 64 << 20;

/// Where the memory of that name is, or will be.
///
/// # Errors
/// InvalidInput: empty, too long, or with characters a file name cannot safely have.
pub fn path_of(name: &str) -> Result<PathBuf> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+' | '@');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(legal) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("{name:?} is no name for shared memory"),
        )
        .remedy("use up to 200 letters, digits and . - _ + @"));
    }
    Ok(Path::new(FOLDER).join(format!("{PREFIX}{name}")))
}

/// Memory that will get a name.
#[derive(Debug)]
pub struct NamedBuffer {
    file: OwnedFd,
    path: PathBuf,
    len_bytes: u64,
    region: Arc<Region>,
}

impl NamedBuffer {
    /// Takes `len_bytes` of shared memory for `name`. Nothing is visible under the name
    /// before [`publish`](Self::publish).
    ///
    /// # Errors
    /// InvalidInput (the name), Io (a folder has it), NoSpace (`/dev/shm` is full or too
    /// small), Permission.
    pub fn create(name: &str, len_bytes: u64) -> Result<Self> {
        let path = path_of(name)?;
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Err(Error::new(ErrorKind::Io, "a folder has this name")
                .at(path)
                .remedy("remove the folder, or take another name"));
        }
        let at_folder = |error: Error| error.at(FOLDER);
        remove_left_over(&path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(FOLDER, flags, Mode::from_raw_mode(0o644)).map_err(|errno| {
                let remedy = match errno {
                    Errno::MFILE => "raise the open-files limit (ulimit -n)",
                    Errno::NFILE => "close files, or raise the system's limit (sysctl fs.file-max)",
                    Errno::NOSPC => {
                        "remove files there, or allow more (mount -o remount,nr_inodes=…)"
                    }
                    _ => "mount a writable tmpfs on /dev/shm",
                };
                at_folder(Error::os("cannot make shared memory", errno).remedy(remedy))
            })?;
        let mapped = round_up(len_bytes.max(1), PAGE_BYTES);
        check_space(&file, mapped).map_err(at_folder)?;
        rustix::fs::ftruncate(&file, mapped).map_err(|errno| {
            at_folder(
                Error::os(
                    format!("cannot size shared memory to {mapped} bytes"),
                    errno,
                )
                .remedy("raise the file-size limit (ulimit -f)"),
            )
        })?;
        let huge = gives_huge_pages(true, mapped);
        let region = Arc::new(Region::of_file(&file, mapped, true, huge).map_err(at_folder)?);
        reserve(&region).map_err(at_folder)?;
        region.note_faulted_in();
        Ok(Self {
            file,
            path,
            len_bytes,
            region,
        })
    }

    /// Takes rights away that the file of `limit` does not give, for instance the source (see
    /// [`rights::restrict`]). A result that is replaced gives no more than before either.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn restrict(&self, limit: &std::fs::Metadata) -> Result<()> {
        rights::restrict(&self.file, limit)
            .map_err(|cause| Error::os("cannot set the mode of the shared memory", cause))
    }

    /// Takes all rights from others than the owner, for a source that is the owner's alone.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn restrict_to_owner(&self) -> Result<()> {
        rights::restrict_to_owner(&self.file)
            .map_err(|cause| Error::os("cannot set the mode of the shared memory", cause))
    }

    /// The memory, for a load.
    pub fn buffer(&self) -> VramBuffer {
        VramBuffer::Host(Arc::clone(&self.region))
    }

    /// Gives the memory its name, in place of what had it before; readers of that keep it.
    ///
    /// # Errors
    /// Permission, or another's file that cannot be replaced.
    pub fn publish(self) -> Result<PathBuf> {
        let fail = |errno: Errno| {
            let error = Error::os("cannot publish the shared memory", errno).at(&self.path);
            match errno {
                Errno::PERM | Errno::ACCESS => {
                    error.remedy("take another name, or have its owner remove what has it")
                }
                _ => error,
            }
        };
        rustix::fs::ftruncate(&self.file, self.len_bytes).map_err(fail)?;
        if let Ok(replaced) = self.path.symlink_metadata()
            && replaced.is_file()
        {
            self.restrict(&replaced)?;
        }
        let source = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        // Held until the name is given: whoever clears left-overs sees that this is none.
        let _unlockable = rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive);
        let link =
            |to: &Path| rustix::fs::linkat(CWD, source.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.path) {
            Ok(()) => {
                self.unlock();
                return Ok(self.path);
            }
            Err(Errno::EXIST) => {}
            Err(errno @ Errno::NOENT) => {
                let error = fail(errno);
                return Err(error.remedy("mount /proc: unnamed files get their name by it"));
            }
            Err(errno) => return Err(fail(errno)),
        }
        for attempt in 0..1000u32 {
            let beside = left_over_name(&self.path, std::process::id(), attempt);
            match link(&beside) {
                Ok(()) => {
                    return match rustix::fs::rename(&beside, &self.path) {
                        Ok(()) => {
                            self.unlock();
                            Ok(self.path)
                        }
                        Err(errno) => {
                            let _gone = rustix::fs::unlink(&beside);
                            Err(fail(errno))
                        }
                    };
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        Err(fail(Errno::EXIST))
    }
}

impl NamedBuffer {
    /// The mapping keeps the file open, and its lock, for as long as it is used: readers that
    /// lock what they map must not wait for that.
    fn unlock(&self) {
        let _was_none = rustix::fs::flock(&self.file, FlockOperation::NonBlockingUnlock);
    }
}

fn left_over_name(path: &Path, pid: u32, attempt: u32) -> PathBuf {
    let name = path.file_name().expect("made by path_of").to_string_lossy();
    path.with_file_name(format!(".{name}.{pid}.{attempt}"))
}

/// Removes what a replacement that was killed between its two steps left behind.
fn remove_left_over(path: &Path) {
    let name = path.file_name().expect("made by path_of").to_string_lossy();
    let prefix = format!(".{name}.");
    let Ok(entries) = std::fs::read_dir(FOLDER) else {
        return;
    };
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let Some(rest) = file_name
            .to_str()
            .and_then(|name| name.strip_prefix(&prefix))
        else {
            continue;
        };
        let mut parts = rest.split('.');
        let (Some(pid), Some(attempt), None) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let ours = pid.parse::<u32>().is_ok() && attempt.parse::<u32>().is_ok();
        if ours && is_unlocked(&entry.path()) {
            let _raced = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether nobody is at it. A process id would not tell: other containers that share the
/// folder count theirs on their own.
fn is_unlocked(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

fn check_space(file: &OwnedFd, len_bytes: u64) -> Result<()> {
    let stat = rustix::fs::fstatvfs(file)
        .map_err(|errno| Error::os("cannot ask for the free space", errno))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    // A tmpfs without a limit says that it has no blocks at all.
    if stat.f_blocks > 0 && free < len_bytes {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!("{len_bytes} bytes are needed, {free} are free"),
        )
        .remedy(
            "remove files there (ls -l /dev/shm) or mount it larger (mount -o remount,size=…)",
        ));
    }
    Ok(())
}

/// Faults all of it in, from several threads: after this no write to it can fail.
fn reserve(region: &Region) -> Result<()> {
    let next = std::sync::atomic::AtomicU64::new(0);
    let one = || {
        loop {
            let at = next.fetch_add(RESERVE_BYTES, std::sync::atomic::Ordering::Relaxed);
            if at >= region.len_bytes() {
                return Ok(());
            }
            region.populate_or_fail(at, RESERVE_BYTES.min(region.len_bytes() - at))?;
        }
    };
    in_parallel(topology::cores().min(8), one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_is_at_is_a_left_over() {
        let name = format!("left-over-{}", std::process::id());
        let path = path_of(&name).expect("a name");
        // Of whatever process: ids say nothing.
        let [held, left] = [0, 1].map(|attempt| left_over_name(&path, 1, attempt));
        let file = std::fs::File::create(&held).expect("/dev/shm can be written");
        std::fs::File::create(&left).expect("/dev/shm can be written");
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).expect("a lock");
        remove_left_over(&path);
        assert!(held.exists() && !left.exists());
        drop(file);
        remove_left_over(&path);
        assert!(!held.exists());
    }

    #[test]
    fn a_published_name_is_not_locked() {
        let name = format!("unlocked-{}", std::process::id());
        for _replaced in 0..2 {
            let named = NamedBuffer::create(&name, 10).expect("shared memory");
            let _mapped = named.buffer();
            let path = named.publish().expect("publish");
            let file = std::fs::File::open(path).expect("it is there");
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).expect("a lock");
        }
        std::fs::remove_file(path_of(&name).expect("a name")).expect("remove");
    }
}
