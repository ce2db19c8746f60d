//! The transport through the kernel's own driver: `IORING_OP_URING_CMD` on `/dev/ngXnY`. The
//! kernel builds the PRP lists, from registered buffers or from addresses; it splits nothing,
//! retries nothing and cancels nothing. Refuses to know files and windows.
//!
//! A transport belongs to the thread that first uses it (attach, submit, poll, wait).
//!
//! unsafe: hands raw memory to the kernel.
#![expect(unsafe_code, reason = "commands carry raw addresses")]

mod encode;
mod kernel;
mod limits;
mod node;
mod pieces;
mod ring;
mod slots;
mod sysfs;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme_sys::status::sct;

pub use limits::MemoryShape;
pub use node::Access;
pub use ring::Polling;
pub use sysfs::Identity;

use self::node::Node;
use self::pieces::{OVERLAP_BYTES, piece_at, pieces};
use self::ring::{Push, Ring};
use self::slots::{Slots, Taken};
use self::sysfs::Sysfs;
use crate::command::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::lba::{BlockCount, Lba};
use crate::memory::{Pages, RawMemory, TargetMemory};
use crate::namespace::Namespace;
use crate::status::Status;
use crate::transport::{
    Direction, Done, Incidents, Io, IoError, MemoryId, Transport, TransportLimits,
};

/// The kernel's own limit where none is given (`nvme_core.io_timeout`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a drop waits for commands in flight before it gives their memory up.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);
/// Most commands in flight.
const MAX_DEPTH: u16 = 4096;

/// How to open a node.
#[derive(Clone, Debug)]
pub struct Options {
    /// What for.
    pub access: Access,
    /// Most commands in flight; the queue's own limit counts too.
    pub depth: u16,
    /// How completions are noticed.
    pub polling: Polling,
    /// What memory will be like.
    pub memory: MemoryShape,
    /// After this the kernel aborts a command, and then resets the controller; `None` for its
    /// default. A command that takes longer is counted as overdue, and still keeps its memory.
    pub timeout: Option<Duration>,
    /// Take a kernel whose version says that it reports success for commands that were never
    /// sent: its vendor has fixed it.
    pub trust_kernel: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Access::default(),
            depth: 64,
            polling: Polling::default(),
            memory: MemoryShape::default(),
            timeout: None,
            trust_kernel: false,
        }
    }
}

/// Whether memory's pages are pinned for good, or for each command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// For good.
    Registered,
    /// For each command: it was not asked for.
    NotAsked,
    /// For each command: the kernel refused with this errno. `EFAULT` is what peer-to-peer
    /// memory gets, `ENOMEM` what is beyond the locked-memory limit, `EINVAL` (found out by the
    /// first command) what is too large for this kernel.
    Refused(i32),
}

struct Attached {
    memory: Arc<dyn TargetMemory>,
    raw: RawMemory,
    /// Of its pieces in order; or none.
    buffers: Vec<u16>,
    registration: Registration,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached")
            .field("raw", &self.raw)
            .field("registration", &self.registration)
            .finish_non_exhaustive()
    }
}

/// A namespace by its generic device.
#[derive(Debug)]
pub struct Passthrough {
    // Dropped before the file and the memory.
    ring: Ring,
    node: Node,
    limits: TransportLimits,
    access: Access,
    timeout: Duration,
    /// For the kernel; 0 for its default.
    timeout_ms: u32,
    memory: Vec<Option<Attached>>,
    slots: Slots,
    incidents: Incidents,
    /// The ring failed: what is in flight stays there.
    broken: bool,
}

