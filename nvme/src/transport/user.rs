//! Queues of our own over a [`Device`]: commands carry PRP lists (or an SGL descriptor) that
//! were made when their memory was attached. Sees to what takes too long: an abort first, then
//! a reset of the controller; an operation ends with its completion, or with a reset that is
//! over, and never before. Knows no windows.
//!
//! unsafe: implements the unsafe method.
#![expect(unsafe_code, reason = "implements the unsafe method of the trait")]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::command::Command;
use crate::controller::{Controller, Identity, Settings};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::TargetMemory;
use crate::namespace::Namespace;
use crate::planted::{self, PlantedBug};
use crate::queue_pair::CommandId;
use crate::status::Status;
use crate::transport::{
    Direction, Done, Incidents, Io, IoError, MemoryId, Transport, TransportLimits, waiting,
};

use self::attachment::Attachment;

mod attachment;

/// How data is named to the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataNames {
    /// SGLs where the controller has them and a list would be needed, else PRPs.
    #[default]
    Auto,
    /// PRPs only.
    Prp,
}

/// How the transport is to behave.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The controller's setup.
    pub controller: Settings,
    /// How data is named.
    pub data: DataNames,
    /// When a command is overdue and its abort is asked for.
    pub abort_after: Duration,
    /// When, counted from then on, the controller is reset.
    pub reset_after: Duration,
}

impl Options {
    /// The kernel's own patience: 30 seconds, and five more.
    #[must_use]
    pub fn new(controller: Settings) -> Self {
        Self {
            controller,
            data: DataNames::default(),
            abort_after: Duration::from_secs(30),
            reset_after: Duration::from_secs(5),
        }
    }
}

/// Between two looks at the controller and at what is overdue.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A command in flight.
#[derive(Clone, Copy, Debug)]
struct Operation {
    token: u64,
    memory: MemoryId,
    /// When it was submitted, or when its abort was asked for.
    since: Duration,
    overdue: bool,
}

/// Memory under one of its identifiers; the same memory may have several.
#[derive(Debug)]
struct Memory {
    attachment: Arc<Attachment>,
    in_flight: usize,
}

/// The transport.
#[derive(Debug)]
pub struct UserTransport {
    controller: Controller<Operation>,
    options: Options,
    limits: TransportLimits,
    memories: Vec<Option<Memory>>,
    /// Where the next command goes, if there is room.
    next_queue: usize,
    in_flight: usize,
    /// Ended without the controller: it is dead.
    refused: Vec<u64>,
    now: Duration,
    next_look: Duration,
    overdue: u64,
    aborts: u64,
}

