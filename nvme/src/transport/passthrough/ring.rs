//! A thin driver over one io_uring with big entries (`SQE128`, `CQE32`): passthrough commands
//! in, completions out, registered buffers, waiting on a second descriptor. Knows numbers and
//! addresses only.
//!
//! unsafe: pushes submission entries that carry raw addresses.
#![expect(
    unsafe_code,
    reason = "submission entries carry raw addresses and descriptors"
)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use nvme_sys::ioctl::{URING_CMD_IO, UringCmd};
use rustix::event::{PollFd, PollFlags};
use zerocopy::IntoBytes;

use super::pieces::PIECE_BYTES;
use crate::error::{Error, ErrorKind, Result};

/// Marks what the ring asks for itself; commands' numbers are below it.
const OWN: u64 = 1 << 63;
/// Marks the removal of a poll, among the ring's own.
const REMOVAL: u64 = 1 << 62;
/// Entries beyond those of commands: a poll and the removal of the one before.
const OWN_ENTRIES: u32 = 2;
/// Entries of the table of registered buffers.
const MAX_BUFFERS: u16 = 1024;

/// How completions are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// By interrupt.
    #[default]
    Interrupt,
    /// By looking at the device's queues (`IORING_SETUP_IOPOLL`); needs queues to poll.
    Poll,
}

/// One command to be pushed.
#[derive(Debug)]
pub(super) struct Push<'a> {
    pub(super) user_data: u64,
    pub(super) file: BorrowedFd<'a>,
    pub(super) cmd: UringCmd,
    /// The registered buffer that all of the data is in.
    pub(super) buffer: Option<u16>,
}

