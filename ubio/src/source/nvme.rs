//! The source that reads an NVMe namespace by its blocks: over queues of our own or through the
//! kernel's passthrough, whichever transport it is given. Knows no queues and no files.
//!
//! unsafe: implements the unsafe method over transports that have one too.
#![expect(
    unsafe_code,
    reason = "hands on commands whose target the submitter keeps everyone away from"
)]

use std::sync::Arc;

use nvme::lba::Lba;
use nvme::memory::TargetMemory;
use nvme::transport::{Direction, Done, Incidents, Io, IoError, Transport};
use ubio_core::{FillError, FillErrorKind, ObjectId, Route, Token};

use super::{Completion, FillCommand, MemoryId, Object, Source, SourceLimits, Target, Wait, Waker};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DIRECT_DEPTH, MAX_COMMAND_BYTES};
use crate::plan::ALIGNMENT;
use crate::stats::Reason;
use crate::window::WindowMemory;

pub use address::{NvmeAddress, NvmeOptions};

mod address;
pub(crate) mod failure;
mod opening;

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

/// The source.
#[derive(Debug)]
pub struct NvmeSource {
    transport: Box<dyn Transport>,
    info: NamespaceInfo,
    limits: SourceLimits,
    /// By the token that the transport knows.
    submitted: Vec<Option<Submitted>>,
    free: Vec<u32>,
    /// Ended without the transport.
    ended: Vec<Completion>,
    done: Vec<Done>,
    objects: usize,
    waker: Waker,
    unregistered: bool,
}

impl NvmeSource {
    /// Over an open transport.
    ///
    /// # Errors
    /// Unsupported: its largest command is smaller than a page. Io: no descriptor.
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
        let depth = limits.depth.min(DIRECT_DEPTH);
        Ok(Self {
            limits: SourceLimits {
                alignment: info.block_bytes,
                command_bytes,
                depth,
            },
            submitted: vec![None; depth.into()],
            free: (0..depth.into()).rev().collect(),
            ended: Vec::new(),
            done: Vec::with_capacity(depth.into()),
            objects: 0,
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

    /// What happened beside commands.
    pub fn incidents(&self) -> Incidents {
        self.transport.incidents()
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

    /// The bytes of a command that are there, or an errno.
    fn bytes(&self, command: &FillCommand) -> Result<u32, i32> {
        let end = command.offset.checked_add(command.len.into());
        let end = end.ok_or(libc::EOVERFLOW)?;
        if command.object.0 as usize >= self.objects {
            return Err(libc::EBADF);
        }
        let has = self.transport.namespace().len_bytes();
        let there = end.min(has).saturating_sub(command.offset);
        let there = u32::try_from(there).expect("no more than was asked for");
        let block = u64::from(self.info.block_bytes);
        if there == 0 {
            return Ok(0);
        }
        if !command.offset.is_multiple_of(block) || !u64::from(there).is_multiple_of(block) {
            return Err(libc::EINVAL);
        }
        Ok(there)
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        completions.append(&mut self.ended);
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
                        _ => std::time::Duration::ZERO,
                    };
                    Err(failure::of_command(error, delay))
                }
            };
            completions.push(Completion {
                token: submitted.token,
                result,
            });
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
            // All of them are the namespace.
            Object::Namespace => {
                self.objects = self.objects.max(1);
                Ok(ObjectId(0))
            }
            Object::File(_) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("this engine reads {}, and no files", self.info.name),
            )
            .remedy("open another engine for files")),
        }
    }

    fn remove_object(&mut self, _object: ObjectId) {}

    fn attach(&mut self, memory: &WindowMemory, register: bool) -> Result<MemoryId> {
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
        let len = match self.bytes(&command) {
            Ok(0) => {
                self.ended.push(Completion {
                    token: command.token,
                    result: Ok(0),
                });
                return Ok(());
            }
            Ok(len) => len,
            Err(errno) => {
                self.refuse(command.token, errno);
                return Ok(());
            }
        };
        let block = self.transport.namespace().block;
        let (Ok(Lba(lba)), Ok(blocks)) = (block.lba(command.offset), block.blocks(len.into()))
        else {
            self.refuse(command.token, libc::EINVAL);
            return Ok(());
        };
        let Some(slot) = self.free.pop() else {
            return Err(command);
        };
        let io = Io {
            token: slot.into(),
            direction: Direction::Read,
            lba: Lba(lba),
            blocks,
            memory: nvme::transport::MemoryId(memory.0),
            offset,
        };
        // SAFETY: promised by the caller.
        if unsafe { self.transport.submit(io) }.is_err() {
            self.free.push(slot);
            return Err(command);
        }
        self.submitted[slot as usize] = Some(Submitted {
            token: command.token,
            len,
        });
        Ok(())
    }

    fn poll(&mut self, wait: Wait, completions: &mut Vec<Completion>) -> Result<()> {
        let before = completions.len();
        self.reap(completions)?;
        let span = match wait {
            Wait::No => return Ok(()),
            _ if completions.len() > before => return Ok(()),
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

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
