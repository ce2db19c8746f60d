//! The source that reads an NVMe namespace by its blocks: over queues of our own or through the
//! kernel's passthrough, whichever transport it is given. Knows no queues and no files.
//!
//! unsafe: implements the unsafe method over transports that have one too.
#![expect(
    unsafe_code,
    reason = "hands on commands whose target the submitter keeps everyone away from"
)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvme::lba::{BlockCount, Lba};
use nvme::memory::TargetMemory;
use nvme::transport::withdrawn::Withdrawn;
use nvme::transport::{Direction, Done, Incidents, Io, IoError, Transport};
use ubio_core::{FillError, FillErrorKind, ObjectId, Route, Token};

use super::{Completion, FillCommand, MemoryId, Object, Source, SourceLimits, Target, Wait, Waker};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DIRECT_DEPTH, MAX_COMMAND_BYTES};
use crate::plan::ALIGNMENT;
use crate::stats::Reason;
use crate::sys::memory::MemoryKind;
use crate::window::WindowMemory;

pub use address::{NvmeAddress, NvmeOptions};

mod address;
pub(crate) mod failure;
mod opening;

/// Between two tries to hand commands to a transport that takes none.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// What is to be known of a namespace that an engine reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its address, as it was given.
    pub name: String,
    /// The controller's model and serial number.
    pub model: String,
    /// Bytes.
    pub len_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The way its bytes take.
    pub route: Route,
    /// How completions are noticed, and how data is named: words for people.
    pub how: String,
}

/// A command with the transport.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    token: Token,
    /// Bytes that it brings.
    len: u32,
}

/// What a command reads.
#[derive(Clone, Copy, Debug)]
struct Part {
    lba: Lba,
    blocks: BlockCount,
    /// Bytes of the object: fewer than the blocks have at its end.
    len: u32,
}

/// The source.
#[derive(Debug)]
pub struct NvmeSource {
    transport: Box<dyn Transport>,
    info: NamespaceInfo,
    limits: SourceLimits,
    /// By the token that the transport knows.
    submitted: Vec<Option<Submitted>>,
    free: Vec<u32>,
    /// Taken, and not with the transport yet: it takes nothing while its controller is reset.
    waiting: VecDeque<Io>,
    /// Ended without the transport.
    ended: Vec<Completion>,
    done: Vec<Done>,
    /// First byte and bytes of each.
    objects: Vec<Option<(u64, u64)>>,
    waker: Waker,
    unregistered: bool,
}

impl NvmeSource {
    /// Over an open transport.
    ///
    /// # Errors
    /// Unsupported: its largest command is smaller than a page, or its blocks are larger. Io: no
    /// descriptor.
    pub fn new(transport: Box<dyn Transport>, info: NamespaceInfo) -> Result<Self> {
        let limits = transport.limits();
        let page = u32::try_from(ALIGNMENT).expect("small");
        let command_bytes = limits.transfer_bytes.min(MAX_COMMAND_BYTES) / page * page;
        if command_bytes == 0 {
            let what = format!("{} moves less than {page} bytes at once", info.name);
            return Err(
                Error::new(ErrorKind::Unsupported, what).remedy("read it through its block device")
            );
        }
        if info.block_bytes > page {
            let what = format!("{} has blocks of {} bytes", info.name, info.block_bytes);
            return Err(Error::new(ErrorKind::Unsupported, what)
                .remedy("read it through its block device, or format it with blocks of 4096"));
        }
        let depth = limits.depth.min(DIRECT_DEPTH);
        Ok(Self {
            limits: SourceLimits {
                alignment: info.block_bytes.max(limits.alignment),
                command_bytes,
                depth,
            },
            submitted: vec![None; depth.into()],
            free: (0..depth.into()).rev().collect(),
            waiting: VecDeque::with_capacity(depth.into()),
            ended: Vec::new(),
            done: Vec::with_capacity(depth.into()),
            objects: Vec::new(),
            waker: Waker::new()?,
            unregistered: false,
            transport,
            info,
        })
    }

