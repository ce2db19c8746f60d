//! A controller that says whatever the input says: statuses, identifiers, phases, queues, data,
//! registers. Where the input has ended it is an honest one. It writes nothing but what is
//! mapped, and never where commands have their data. Knows no driver.
//!
//! unsafe: implements the unsafe method of a device.
#![expect(unsafe_code, reason = "implements the unsafe method of a device")]

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme::device::Device;
use nvme::dma::{DmaRun, Iova};
use nvme::memory::RawMemory;
use nvme::{Error, ErrorKind, Result};
use nvme_sys::cqe::CompletionEntry;
use nvme_sys::opcode::admin;
use nvme_sys::register::{ACQ, AQA, ASQ, CC, CSTS, DOORBELLS, GONE};
use nvme_sys::sqe::SubmissionEntry;
use rustix::event::{EventfdFlags, eventfd};

use super::habits::{Habits, garble};
use super::input::Input;

/// More questions than any driver asks that does not go round in circles.
const MOST_CALLS: u64 = 1_000_000;
/// The clock goes on at least so much with each pause, so that long waits are few looks.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
const PAGE: u64 = 4096;

/// A queue pair as the controller knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    submissions: u64,
    completions: u64,
    entries: u16,
    head: u16,
    tail: u16,
    /// The tail that the shadow doorbell named last.
    shadow: u16,
    /// Where the next completion goes, and its phase.
    at: u16,
    phase: bool,
}

#[derive(Debug)]
struct Brain {
    input: Input,
    habits: Habits,
    calls: u64,
    now: Duration,
    maps: Vec<RawMemory>,
    /// Memory of commands, which it never writes.
    data: Option<RawMemory>,
    config: u32,
    admin: [u64; 3],
    fatal: bool,
    gone: bool,
    shut_down: bool,
    silent: bool,
    queues: HashMap<u16, Queue>,
    shadow: Option<u64>,
    /// Event requests that are not answered.
    events: Vec<u16>,
    /// Commands that are answered later, or never.
    held: Vec<(u16, u16)>,
    stops: u64,
    quiesce_failed: bool,
    /// By the address of its data, the queue and identifier of a command.
    fetched: HashMap<u64, (u16, u16)>,
    /// How often a completion was written for a queue, identifier and status.
    written: HashMap<(u16, u16, u16), u64>,
}

/// The device. What it says follows a byte after the other; 0 is always the honest way.
#[derive(Debug)]
pub struct Liar(Mutex<Brain>);

impl Liar {
    /// As the input says; memory of commands lies in `data`.
    #[must_use]
    pub fn new(bytes: &[u8], data: RawMemory) -> Self {
        let mut input = Input::new(bytes);
        Self(Mutex::new(Brain {
            habits: Habits::new(&mut input),
            input,
            calls: 0,
            now: Duration::from_secs(1),
            maps: Vec::new(),
            data: Some(data),
            config: 0,
            admin: [0; 3],
            fatal: false,
            gone: false,
            shut_down: false,
            silent: false,
            queues: HashMap::new(),
            shadow: None,
            events: Vec::new(),
            held: Vec::new(),
            stops: 0,
            quiesce_failed: false,
            fetched: HashMap::new(),
            written: HashMap::new(),
        }))
    }

    fn brain(&self) -> MutexGuard<'_, Brain> {
        let mut brain = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        brain.calls += 1;
        let is_late = brain.calls >= MOST_CALLS && !std::thread::panicking();
        assert!(!is_late, "the driver goes round in circles");
        // So that what is dropped after that ends.
        brain.gone |= brain.calls >= MOST_CALLS;
        brain
    }

    /// Honest from here on, but for its habits.
    pub fn calm(&self) {
        self.brain().input = Input::new(&[]);
    }

    /// How often it has said that it stopped, or was kept from memory.
    #[must_use]
    pub fn stops(&self) -> u64 {
        self.brain().stops
    }

    /// Whether it could not be kept from memory.
    #[must_use]
    pub fn quiesce_failed(&self) -> bool {
        self.brain().quiesce_failed
    }

    /// Whether memory of commands stays mapped whatever is asked.
    #[must_use]
    pub fn keeps_memory(&self) -> bool {
        self.brain().habits.unmap_fails
    }

    /// What is mapped.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.brain().maps.len()
    }

    /// The queue and identifier of the command whose data is at an address.
    #[must_use]
    pub fn command_of(&self, address: u64) -> Option<(u16, u16)> {
        let mut brain = self.brain();
        brain.work();
        brain.fetched.get(&address).copied()
    }

    /// Forgets a command; whether a completion with just this queue, identifier and status was
    /// written and not taken yet.
    pub fn take(&self, address: u64, status: u16) -> bool {
        let mut brain = self.brain();
        let Some((queue, id)) = brain.fetched.remove(&address) else {
            return false;
        };
        match brain.written.get_mut(&(queue, id, status)) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }
}