impl Passthrough {
    /// Opens `/dev/ngXnY` and proves that it takes commands: identifies the namespace and
    /// reads one block of it.
    ///
    /// # Errors
    /// NotFound, InvalidInput (no generic device), Permission, Unsupported (this kernel, its
    /// settings, metadata in blocks, no queues to poll), NoSpace, Gone, Device. Each with the
    /// remedy.
    ///
    /// # Panics
    /// If `options.memory` has sizes that are no powers of two.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        if !options.trust_kernel {
            kernel::check(Path::new("/proc"))?;
        }
        let sysfs = Sysfs::new("/sys");
        let node = Node::open(path.as_ref(), options.access, &sysfs)?;
        if options.polling == Polling::Poll && !node.queue.polls {
            let queues = sysfs.poll_queues();
            let what = format!(
                "{} has no queues to poll (nvme's poll_queues is {queues})",
                path.as_ref().display()
            );
            return Err(Error::new(ErrorKind::Unsupported, what)
                .remedy("load the nvme module with poll_queues=1 or more, or use interrupts"));
        }
        probe(&node, path.as_ref())?;
        Self::with_node(node, options)
    }

    fn with_node(node: Node, options: &Options) -> Result<Self> {
        let shape = options.memory;
        assert!(
            shape.alignment.is_power_of_two() && shape.contiguous_bytes.is_power_of_two(),
            "alignment and contiguous_bytes are powers of two"
        );
        let transfer = node
            .queue
            .command_bytes(&node.namespace, node.controller.mdts_bytes, shape);
        let requests = u16::try_from(node.queue.requests).unwrap_or(u16::MAX);
        let limits = TransportLimits {
            transfer_bytes: transfer.min(OVERLAP_BYTES),
            alignment: node.queue.alignment(shape),
            depth: options.depth.min(requests).clamp(1, MAX_DEPTH),
        };
        let timeout_ms = options.timeout.map_or(0, |timeout| {
            u32::try_from(timeout.as_millis().max(1)).unwrap_or(u32::MAX)
        });
        Ok(Self {
            ring: Ring::open(limits.depth, options.polling)?,
            node,
            limits,
            access: options.access,
            timeout: options.timeout.unwrap_or(DEFAULT_TIMEOUT),
            timeout_ms,
            memory: Vec::new(),
            slots: Slots::new(limits.depth),
            incidents: Incidents::default(),
            broken: false,
        })
    }

    /// Who the namespace was when it was opened.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.node.identity
    }

    /// Whether memory is registered, and if not, why.
    ///
    /// # Panics
    /// If it is not attached.
    #[must_use]
    pub fn registration(&self, memory: MemoryId) -> Registration {
        self.attached(memory).registration
    }

    /// Makes durable what was written before and has ended. Its end has the token.
    ///
    /// # Errors
    /// The token when there is no room now; it was not started.
    pub fn flush(&mut self, token: u64) -> Result<(), u64> {
        let cmd = encode::uring_cmd(
            Command::flush(self.node.namespace.id),
            None,
            self.timeout_ms,
        );
        let taken = Taken {
            token,
            memory: None,
            registered: None,
        };
        let Some(user_data) = self.slots.take(taken, Instant::now()) else {
            return Err(token);
        };
        let push = Push {
            user_data,
            file: self.node.file.as_fd(),
            cmd,
            buffer: None,
        };
        // SAFETY: it moves no data, and the file lives as long as the ring.
        if unsafe { self.ring.push(&push) }.is_err() {
            self.slots.put_back(user_data);
            return Err(token);
        }
        Ok(())
    }

    fn attached(&self, memory: MemoryId) -> &Attached {
        let attached = self.memory.get(memory.0 as usize).and_then(Option::as_ref);
        attached.expect("memory that is attached")
    }

    /// Registers memory in pieces; on failure none of them.
    fn register(&mut self, raw: RawMemory) -> io::Result<Vec<u16>> {
        let mut buffers = Vec::new();
        for (at, len_bytes) in pieces(raw.len_bytes()) {
            // SAFETY: it is mapped while it is attached, and unregistered when that ends.
            match unsafe { self.ring.register(raw.at(at, len_bytes), len_bytes) } {
                Ok(buffer) => buffers.push(buffer),
                Err(refused) => {
                    for buffer in buffers {
                        self.ring.unregister(buffer);
                    }
                    return Err(refused);
                }
            }
        }
        Ok(buffers)
    }

    /// Counts commands that take longer than they may, once each.
    fn count_overdue(&mut self) {
        if self.slots.in_flight() > 0 {
            self.incidents.overdue += self.slots.count_overdue(Instant::now(), self.timeout);
        }
    }

    /// Takes what has ended out of the ring.
    fn collect(&mut self, mut each: impl FnMut(Done)) {
        while let Some((user_data, result)) = self.ring.pop() {
            if let Some(done) = self.ended(user_data, result) {
                each(done);
            }
        }
    }

    /// What a completion ends, if anything.
    fn ended(&mut self, user_data: u64, result: i32) -> Option<Done> {
        let Some(taken) = self.slots.end(user_data) else {
            self.incidents.strays += 1;
            return None;
        };
        if result == -libc::EINVAL && taken.registered.is_some_and(|io| self.again(io)) {
            return None;
        }
        Some(Done {
            token: taken.token,
            result: outcome(result),
        })
    }

    /// Sends again, by address, what was refused in a registered buffer before any device saw
    /// it: some kernels (6.1) take such buffers up to the queue's segments only, whatever of
    /// them a command is in. From here on that memory is used by address.
    fn again(&mut self, io: Io) -> bool {
        let entry = self.memory.get_mut(io.memory.0 as usize);
        let Some(attached) = entry.and_then(Option::as_mut) else {
            return false;
        };
        attached.registration = Registration::Refused(libc::EINVAL);
        let len_bytes = self.node.namespace.block.len_bytes(io.blocks);
        // SAFETY: the caller has not been told of an end: its promise holds.
        unsafe { self.start(io, len_bytes) }.is_ok()
    }

    fn entered(&mut self, result: Result<()>) -> Result<()> {
        self.broken |= result.is_err();
        result
    }
}

