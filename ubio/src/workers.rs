//! The copy workers: flush windows, fault destinations in, copy from the page cache, zero.
//! At most cores − 1 of them. The ring thread takes a copy itself when it has nothing else to
//! do, but none that may wait for storage: those have a queue of their own. They decide
//! nothing.
//!
//! unsafe: jobs touch window and destination memory through raw pointers.
#![expect(
    unsafe_code,
    reason = "jobs run raw copies whose exclusivity their maker promised"
)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use crossbeam_queue::ArrayQueue;
use ubio_core::{FillError, FillErrorKind, Nanos, Piece, StreamPlan};

use crate::error::{Error, Result};
use crate::limits::INLINE_COPY_BYTES;
use crate::source::Waker;
use crate::sys::memory::{Posted, Region};
use crate::sys::thread::{self, not_started};

/// What a job does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Copies the pieces of `plan.fills[fill]` from a window to their destinations.
    Flush {
        window: Arc<Region>,
        window_offset: u64,
        to: Arc<Region>,
        plan: Arc<StreamPlan>,
        fill: u32,
    },
    /// Copies the same pieces back from their destinations into a window.
    Gather {
        window: Arc<Region>,
        window_offset: u64,
        from: Arc<Region>,
        plan: Arc<StreamPlan>,
        fill: u32,
    },
    /// Reads the pieces of `plan.fills[fill]` from a file to their destinations, through
    /// the page cache; with `resident_only` nothing that is not in it.
    ReadScatter {
        file: Arc<OwnedFd>,
        resident_only: bool,
        /// The file lives in memory.
        in_memory: bool,
        to: Arc<Region>,
        plan: Arc<StreamPlan>,
        fill: u32,
    },
    /// Reads one run from a file, by one call: it may come back short.
    ReadRun {
        file: Arc<OwnedFd>,
        resident_only: bool,
        file_offset: u64,
        to: Arc<Region>,
        offset: u64,
        len: u32,
    },
    /// Faults a range in.
    Populate {
        region: Arc<Region>,
        offset: u64,
        len_bytes: u64,
    },
    /// Zeroes a range.
    Zero {
        region: Arc<Region>,
        offset: u64,
        len_bytes: u64,
    },
}

/// One unit of work, and where to say that it is done.
#[derive(Debug)]
pub(crate) struct Job {
    work: Work,
    id: u64,
    done: Arc<DoneQueue>,
}

impl Job {
    /// A job named `id`, reported to `done`.
    ///
    /// # Safety
    /// From submit until its report nobody else touches the memory the work writes, and
    /// nobody writes the memory it reads.
    pub(crate) unsafe fn new(work: Work, id: u64, done: &Arc<DoneQueue>) -> Self {
        Self {
            work,
            id,
            done: Arc::clone(done),
        }
    }

    fn run(self) {
        // A panic is our bug; lost it would be a hang too.
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work.run()));
        let broken = FillError {
            kind: FillErrorKind::Fatal,
            code: libc::EFAULT,
        };
        self.done.push(self.id, run.unwrap_or(Err(broken)));
    }
}

/// What came of a job: bytes moved, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) result: Result<u32, FillError>,
}

/// Reports of finished jobs, for one owner.
#[derive(Debug)]
pub(crate) struct DoneQueue {
    queue: ArrayQueue<Done>,
    waker: Waker,
}