impl Brain {
    fn memory(&self, address: u64, len_bytes: u64) -> Option<(RawMemory, u64)> {
        let start = |of: &RawMemory| of.start().as_ptr().addr() as u64;
        let inside = |of: &&RawMemory| {
            let offset = address.checked_sub(start(of));
            offset.is_some_and(|offset| {
                offset.saturating_add(len_bytes) <= of.len_bytes() && offset % 4 == 0
            })
        };
        let found = self.maps.iter().find(inside)?;
        Some((*found, address - start(found)))
    }

    fn is_data(&self, address: u64) -> bool {
        self.data.is_some_and(|data| {
            let start = data.start().as_ptr().addr() as u64;
            (start..start + data.len_bytes()).contains(&address)
        })
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        if self.silent || self.is_data(address) {
            return;
        }
        if let Some((memory, offset)) = self.memory(address, bytes.len() as u64) {
            memory.copy_from(offset, bytes);
        }
    }

    fn status(&mut self) -> u32 {
        let enabled = self.config & 1 != 0;
        let ready = self.habits.frozen.unwrap_or(enabled);
        let honest =
            u32::from(ready) | u32::from(self.fatal) << 1 | if self.shut_down { 2 << 2 } else { 0 };
        let said = match self.input.byte() {
            0..236 => honest,
            236..240 => {
                self.gone = true;
                GONE
            }
            240..244 => GONE,
            244..248 => {
                self.fatal = true;
                honest | 2
            }
            _ => self.input.u32(),
        };
        self.stops += u64::from(!enabled && said != GONE && said & 1 == 0);
        said
    }

    fn configure(&mut self, value: u32) {
        if value & !self.config & 1 != 0 {
            let [sizes, submissions, completions] = self.admin;
            self.queues.clear();
            let entries = u16::try_from(sizes & 0xfff).expect("12 bits") + 1;
            self.queues.insert(
                0,
                Queue {
                    submissions,
                    completions,
                    entries,
                    phase: true,
                    ..Queue::default()
                },
            );
        } else if self.config & !value & 1 != 0 {
            self.fatal = false;
            self.shadow = None;
            self.events.clear();
            self.held.clear();
            self.queues.clear();
        }
        self.shut_down = value >> 14 & 3 != 0;
        self.config = value;
    }

    fn ring(&mut self, doorbell: u64, value: u32) {
        let stride = 4_u64 << (self.habits.cap >> 32 & 15);
        let index = doorbell / stride;
        let queue = u16::try_from(index / 2).ok();
        if let Some(queue) = queue.and_then(|queue| self.queues.get_mut(&queue))
            && index.is_multiple_of(2)
        {
            queue.tail = u16::try_from(value & 0xffff).expect("16 bits") % queue.entries.max(1);
        }
        self.work();
    }

    /// Fetches what there is, and may do something out of turn.
    fn work(&mut self) {
        for id in 0..4 {
            self.look_at_shadow(id);
            for _ in 0..64 {
                let Some(queue) = self.queues.get_mut(&id) else {
                    break;
                };
                if queue.head == queue.tail {
                    break;
                }
                let at = queue.submissions + u64::from(queue.head) * 64;
                queue.head = (queue.head + 1) % queue.entries.max(1);
                if let Some((memory, offset)) = self.memory(at, 64) {
                    self.reply(id, memory.read(offset));
                }
            }
        }
        self.out_of_turn();
    }

    fn look_at_shadow(&mut self, id: u16) {
        let stride = 4_u64 << (self.habits.cap >> 32 & 15);
        let place = self
            .shadow
            .map(|page| page + 2 * u64::from(id) * stride)
            .filter(|_| id > 0 && 2 * u64::from(id) * stride < PAGE);
        let Some((memory, offset)) = place.and_then(|at| self.memory(at, 4)) else {
            return;
        };
        let tail = u16::try_from(u32::from_le(memory.read(offset)) & 0xffff).expect("16 bits");
        if let Some(queue) = self.queues.get_mut(&id)
            && queue.shadow != tail
        {
            queue.shadow = tail;
            queue.tail = tail % queue.entries.max(1);
        }
    }