pub(super) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    polling: Polling,
    /// The kernel says when it has completions to post (`IORING_SETUP_TASKRUN_FLAG`).
    tells: bool,
    /// A ring belongs to the thread that enables it, which is the one that first uses it.
    enabled: bool,
    /// Which buffer indices are in use; empty when the kernel refused the table.
    buffers: Vec<bool>,
    /// Commands pushed and not popped.
    commands: usize,
    /// Completions taken from the ring, not popped.
    ended: VecDeque<(u64, i32)>,
    /// The number of the latest poll of a second descriptor.
    poll: u64,
    poll_ended: bool,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("polling", &self.polling)
            .field("tells", &self.tells)
            .field("commands", &self.commands)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring for `entries` commands at once, with the best flags this kernel has.
    ///
    /// # Errors
    /// Permission (forbidden here), NoSpace, Unsupported (no passthrough).
    pub(super) fn open(entries: u16, polling: Polling) -> Result<Self> {
        let builder = || {
            let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
            builder.setup_r_disabled().setup_submit_all();
            if polling == Polling::Poll {
                builder.setup_iopoll();
            }
            builder
        };
        let mut best = builder();
        best.setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
        let mut good = builder();
        good.setup_coop_taskrun().setup_taskrun_flag();
        let entries = (u32::from(entries) + OWN_ENTRIES).next_power_of_two();
        let (ring, tells) = match best.build(entries) {
            Ok(ring) => (ring, true),
            Err(first) if first.raw_os_error() == Some(libc::EINVAL) => match good.build(entries) {
                Ok(ring) => (ring, true),
                Err(_older) => (builder().build(entries).map_err(no_ring)?, false),
            },
            Err(refused) => return Err(no_ring(refused)),
        };
        let mut probe = Probe::new();
        let asked = ring.submitter().register_probe(&mut probe);
        if asked.is_err() || !probe.is_supported(opcode::UringCmd80::CODE) {
            return Err(no_passthrough(None));
        }
        Ok(Self {
            ring,
            polling,
            tells,
            enabled: false,
            buffers: Vec::new(),
            commands: 0,
            ended: VecDeque::with_capacity(entries as usize * 2),
            poll: 0,
            poll_ended: true,
        })
    }

    /// Binds the ring to this thread, at its first use.
    fn enable(&mut self) -> Result<()> {
        if self.enabled {
            return Ok(());
        }
        let enabled = self.ring.submitter().register_enable_rings();
        enabled.map_err(|cause| Error::os("the ring cannot be enabled", cause))?;
        self.enabled = true;
        let table = self
            .ring
            .submitter()
            .register_buffers_sparse(MAX_BUFFERS.into());
        if table.is_ok() {
            self.buffers = vec![false; MAX_BUFFERS.into()];
        }
        Ok(())
    }

    /// Registers a buffer and gives its index.
    ///
    /// # Safety
    /// The memory stays mapped until [`unregister`](Self::unregister).
    pub(super) unsafe fn register(&mut self, at: *mut u8, len_bytes: u64) -> io::Result<u16> {
        self.enable().map_err(io::Error::other)?;
        if len_bytes > PIECE_BYTES {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let free = self.buffers.iter().position(|used| !used);
        let index = free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))?;
        let buffer = libc::iovec {
            iov_base: at.cast(),
            iov_len: usize::try_from(len_bytes).expect("at most 1 GiB"),
        };
        let index = u16::try_from(index).expect("small table");
        // SAFETY: the memory stays until unregistered, by contract.
        unsafe {
            self.ring
                .submitter()
                .register_buffers_update(index.into(), &[buffer], None)
        }?;
        self.buffers[usize::from(index)] = true;
        Ok(index)
    }

    /// Forgets a buffer.
    pub(super) fn unregister(&mut self, index: u16) {
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
        // One that cannot be cleared keeps its pages pinned until the ring closes; its index
        // is not given out again.
        if cleared.is_ok() {
            self.buffers[usize::from(index)] = false;
        }
    }

    /// Queues a command.
    ///
    /// # Errors
    /// The submission queue is full.
    ///
    /// # Safety
    /// The file stays open and the memory valid, and nobody else touches it, until the
    /// completion of `user_data` was popped.
    pub(super) unsafe fn push(&mut self, push: &Push<'_>) -> Result<(), squeue::PushError> {
        debug_assert!(push.user_data & OWN == 0);
        let mut area = [0; 80];
        area[..size_of::<UringCmd>()].copy_from_slice(push.cmd.as_bytes());
        let entry = opcode::UringCmd80::new(Fd(push.file.as_raw_fd()), URING_CMD_IO)
            .cmd(area)
            .buf_index(push.buffer)
            .build()
            .user_data(push.user_data);
        // SAFETY: by contract.
        unsafe { self.ring.submission().push(&entry) }?;
        self.commands += 1;
        Ok(())
    }

    /// Queues what the ring itself wants; says whether there was room.
    fn push_own(&mut self, entry: squeue::Entry, user_data: u64) -> bool {
        let entry = squeue::Entry128::from(entry).user_data(OWN | user_data);
        // SAFETY: polls and their removal use no memory; a poll keeps the file open itself.
        unsafe { self.ring.submission().push(&entry) }.is_ok()
    }

    /// Whether the kernel has been given everything, and has nothing that it would only give
    /// on a call.
    fn is_settled(&mut self) -> bool {
        let submission = self.ring.submission();
        let asks = submission.taskrun() || submission.cq_overflow();
        let silent = self.polling == Polling::Poll || !self.tells;
        submission.is_empty() && !asks && (self.commands == 0 || !silent)
    }

    /// Submits what was pushed and lets the kernel post completions.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        self.enable()?;
        entered(self.ring.submit())
    }

    /// Submits what was pushed and blocks until there is a completion, or `span` is over.
    fn enter(&mut self, span: Option<Duration>) -> Result<()> {
        self.enable()?;
        entered(match span {
            None => self.ring.submit_and_wait(1),
            Some(span) => {
                let span = Timespec::from(span);
                self.ring
                    .submitter()
                    .submit_with_args(1, &SubmitArgs::new().timespec(&span))
            }
        })
    }

    /// Takes completions out of the ring.
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            let number = entry.user_data();
            if number & OWN == 0 {
                self.ended.push_back((number, entry.result()));
            } else if number == OWN | self.poll {
                self.poll_ended = true;
            }
        }
    }

    /// The next finished command: its number, and its result.
    pub(super) fn pop(&mut self) -> Option<(u64, i32)> {
        if self.ended.is_empty() {
            self.reap();
        }
        let ended = self.ended.pop_front()?;
        self.commands = self.commands.saturating_sub(1);
        Some(ended)
    }

    /// Blocks until there is something to pop, `other` is readable, or `span` is over. May
    /// return early.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn wait(&mut self, other: BorrowedFd<'_>, span: Option<Duration>) -> Result<()> {
        let until = span.and_then(|span| Instant::now().checked_add(span));
        if self.polling == Polling::Poll {
            return self.look(other, until);
        }
        self.reap();
        if !self.ended.is_empty() {
            return Ok(());
        }
        let readable = u32::from(PollFlags::IN.bits());
        self.poll = self.poll.wrapping_add(1) & (REMOVAL - 1);
        self.poll_ended = false;
        let poll = opcode::PollAdd::new(Fd(other.as_raw_fd()), readable).build();
        if !self.push_own(poll, self.poll) {
            self.poll_ended = true;
            return self.flush();
        }
        let waited = loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if let Err(broken) = self.enter(left) {
                break Err(broken);
            }
            self.reap();
            if !self.ended.is_empty() || self.poll_ended || left == Some(Duration::ZERO) {
                break Ok(());
            }
        };
        if !self.poll_ended {
            // Sent with what comes next: the descriptor may be another one by then.
            let remove = opcode::PollRemove::new(OWN | self.poll).build();
            self.push_own(
                remove.flags(squeue::Flags::SKIP_SUCCESS),
                REMOVAL | self.poll,
            );
        }
        waited
    }

    /// As [`wait`](Self::wait), where no interrupt ends it.
    fn look(&mut self, other: BorrowedFd<'_>, until: Option<Instant>) -> Result<()> {
        loop {
            self.flush()?;
            self.reap();
            let idle = self.commands == 0;
            if !self.ended.is_empty() {
                return Ok(());
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // Nothing to look at: sleep. Else only ask.
            let sleep = if idle { left } else { Some(Duration::ZERO) };
            if is_readable(other, sleep)? || left == Some(Duration::ZERO) {
                return Ok(());
            }
        }
    }

    /// Blocks until there is something to pop, or `span` is over. May return early.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn wait_commands(&mut self, span: Duration) -> Result<()> {
        self.reap();
        if !self.ended.is_empty() {
            return Ok(());
        }
        if self.polling == Polling::Poll {
            return self.flush();
        }
        self.enter(Some(span))
    }

    /// Puts a completion of `user_data` into the ring, which nobody asked for.
    #[cfg(test)]
    pub(super) fn push_nop(&mut self, user_data: u64) {
        let entry = squeue::Entry128::from(opcode::Nop::new().build()).user_data(user_data);
        // SAFETY: it uses no memory.
        unsafe { self.ring.submission().push(&entry) }.expect("room");
    }
}