impl Transport for Passthrough {
    fn namespace(&self) -> &Namespace {
        &self.node.namespace
    }

    fn is_registered(&self, memory: MemoryId) -> bool {
        self.registration(memory) == Registration::Registered
    }

    fn retry_delay(&self, status: Status) -> Duration {
        let delays = self.node.controller.retry_delays_ms;
        let delay = status.retry_delay().map_or(0, |index| delays[index]);
        Duration::from_millis(delay.into())
    }

    fn limits(&self) -> TransportLimits {
        self.limits
    }

    /// Registers as much as the kernel takes; where it refuses, commands carry addresses, and
    /// [`registration`](Self::registration) says why.
    fn attach(&mut self, memory: Arc<dyn TargetMemory>, register: bool) -> Result<MemoryId> {
        let raw = memory.raw();
        let start = raw.start().as_ptr() as u64;
        if !start.is_multiple_of(self.limits.alignment.into()) || raw.len_bytes() == 0 {
            let what = format!(
                "memory of {} bytes at {start:#x} is empty, or not aligned to {}",
                raw.len_bytes(),
                self.limits.alignment
            );
            return Err(Error::new(ErrorKind::InvalidInput, what).remedy("align it to pages"));
        }
        let (buffers, registration) = if register {
            match self.register(raw) {
                Ok(buffers) => (buffers, Registration::Registered),
                Err(refused) => {
                    let errno = refused.raw_os_error().unwrap_or(libc::EIO);
                    (Vec::new(), Registration::Refused(errno))
                }
            }
        } else {
            (Vec::new(), Registration::NotAsked)
        };
        let attached = Some(Attached {
            memory,
            raw,
            buffers,
            registration,
        });
        let free = self.memory.iter().position(Option::is_none);
        let index = free.unwrap_or(self.memory.len());
        match self.memory.get_mut(index) {
            Some(entry) => *entry = attached,
            None => self.memory.push(attached),
        }
        Ok(MemoryId(u32::try_from(index).expect("a small table")))
    }

    fn detach(&mut self, memory: MemoryId) {
        let entry = self.memory.get_mut(memory.0 as usize);
        let attached = entry
            .and_then(Option::take)
            .expect("memory that is attached");
        assert!(
            !self.slots.uses(&attached.memory),
            "a command is in flight on memory that is detached"
        );
        for buffer in attached.buffers {
            self.ring.unregister(buffer);
        }
    }

