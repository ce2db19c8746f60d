//! A thin driver over one io_uring: registered files and buffers, reads in, completions out,
//! an eventfd read that lets other threads end a wait. Knows slots and addresses only.
//!
//! unsafe: pushes submission entries that carry raw addresses.
#![expect(
    unsafe_code,
    reason = "submission entries carry raw addresses and descriptors"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::super::{Wait, Waker};
use crate::error::{Error, Result};
use crate::limits::{MAX_REGISTERED_BUFFERS, MAX_REGISTERED_FILES};

/// Names the eventfd read among the completions; slots are far below it.
const WAKE: u64 = u64::MAX;
/// Most bytes the kernel takes in one registered buffer.
const MAX_BUFFER_BYTES: u64 = 1 << 30;

/// Where a read runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Issued at submit; completes by interrupt.
    Inline,
    /// By a kernel worker thread, since it may block or copy (buffered reads).
    KernelThread,
}

/// One read to be pushed.
#[derive(Debug)]
pub(super) struct RingRead<'a> {
    pub(super) slot: u32,
    pub(super) file: &'a Arc<OwnedFd>,
    /// Its index among the registered files, if it may be used.
    pub(super) registered: Option<u32>,
    pub(super) file_offset: u64,
    pub(super) address: *mut u8,
    pub(super) len: u32,
    pub(super) buffer: Option<u16>,
    pub(super) place: Place,
}

pub(super) struct Ring {
    ring: IoUring,
    deferred: bool,
    /// The kernel says when it has completions to post (`IORING_SETUP_TASKRUN_FLAG`).
    tells: bool,
    /// Which file indices are registered; empty when the kernel refused the table.
    files: Vec<bool>,
    /// Which buffer indices are in use; empty when the kernel refused the table.
    buffers: Vec<bool>,
    waker: Waker,
    /// Where the kernel puts the eventfd's count. Boxed: its address is with the kernel.
    wake_count: Box<u64>,
    wake_armed: bool,
    /// Reads pushed and not popped.
    reads: u32,
}

impl Ring {
    /// A ring for `entries` reads at once, with the best flags this kernel has.
    pub(super) fn open(entries: u32, waker: &Waker) -> io::Result<Self> {
        let mut best = IoUring::builder();
        best.setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
        let mut good = IoUring::builder();
        good.setup_coop_taskrun().setup_taskrun_flag();
        let plain = IoUring::builder();
        let entries = (entries + 1).next_power_of_two();
        let (ring, deferred, tells) = match best.build(entries) {
            Ok(ring) => (ring, true, true),
            Err(first) if first.raw_os_error() == Some(libc::EINVAL) => match good.build(entries) {
                Ok(ring) => (ring, false, true),
                Err(_older) => (plain.build(entries)?, false, false),
            },
            Err(refused) => return Err(refused),
        };
        let files = match ring.submitter().register_files_sparse(MAX_REGISTERED_FILES) {
            Ok(()) => vec![false; MAX_REGISTERED_FILES as usize],
            Err(_refused) => Vec::new(),
        };
        let buffers = match ring
            .submitter()
            .register_buffers_sparse(MAX_REGISTERED_BUFFERS.into())
        {
            Ok(()) => vec![false; MAX_REGISTERED_BUFFERS.into()],
            Err(_refused) => Vec::new(),
        };
        Ok(Self {
            ring,
            deferred,
            tells,
            files,
            buffers,
            waker: waker.clone(),
            wake_count: Box::new(0),
            wake_armed: false,
            reads: 0,
        })
    }

    pub(super) fn is_deferred(&self) -> bool {
        self.deferred
    }

    pub(super) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Registers a file at `index`; without room it stays usable by descriptor.
    pub(super) fn register_file(&mut self, index: u32, file: BorrowedFd<'_>) {
        if let Some(registered) = self.files.get_mut(index as usize) {
            let update = self
                .ring
                .submitter()
                .register_files_update(index, &[file.as_raw_fd()]);
            *registered = update.is_ok();
        }
    }

    pub(super) fn unregister_file(&mut self, index: u32) {
        if let Some(registered) = self.files.get_mut(index as usize)
            && std::mem::take(registered)
        {
            // An entry that cannot be cleared is overwritten by the next registration.
            let _kept = self.ring.submitter().register_files_update(index, &[-1]);
        }
    }