    /// What it reads.
    pub fn info(&self) -> &NamespaceInfo {
        &self.info
    }

    fn refuse(&mut self, token: Token, code: i32) {
        self.ended.push(Completion {
            token,
            result: Err(FillError {
                kind: FillErrorKind::Fatal,
                code,
            }),
        });
    }

    fn add_range(&mut self, offset: u64, len_bytes: u64) -> Result<ObjectId> {
        let has = self.transport.namespace().len_bytes();
        let end = offset.checked_add(len_bytes);
        if end.is_none_or(|end| end > has) || !offset.is_multiple_of(self.info.block_bytes.into()) {
            let what = format!("{len_bytes} bytes from byte {offset} of {has} are no blocks of it");
            return Err(Error::new(ErrorKind::InvalidInput, what).at(&self.info.name));
        }
        let free = self.objects.iter().position(Option::is_none);
        let index = free.unwrap_or(self.objects.len());
        let id = u32::try_from(index)
            .map_err(|_many| Error::new(ErrorKind::NoSpace, "too many objects in one engine"))?;
        if free.is_none() {
            self.objects.push(None);
        }
        self.objects[index] = Some((offset, len_bytes));
        Ok(ObjectId(id))
    }

    /// What of a command there is to read, or an errno.
    fn part(&self, command: &FillCommand) -> Result<Option<Part>, i32> {
        let object = self.objects.get(command.object.0 as usize);
        let (start, len_bytes) = object.copied().flatten().ok_or(libc::EBADF)?;
        let end = command.offset.checked_add(command.len.into());
        // As for files, so that no caller depends on what only blocks have.
        let end = end.filter(|&end| i64::try_from(end).is_ok());
        let end = end.ok_or(libc::EOVERFLOW)?;
        let Some(there) = end.min(len_bytes).checked_sub(command.offset) else {
            return Ok(None);
        };
        if there == 0 {
            return Ok(None);
        }
        let block = self.transport.namespace().block;
        let whole = there.next_multiple_of(block.bytes().into());
        // A range may end inside of a block; a command may not.
        if whole > command.len.into() {
            return Err(libc::EINVAL);
        }
        let (lba, blocks) = (block.lba(start + command.offset), block.blocks(whole));
        match (lba, blocks) {
            (Ok(lba), Ok(blocks)) if self.limits.command_bytes >= command.len => Ok(Some(Part {
                lba,
                blocks,
                len: u32::try_from(there).expect("no more than was asked for"),
            })),
            _ => Err(libc::EINVAL),
        }
    }

    /// Gives the transport what it did not take before, in order.
    fn submit_waiting(&mut self) {
        while let Some(io) = self.waiting.pop_front() {
            // SAFETY: promised when the command was taken, until its end is told.
            if let Err(io) = unsafe { self.transport.submit(io) } {
                self.waiting.push_front(io);
                return;
            }
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        completions.append(&mut self.ended);
        self.submit_waiting();
        self.transport
            .poll(&mut self.done)
            .map_err(|error| failure::of_transport(&error))?;
        for done in self.done.drain(..) {
            let slot = u32::try_from(done.token).expect("a slot");
            let Some(submitted) = self.submitted[slot as usize].take() else {
                unreachable!("a transport ends what was submitted, once");
            };
            self.free.push(slot);
            let result = match done.result {
                Ok(()) => Ok(submitted.len),
                Err(error) => {
                    let delay = match error {
                        IoError::Status(status) => self.transport.retry_delay(status),
                        _ => Duration::ZERO,
                    };
                    Err(failure::of_command(error, delay))
                }
            };
            completions.push(Completion {
                token: submitted.token,
                result,
            });
        }
        if self.transport.is_wanted_back() && self.device_in_flight() == 0 {
            // Whoever waits for the device waits for the last descriptor of it.
            self.transport = Box::new(Withdrawn::of(&*self.transport));
        }
        Ok(())
    }
}

impl Source for NvmeSource {
    fn limits(&self) -> SourceLimits {
        self.limits
    }

