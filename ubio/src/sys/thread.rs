//! Starting threads. One that gets no memory for its signal stack ends the program from
//! within, so whether there is some is asked first.
//!
//! unsafe: maps address space and gives it back.
#![expect(unsafe_code, reason = "maps address space and gives it back")]

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::Error;

/// Address space of a thread: its stack (2 MiB by default) and what comes with it, bytes.
const THREAD_BYTES: usize = 4 << 20;

/// Whether a thread would get the memory it begins with. Asked of the kernel: the allocator
/// may keep what it gave once.
pub(crate) fn is_room() -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let nothing = ProtFlags::empty();
    // SAFETY: a new mapping at an address the kernel chooses, which nobody gets to see.
    unsafe {
        mmap_anonymous(std::ptr::null_mut(), THREAD_BYTES, nothing, flags)
            .and_then(|start| munmap(start, THREAD_BYTES))
            .is_ok()
    }
}

/// Starts a thread.
///
/// # Errors
/// Too many threads, or too little memory.
pub fn start<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    if !is_room() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    Builder::new().name(name.into()).spawn(work)
}

/// Of a thread that could not be started.
pub(crate) fn not_started(what: &str, cause: io::Error) -> Error {
    // Too little memory for the stack is EAGAIN, too, like too many threads.
    let remedy = match cause.raw_os_error() {
        Some(libc::ENOMEM) => "free memory, or raise the address-space limit (ulimit -v)",
        _ => "raise the limits on threads (ulimit -u) and on address space (ulimit -v)",
    };
    Error::os(format!("cannot start {what}"), cause).remedy(remedy)
}