    fn reply(&mut self, queue: u16, entry: SubmissionEntry) {
        let id = entry.command_id.get();
        if queue > 0 {
            self.fetched.insert(entry.data1.get(), (queue, id));
        }
        match self.input.byte() {
            208..216 => self.held.push((queue, id)),
            216..224 => {}
            224..232 => {
                let (status, result) = (self.input.u16() >> 1, self.input.u32());
                self.post(queue, queue, id, status, result);
            }
            232..240 => {
                let (named, other) = (self.input.u16(), self.input.u16());
                self.post(queue, queue, other, 0, 0);
                self.post(queue, named, id, 0, 0);
            }
            240..244 => {
                if let Some(queue) = self.queues.get_mut(&queue) {
                    queue.phase = !queue.phase;
                }
                self.post(queue, queue, id, 0, 0);
            }
            code => {
                let (status, result) = match queue {
                    0 => match self.admin_command(&entry) {
                        Some(reply) => reply,
                        None => return,
                    },
                    _ => (0, 0),
                };
                self.post(queue, queue, id, status, result);
                if code >= 244 {
                    // Twice, and a result that nobody asked for.
                    let result = self.input.u32();
                    self.post(queue, queue, id, status, result);
                }
            }
        }
    }

    /// Status and result; `None` for no answer now.
    fn admin_command(&mut self, entry: &SubmissionEntry) -> Option<(u16, u32)> {
        let (dword, page) = (entry.cdw10.get(), entry.data1.get());
        match entry.opcode {
            admin::IDENTIFY => {
                let mut data = match dword & 0xff {
                    1 => self.habits.controller.clone(),
                    _ => self.habits.namespace.clone(),
                };
                if self.input.byte() >= 248 {
                    garble(&mut data, &mut self.input);
                }
                self.write(page, &data);
            }
            admin::SET_FEATURES => return Some((0, self.habits.granted)),
            admin::CREATE_CQ | admin::CREATE_SQ => {
                let id = u16::try_from(dword & 0xffff).expect("16 bits");
                let queue = self.queues.entry(id).or_default();
                queue.entries = u16::try_from(dword >> 16)
                    .expect("16 bits")
                    .saturating_add(1);
                if entry.opcode == admin::CREATE_CQ {
                    (queue.completions, queue.phase) = (page, true);
                } else {
                    queue.submissions = page;
                }
            }
            admin::ASYNC_EVENT if self.habits.storm => return Some((0, 0x0001_0002)),
            admin::ASYNC_EVENT => {
                self.events.push(entry.command_id.get());
                return None;
            }
            admin::ABORT => {
                let of = |half: u32| u16::try_from(half & 0xffff).expect("16 bits");
                let (queue, id) = (of(dword), of(dword >> 16));
                let held = self.held.iter().position(|held| *held == (queue, id));
                if let Some(held) = held {
                    self.held.swap_remove(held);
                    self.post(queue, queue, id, 7, 0);
                }
                return Some((0, u32::from(held.is_none())));
            }
            admin::DOORBELL_BUFFER => self.shadow = Some(page),
            _ => {}
        }
        Some((0, 0))
    }

    /// Writes a completion where the next one of a queue goes.
    fn post(&mut self, queue: u16, named: u16, id: u16, status: u16, result: u32) {
        let Some(known) = self.queues.get_mut(&queue) else {
            return;
        };
        let (at, phase) = (known.at, known.phase);
        known.at = (at + 1) % known.entries.max(1);
        if known.at == 0 {
            known.phase = !phase;
        }
        let entry = CompletionEntry {
            result: result.into(),
            sq_head: known.head.into(),
            sq_id: named.into(),
            command_id: id.into(),
            status_phase: (status << 1 | u16::from(phase)).into(),
            ..CompletionEntry::default()
        };
        self.place(queue, at, entry);
    }

    fn place(&mut self, queue: u16, at: u16, entry: CompletionEntry) {
        let Some(known) = self.queues.get(&queue) else {
            return;
        };
        let address = known.completions + u64::from(at) * 16;
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&entry.result.get().to_le_bytes());
        bytes[8..10].copy_from_slice(&entry.sq_head.get().to_le_bytes());
        bytes[10..12].copy_from_slice(&entry.sq_id.get().to_le_bytes());
        bytes[12..14].copy_from_slice(&entry.command_id.get().to_le_bytes());
        bytes[14..].copy_from_slice(&entry.status_phase.get().to_le_bytes());
        self.write(address, &bytes);
        if entry.sq_id.get() == queue {
            // Code and type of zero are success, whatever the other bits are.
            let status = Some(entry.status()).filter(|status| status & 0x7ff != 0);
            let key = (queue, entry.command_id.get(), status.unwrap_or(0));
            *self.written.entry(key).or_default() += 1;
        }
    }

    fn out_of_turn(&mut self) {
        match self.input.byte() {
            0..224 => {}
            224..232 => {
                let (index, result) = (usize::from(self.input.byte()), self.input.u32());
                if !self.events.is_empty() {
                    let id = self.events.swap_remove(index % self.events.len());
                    // A changed namespace, now and then.
                    let result = if index & 1 == 0 { 0x0004_0002 } else { result };
                    self.post(0, 0, id, 0, result);
                }
            }
            232..236 => {
                let held = usize::from(self.input.byte());
                if !self.held.is_empty() {
                    let (queue, id) = self.held.swap_remove(held % self.held.len());
                    self.post(queue, queue, id, 0, 0);
                }
            }
            236..244 => self.flood(),
            244..248 => {
                let at = usize::from(self.input.u16()) % 256;
                self.habits.namespace[at] = self.input.byte();
            }
            248..251 => self.gone = true,
            _ => self.fatal = true,
        }
    }

    /// Completions of anything, anywhere in a queue.
    fn flood(&mut self) {
        let queue = u16::from(self.input.byte() % 4);
        let Some(entries) = self.queues.get(&queue).map(|queue| queue.entries.max(1)) else {
            return;
        };
        let phase = u16::from(self.input.byte() & 1);
        for _ in 0..self.input.byte() {
            let [at, id, generation, status] = self.input.bytes::<4>();
            let entry = CompletionEntry {
                sq_id: queue.into(),
                command_id: (u16::from(generation) << 10 | u16::from(id & 63)).into(),
                status_phase: (u16::from(status) << 1 | phase).into(),
                ..CompletionEntry::default()
            };
            self.place(queue, u16::from(at) % entries, entry);
        }
    }
}

