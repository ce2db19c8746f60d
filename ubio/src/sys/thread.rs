//! Starting threads. One that gets no memory for its signal stack ends the program from
//! within, so whether there is some is asked first.

use std::io;
use std::thread::{Builder, JoinHandle};

use fs_adapter::memory::is_available;

use crate::error::Error;

/// Address space of a thread: its stack (2 MiB by default) and what comes with it, bytes.
const THREAD_BYTES: usize = 4 << 20;

/// Whether a thread would get the memory it begins with.
pub(crate) fn is_room() -> bool {
    is_available(THREAD_BYTES)
}

/// Starts a thread.
///
/// # Errors
/// Too many threads, or too little memory.
pub(crate) fn start<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    if !is_room() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Builder::new().name(name.into()).spawn(work)
}

/// Of a thread that could not be started.
pub(crate) fn not_started(what: &str, cause: io::Error) -> Error {
    Error::os(format!("cannot start {what}"), cause)
        .remedy("raise the limits on threads (ulimit -u) and on address space (ulimit -v)")
}
