//! The emulated controller as a device: stepped by its caller with a clock of its own, or
//! executed by a thread. Knows no commands.
//!
//! unsafe: `Device::map` is an unsafe method.
#![expect(unsafe_code, reason = "implements the unsafe method that maps memory")]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvme::device::Device;
use nvme::dma::DmaRun;
use nvme::memory::RawMemory;
use nvme::{Error, ErrorKind, Result};
use nvme_sys::register::{CC, CSTS};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::Config;
use crate::controller::Controller;
use crate::fault::{ControllerFault, Faults};
use crate::iommu::IommuFault;
use crate::observe::{Counters, Observer};

/// Steps that one pause or read takes at most: commands that beget others would go on forever.
const MAX_STEPS: u32 = 100_000;
/// Steps of the thread before it looks for doorbells and raises interrupts.
const BATCH: u32 = 16;
/// How often the thread lets others go first: several that poll must not keep it out.
const MAX_YIELDS: u32 = 64;
/// What is looked at while commands are under way.
const SEEN: [u64; 2] = [CC, CSTS];
/// How long a disk may keep whoever asks for that, and whoever stops the controller.
const STALL: Duration = Duration::from_millis(5);
const QUIESCE: Duration = Duration::from_secs(2);

/// An emulated controller.
///
/// *Stepped*: nothing happens by itself. [`step`](Self::step) does one unit of work and
/// [`advance`](Self::advance) moves the clock; each read of a register does a step, and
/// [`Device::pause`] steps until there is nothing to do and moves the clock, so that a driver
/// that waits for the controller gets on. Whoever waits for a completion has to step or pause.
/// The same calls give the same results.
///
/// *Threaded*: a thread executes, sleeps when there is nothing to do, and is woken by register
/// writes. The clock is the machine's. It ends with the emulator.
pub struct Emulator {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    name: String,
    controller: Mutex<Controller>,
    /// Where written registers go, so that no write waits for a transfer; threaded only.
    inbox: Mutex<Inbox>,
    wake: Condvar,
    /// Who waits for the controller besides its thread.
    outside: AtomicU32,
    interrupts: Vec<Arc<OwnedFd>>,
    /// CC and CSTS as they were last: to be read also while a disk keeps the controller;
    /// threaded only.
    seen: [AtomicU32; 2],
    /// Whether its removal was asked for, and what then becomes readable.
    removal: AtomicBool,
    removal_event: OwnedFd,
    /// `None` if stepped.
    start: Option<Instant>,
}

#[derive(Default)]
struct Inbox {
    writes: Vec<(u64, u32)>,
    /// Something else changed.
    changed: bool,
    stop: bool,
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator")
            .field("name", &self.shared.name)
            .field("threaded", &self.thread.is_some())
            .finish_non_exhaustive()
    }
}