impl UserTransport {
    /// Brings the device up.
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let controller: Controller<Operation> = Controller::open(device, options.controller)?;
        let depth: usize = controller
            .queues_now()
            .iter()
            .map(crate::queue_pair::QueuePair::depth)
            .sum();
        let limits = TransportLimits {
            transfer_bytes: controller
                .namespace()
                .transfer_bytes(controller.identity().mdts_bytes),
            alignment: 4,
            depth: u16::try_from(depth).unwrap_or(u16::MAX),
        };
        let now = controller.device().now();
        Ok(Self {
            controller,
            options,
            limits,
            memories: Vec::new(),
            next_queue: 0,
            in_flight: 0,
            refused: Vec::new(),
            now,
            next_look: now + LOOK_EVERY,
            overdue: 0,
            aborts: 0,
        })
    }

    /// What the controller says of itself.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.controller.identity()
    }

    /// I/O queues that the controller granted.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.controller.queues_now().len()
    }

    /// Whether completions raise interrupts; else they are polled for.
    #[must_use]
    pub fn has_interrupts(&self) -> bool {
        !self.controller.vectors().is_empty()
    }

    /// Resets the controller under whatever is in flight, which ends as
    /// [`Aborted`](IoError::Aborted) when the controller has stopped. There is room for commands
    /// again when it is set up anew.
    pub fn reset(&mut self) {
        self.controller.reset();
    }

    /// The bus addresses that attached memory has for the device.
    ///
    /// # Panics
    /// If it is not attached.
    #[must_use]
    pub fn runs(&self, memory: MemoryId) -> &[crate::dma::DmaRun] {
        self.attachment(memory).runs()
    }

    #[inline]
    fn attachment(&self, memory: MemoryId) -> &Attachment {
        let memory = self.memories[memory.0 as usize].as_ref();
        &memory.expect("attached memory").attachment
    }

    #[inline]
    fn command(&self, io: &Io) -> Command {
        let namespace = self.controller.namespace();
        assert!(
            namespace.contains(io.lba, io.blocks),
            "{:?}+{:?} is outside of the namespace",
            io.lba,
            io.blocks
        );
        let len_bytes = namespace.block.len_bytes(io.blocks);
        assert!(
            len_bytes <= self.limits.transfer_bytes.into() && io.offset.is_multiple_of(4),
            "a command breaks the limits"
        );
        let command = match io.direction {
            Direction::Read => Command::read(namespace.id, io.lba, io.blocks),
            Direction::Write => Command::write(namespace.id, io.lba, io.blocks),
            Direction::Compare => Command::compare(namespace.id, io.lba, io.blocks),
        };
        let sgl = self.options.data == DataNames::Auto && self.controller.identity().sgl;
        self.attachment(io.memory)
            .with_data(command, io.offset, len_bytes, sgl)
    }

    fn end(&mut self, operation: Operation, result: Result<(), IoError>, done: &mut Vec<Done>) {
        self.in_flight -= 1;
        if let Some(Some(memory)) = self.memories.get_mut(operation.memory.0 as usize) {
            memory.in_flight -= 1;
        }
        done.push(Done {
            token: operation.token,
            result,
        });
    }

    fn collect(&mut self, done: &mut Vec<Done>) {
        for index in 0..self.controller.queues_now().len() {
            while let Some((operation, outcome)) = self.controller.queues()[index].pop() {
                self.end(operation, outcome.status.map_err(IoError::Status), done);
            }
            self.controller.queues()[index].acknowledge();
        }
    }

    /// What a reset or the controller's death has ended.
    fn collect_ended(&mut self, done: &mut Vec<Done>) {
        let error = match self.controller.dead() {
            Some(_) => IoError::Gone,
            None => IoError::Aborted,
        };
        let ended: Vec<Operation> = self.controller.take_ended().collect();
        for operation in ended {
            self.end(operation, Err(error), done);
        }
        for token in self.refused.drain(..) {
            self.in_flight -= 1;
            done.push(Done {
                token,
                result: Err(IoError::Gone),
            });
        }
    }

    /// Looks at the controller, and at what takes too long.
    fn look(&mut self) {
        self.next_look = self.now + LOOK_EVERY;
        self.controller.look();
        if !self.controller.is_ready() {
            return;
        }
        let mut to_abort = Vec::new();
        let mut reset = false;
        for queue in self.controller.queues() {
            let id = queue.id();
            for (command, operation) in queue.operations() {
                let waited = self.now.saturating_sub(operation.since);
                if !operation.overdue && waited >= self.options.abort_after {
                    operation.overdue = true;
                    operation.since = self.now;
                    self.overdue += 1;
                    to_abort.push((id, command));
                } else if operation.overdue && waited >= self.options.reset_after {
                    reset = true;
                }
            }
        }
        if reset {
            self.controller.reset();
            return;
        }
        for (queue, command) in to_abort {
            self.abort(queue, command);
            if planted::is(PlantedBug::EndWhenOverdue) {
                self.controller.end_early(queue, command);
            }
        }
    }

    fn abort(&mut self, queue: crate::command::QueueId, command: CommandId) {
        // Where no abort can be asked for, the reset follows in its time.
        self.aborts += u64::from(self.controller.abort(queue, command));
    }

    /// The controller was given up and may still write memory: all of that is kept for good.
    fn give_up(&mut self) -> Error {
        for memory in self.memories.drain(..).flatten() {
            // Of several identifiers the last one has it alone.
            if let Some(attachment) = Arc::into_inner(memory.attachment) {
                attachment.give_up();
            }
        }
        let cause = self.controller.dead().cloned();
        let what = "the controller can neither be reached nor kept from memory";
        let error = Error::new(ErrorKind::Gone, what)
            .remedy("end the process; its memory mapping ends with the device's descriptor");
        match cause {
            Some(cause) => error.because(cause),
            None => error,
        }
    }
}

impl Transport for UserTransport {
    fn namespace(&self) -> &Namespace {
        self.controller.namespace()
    }

    fn limits(&self) -> TransportLimits {
        self.limits
    }

