//! Files as a source: direct reads into windows through io_uring (or, where that is missing
//! or forbidden, a pool of pread threads), page-cache copies through the workers. Knows
//! descriptors and alignments, no formats and no plans.
//!
//! unsafe: hands memory addresses to the kernel and to worker jobs.
#![expect(
    unsafe_code,
    reason = "submits raw addresses whose exclusivity the caller promised"
)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ubio_core::{FillError, FillErrorKind, ObjectId, Route, Token};

use self::ring::{Place, Ring, RingRead};
use super::{
    Completion, FillCommand, MemoryId, Object, Reader, Source, SourceLimits, Target, Wait, Waker,
};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DIRECT_DEPTH, MAX_COMMAND_BYTES, READ_THREADS};
use crate::stats::Reason;
use crate::sys::memory::{MemoryKind, Region};
use crate::window::WindowMemory;
use crate::workers::{DoneQueue, Job, Work, Workers};

pub mod probe;
pub mod residency;
mod ring;

/// No file has bytes from here on (`loff_t`).
const MAX_OFFSET: u64 = i64::MAX.cast_unsigned();

/// An open file, as the source takes it.
#[derive(Clone, Debug)]
pub struct FileObject {
    /// Opened with `O_DIRECT`, where the file takes it.
    pub direct: Option<Arc<OwnedFd>>,
    /// Opened without.
    pub buffered: Arc<OwnedFd>,
    /// It lives in memory: reading it waits for no storage.
    pub in_memory: bool,
}

enum Backend {
    Ring(Box<Ring>),
    Threads(Arc<Workers>),
}

struct Memory {
    region: Arc<Region>,
    window_bytes: u64,
    /// The registered buffer of each window; empty if none was asked for. Windows are
    /// registered when they are first filled: registering faults them in, and the first
    /// reads need not wait for the last window's pages.
    buffers: Vec<Registration>,
}

#[derive(Clone, Copy)]
enum Registration {
    NotYet,
    As(u16),
    Refused,
}

impl Memory {
    /// The window that holds all of a range.
    fn window(&self, offset: u64, len: u32) -> Option<usize> {
        let window = offset / self.window_bytes;
        let last = (offset + u64::from(len).saturating_sub(1)) / self.window_bytes;
        (window == last).then(|| usize::try_from(window).expect("64-bit"))
    }
}

/// One direct read the ring has, kept until its completion so that nothing it uses goes.
struct Operation {
    token: Token,
    region: Arc<Region>,
    _file: Arc<OwnedFd>,
}

/// The file source.
pub struct FileSource {
    backend: Backend,
    reader: Reader,
    limits: SourceLimits,
    objects: Vec<Option<FileObject>>,
    memories: Vec<Option<Memory>>,
    operations: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Jobs with the copy workers and the read threads, not yet polled.
    jobs: usize,
    done: Arc<DoneQueue>,
    workers: Arc<Workers>,
    waker: Waker,
    unregistered: Option<String>,
    fallbacks: Vec<Reason>,
}