impl Emulator {
    /// One that its caller steps.
    ///
    /// # Errors
    /// InvalidInput (the configuration), NoSpace (memory, descriptors).
    pub fn stepped(config: Config) -> Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared::new(config, None)?),
            thread: None,
        })
    }

    /// One that a thread executes.
    ///
    /// # Errors
    /// As [`stepped`](Self::stepped); also where no thread can be had.
    pub fn threaded(config: Config) -> Result<Self> {
        let shared = Arc::new(Shared::new(config, Some(Instant::now()))?);
        let thread = std::thread::Builder::new()
            .name("nvme-emulator".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.execute()
            })
            .map_err(|error| {
                Error::os("cannot start the emulator's thread", error)
                    .remedy("raise the limit on processes (ulimit -u)")
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Does one unit of work; whether there was any, or some comes closer with steps.
    pub fn step(&self) -> bool {
        self.shared.with(|controller| self.shared.step(controller))
    }

    /// Steps until there is nothing to do; how many steps that took. Bounded.
    pub fn run(&self) -> u32 {
        self.shared.with(|controller| self.shared.run(controller))
    }

    /// Moves the clock of a stepped emulator.
    pub fn advance(&self, span: Duration) {
        self.shared.with(|controller| {
            if self.shared.start.is_none() {
                controller.now = controller.now.saturating_add(span);
            }
        });
    }

    /// When something happens by itself, by [`Device::now`].
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.shared.with(|controller| controller.deadline())
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.with(|controller| controller.counters.clone())
    }

    /// Accesses to addresses that were not mapped: the first thousand or so.
    #[must_use]
    pub fn iommu_faults(&self) -> Vec<IommuFault> {
        self.shared
            .with(|controller| controller.iommu_faults.clone())
    }

    /// Something happens to the controller, now.
    pub fn inject(&self, fault: ControllerFault) {
        self.shared.with(|controller| controller.inject(fault));
    }

    /// Somebody wants the controller for himself, as the kernel does when a function is removed.
    pub fn request_removal(&self) {
        self.shared.removal.store(true, Ordering::Release);
        // It fails where nobody has looked 2^64 times: it is readable then.
        let _readable_already = rustix::io::write(&self.shared.removal_event, &1_u64.to_ne_bytes());
    }

    /// Namespace `id` has blocks of `block_bytes` from now on, as if another host had formatted
    /// it; its bytes stay.
    ///
    /// # Panics
    /// If there is no such namespace, or blocks cannot be of that size.
    pub fn reformat(&self, id: u32, block_bytes: u32) {
        self.shared
            .with(|controller| controller.reformat(id, block_bytes));
    }

    /// Replaces what decides on faults; the new one sees commands that are fetched from now on.
    pub fn set_faults(&self, faults: impl Faults + 'static) {
        let faults = Box::new(faults);
        self.shared
            .with(|controller| controller.config.faults = faults);
    }

    /// Calls `observer` for each write to memory from now on.
    pub fn observe(&self, observer: Observer) {
        self.shared
            .with(|controller| controller.observer = Some(observer));
    }

    /// DMA to and from this memory, mapped now or later, reports success and goes nowhere.
    pub fn black_hole(&self, memory: RawMemory) {
        self.shared
            .with(|controller| controller.iommu.black_hole(memory));
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        lock(&self.shared.inbox).stop = true;
        self.shared.wake.notify_all();
        if thread.join().is_err() && !std::thread::panicking() {
            panic!("the emulator's thread panicked");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(config: Config, start: Option<Instant>) -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = || {
            let made = eventfd(0, flags);
            made.map_err(|errno| {
                Error::os("no descriptor for an event", errno)
                    .remedy("raise the open-files limit (ulimit -n)")
            })
        };
        let interrupt = |_| event().map(Arc::new);
        let name = config.name.clone();
        let vectors = config.vectors;
        let controller = Mutex::new(Controller::new(config)?);
        Ok(Self {
            name,
            controller,
            inbox: Mutex::default(),
            wake: Condvar::new(),
            outside: AtomicU32::new(0),
            seen: [const { AtomicU32::new(0) }; 2],
            interrupts: (0..vectors).map(interrupt).collect::<Result<_>>()?,
            removal: AtomicBool::new(false),
            removal_event: event()?,
            start,
        })
    }

    /// Does something with the controller as the world is now.
    fn with<T>(&self, act: impl FnOnce(&mut Controller) -> T) -> T {
        self.outside.fetch_add(1, Ordering::Relaxed);
        let controller = lock(&self.controller);
        self.outside.fetch_sub(1, Ordering::Relaxed);
        self.act(controller, act)
    }

    /// The same; `None` if a disk keeps the controller for longer than `span`.
    fn with_within<T>(&self, span: Duration, act: impl FnOnce(&mut Controller) -> T) -> Option<T> {
        let start = Instant::now();
        self.outside.fetch_add(1, Ordering::Relaxed);
        let controller = loop {
            match self.controller.try_lock() {
                Ok(controller) => break Some(controller),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() > span => break None,
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        };
        self.outside.fetch_sub(1, Ordering::Relaxed);
        controller.map(|controller| self.act(controller, act))
    }

    fn see(&self, controller: &Controller) {
        for (seen, offset) in self.seen.iter().zip(SEEN) {
            seen.store(controller.read(offset), Ordering::Relaxed);
        }
    }

    fn act<T>(
        &self,
        mut controller: MutexGuard<'_, Controller>,
        act: impl FnOnce(&mut Controller) -> T,
    ) -> T {
        if self.start.is_some() {
            let writes = std::mem::take(&mut lock(&self.inbox).writes);
            self.catch_up(&mut controller, &writes);
        }
        let done = act(&mut controller);
        if self.start.is_some() {
            self.see(&controller);
            drop(controller);
            lock(&self.inbox).changed = true;
            self.wake.notify_one();
        }
        done
    }

    fn catch_up(&self, controller: &mut Controller, writes: &[(u64, u32)]) {
        if let Some(start) = self.start {
            controller.now = start.elapsed();
        }
        for &(offset, value) in writes {
            controller.write(offset, value);
        }
    }

    fn step(&self, controller: &mut Controller) -> bool {
        let worked = controller.step();
        self.interrupt(controller);
        worked
    }

    fn run(&self, controller: &mut Controller) -> u32 {
        let steps = (0..MAX_STEPS).find(|_| !self.step(controller));
        steps.unwrap_or(MAX_STEPS)
    }

    fn interrupt(&self, controller: &mut Controller) {
        while let Some(vector) = controller.raised.pop() {
            controller.counters.interrupts += 1;
            if let Some(eventfd) = self.interrupts.get(usize::from(vector)) {
                // It fails where nobody has looked 2^64 times: it is readable then.
                let _readable_already = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
            }
        }
    }

    /// The thread.
    fn execute(&self) {
        let mut writes = Vec::new();
        loop {
            // A lock is not fair to those who wait for it.
            for _ in 0..MAX_YIELDS {
                if self.outside.load(Ordering::Relaxed) == 0 {
                    break;
                }
                std::thread::yield_now();
            }
            let mut controller = lock(&self.controller);
            {
                // Under the controller's lock, or others could overtake these writes.
                let mut inbox = lock(&self.inbox);
                if inbox.stop {
                    return;
                }
                inbox.changed = false;
                std::mem::swap(&mut inbox.writes, &mut writes);
            }
            self.catch_up(&mut controller, &writes);
            writes.clear();
            let mut busy = true;
            for _ in 0..BATCH {
                busy = controller.step();
                if !busy || self.outside.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            self.interrupt(&mut controller);
            self.see(&controller);
            let deadline = controller.deadline();
            drop(controller);
            if !busy {
                self.sleep(deadline);
            }
        }
    }

    /// Sleeps until something changes or the deadline is there.
    fn sleep(&self, deadline: Option<Duration>) {
        let Some(start) = self.start else {
            return;
        };
        let mut inbox = lock(&self.inbox);
        while !inbox.changed && !inbox.stop && inbox.writes.is_empty() {
            let Some(deadline) = deadline else {
                inbox = self
                    .wake
                    .wait(inbox)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            let woken = self.wake.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Device for Emulator {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn read_u32(&self, offset: u64) -> u32 {
        let shared = &*self.shared;
        let read = |controller: &mut Controller| controller.read(offset);
        match shared.start {
            None => shared.with(|controller| {
                shared.step(controller);
                controller.read(offset)
            }),
            Some(_) => match SEEN.iter().position(|seen| *seen == offset) {
                Some(index) => {
                    let value = shared.with_within(STALL, read);
                    value.unwrap_or_else(|| shared.seen[index].load(Ordering::Relaxed))
                }
                None => shared.with(read),
            },
        }
    }

    fn write_u32(&self, offset: u64, value: u32) {
        if self.shared.start.is_some() {
            // In the order of the calls; nobody waits for the controller.
            lock(&self.shared.inbox).writes.push((offset, value));
            self.shared.wake.notify_one();
        } else {
            self.shared
                .with(|controller| controller.write(offset, value));
        }
    }

    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        self.shared.with(|controller| controller.iommu.map(memory))
    }

    fn unmap(&self, runs: &[DmaRun]) -> Result<()> {
        self.shared.with(|controller| controller.iommu.unmap(runs));
        Ok(())
    }

    fn vectors(&self) -> u16 {
        u16::try_from(self.shared.interrupts.len()).expect("checked")
    }

    fn interrupt(&self, vector: u16) -> Result<Arc<OwnedFd>> {
        let eventfd = self.shared.interrupts.get(usize::from(vector));
        eventfd.cloned().ok_or_else(|| {
            let what = format!("{} has no interrupt vector {vector}", self.shared.name);
            Error::new(ErrorKind::Unsupported, what)
        })
    }

    fn is_wanted_back(&self) -> bool {
        // Seen; not blocking.
        let _none = rustix::io::read(&self.shared.removal_event, &mut [0; 8]);
        self.shared.removal.load(Ordering::Acquire)
    }

    fn removal_event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.removal_event.as_fd())
    }

    fn quiesce(&self) -> Result<()> {
        let quiet = self.shared.with_within(QUIESCE, Controller::quiesce);
        quiet.ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                "a disk keeps the controller from being stopped",
            )
            .remedy("see why the file under it stalls")
        })
    }

    fn now(&self) -> Duration {
        match self.shared.start {
            Some(start) => start.elapsed(),
            None => lock(&self.shared.controller).now,
        }
    }

    fn pause(&self, span: Duration) {
        if self.shared.start.is_some() {
            return std::thread::sleep(span);
        }
        self.shared.with(|controller| {
            self.shared.run(controller);
            controller.now = controller.now.saturating_add(span);
            self.shared.run(controller);
        });
    }
}
