//! Ends the sleep of the thread that polls a source. Whoever has work for it first makes the
//! work visible, then wakes; the sleeper first says that it is about to sleep, then looks for
//! work once more. Two fences make sure that at least one of them sees the other.
//! Knows no work and no sources.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use super::Wait;
use crate::error::Result;

/// An atomic flag as the standard library has it; a model checker brings its own.
trait Flag {
    fn store(&self, value: bool, order: Ordering);
    fn swap(&self, value: bool, order: Ordering) -> bool;
    fn fence(order: Ordering);
}

impl Flag for AtomicBool {
    #[inline]
    fn store(&self, value: bool, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: bool, order: Ordering) -> bool {
        self.swap(value, order)
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Whether somebody sleeps, or is about to.
#[derive(Debug)]
struct Sleeping<F>(F);

impl<F: Flag> Sleeping<F> {
    /// The sleeper looks for work after this, and sleeps only if there is none.
    fn about_to_sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
        // With the fence in `must_wake`: either the sleeper sees the work, or whoever made it
        // sees that it is about to sleep.
        F::fence(Ordering::SeqCst);
    }

    fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether a sleeper has to be woken for the work just made visible; by one thread only.
    fn must_wake(&self) -> bool {
        F::fence(Ordering::SeqCst);
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Ends a blocking [`Source::poll`](super::Source::poll). Cheap to call when nobody sleeps.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<WakerInner>,
}

#[derive(Debug)]
struct WakerInner {
    event: OwnedFd,
    sleeping: Sleeping<AtomicBool>,
}

impl Waker {
    /// A waker over a new eventfd.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new() -> Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                crate::Error::os("cannot make an eventfd", errno)
                    .remedy("raise the open-files limit (ulimit -n)")
            })?;
        Ok(Self {
            inner: Arc::new(WakerInner {
                event,
                sleeping: Sleeping(AtomicBool::new(false)),
            }),
        })
    }

    /// Wakes the sleeper, if there is one or will be one.
    pub fn wake(&self) {
        if self.inner.sleeping.must_wake() {
            self.wake_always();
        }
    }

    /// Makes the event readable, sleeper or not.
    pub fn wake_always(&self) {
        // A full counter (EAGAIN) means a wake is pending already.
        let _pending = rustix::io::write(&self.inner.event, &1u64.to_ne_bytes());
    }

    /// Says that the calling thread is about to sleep; it must look for work once more
    /// between this call and sleeping.
    pub fn about_to_sleep(&self) {
        self.inner.sleeping.about_to_sleep();
    }

    /// Says that the sleep is over (or did not happen).
    pub fn awake(&self) {
        self.inner.sleeping.awake();
    }

    /// Sleeps until a wake, for sources that have nothing better to wait on.
    ///
    /// # Errors
    /// The wait itself failed.
    pub fn sleep(&self, wait: Wait) -> Result<()> {
        let span = match wait {
            Wait::No => return Ok(()),
            Wait::AtMost(span) => Some(span),
            Wait::Forever => None,
        };
        wait_readable(self.event(), span)
            .map_err(|cause| crate::Error::os("cannot wait for a wake", cause))?;
        self.clear();
        Ok(())
    }

    /// Makes the event unreadable until the next wake.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read (EAGAIN) means that there was no wake.
        let _no_wake = rustix::io::read(&self.inner.event, &mut count);
    }

    /// The descriptor that becomes readable on a wake.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }
}

/// Waits until a descriptor is readable; an interrupted wait is a finished one.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, at_most: Option<Duration>) -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let span = at_most.map(|span| Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    });
    match poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        span.as_ref(),
    ) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::atomic::{AtomicBool, AtomicU32, fence};
    use loom::sync::{Arc, Notify};
    use loom::thread;

    use super::*;

    impl Flag for AtomicBool {
        fn store(&self, value: bool, order: Ordering) {
            self.store(value, order);
        }

        fn swap(&self, value: bool, order: Ordering) -> bool {
            self.swap(value, order)
        }

        fn fence(order: Ordering) {
            fence(order);
        }
    }

    /// A sleeper and two who have work for it, in every order with up to two preemptions. A
    /// lost wake-up leaves the sleeper waiting for ever, which the checker tells.
    #[test]
    fn no_wake_up_is_lost() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let sleeping = Arc::new(Sleeping(AtomicBool::new(false)));
            let work = Arc::new(AtomicU32::new(0));
            let event = Arc::new(Notify::new());
            for _ in 0..2 {
                let (sleeping, work, event) =
                    (Arc::clone(&sleeping), Arc::clone(&work), Arc::clone(&event));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Relaxed);
                    if sleeping.must_wake() {
                        event.notify();
                    }
                });
            }
            sleeping.about_to_sleep();
            if work.load(Ordering::Relaxed) == 0 {
                event.wait();
            }
            sleeping.awake();
        });
    }
}