impl std::fmt::Debug for FileSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSource")
            .field("reader", &self.reader)
            .field("limits", &self.limits)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl FileSource {
    /// Opens the source on the calling thread, which must stay the one that uses it.
    /// `tickets` bounds the page-cache copies under way; `uring` false asks for the thread
    /// pool (to compare, or to test it).
    ///
    /// # Errors
    /// No thread or descriptor can be had. A missing io_uring is no error: see [`Reader`].
    pub fn open(workers: Arc<Workers>, tickets: usize, uring: bool) -> Result<Self> {
        let waker = Waker::new()?;
        let depth = usize::from(DIRECT_DEPTH);
        let ring = if uring {
            Ring::open(u32::from(DIRECT_DEPTH), &waker).map_err(|cause| cause.to_string())
        } else {
            Err("not asked for".to_owned())
        };
        let (backend, reader) = match ring {
            Ok(ring) => {
                let reader = Reader::Uring {
                    deferred: ring.is_deferred(),
                    files: ring.has_files(),
                };
                (Backend::Ring(Box::new(ring)), reader)
            }
            Err(reason) => {
                let threads = Workers::start("ubio-read", READ_THREADS, depth + tickets)?;
                (Backend::Threads(threads), Reader::Threads { reason })
            }
        };
        Ok(Self {
            backend,
            reader,
            limits: SourceLimits {
                alignment: 4096,
                command_bytes: MAX_COMMAND_BYTES,
                depth: DIRECT_DEPTH,
            },
            objects: Vec::new(),
            memories: Vec::new(),
            operations: (0..depth).map(|_| None).collect(),
            free: (0..u32::from(DIRECT_DEPTH)).rev().collect(),
            jobs: 0,
            done: DoneQueue::new(depth + tickets, waker.clone()),
            workers,
            waker,
            unregistered: None,
            fallbacks: Vec::new(),
        })
    }

    /// How it reads.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Why window memory could not be registered, if it could not.
    pub fn unregistered(&self) -> Option<&str> {
        self.unregistered.as_deref()
    }

    fn memory(&self, id: MemoryId) -> &Memory {
        self.memories[id.0 as usize]
            .as_ref()
            .expect("attached memory")
    }

    fn take_operation(&mut self, slot: u32) -> Option<Operation> {
        let operation = self.operations.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(operation)
    }

    /// The registered buffer for a range, registering its window if that is still to be done.
    fn buffer(&mut self, memory: MemoryId, offset: u64, len: u32) -> Option<u16> {
        let Backend::Ring(ring) = &mut self.backend else {
            return None;
        };
        let memory = self.memories[memory.0 as usize]
            .as_mut()
            .expect("attached memory");
        let window = memory.window(offset, len)?;
        let registration = memory.buffers.get_mut(window)?;
        if let Registration::NotYet = *registration {
            let start = window as u64 * memory.window_bytes;
            let bytes = memory.window_bytes.min(memory.region.len_bytes() - start);
            // SAFETY: the region lives until `detach`, which unregisters first.
            let registered =
                unsafe { ring.register_buffer(memory.region.address(start, bytes), bytes) };
            *registration = match registered {
                Ok(index) => Registration::As(index),
                Err(cause) => {
                    self.fallbacks.push(Reason::WindowsNotRegistered);
                    self.unregistered = Some(cause.to_string());
                    Registration::Refused
                }
            };
        }
        match *registration {
            Registration::As(index) => Some(index),
            Registration::NotYet | Registration::Refused => None,
        }
    }

    fn submit_job(&mut self, workers: &Arc<Workers>, work: Work, token: Token) {
        // SAFETY: the submitter of the command promised that nobody touches its target
        // until the completion, which is polled only after the job's report.
        let job = unsafe { Job::new(work, token.0, &self.done) };
        self.jobs += 1;
        workers.submit(job);
    }

    fn submit_direct(
        &mut self,
        command: FillCommand,
        file: &Arc<OwnedFd>,
        asynchronous: bool,
    ) -> Result<(), FillCommand> {
        let Target::Memory { memory, offset } = command.target else {
            unreachable!("a scatter is a job of the workers");
        };
        let region = Arc::clone(&self.memory(memory).region);
        let buffer = self.buffer(memory, offset, command.len);
        let object = command.object.0;
        // Before a slot is taken: this panics on an address that is not the memory's.
        let address = region.address(offset, command.len.into());
        match &mut self.backend {
            Backend::Ring(ring) => {
                let Some(slot) = self.free.pop() else {
                    return Err(command);
                };
                let read = RingRead {
                    slot,
                    file,
                    registered: (!asynchronous).then_some(object),
                    file_offset: command.offset,
                    address,
                    len: command.len,
                    buffer,
                    place: if asynchronous {
                        Place::KernelThread
                    } else {
                        Place::Inline
                    },
                };
                // SAFETY: the operation keeps region and file until its completion.
                if unsafe { ring.push(&read) }.is_err() {
                    self.free.push(slot);
                    return Err(command);
                }
                self.operations[slot as usize] = Some(Operation {
                    token: command.token,
                    region,
                    _file: Arc::clone(file),
                });
            }
            Backend::Threads(threads) => {
                let threads = Arc::clone(threads);
                let work = Work::ReadRun {
                    file: Arc::clone(file),
                    resident_only: false,
                    file_offset: command.offset,
                    to: region,
                    offset,
                    len: command.len,
                };
                self.submit_job(&threads, work, command.token);
            }
        }
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        while let Some(done) = self.done.pop() {
            self.jobs -= 1;
            completions.push(Completion {
                token: Token(done.id),
                result: done.result,
            });
        }
        loop {
            let Backend::Ring(ring) = &mut self.backend else {
                return;
            };
            let Some((slot, result)) = ring.pop() else {
                return;
            };
            let Some(operation) = self.take_operation(slot) else {
                continue;
            };
            let result = match u32::try_from(result) {
                Ok(bytes) => Ok(bytes),
                Err(_negative) => Err(crate::workers::read_error(
                    &std::io::Error::from_raw_os_error(-result),
                    false,
                )),
            };
            completions.push(Completion {
                token: operation.token,
                result,
            });
        }
    }
}

