//! Commands over any transport, run to their ends. Knows neither how a transport works nor what
//! its namespace holds.
//!
//! unsafe: submits commands into the memory of targets.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; targets are looked at by volatile accesses only"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nvme::lba::Lba;
use nvme::transport::{Direction, Done, Incidents, Io, IoError, MemoryId, Transport};
use rustix::event::{EventfdFlags, eventfd};
use ubio_lab_spec::pattern::{self, Seed};

use crate::target::Target;

/// How long commands may take: a watchdog of the host's ends the guest soon after.
const PATIENCE: Duration = Duration::from_secs(40);
const MIB: u64 = 1 << 20;

/// A transport under test.
#[derive(Debug)]
pub(crate) struct Session<T> {
    pub(crate) transport: T,
    /// What [`attach`](Self::attach) gave: the memory of targets.
    targets: BTreeSet<u32>,
    event: OwnedFd,
}

impl<T: Transport> Session<T> {
    pub(crate) fn new(transport: T) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self {
            transport,
            targets: BTreeSet::new(),
            event,
        })
    }

    pub(crate) fn attach(&mut self, target: &Target, register: bool) -> Result<MemoryId> {
        let memory = self.transport.attach(target.memory(), register)?;
        self.targets.insert(memory.0);
        Ok(memory)
    }

    /// Forgets memory.
    pub(crate) fn detach(&mut self, memory: MemoryId) {
        self.transport.detach(memory);
        self.targets.remove(&memory.0);
    }

    /// A command over `len` bytes from `from` of the namespace.
    pub(crate) fn io(
        &self,
        direction: Direction,
        (from, len): (u64, u64),
        memory: MemoryId,
        offset: u64,
    ) -> Result<Io> {
        let block = self.transport.namespace().block;
        Ok(Io {
            token: offset,
            direction,
            lba: block.lba(from)?,
            blocks: block.blocks(len)?,
            memory,
            offset,
        })
    }

    /// A byte run as commands within the limits.
    pub(crate) fn commands(
        &self,
        direction: Direction,
        (from, len): (u64, u64),
        memory: MemoryId,
        mut offset: u64,
    ) -> Result<Vec<Io>> {
        let namespace = self.transport.namespace();
        let most = self.transport.limits().transfer_bytes;
        let cut = namespace.commands(from, len, most)?.map(|(lba, blocks)| {
            let io = Io {
                token: offset,
                direction,
                lba,
                blocks,
                memory,
                offset,
            };
            offset += namespace.block.len_bytes(blocks);
            io
        });
        Ok(cut.collect())
    }

    /// Starts a command; the command itself comes back where there is no room.
    ///
    /// # Panics
    /// If its memory is not a target that was attached here.
    pub(crate) fn submit(&mut self, io: Io) -> Result<(), Io> {
        let memory = io.memory.0;
        assert!(
            self.targets.contains(&memory),
            "memory {memory} is no target"
        );
        // SAFETY: a target makes no references and takes none: whoever looks at its memory or
        // fills it does so by volatile accesses of single words, to which a device that writes
        // meanwhile gives a wrong value and nothing worse. To see the right one, cases give each
        // command a part of its own, and look at that after its end.
        unsafe { self.transport.submit(io) }
    }

    /// Whether the transport takes such a command for a bug of ours.
    pub(crate) fn is_assertion(&mut self, io: Io) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.submit(io).is_ok())).is_err()
    }

    /// What has ended; waits a little where nothing has.
    pub(crate) fn poll(&mut self) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        self.transport.poll(&mut done)?;
        if done.is_empty() {
            let span = Some(Duration::from_millis(100));
            self.transport.wait(self.event.as_fd(), span)?;
            self.transport.poll(&mut done)?;
        }
        Ok(done)
    }

    /// What ends next.
    pub(crate) fn until_something_ends(&mut self) -> Result<Vec<Done>> {
        let started = Instant::now();
        loop {
            let done = self.poll()?;
            if !done.is_empty() {
                return Ok(done);
            }
            ensure!(started.elapsed() < PATIENCE, "no end in {PATIENCE:?}");
        }
    }

    /// Runs commands to their ends, as many at once as there is room for.
    pub(crate) fn run(&mut self, ios: Vec<Io>) -> Result<Vec<Done>> {
        let (wanted, started) = (ios.len(), Instant::now());
        let mut waiting: VecDeque<Io> = ios.into();
        let mut done = Vec::new();
        while done.len() < wanted {
            while let Some(io) = waiting.pop_front() {
                if let Err(io) = self.submit(io) {
                    waiting.push_front(io);
                    break;
                }
            }
            done.extend(self.poll()?);
            let ended = done.len();
            ensure!(
                started.elapsed() < PATIENCE,
                "{ended} of {wanted} commands ended in {PATIENCE:?}"
            );
        }
        ensure!(
            self.transport.in_flight() == 0,
            "something is in flight after the last end"
        );
        Ok(done)
    }

    /// Runs one command.
    pub(crate) fn one(&mut self, io: Io) -> Result<Result<(), IoError>> {
        Ok(self.run(vec![io])?[0].result)
    }

    /// Runs a byte run's commands, all of which succeed; gives how many there were.
    pub(crate) fn transfer(
        &mut self,
        direction: Direction,
        run: (u64, u64),
        memory: MemoryId,
        offset: u64,
    ) -> Result<usize> {
        let ios = self.commands(direction, run, memory, offset)?;
        let done = self.run(ios)?;
        for end in &done {
            end.result
                .with_context(|| format!("the command to {:#x}", end.token))?;
        }
        Ok(done.len())
    }

    /// Reads a run and looks at every byte of the memory.
    pub(crate) fn read_and_check(
        &mut self,
        seed: Seed,
        (from, len): (u64, u64),
        target: &Target,
        offset: u64,
        register: bool,
    ) -> Result<usize> {
        let memory = self.attach(target, register)?;
        let commands = self.transfer(Direction::Read, (from, len), memory, offset)?;
        target.check(seed, from, offset, len)?;
        target.untouched_but(offset, len)?;
        self.detach(memory);
        Ok(commands)
    }

    /// Poisons memory whose commands have all ended, and looks whether anything is written to it
    /// for a while, though nothing was asked for.
    pub(crate) fn stays_untouched(&mut self, target: &Target, span: Duration) -> Result<()> {
        target.poison(0, target.len_bytes());
        let started = Instant::now();
        while started.elapsed() < span {
            ensure!(self.poll()?.is_empty(), "an end of nothing");
        }
        target
            .untouched_but(0, 0)
            .context("after the end of the last command")
    }

    /// Nothing happened beside commands.
    pub(crate) fn was_quiet(&self) -> Result<()> {
        let incidents = self.transport.incidents();
        ensure!(incidents == Incidents::default(), "{incidents:?}");
        Ok(())
    }

    /// Random reads of `size` bytes of the first 16 MiB, `depth` at once, each compared.
    pub(crate) fn verify(&mut self, seed: Seed, size: u64, depth: u64, count: u64) -> Result<()> {
        let target = Target::host(size * depth)?;
        let memory = self.attach(&target, true)?;
        let mut free: Vec<u64> = (0..depth).map(|slot| slot * size).collect();
        let mut under_way = BTreeMap::new();
        let (mut started, mut ended, mut deepest) = (0, 0, 0);
        while ended < count {
            while started < count
                && let Some(offset) = free.pop()
            {
                // Any bijection serves as numbers that look random.
                let from = pattern::word(Seed(5), started * 8) % (16 * MIB / size) * size;
                let io = self.io(Direction::Read, (from, size), memory, offset)?;
                ensure!(self.submit(io).is_ok(), "no room below the depth");
                under_way.insert(offset, from);
                started += 1;
            }
            deepest = deepest.max(self.transport.in_flight() as u64);
            for end in self.poll()? {
                end.result?;
                let from = under_way.remove(&end.token);
                let from = from.context("an end of nothing")?;
                target.check(seed, from, end.token, size)?;
                target.poison(end.token, size);
                free.push(end.token);
                ended += 1;
            }
        }
        self.detach(memory);
        ensure!(
            deepest == depth.min(count),
            "{deepest} in flight at most, not {depth}"
        );
        target.untouched_but(0, 0)
    }

    /// The first blocks of the namespace, to the start of memory.
    pub(crate) fn first(&self, memory: MemoryId, len_bytes: u64) -> Result<Io> {
        self.io(Direction::Read, (0, len_bytes), memory, 0)
    }

    /// Where the last `blocks` blocks begin.
    pub(crate) fn lba_from_end(&self, blocks: u64) -> Lba {
        Lba(self.transport.namespace().blocks - blocks)
    }
}