    unsafe fn submit(&mut self, io: Io) -> Result<(), Io> {
        let len_bytes = self.node.namespace.block.len_bytes(io.blocks);
        assert!(
            len_bytes <= self.limits.transfer_bytes.into()
                && io.offset.is_multiple_of(self.limits.alignment.into()),
            "{io:?} breaks the limits {:?}",
            self.limits
        );
        assert!(
            self.node.namespace.contains(io.lba, io.blocks),
            "{io:?} leaves the namespace"
        );
        assert!(
            io.direction == Direction::Read || self.access == Access::ReadWrite,
            "{io:?} on a node that was opened for reads"
        );
        // SAFETY: the caller's promise.
        unsafe { self.start(io, len_bytes) }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<()> {
        let flushed = self.ring.flush();
        self.entered(flushed)?;
        self.collect(|end| done.push(end));
        self.count_overdue();
        Ok(())
    }

    fn wait(&mut self, other: BorrowedFd<'_>, span: Option<Duration>) -> Result<()> {
        let waited = self.ring.wait(other, span);
        self.entered(waited)
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn incidents(&self) -> Incidents {
        self.incidents
    }
}

impl Passthrough {
    /// Queues a command that keeps the limits.
    ///
    /// # Safety
    /// As for [`submit`](Transport::submit).
    unsafe fn start(&mut self, io: Io, len_bytes: u64) -> Result<(), Io> {
        let attached = self.attached(io.memory);
        let address = attached.raw.at(io.offset, len_bytes);
        let memory = Arc::clone(&attached.memory);
        let piece = piece_at(io.offset, attached.buffers.len());
        let buffer = attached.buffers.get(piece).copied();
        let buffer = buffer.filter(|_| attached.registration == Registration::Registered);
        let cmd = encode::transfer(&self.node.namespace, &io, address as u64, self.timeout_ms);
        let taken = Taken {
            token: io.token,
            memory: Some(memory),
            registered: buffer.map(|_| io),
        };
        let Some(user_data) = self.slots.take(taken, Instant::now()) else {
            return Err(io);
        };
        let push = Push {
            user_data,
            file: self.node.file.as_fd(),
            cmd,
            buffer,
        };
        // SAFETY: the slot keeps the memory until the completion is popped (or for good), the
        // caller keeps others away from it, and the file lives as long as the ring.
        if unsafe { self.ring.push(&push) }.is_err() {
            self.slots.put_back(user_data);
            return Err(io);
        }
        Ok(())
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        let until = Instant::now() + DRAIN_LIMIT;
        while self.slots.in_flight() > 0 && !self.broken && Instant::now() < until {
            let waited = self.ring.wait_commands(Duration::from_millis(100));
            self.broken |= waited.is_err();
            self.collect(drop);
        }
        if self.slots.in_flight() == 0 {
            // Closing the ring unpins memory too, but some time later.
            for attached in self.memory.drain(..).flatten() {
                for buffer in attached.buffers {
                    self.ring.unregister(buffer);
                }
            }
        }
        // The kernel cannot be asked any more: devices may still write there.
        self.slots.give_up();
    }
}

/// How a command ended, by its completion's result.
fn outcome(result: i32) -> Result<(), IoError> {
    if result > 0 {
        // A status field of 15 bits; one without a code is no success that the kernel gives.
        let field = u16::try_from(result).ok();
        let status = field.and_then(|field| Status::check(field).err());
        return Err(status.map_or(IoError::Os(libc::EPROTO), IoError::Status));
    }
    match -result {
        0 => Ok(()),
        // The controller was reset, and has been disabled before this was said.
        libc::EINTR => Err(IoError::Aborted),
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => Err(IoError::Gone),
        errno => Err(IoError::Os(errno)),
    }
}

/// Reads one block through a ring of its own: whether the kernel lets this process, and the
/// device does what it is told.
fn probe(node: &Node, path: &Path) -> Result<()> {
    let block = node.namespace.block.bytes();
    let page = Arc::new(Pages::new(block.into())?);
    let mut ring = Ring::open(1, Polling::Interrupt)?;
    let mut slots = Slots::new(1);
    let io = Io {
        token: 0,
        direction: Direction::Read,
        lba: Lba(0),
        blocks: BlockCount::new(1).expect("one"),
        memory: MemoryId(0),
        offset: 0,
    };
    let address = page.raw().at(0, block.into()) as u64;
    let taken = Taken {
        token: 0,
        memory: Some(page),
        registered: None,
    };
    let user_data = slots.take(taken, Instant::now()).expect("empty");
    let push = Push {
        user_data,
        file: node.file.as_fd(),
        cmd: encode::transfer(&node.namespace, &io, address, 0),
        buffer: None,
    };
    // SAFETY: the slot keeps the page, nobody else knows of it, and the file outlives the ring.
    unsafe { ring.push(&push) }.expect("an empty ring");
    let until = Instant::now() + DRAIN_LIMIT;
    let result = loop {
        let waited = ring.wait_commands(Duration::from_millis(100));
        match ring.pop() {
            Some((ended, result)) if ended == user_data => break result,
            _ if waited.is_err() || Instant::now() >= until => {
                // Still in flight: the page stays.
                slots.give_up();
                waited?;
                let what = format!("{} does not answer a read", path.display());
                return Err(Error::new(ErrorKind::Timeout, what).remedy("see dmesg"));
            }
            _ => {}
        }
    };
    slots.end(user_data);
    match outcome(result) {
        // A block that cannot be read is the drive's matter: commands do reach it.
        Err(IoError::Status(status)) if status.code_type() == sct::MEDIA => Ok(()),
        result => result.map_err(|error| probe_error(path, error)),
    }
}

fn probe_error(path: &Path, error: IoError) -> Error {
    let what = format!("{} fails its first read", path.display());
    match error {
        IoError::Os(libc::EACCES | libc::EPERM) => {
            Error::os(what, io::Error::from_raw_os_error(libc::EACCES)).remedy(
                "the kernel lets this process open the device but not send commands: give it \
                 CAP_SYS_ADMIN (kernels before 6.2 ask for it, newer ones where the controller \
                 does not say what its commands do)",
            )
        }
        IoError::Os(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => {
            ring::no_passthrough(None).because(error)
        }
        IoError::Gone => Error::new(ErrorKind::Gone, what)
            .because(error)
            .remedy("the drive was removed or is failing: see dmesg"),
        _ => Error::new(ErrorKind::Device, what)
            .because(error)
            .remedy("see dmesg, and the drive's health (nvme smart-log)"),
    }
}