fn is_readable(file: BorrowedFd<'_>, span: Option<Duration>) -> Result<bool> {
    let span = span.and_then(|span| rustix::event::Timespec::try_from(span).ok());
    let mut files = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
    match rustix::event::poll(&mut files, span.as_ref()) {
        Ok(ready) => Ok(ready != 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(errno) => Err(Error::os("poll", errno)),
    }
}

/// What a call of the kernel means: interrupted, out of time and busy are no errors.
fn entered(entered: io::Result<usize>) -> Result<()> {
    let Err(cause) = entered else {
        return Ok(());
    };
    match cause.raw_os_error() {
        Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
        Some(libc::EEXIST) => Err(Error::os("the ring is another thread's", cause)
            .remedy("use a transport on one thread only, from its first command on")),
        _ => Err(Error::os("io_uring_enter failed", cause)),
    }
}

/// Why there is no ring.
fn no_ring(cause: io::Error) -> Error {
    let what = "io_uring is not to be had";
    match cause.raw_os_error() {
        Some(libc::ENOSYS) => Error::new(ErrorKind::Unsupported, what)
            .because(cause)
            .remedy("a sandbox (seccomp) or the kernel has it switched off: allow it"),
        Some(libc::EPERM | libc::EACCES) => Error::os(what, cause).remedy(
            "set the sysctl kernel.io_uring_disabled to 0; in a container, let its seccomp \
             profile allow io_uring_setup, io_uring_enter and io_uring_register",
        ),
        Some(libc::ENOMEM) => {
            Error::os(what, cause).remedy("raise the locked-memory limit (ulimit -l)")
        }
        Some(libc::EINVAL) => no_passthrough(Some(cause)),
        Some(libc::EMFILE | libc::ENFILE) => {
            Error::os(what, cause).remedy("raise the open-files limit (ulimit -n)")
        }
        _ => Error::os(what, cause),
    }
}

/// The kernel has no passthrough, or none for this file.
pub(super) fn no_passthrough(cause: Option<io::Error>) -> Error {
    let what = "this kernel has no NVMe passthrough through io_uring";
    let error = Error::new(ErrorKind::Unsupported, what)
        .remedy("boot 6.12 or newer, or read through the file system or block device");
    match cause {
        Some(cause) => error.because(cause),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn push(ring: &mut Ring, file: &File, user_data: u64) {
        let push = Push {
            user_data,
            file: file.as_fd(),
            cmd: UringCmd::default(),
            buffer: None,
        };
        // SAFETY: the command names no memory, and the file outlives the ring.
        unsafe { ring.push(&push) }.expect("room");
    }

    /// `/dev/null` ends every passthrough command with success, at once.
    #[test]
    fn commands_come_back_with_their_number() {
        let null = File::open("/dev/null").expect("there");
        let mut ring = Ring::open(4, Polling::Interrupt).expect("io_uring");
        assert_eq!(ring.pop(), None);
        push(&mut ring, &null, 5);
        push(&mut ring, &null, 6);
        ring.flush().expect("entered");
        assert_eq!((ring.pop(), ring.pop()), (Some((5, 0)), Some((6, 0))));
        assert_eq!((ring.pop(), ring.commands), (None, 0));
        assert!(ring.is_settled());
    }

    #[test]
    fn a_file_without_passthrough_says_so() {
        let zero = File::open("/dev/zero").expect("there");
        let mut ring = Ring::open(4, Polling::Interrupt).expect("io_uring");
        push(&mut ring, &zero, 1);
        ring.flush().expect("entered");
        assert_eq!(ring.pop(), Some((1, -libc::EOPNOTSUPP)));
    }

    #[test]
    fn a_wait_ends_by_time_by_the_other_descriptor_and_by_commands() {
        let null = File::open("/dev/null").expect("there");
        let mut ring = Ring::open(4, Polling::Interrupt).expect("io_uring");
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("made");
        let tick = Duration::from_millis(20);
        let busy = thread_time();
        // Many times over: what is left of one wait must not end the next, nor pile up.
        for round in 0..20 {
            let start = Instant::now();
            ring.wait(event.as_fd(), Some(tick)).expect("waited");
            assert!(start.elapsed() >= tick, "{:?}", start.elapsed());
            if round % 2 == 0 {
                ring.flush().expect("entered");
            }
        }
        ring.flush().expect("entered");
        assert_eq!(armed_polls(&ring), 0);
        let busy = thread_time().saturating_sub(busy);
        assert!(busy < tick * 2, "not asleep: {busy:?}");
        rustix::io::write(&event, &1_u64.to_ne_bytes()).expect("written");
        ring.wait(event.as_fd(), None).expect("readable");
        assert_eq!(ring.pop(), None);
        let silent = eventfd(0, EventfdFlags::CLOEXEC).expect("made");
        push(&mut ring, &null, 9);
        ring.wait(silent.as_fd(), None).expect("a command ends");
        assert_eq!(ring.pop(), Some((9, 0)));
        // Still there: nothing to wait for.
        push(&mut ring, &null, 10);
        ring.flush().expect("entered");
        ring.wait(silent.as_fd(), None).expect("a command ended");
        assert_eq!(ring.pop(), Some((10, 0)));
    }

    /// How long this thread has run on a processor.
    fn thread_time() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: it writes the structure only.
        let got = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(got, 0);
        let nanos = time.tv_sec * 1_000_000_000 + time.tv_nsec;
        Duration::from_nanos(nanos.try_into().expect("positive"))
    }

    /// Polls that the kernel has armed for the ring.
    fn armed_polls(ring: &Ring) -> usize {
        let info = format!("/proc/self/fdinfo/{}", ring.ring.as_raw_fd());
        let info = std::fs::read_to_string(info).expect("there");
        let polls = info.split("PollList:").nth(1).expect("polls");
        let polls = polls.lines().skip(1);
        polls.take_while(|line| line.starts_with(' ')).count()
    }

    /// A descriptor's number may name another file at the next wait.
    #[test]
    fn a_reused_descriptor_is_another_file() {
        let mut ring = Ring::open(4, Polling::Interrupt).expect("io_uring");
        let first = eventfd(0, EventfdFlags::CLOEXEC).expect("made");
        let span = Some(Duration::from_millis(1));
        ring.wait(first.as_fd(), span).expect("waited");
        let second = eventfd(1, EventfdFlags::CLOEXEC).expect("made");
        rustix::io::dup3(&second, &mut { first }, rustix::io::DupFlags::CLOEXEC).expect("same");
        ring.wait(second.as_fd(), None).expect("readable at once");
    }

    #[test]
    fn another_thread_is_refused() {
        let null = File::open("/dev/null").expect("there");
        let mut ring = Ring::open(4, Polling::Interrupt).expect("io_uring");
        push(&mut ring, &null, 1);
        ring.flush().expect("entered");
        let refused = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                push(&mut ring, &null, 2);
                ring.flush().map_err(|error| error.to_string())
            });
            other.join().expect("no panic")
        });
        let error = refused.expect_err("another thread's");
        assert!(error.contains("on one thread only"), "{error}");
    }

    #[test]
    fn buffers_come_and_go() {
        let mut ring = Ring::open(4, Polling::Interrupt).expect("io_uring");
        let memory = crate::memory::Pages::new(8192).expect("memory");
        let at = crate::memory::TargetMemory::raw(&memory).at(0, 8192);
        // SAFETY: the memory outlives the ring.
        let indices = [(); 3].map(|()| unsafe { ring.register(at, 8192) }.expect("registered"));
        assert_eq!(indices, [0, 1, 2]);
        ring.unregister(1);
        // SAFETY: as above.
        let again = unsafe { ring.register(at, 4096) }.expect("registered");
        assert_eq!(again, 1);
        // SAFETY: refused before the kernel sees it.
        let large = unsafe { ring.register(at, PIECE_BYTES + 1) };
        assert!(large.is_err());
    }

    #[test]
    fn refusals_have_remedies() {
        for (errno, kind, word) in [
            (libc::EPERM, ErrorKind::Permission, "io_uring_disabled"),
            (libc::ENOSYS, ErrorKind::Unsupported, "seccomp"),
            (libc::ENOMEM, ErrorKind::NoSpace, "ulimit -l"),
            (libc::EINVAL, ErrorKind::Unsupported, "boot 6.12"),
        ] {
            let error = no_ring(io::Error::from_raw_os_error(errno));
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
