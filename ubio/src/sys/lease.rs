//! Read leases on files (`F_SETLEASE`): while one is held nobody can open the file for
//! writing or cut it without the kernel asking the holder first. The question comes as a
//! signal to one thread of ours that alone has it blocked and reads it from a signalfd, so
//! no handler is installed and the program's own signals are not touched.
//!
//! unsafe: fcntl, signal masks and signalfd have no safe wrapper.
#![expect(
    unsafe_code,
    reason = "fcntl, signal masks and signalfd have no safe wrapper"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use super::thread;
use crate::source::Waker;

/// Why no lease is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Somebody has the file open for writing, or mapped writable.
    Writer,
    /// Neither the owner of the file nor `CAP_LEASE`.
    NotOwner,
    /// The file system has no leases, or another error.
    Other(String),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Writer => f.write_str("somebody has the file open for writing"),
            Self::NotOwner => f.write_str("the file belongs to somebody else"),
            Self::Other(cause) => f.write_str(cause),
        }
    }
}

/// Read leases on a few files, held until dropped or broken.
#[derive(Debug)]
pub struct ReadLeases {
    broken: Arc<AtomicBool>,
    stop: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Nobody in a process is likely to use it, and only our own thread ever gets it.
fn signal() -> i32 {
    libc::SIGRTMAX() - 3
}

impl ReadLeases {
    /// Takes a lease on every file, or none.
    ///
    /// # Errors
    /// Why the first refused file was refused.
    pub fn take(files: Vec<File>) -> Result<Self, Refused> {
        let other = |cause: &dyn std::fmt::Display| Refused::Other(cause.to_string());
        let stop = Waker::new().map_err(|cause| other(&cause))?;
        let broken = Arc::new(AtomicBool::new(false));
        let (told, tell) = crossbeam_channel::bounded(1);
        let thread = {
            let (broken, stop) = (Arc::clone(&broken), stop.clone());
            thread::start("ubio-lease", move || match take_all(&files) {
                Ok(signals) => {
                    // The taker waits for exactly this.
                    let _gone = told.send(Ok(()));
                    watch(&files, &signals, &stop, &broken);
                }
                Err(refused) => drop(told.send(Err(refused))),
            })
            .map_err(|cause| other(&cause))?
        };
        match tell.recv() {
            Ok(Ok(())) => Ok(Self {
                broken,
                stop,
                thread: Some(thread),
            }),
            Ok(Err(refused)) => Err(refused),
            Err(gone) => Err(other(&gone)),
        }
    }

    /// Whether somebody wanted to write one of the files meanwhile: the leases are gone then,
    /// and the files may have changed.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

impl Drop for ReadLeases {
    fn drop(&mut self) {
        self.stop.wake_always();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Blocks the signal in this thread and takes the leases for it; gives the signalfd.
fn take_all(files: &[File]) -> Result<OwnedFd, Refused> {
    let signals = block_signal().map_err(|cause| Refused::Other(cause.to_string()))?;
    for (index, file) in files.iter().enumerate() {
        if let Err(cause) = take_one(file) {
            release(&files[..index]);
            return Err(match cause.raw_os_error() {
                Some(libc::EAGAIN) => Refused::Writer,
                Some(libc::EACCES | libc::EPERM) => Refused::NotOwner,
                _ => Refused::Other(cause.to_string()),
            });
        }
    }
    Ok(signals)
}

fn block_signal() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is storage for sigemptyset; the calls only touch it and
    // this thread's mask. The signalfd is a new descriptor that nobody else has.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

#[repr(C)]
struct OwnerEx {
    kind: i32,
    pid: i32,
}

const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;
const F_SETSIG: i32 = 10;

fn take_one(file: &File) -> io::Result<()> {
    let fd = file.as_raw_fd();
    let owner = OwnerEx {
        kind: F_OWNER_TID,
        pid: rustix::thread::gettid().as_raw_nonzero().get(),
    };
    // The signal and its thread first: a lease broken before that would send SIGIO.
    // SAFETY: plain fcntl calls on an open descriptor; `owner` outlives its call and has the
    // kernel's layout (struct f_owner_ex).
    let failed = unsafe {
        libc::fcntl(fd, F_SETSIG, signal()) < 0
            || libc::fcntl(fd, F_SETOWN_EX, &raw const owner) < 0
            || libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) < 0
            // F_SETLEASE makes the calling process the owner again on some kernels.
            || libc::fcntl(fd, F_SETOWN_EX, &raw const owner) < 0
    };
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn release(files: &[File]) {
    for file in files {
        // SAFETY: a plain fcntl call on an open descriptor. Releasing what is not held fails
        // and changes nothing.
        unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
        }
    }
}

/// Waits for a break or the end; then lets go, so that the writer goes on.
fn watch(files: &[File], signals: &OwnedFd, stop: &Waker, broken: &AtomicBool) {
    let stopped = stop.event();
    let mut ends = [
        PollFd::new(signals, PollFlags::IN),
        PollFd::from_borrowed_fd(stopped, PollFlags::IN),
    ];
    while let Err(rustix::io::Errno::INTR) = poll(&mut ends, None) {}
    if ends[0].revents().contains(PollFlags::IN) {
        broken.store(true, Ordering::Release);
    }
    release(files);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_refused_to_files_being_written_and_broken_by_a_writer() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        std::fs::write(&path, b"bytes").expect("write");
        let writer = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("open");
        let reader = || vec![File::open(&path).expect("open")];
        match ReadLeases::take(reader()) {
            Err(Refused::Writer) => {}
            Err(Refused::Other(_)) => return, // No leases on this file system.
            other => panic!("{other:?}"),
        }
        drop(writer);
        let lease = ReadLeases::take(reader()).expect("nobody writes it now");
        assert!(!lease.is_broken());
        // Waits until our thread has let go.
        drop(
            std::fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .expect("open"),
        );
        assert!(lease.is_broken());
    }
}