    fn add_object(&mut self, object: Object) -> Result<ObjectId> {
        match object {
            Object::Namespace { offset, len_bytes } => self.add_range(offset, len_bytes),
            Object::File(_) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("this engine reads {}, and no files", self.info.name),
            )
            .remedy("open another engine for files")),
        }
    }

    fn drive(&self, _object: ObjectId) -> u64 {
        // There is one.
        0
    }

    fn remove_object(&mut self, object: ObjectId) {
        if let Some(slot) = self.objects.get_mut(object.0 as usize) {
            *slot = None;
        }
    }

    fn attach(&mut self, memory: &WindowMemory, register: bool) -> Result<MemoryId> {
        let kind = memory.kind();
        if kind == MemoryKind::Bar && self.info.route == Route::Passthrough {
            let what = "the kernel cannot read into a BAR, which has no pages";
            return Err(Error::new(ErrorKind::Unsupported, what).remedy(
                "use host windows, p2pmem where the kernel has it, or the drive through VFIO \
                 (vfio:)",
            ));
        }
        // The kernel pins p2pmem for no longer than a command.
        let register = register && kind == MemoryKind::Host;
        let region: Arc<dyn TargetMemory> = Arc::clone(memory.region()) as _;
        let id = self
            .transport
            .attach(region, register)
            .map_err(|error| failure::of_transport(&error))?;
        self.unregistered |= register && !self.transport.is_registered(id);
        Ok(MemoryId(id.0))
    }

    fn detach(&mut self, memory: MemoryId) {
        self.transport.detach(nvme::transport::MemoryId(memory.0));
    }

    unsafe fn submit(&mut self, command: FillCommand) -> Result<(), FillCommand> {
        let Target::Memory { memory, offset } = command.target else {
            self.refuse(command.token, libc::EOPNOTSUPP);
            return Ok(());
        };
        if command.route != self.info.route {
            self.refuse(command.token, libc::EOPNOTSUPP);
            return Ok(());
        }
        let part = match self.part(&command) {
            Ok(Some(part)) => part,
            Ok(None) => {
                self.ended.push(Completion {
                    token: command.token,
                    result: Ok(0),
                });
                return Ok(());
            }
            Err(errno) => {
                self.refuse(command.token, errno);
                return Ok(());
            }
        };
        let Some(slot) = self.free.pop() else {
            return Err(command);
        };
        let io = Io {
            token: slot.into(),
            direction: Direction::Read,
            lba: part.lba,
            blocks: part.blocks,
            memory: nvme::transport::MemoryId(memory.0),
            offset,
        };
        // One that has to wait is no failed try: whoever submits is not to count it as one.
        self.waiting.push_back(io);
        self.submit_waiting();
        self.submitted[slot as usize] = Some(Submitted {
            token: command.token,
            len: part.len,
        });
        Ok(())
    }

    fn poll(&mut self, wait: Wait, completions: &mut Vec<Completion>) -> Result<()> {
        let before = completions.len();
        self.reap(completions)?;
        let span = match wait {
            Wait::No => return Ok(()),
            _ if completions.len() > before => return Ok(()),
            // Nobody tells when the transport takes commands again.
            _ if !self.waiting.is_empty() => Some(ASK_AGAIN),
            Wait::AtMost(span) => Some(span),
            Wait::Forever => None,
        };
        self.transport
            .wait(self.waker.event(), span)
            .map_err(|error| failure::of_transport(&error))?;
        self.waker.clear();
        self.reap(completions)
    }

    fn in_flight(&self) -> usize {
        self.ended.len() + self.device_in_flight()
    }

    fn device_in_flight(&self) -> usize {
        self.submitted.len() - self.free.len()
    }

    fn take_fallbacks(&mut self) -> Vec<Reason> {
        let lost = std::mem::take(&mut self.unregistered);
        lost.then_some(Reason::WindowsNotRegistered)
            .into_iter()
            .collect()
    }

    fn incidents(&self) -> Incidents {
        self.transport.incidents()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
