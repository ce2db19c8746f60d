//! Waiting for completions: by interrupts, or by looking. Knows no commands.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Result};

/// Looks between two questions whether somebody else has something to say.
const LOOKS: u32 = 64;

/// Looks until there is a completion, `other` is readable, or `span` is over.
pub(super) fn spin(
    ready: impl Fn() -> bool,
    other: BorrowedFd<'_>,
    span: Option<Duration>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if readable(&[other], Some(Duration::ZERO))? {
            return Ok(());
        }
        if span.is_some_and(|span| start.elapsed() >= span) {
            return Ok(());
        }
        // Whoever shares the processor may be the one that is waited for.
        std::thread::yield_now();
    }
}

/// Sleeps until one of `all` is readable, of which the first ones are interrupts, or until the
/// end of `span`.
pub(super) fn sleep(
    ready: impl Fn() -> bool,
    all: &[BorrowedFd<'_>],
    interrupts: usize,
    span: Option<Duration>,
) -> Result<()> {
    if ready() {
        return Ok(());
    }
    // Interrupts of completions that were taken since are of no use any more; one that comes
    // from here on is.
    for interrupt in &all[..interrupts] {
        let mut count = [0; 8];
        let _none = rustix::io::read(interrupt, &mut count);
    }
    if ready() {
        return Ok(());
    }
    readable(all, span).map(|_any| ())
}

/// Waits until one is readable; whether one is.
pub(super) fn readable(all: &[BorrowedFd<'_>], span: Option<Duration>) -> Result<bool> {
    let mut all: Vec<PollFd<'_>> = all
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let span = span.and_then(|span| Timespec::try_from(span).ok());
    match poll(&mut all, span.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::os("cannot wait for the controller", errno)),
    }
}