impl DoneQueue {
    /// For at most `capacity` jobs under way.
    pub(crate) fn new(capacity: usize, waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            queue: ArrayQueue::new(capacity.max(1)),
            waker,
        })
    }

    /// Reports a job.
    pub(crate) fn push(&self, id: u64, result: Result<u32, FillError>) {
        let pushed = self.queue.push(Done { id, result });
        assert!(
            pushed.is_ok(),
            "a done queue holds every job that can be under way"
        );
        self.waker.wake();
    }

    /// Most jobs that may be under way.
    pub(crate) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    pub(crate) fn pop(&self) -> Option<Done> {
        self.queue.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

fn error(kind: FillErrorKind, cause: &std::io::Error) -> FillError {
    FillError {
        kind,
        code: cause.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Which retry rule an errno of a read falls under.
pub(crate) fn read_error(cause: &std::io::Error, resident_only: bool) -> FillError {
    let kind = match cause.raw_os_error() {
        Some(libc::EAGAIN | libc::EOPNOTSUPP) if resident_only => FillErrorKind::NotResident,
        Some(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::EBUSY) => FillErrorKind::Transient {
            delay: Nanos(1_000_000),
        },
        Some(libc::EIO | libc::EREMOTEIO | libc::ETIMEDOUT | libc::EILSEQ) => FillErrorKind::Device,
        _ => FillErrorKind::Fatal,
    };
    error(kind, cause)
}

impl Work {
    /// Whether it is over sooner than a worker would be awake: a small copy that waits for
    /// no device.
    fn is_brief(&self) -> bool {
        match self {
            Self::Flush { plan, fill, .. } | Self::Gather { plan, fill, .. } => {
                plan.fills[*fill as usize].expected <= INLINE_COPY_BYTES
            }
            Self::ReadScatter {
                resident_only,
                plan,
                fill,
                ..
            } => *resident_only && plan.fills[*fill as usize].expected <= INLINE_COPY_BYTES,
            Self::ReadRun {
                resident_only, len, ..
            } => *resident_only && *len <= INLINE_COPY_BYTES,
            Self::Populate {
                region, len_bytes, ..
            } => region.is_faulted_in() || *len_bytes <= INLINE_COPY_BYTES.into(),
            Self::Zero { len_bytes, .. } => *len_bytes <= INLINE_COPY_BYTES.into(),
        }
    }

    /// Whether it may wait for storage.
    fn may_wait(&self) -> bool {
        match self {
            Self::ReadScatter {
                resident_only,
                in_memory,
                ..
            } => !*resident_only && !*in_memory,
            Self::ReadRun { resident_only, .. } => !*resident_only,
            Self::Flush { .. }
            | Self::Gather { .. }
            | Self::Populate { .. }
            | Self::Zero { .. } => false,
        }
    }

    fn run(&self) -> Result<u32, FillError> {
        match self {
            Self::Flush {
                window,
                window_offset,
                to,
                plan,
                fill,
            } => {
                let mut posted = Posted::default();
                for piece in pieces(plan, *fill) {
                    let from = window_offset + u64::from(piece.fill_offset);
                    let len = piece.len.into();
                    // SAFETY: promised by the job's maker; a window is no destination.
                    let copied = unsafe { to.post(piece.destination, window, from, len) };
                    posted = posted.and(copied);
                }
                // Once for all pieces: it is a round trip to the device.
                to.settle(posted);
                Ok(plan.fills[*fill as usize].expected)
            }
            Self::Gather {
                window,
                window_offset,
                from,
                plan,
                fill,
            } => {
                let mut posted = Posted::default();
                for piece in pieces(plan, *fill) {
                    let to = window_offset + u64::from(piece.fill_offset);
                    let len = piece.len.into();
                    // SAFETY: promised by the job's maker; a window is no destination.
                    let copied = unsafe { window.post(to, from, piece.destination, len) };
                    posted = posted.and(copied);
                }
                window.settle(posted);
                Ok(plan.fills[*fill as usize].expected)
            }
            Self::ReadScatter {
                file,
                resident_only,
                to,
                plan,
                fill,
                ..
            } => read_scatter(file, *resident_only, to, plan, *fill),
            Self::ReadRun {
                file,
                resident_only,
                file_offset,
                to,
                offset,
                len,
            } => {
                let range = (*offset, u64::from(*len));
                // SAFETY: promised by the job's maker.
                let read = unsafe { to.read_file(&[range], file, *file_offset, *resident_only) };
                read.map(|bytes| u32::try_from(bytes).expect("at most what was asked"))
                    .map_err(|cause| read_error(&cause, *resident_only))
            }
            Self::Populate {
                region,
                offset,
                len_bytes,
            } => region
                .populate(*offset, *len_bytes)
                .map(|()| 0)
                .map_err(|cause| no_memory(&cause)),
            Self::Zero {
                region,
                offset,
                len_bytes,
            } => {
                // SAFETY: promised by the job's maker.
                unsafe { region.zero(*offset, *len_bytes) };
                Ok(0)
            }
        }
    }
}

fn pieces(plan: &StreamPlan, fill: u32) -> &[Piece] {
    let range = &plan.fills[fill as usize].pieces;
    &plan.pieces[range.start as usize..range.end as usize]
}

fn no_memory(cause: &Error) -> FillError {
    let code = std::error::Error::source(cause)
        .and_then(|cause| cause.downcast_ref::<std::io::Error>())
        .and_then(std::io::Error::raw_os_error);
    FillError {
        kind: FillErrorKind::Destination,
        code: code.unwrap_or(libc::ENOMEM),
    }
}

/// Reads a fill's pieces to their places: neighbours in the file as one call.
fn read_scatter(
    file: &Arc<OwnedFd>,
    resident_only: bool,
    to: &Region,
    plan: &StreamPlan,
    fill: u32,
) -> Result<u32, FillError> {
    const BATCH: usize = 64;
    let pieces = pieces(plan, fill);
    let fill = &plan.fills[fill as usize];
    let mut next = 0;
    while next < pieces.len() {
        let mut ranges = [(0u64, 0u64); BATCH];
        let mut count = 0;
        let start = u64::from(pieces[next].fill_offset);
        let mut end = start;
        while next < pieces.len() && count < BATCH && u64::from(pieces[next].fill_offset) == end {
            ranges[count] = (pieces[next].destination, pieces[next].len.into());
            end += u64::from(pieces[next].len);
            count += 1;
            next += 1;
        }
        let mut at = start;
        let mut first = 0;
        while first < count {
            // SAFETY: promised by the job's maker.
            let read = unsafe {
                to.read_file(&ranges[first..count], file, fill.offset + at, resident_only)
            };
            let mut bytes = match read {
                Ok(0) => {
                    return Err(FillError {
                        kind: FillErrorKind::Truncated,
                        code: 0,
                    });
                }
                Ok(bytes) => bytes,
                Err(cause) => return Err(read_error(&cause, resident_only)),
            };
            at += bytes;
            while first < count && bytes >= ranges[first].1 {
                bytes -= ranges[first].1;
                first += 1;
            }
            if first < count {
                ranges[first].0 += bytes;
                ranges[first].1 -= bytes;
            }
        }
    }
    Ok(fill.expected)
}

/// The threads and their queues. Dropping it ends them after the jobs at hand.
#[derive(Debug)]
pub struct Workers {
    senders: Option<Senders>,
    copies: Receiver<Job>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Senders {
    copies: Sender<Job>,
    /// Those that may wait for storage.
    reads: Sender<Job>,
}

/// A worker's life: whatever comes first, until both queues are closed and empty.
fn work(copies: &Receiver<Job>, reads: &Receiver<Job>) {
    loop {
        let (job, other) = select! {
            recv(copies) -> job => (job, reads),
            recv(reads) -> job => (job, copies),
        };
        match job {
            Ok(job) => job.run(),
            Err(_closed) => return other.iter().for_each(Job::run),
        }
    }
}

impl Workers {
    /// Starts `count` threads (at least 1) with room for `capacity` waiting jobs.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(name: &str, count: usize, capacity: usize) -> Result<Arc<Self>> {
        let (copies, copy_jobs) = bounded::<Job>(capacity.max(1));
        let (reads, read_jobs) = bounded::<Job>(capacity.max(1));
        let mut threads = Vec::with_capacity(count);
        for index in 0..count.max(1) {
            let (copies, reads) = (copy_jobs.clone(), read_jobs.clone());
            let started = thread::start(format!("{name}-{index}"), move || work(&copies, &reads));
            threads.push(started.map_err(|cause| not_started("a copy worker", cause))?);
        }
        Ok(Arc::new(Self {
            senders: Some(Senders { copies, reads }),
            copies: copy_jobs,
            threads,
        }))
    }

    /// Queues a job, or does it here if it is brief. Blocks only if more jobs wait than the
    /// capacity, which its makers' own bounds rule out.
    pub(crate) fn submit(&self, job: Job) {
        if job.work.is_brief() {
            return job.run();
        }
        let senders = self.senders.as_ref().expect("there until drop");
        let queue = if job.work.may_wait() {
            &senders.reads
        } else {
            &senders.copies
        };
        queue.send(job).expect("the workers receive until drop");
    }

    /// Runs one waiting copy on the calling thread; `false` if none waits.
    pub(crate) fn help(&self) -> bool {
        match self.copies.try_recv() {
            Ok(job) => {
                job.run();
                true
            }
            Err(_none) => false,
        }
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.senders = None;
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so already.
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u32 = 2 * INLINE_COPY_BYTES;
    const COPY: u64 = 1;
    const READ: u64 = 2;

    /// A copy and a read that may wait for storage, and who hears of them.
    fn jobs() -> ([Job; 2], Arc<DoneQueue>) {
        let done = DoneQueue::new(2, Waker::new().expect("waker"));
        let region = Arc::new(Region::anonymous(2 * u64::from(BYTES), false).expect("memory"));
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        let copy = Work::Zero {
            region: Arc::clone(&region),
            offset: 0,
            len_bytes: BYTES.into(),
        };
        let read = Work::ReadRun {
            file: Arc::new(file.into()),
            resident_only: false,
            file_offset: 0,
            to: region,
            offset: BYTES.into(),
            len: BYTES,
        };
        // SAFETY: nobody else has the region, and the two write to different halves of it.
        let job = |(id, work)| unsafe { Job::new(work, id, &done) };
        ([(COPY, copy), (READ, read)].map(job), done)
    }

    /// Queues without a worker.
    fn unattended() -> (Workers, Receiver<Job>) {
        let ((copies, copy_jobs), (reads, read_jobs)) = (bounded(2), bounded(2));
        let workers = Workers {
            senders: Some(Senders { copies, reads }),
            copies: copy_jobs,
            threads: Vec::new(),
        };
        (workers, read_jobs)
    }

    #[test]
    fn who_helps_takes_no_job_that_may_wait() {
        let ((mut workers, reads), ([copy, read], done)) = (unattended(), jobs());
        workers.submit(read);
        workers.submit(copy);
        assert!(workers.help());
        assert_eq!(done.pop().map(|done| done.id), Some(COPY));
        assert!(!workers.help() && done.is_empty() && reads.len() == 1);
        workers.senders = None;
    }

    #[test]
    fn what_waits_in_either_queue_is_done_before_a_worker_ends() {
        // Which queue is looked at first is left to chance.
        for _try in 0..32 {
            let ((mut workers, reads), (both, done)) = (unattended(), jobs());
            both.into_iter().for_each(|job| workers.submit(job));
            workers.senders = None;
            work(&workers.copies, &reads);
            let mut ids = [done.pop(), done.pop()].map(|done| done.expect("both are done").id);
            ids.sort_unstable();
            assert_eq!(ids, [COPY, READ]);
        }
    }

    #[test]
    fn memory_that_is_there_needs_no_worker() {
        let region = Arc::new(Region::anonymous(BYTES.into(), false).expect("memory"));
        let populate = || Work::Populate {
            region: Arc::clone(&region),
            offset: 0,
            len_bytes: BYTES.into(),
        };
        assert!(!populate().is_brief());
        let buffer = crate::vram::VramBuffer::Host(Arc::clone(&region));
        buffer.fault_in().expect("memory");
        assert!(populate().is_brief());
    }
}