    /// Registers a buffer and gives its index.
    ///
    /// # Safety
    /// The memory stays mapped until [`unregister_buffer`](Self::unregister_buffer).
    pub(super) unsafe fn register_buffer(
        &mut self,
        at: *mut u8,
        len_bytes: u64,
    ) -> io::Result<u16> {
        if len_bytes > MAX_BUFFER_BYTES {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let free = self.buffers.iter().position(|used| !used);
        let index = free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))?;
        let buffer = libc::iovec {
            iov_base: at.cast(),
            iov_len: usize::try_from(len_bytes).expect("at most 1 GiB"),
        };
        let offset = u32::try_from(index).expect("small table");
        // SAFETY: the memory stays until unregistered, by contract.
        unsafe {
            self.ring
                .submitter()
                .register_buffers_update(offset, &[buffer], None)
        }?;
        self.buffers[index] = true;
        Ok(u16::try_from(index).expect("small table"))
    }

    pub(super) fn unregister_buffer(&mut self, index: u16) {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: an empty buffer points at nothing.
        let cleared = unsafe {
            self.ring
                .submitter()
                .register_buffers_update(index.into(), &[none], None)
        };
        // One that cannot be cleared keeps its pages pinned until the ring closes; its
        // index is not given out again.
        if cleared.is_ok() {
            self.buffers[usize::from(index)] = false;
        }
    }

    /// Queues a read.
    ///
    /// # Errors
    /// The submission queue is full.
    ///
    /// # Safety
    /// Address and file stay valid, and nobody else touches the memory, until the
    /// completion of `read.slot` was popped.
    pub(super) unsafe fn push(&mut self, read: &RingRead<'_>) -> Result<(), squeue::PushError> {
        let fixed = read
            .registered
            .filter(|&index| self.files.get(index as usize) == Some(&true));
        let entry = match (read.buffer, fixed) {
            (Some(buffer), Some(index)) => {
                opcode::ReadFixed::new(Fixed(index), read.address, read.len, buffer)
                    .offset(read.file_offset)
                    .build()
            }
            (Some(buffer), None) => {
                opcode::ReadFixed::new(Fd(read.file.as_raw_fd()), read.address, read.len, buffer)
                    .offset(read.file_offset)
                    .build()
            }
            (None, Some(index)) => opcode::Read::new(Fixed(index), read.address, read.len)
                .offset(read.file_offset)
                .build(),
            (None, None) => opcode::Read::new(Fd(read.file.as_raw_fd()), read.address, read.len)
                .offset(read.file_offset)
                .build(),
        };
        let entry = match read.place {
            Place::Inline => entry,
            Place::KernelThread => entry.flags(squeue::Flags::ASYNC),
        }
        .user_data(read.slot.into());
        // SAFETY: by contract.
        unsafe { self.ring.submission().push(&entry) }?;
        self.reads += 1;
        Ok(())
    }

    /// Whether the kernel has been given everything, and has nothing that it would only
    /// give on a call.
    fn is_settled(&mut self) -> bool {
        let submission = self.ring.submission();
        let asks = submission.taskrun() || submission.cq_overflow();
        self.reads == 0 || (submission.is_empty() && !asks && self.tells)
    }

    /// Submits what was pushed and lets the kernel post completions, waiting as told.
    pub(super) fn enter(&mut self, wait: Wait) -> Result<()> {
        if wait == Wait::No && self.is_settled() {
            return Ok(());
        }
        if wait != Wait::No && !self.wake_armed {
            let event = Fd(self.waker.event().as_raw_fd());
            let entry = opcode::Read::new(event, (&raw mut *self.wake_count).cast(), 8)
                .build()
                .user_data(WAKE);
            // SAFETY: the count is boxed and lives as long as the ring; `Drop` waits.
            self.wake_armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
        }
        let entered = match wait {
            Wait::No => self.ring.submit(),
            Wait::Forever => self.ring.submit_and_wait(1),
            Wait::AtMost(span) if self.ring.params().is_feature_ext_arg() => {
                let span = Timespec::from(span);
                self.ring
                    .submitter()
                    .submit_with_args(1, &SubmitArgs::new().timespec(&span))
            }
            Wait::AtMost(span) => self.ring.submit().and_then(|submitted| {
                // SAFETY: the ring owns the descriptor and keeps it open during the call.
                let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
                super::super::wait_readable(ring, Some(span))?;
                Ok(submitted)
            }),
        };
        match entered {
            Ok(_submitted) => Ok(()),
            Err(cause)
                if matches!(
                    cause.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                Ok(())
            }
            Err(cause) => Err(Error::os("io_uring_enter failed", cause).remedy(
                "allow all three calls of io_uring in the seccomp profile, or none: then threads \
                 read instead",
            )),
        }
    }

    /// The next finished read: its slot, and the bytes or the negative errno.
    pub(super) fn pop(&mut self) -> Option<(u32, i32)> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() == WAKE {
                self.wake_armed = false;
                continue;
            }
            self.reads -= 1;
            return Some((
                u32::try_from(entry.user_data()).expect("slots are 32 bits"),
                entry.result(),
            ));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.wake_armed {
            // The kernel holds the address of the count: have the read complete first.
            self.waker.wake_always();
            while self.wake_armed {
                let entered = self.enter(Wait::AtMost(std::time::Duration::from_millis(100)));
                while self.pop().is_some() {}
                if entered.is_err() {
                    // It may still be written: leave it allocated.
                    let _leaked = Box::leak(std::mem::take(&mut self.wake_count));
                    break;
                }
            }
        }
    }
}
