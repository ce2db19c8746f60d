//! A reader over any transport: so many commands in flight, each into memory of its own. What
//! is in memory at the end is compared with the drive's pattern.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the reader's own"
)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::vfio::{VfioContainer, VfioDevice};
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, TargetMemory};
use nvme::transport::passthrough::{self, Passthrough};
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Direction, Done, Io, MemoryId, Transport};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use ubio_lab_spec::pattern::{self, Seed};

use super::{Job, KERNELS, OURS};
use crate::lab::Lab;

/// What reading came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) count: u64,
    pub(super) seconds: f64,
    /// Of the thread that reads, kernel included.
    pub(super) cpu_seconds: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^52 commands")]
fn float(count: u64) -> f64 {
    count as f64
}

impl Measured {
    pub(super) fn per_s(&self) -> f64 {
        float(self.count) / self.seconds
    }

    /// For one command.
    pub(super) fn cpu_micros(&self) -> Option<f64> {
        Some(self.cpu_seconds? * 1e6 / float(self.count.max(1)))
    }
}

/// Random numbers, the same in every run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = self.below(last as u64 + 1);
            list.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }
}

/// A transport and what it reads.
pub(super) struct Reader {
    transport: Box<dyn Transport>,
    job: Job,
    seed: Seed,
    pages: Arc<Pages>,
    memory: MemoryId,
    /// Nobody writes it.
    other: OwnedFd,
    dice: Dice,
    /// Block of the drive (in units of the job's blocks) that comes next.
    next: u64,
    /// The one that each place in memory holds, or gets.
    places: Vec<u64>,
    done: Vec<Done>,
}

/// When to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    At(Instant),
    After(u64),
}

impl Reader {
    pub(super) fn passthrough(lab: &Lab, job: Job) -> Result<Self> {
        let path = lab.node(KERNELS, 1)?;
        let options = passthrough::Options {
            depth: job.depth,
            ..passthrough::Options::default()
        };
        let transport = Passthrough::open(&path, &options)?;
        Self::new(Box::new(transport), job, lab.seed(KERNELS, 1)?)
    }

    pub(super) fn vfio(lab: &Lab, job: Job, interrupts: bool) -> Result<Self> {
        let container = VfioContainer::new()?;
        let device = VfioDevice::open(&container, &lab.address(OURS)?.to_string())?;
        let mut settings = Settings::new(NamespaceId(1));
        settings.interrupts = interrupts;
        let transport = UserTransport::open(Arc::new(device), Options::new(settings))?;
        anyhow::ensure!(transport.has_interrupts() == interrupts, "interrupts");
        Self::new(Box::new(transport), job, lab.seed(OURS, 1)?)
    }

    fn new(mut transport: Box<dyn Transport>, job: Job, seed: Seed) -> Result<Self> {
        let limits = transport.limits();
        anyhow::ensure!(
            limits.transfer_bytes >= job.block_bytes && limits.depth >= job.depth,
            "{limits:?} is less than {job:?}"
        );
        let pages = Arc::new(Pages::new(
            u64::from(job.block_bytes) * u64::from(job.depth),
        )?);
        let memory = transport.attach(Arc::clone(&pages) as _, true)?;
        anyhow::ensure!(transport.is_registered(memory), "memory is not registered");
        Ok(Self {
            transport,
            job,
            seed,
            pages,
            memory,
            other: eventfd(0, EventfdFlags::CLOEXEC)?,
            dice: Dice::new(0x5eed),
            next: 0,
            places: vec![0; job.depth.into()],
            done: Vec::with_capacity(job.depth.into()),
        })
    }

    pub(super) fn for_millis(self, millis: u64) -> Result<Measured> {
        self.run(
            End::At(Instant::now() + Duration::from_millis(millis)),
            |_| (),
        )
    }

    /// Reads until the end; `step` hears of each poll how many commands it ended.
    pub(super) fn run(mut self, end: End, mut step: impl FnMut(Step)) -> Result<Measured> {
        let (started, cpu) = (Instant::now(), cpu_time()?);
        for place in 0..self.job.depth {
            self.submit(place.into())?;
        }
        let (mut count, mut ending) = (0, false);
        while self.transport.in_flight() > 0 {
            step(Step::Poll);
            self.transport.poll(&mut self.done)?;
            let ended = self.done.len();
            step(Step::Polled(ended));
            count += ended as u64;
            if ended == 0 {
                self.transport
                    .wait(self.other.as_fd(), Some(Duration::from_secs(1)))?;
                continue;
            }
            ending |= match end {
                End::At(time) => Instant::now() >= time,
                End::After(commands) => count >= commands,
            };
            step(Step::Submit);
            let mut done = std::mem::take(&mut self.done);
            for end in done.drain(..) {
                end.result
                    .with_context(|| format!("command {}", end.token))?;
                if !ending {
                    self.submit(end.token)?;
                }
            }
            self.done = done;
            step(Step::Submitted);
        }
        let measured = Measured {
            count,
            seconds: started.elapsed().as_secs_f64(),
            cpu_seconds: Some(cpu_time()?.saturating_sub(cpu).as_secs_f64()),
        };
        self.check()?;
        Ok(measured)
    }

    fn submit(&mut self, place: u64) -> Result<()> {
        let namespace = self.transport.namespace();
        let bytes = u64::from(self.job.block_bytes);
        let blocks = namespace.len_bytes() / bytes;
        let block = match self.job.random {
            true => self.dice.below(blocks),
            false => self.next % blocks,
        };
        self.next += 1;
        let unit = bytes / u64::from(namespace.block.bytes());
        let count = u32::try_from(unit).ok().and_then(BlockCount::new);
        let io = Io {
            token: place,
            direction: Direction::Read,
            lba: Lba(block * unit),
            blocks: count.context("a count")?,
            memory: self.memory,
            offset: place * bytes,
        };
        self.places[usize::try_from(place)?] = block;
        // SAFETY: one command at a time has the place, and nobody looks there before its end.
        match unsafe { self.transport.submit(io) } {
            Ok(()) => Ok(()),
            Err(_) => bail!("no room for a command"),
        }
    }

    /// What is in memory is what was read there last.
    fn check(&self) -> Result<()> {
        let bytes = u64::from(self.job.block_bytes);
        let mut found = vec![0; usize::try_from(bytes)?];
        for (offset, block) in (0..).step_by(found.len()).zip(&self.places) {
            self.pages.raw().copy_to(offset, &mut found);
            pattern::check(self.seed, block * bytes, &found)?;
        }
        Ok(())
    }
}

/// What is about to be done, or was.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Poll,
    Polled(usize),
    Submit,
    Submitted,
}

/// What this thread has used of a processor.
pub(super) fn cpu_time() -> Result<Duration> {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}