impl Device for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn read_u32(&self, offset: u64) -> u32 {
        let mut brain = self.brain();
        assert!(
            offset + 4 <= brain.habits.register_bytes,
            "beyond the registers"
        );
        if brain.gone {
            return GONE;
        }
        let [low, high] = [brain.habits.cap & 0xffff_ffff, brain.habits.cap >> 32];
        match offset {
            0 => u32::try_from(low).expect("half"),
            4 => u32::try_from(high).expect("half"),
            CC => brain.config,
            CSTS => brain.status(),
            _ => 0,
        }
    }

    fn write_u32(&self, offset: u64, value: u32) {
        let mut brain = self.brain();
        assert!(
            offset + 4 <= brain.habits.register_bytes,
            "beyond the registers"
        );
        assert!(offset.is_multiple_of(4), "no register");
        let value_wide = u64::from(value);
        match offset {
            _ if brain.gone => {}
            CC => brain.configure(value),
            AQA => brain.admin[0] = value_wide,
            ASQ => brain.admin[1] = value_wide,
            ACQ => brain.admin[2] = value_wide,
            offset if offset == ASQ + 4 => brain.admin[1] |= value_wide << 32,
            offset if offset == ACQ + 4 => brain.admin[2] |= value_wide << 32,
            DOORBELLS.. => brain.ring(offset - DOORBELLS, value),
            _ => {}
        }
    }

    fn register_bytes(&self) -> u64 {
        self.brain().habits.register_bytes
    }

    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        let mut brain = self.brain();
        let start = memory.start().as_ptr().addr() as u64;
        assert!(
            start.is_multiple_of(PAGE) && memory.len_bytes().is_multiple_of(PAGE),
            "whole pages"
        );
        if brain.input.byte() >= 252 {
            return Err(Error::new(ErrorKind::NoSpace, "no addresses").remedy("map less"));
        }
        brain.maps.push(memory);
        let step = match brain.habits.scattered {
            true => PAGE,
            false => memory.len_bytes(),
        };
        let runs = (0..memory.len_bytes() / step).map(|index| DmaRun {
            start: Iova(start + index * step),
            len_bytes: step,
        });
        Ok(runs.collect())
    }

    fn unmap(&self, runs: &[DmaRun]) -> Result<()> {
        let mut brain = self.brain();
        let start = runs.first().expect("a run").start.0;
        if brain.habits.unmap_fails && brain.is_data(start) {
            return Err(Error::new(ErrorKind::Io, "it stays mapped"));
        }
        let known = |of: &RawMemory| of.start().as_ptr().addr() as u64 == start;
        let at = brain.maps.iter().position(known).expect("it was mapped");
        brain.maps.swap_remove(at);
        Ok(())
    }

    fn vectors(&self) -> u16 {
        self.brain().habits.vectors
    }

    fn interrupt(&self, _vector: u16) -> Result<Arc<OwnedFd>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(1, flags).map_err(|errno| Error::os("no eventfd", errno))?;
        Ok(Arc::new(event))
    }

    fn quiesce(&self) -> Result<()> {
        let mut brain = self.brain();
        if brain.habits.quiesce_fails {
            brain.quiesce_failed = true;
            return Err(Error::new(ErrorKind::Io, "it cannot be kept from memory"));
        }
        brain.silent = true;
        brain.stops += 1;
        Ok(())
    }

    fn now(&self) -> Duration {
        let mut brain = self.brain();
        brain.now += Duration::from_micros(1);
        if !brain.gone {
            brain.work();
        }
        brain.now
    }

    fn pause(&self, span: Duration) {
        let mut brain = self.brain();
        brain.now += span.max(LEAST_PAUSE);
        if !brain.gone {
            brain.work();
        }
    }
}