impl Source for FileSource {
    fn limits(&self) -> SourceLimits {
        self.limits
    }

    fn add_object(&mut self, object: Object) -> Result<ObjectId> {
        let Object::File(file) = object else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this engine reads files, and no namespace",
            )
            .remedy("open another engine for the namespace"));
        };
        let index = match self.objects.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.objects.push(None);
                self.objects.len() - 1
            }
        };
        let id = u32::try_from(index).map_err(|_too_many| {
            Error::new(ErrorKind::NoSpace, "too many open files in one engine")
        })?;
        if let (Backend::Ring(ring), Some(direct)) = (&mut self.backend, &file.direct) {
            ring.register_file(id, direct.as_fd());
        }
        self.objects[index] = Some(file);
        Ok(ObjectId(id))
    }

    fn drive(&self, object: ObjectId) -> u64 {
        let file = self.objects.get(object.0 as usize).and_then(Option::as_ref);
        let file = file.expect("an object of this source");
        // What cannot be asked is a drive of its own.
        rustix::fs::fstat(&file.buffered).map_or(u64::MAX, |found| found.st_dev)
    }

    fn remove_object(&mut self, object: ObjectId) {
        if let Backend::Ring(ring) = &mut self.backend {
            ring.unregister_file(object.0);
        }
        if let Some(slot) = self.objects.get_mut(object.0 as usize) {
            *slot = None;
        }
    }

    fn attach(&mut self, memory: &WindowMemory, register: bool) -> Result<MemoryId> {
        let register = match memory.kind() {
            MemoryKind::Host => register,
            // Its pages cannot be pinned for longer than a command: EFAULT.
            MemoryKind::P2p => false,
            MemoryKind::Bar => {
                let what = "the kernel cannot read a file into a BAR, which has no pages";
                return Err(Error::new(ErrorKind::Unsupported, what).remedy(
                    "use host windows, p2pmem where the kernel has it, or a drive of our own \
                     through VFIO",
                ));
            }
        };
        let region = Arc::clone(memory.region());
        let windows = region.len_bytes().div_ceil(memory.window_bytes());
        let windows = if register {
            usize::try_from(windows).expect("64-bit")
        } else {
            0
        };
        let memory = Memory {
            region,
            window_bytes: memory.window_bytes(),
            buffers: vec![Registration::NotYet; windows],
        };
        let index = match self.memories.iter().position(Option::is_none) {
            Some(index) => {
                self.memories[index] = Some(memory);
                index
            }
            None => {
                self.memories.push(Some(memory));
                self.memories.len() - 1
            }
        };
        let id = MemoryId(u32::try_from(index).expect("few memories"));
        if register {
            // The first one now: whether it is to be had is part of what open explains.
            self.buffer(id, 0, 1);
        }
        Ok(id)
    }

    fn detach(&mut self, memory: MemoryId) {
        let Some(gone) = self
            .memories
            .get_mut(memory.0 as usize)
            .and_then(Option::take)
        else {
            return;
        };
        let Backend::Ring(ring) = &mut self.backend else {
            return;
        };
        for registration in gone.buffers {
            if let Registration::As(buffer) = registration {
                ring.unregister_buffer(buffer);
            }
        }
    }

    unsafe fn submit(&mut self, command: FillCommand) -> Result<(), FillCommand> {
        // Whatever becomes of it, its report has to find room.
        if self.jobs >= self.done.capacity() {
            return Err(command);
        }
        // The kernel takes offset −1 for "where the descriptor stands".
        let end = command.offset.checked_add(command.len.into());
        if end.is_none_or(|end| end > MAX_OFFSET) {
            return self.refuse(&command, libc::EOVERFLOW);
        }
        let Some(Some(file)) = self.objects.get(command.object.0 as usize) else {
            return self.refuse(&command, libc::EBADF);
        };
        let (Target::Memory { memory, .. } | Target::Scatter { memory, .. }) = command.target;
        let kind = self.memory(memory).region.kind();
        if kind.is_device() && command.route != Route::Direct {
            // It would be a copy by the processor, which such memory is not for.
            return self.refuse(&command, libc::EOPNOTSUPP);
        }
        let buffered = Arc::clone(&file.buffered);
        let in_memory = file.in_memory;
        let resident_only = command.route == Route::Cached;
        match (&command.target, command.route) {
            (Target::Scatter { memory, plan, fill }, Route::Cached | Route::Buffered) => {
                let work = Work::ReadScatter {
                    file: buffered,
                    resident_only,
                    in_memory,
                    to: Arc::clone(&self.memory(*memory).region),
                    plan: Arc::clone(plan),
                    fill: *fill,
                };
                let workers = Arc::clone(&self.workers);
                self.submit_job(&workers, work, command.token);
                Ok(())
            }
            (Target::Memory { memory, offset }, Route::Cached) => {
                let work = Work::ReadRun {
                    file: buffered,
                    resident_only,
                    file_offset: command.offset,
                    to: Arc::clone(&self.memory(*memory).region),
                    offset: *offset,
                    len: command.len,
                };
                let workers = Arc::clone(&self.workers);
                self.submit_job(&workers, work, command.token);
                Ok(())
            }
            (Target::Memory { .. }, Route::Buffered) => {
                self.submit_direct(command, &buffered, true)
            }
            (Target::Memory { .. }, Route::Direct) => match file.direct.clone() {
                Some(direct) => self.submit_direct(command, &direct, false),
                None => self.refuse(&command, libc::EINVAL),
            },
            (_, _) => self.refuse(&command, libc::EOPNOTSUPP),
        }
    }

    fn poll(&mut self, wait: Wait, completions: &mut Vec<Completion>) -> Result<()> {
        let before = completions.len();
        self.reap(completions);
        let wait = if completions.len() > before {
            Wait::No
        } else {
            wait
        };
        match &mut self.backend {
            Backend::Ring(ring) => ring.enter(wait)?,
            Backend::Threads(_) => self.waker.sleep(wait)?,
        }
        self.reap(completions);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.jobs + (self.operations.len() - self.free.len())
    }

    fn device_in_flight(&self) -> usize {
        match self.backend {
            Backend::Ring(_) => self.operations.len() - self.free.len(),
            Backend::Threads(_) => self.jobs,
        }
    }

    fn take_fallbacks(&mut self) -> Vec<Reason> {
        std::mem::take(&mut self.fallbacks)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl FileSource {
    /// Completes a command that cannot be started, through the ordinary way.
    fn refuse(&mut self, command: &FillCommand, code: i32) -> Result<(), FillCommand> {
        let error = FillError {
            kind: FillErrorKind::Fatal,
            code,
        };
        self.jobs += 1;
        self.done.push(command.token.0, Err(error));
        Ok(())
    }
}

impl Drop for FileSource {
    fn drop(&mut self) {
        // Memory goes only when no command can write it any more.
        let mut completions = Vec::new();
        while self.in_flight() > 0 {
            completions.clear();
            self.waker.about_to_sleep();
            if self
                .poll(
                    Wait::AtMost(std::time::Duration::from_millis(100)),
                    &mut completions,
                )
                .is_err()
            {
                // A ring that cannot be waited on any more may still be written to by the
                // kernel: give up its memory rather than hand it back.
                for operation in self.operations.drain(..).flatten() {
                    operation.region.claims().give_up();
                    let _leaked = Box::leak(Box::new(operation));
                }
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vram::bar::EmulatedBar;

    /// Emulated memory could be registered, real p2pmem cannot.
    #[test]
    fn p2pmem_is_never_registered() {
        let workers = Workers::start("test", 1, 8).expect("threads");
        let mut source = FileSource::open(workers, 8, true).expect("a source");
        let bar = EmulatedBar::p2pmem(64 << 10).expect("p2pmem");
        let windows = bar.memory().windows(2, 32 << 10).expect("room");
        let id = source.attach(&windows, true).expect("p2pmem");
        assert!(source.memory(id).buffers.is_empty());
    }
}