    fn attach(&mut self, memory: Arc<dyn TargetMemory>, _register: bool) -> Result<MemoryId> {
        // Pinned once, however often it is attached.
        let known = self.memories.iter().flatten();
        let mut same = known.filter(|known| known.attachment.is_of(memory.raw()));
        let attachment = match same.next() {
            Some(known) => Arc::clone(&known.attachment),
            None => Arc::new(Attachment::new(self.controller.device(), memory)?),
        };
        let index = match self.memories.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.memories.push(None);
                self.memories.len() - 1
            }
        };
        self.memories[index] = Some(Memory {
            attachment,
            in_flight: 0,
        });
        Ok(MemoryId(u32::try_from(index).expect("few memories")))
    }

    fn is_registered(&self, _memory: MemoryId) -> bool {
        true
    }

    fn detach(&mut self, memory: MemoryId) {
        if let Some(slot) = self.memories.get_mut(memory.0 as usize) {
            if let Some(memory) = slot {
                assert_eq!(memory.in_flight, 0, "commands are in flight");
            }
            *slot = None;
        }
    }

    #[inline]
    unsafe fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.controller.dead().is_some() {
            // Its memory may have been given up with the controller.
            self.in_flight += 1;
            self.refused.push(io.token);
            return Ok(());
        }
        let command = self.command(&io);
        if !self.controller.is_ready() {
            return Err(io);
        }
        if self.in_flight == 0 {
            // Nobody has polled for as long as nothing was in flight.
            self.now = self.controller.device().now();
        }
        let operation = Operation {
            token: io.token,
            memory: io.memory,
            since: self.now,
            overdue: false,
        };
        let queues = self.controller.queues();
        let count = queues.len();
        for _ in 0..count {
            let queue = &mut queues[self.next_queue];
            self.next_queue = (self.next_queue + 1) % count;
            if queue.submit(command, operation).is_ok() {
                self.in_flight += 1;
                if let Some(Some(memory)) = self.memories.get_mut(io.memory.0 as usize) {
                    memory.in_flight += 1;
                }
                return Ok(());
            }
        }
        Err(io)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<()> {
        self.now = self.controller.device().now();
        if self.controller.is_ready() {
            for queue in self.controller.queues() {
                queue.send();
            }
        }
        self.controller.advance();
        self.collect(done);
        if self.now >= self.next_look {
            self.look();
        }
        self.collect_ended(done);
        if self.controller.is_stuck() {
            return Err(self.give_up());
        }
        Ok(())
    }

    fn wait(&mut self, other: BorrowedFd<'_>, span: Option<Duration>) -> Result<()> {
        // While a reset goes on, and for what may be overdue, it has to be looked now and then.
        let at_most = if self.controller.is_ready() {
            (self.in_flight > 0).then_some(LOOK_EVERY)
        } else {
            Some(Duration::from_millis(1))
        };
        let span = match (span, at_most) {
            (Some(span), Some(most)) => Some(span.min(most)),
            (span, most) => span.or(most),
        };
        let queues = self.controller.queues_now();
        let ready = || {
            queues.iter().any(|queue| queue.is_ready()) || self.controller.has_admin_completion()
        };
        let vectors = self.controller.vectors();
        if vectors.is_empty() && self.in_flight > 0 {
            return waiting::spin(ready, other, span);
        }
        let removal = self.controller.device().removal_event();
        let removal = removal.filter(|_| self.controller.is_ready());
        let interrupts = vectors.iter().map(|vector| vector.as_fd());
        let all: Vec<BorrowedFd<'_>> = interrupts.chain([other]).chain(removal).collect();
        waiting::sleep(ready, &all, vectors.len(), span)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn retry_delay(&self, status: Status) -> Duration {
        let delays = self.controller.identity().retry_delays_ms;
        let delay = status.retry_delay().map_or(0, |index| delays[index]);
        Duration::from_millis(delay.into())
    }

    fn is_wanted_back(&self) -> bool {
        self.controller.dead().is_some() && self.controller.device().is_wanted_back()
    }

    fn incidents(&self) -> Incidents {
        let queues = self.controller.queues_now();
        let strays: u64 = queues.iter().map(|queue| queue.strays()).sum();
        Incidents {
            strays: strays + self.controller.admin_strays(),
            overdue: self.overdue,
            aborts: self.aborts,
            resets: self.controller.resets(),
            events: self.controller.events(),
        }
    }
}

impl Drop for UserTransport {
    fn drop(&mut self) {
        // A controller that was stopped in order writes nothing any more; then the mappings go.
        if self.in_flight > 0 && self.controller.dead().is_none() {
            self.controller.stop();
        }
        if self.controller.is_stuck() {
            let _error = self.give_up();
        }
    }
}
