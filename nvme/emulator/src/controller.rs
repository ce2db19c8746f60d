//! The controller as a state machine: register writes come in, [`Controller::step`] does one
//! unit of work, time is a value. Has no thread and no clock; commands are in `admin` and `nvm`.

mod completion;
mod data;
mod fetch;
mod work;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use nvme::Result;
use nvme_sys::register::DOORBELLS;
use nvme_sys::sqe::SubmissionEntry;

use crate::config::Config;
use crate::fault::{ControllerFault, Plan, Seen};
use crate::features::{Event, Features};
use crate::iommu::{Iommu, IommuFault, Pieces, Unmapped};
use crate::nvm::Compare;
use crate::observe::{Counters, DmaWrite, Observer, WriteKind};
use crate::queue::{CompletionQueue, SubmissionQueue};
use crate::registers::{Change, Registers};

/// Commands that were fetched and have not ended: no more are fetched then.
const MAX_PENDING: usize = 4096;
/// IOMMU faults that are kept; more are only counted.
const MAX_FAULTS: usize = 1024;

/// A command and how much of it is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) entry: SubmissionEntry,
    pub(crate) queue: u16,
    /// Where its completion goes.
    pub(crate) completions: u16,
    /// At most so many bytes of data move.
    pub(crate) limit_bytes: Option<u64>,
    /// What its writes to memory are.
    pub(crate) kind: WriteKind,
}

impl Job {
    pub(crate) fn command_id(&self) -> u16 {
        self.entry.command_id.get()
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.queue == 0
    }
}

/// What a command waits for before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The completion of the command that it aborted has been written.
    Posted { queue: u16, command_id: u16 },
    /// All commands of a queue have ended, and their completions have been written.
    Closed { queue: u16 },
}

/// What became of a command that did not fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Done {
    /// It ends with this result.
    Ended(u32),
    /// It ends when an event comes.
    Held,
    /// It ends, with this result, when something has happened.
    After(Wait, u32),
}

/// A result, or a status field.
pub(crate) type Did = Result<Done, u16>;

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// To be executed.
    Data,
    /// To be told of.
    Ended { result: u32, status: u16 },
    /// To be told of when something has happened.
    After { wait: Wait, result: u32 },
    /// Ended, and yet to move data: the violation.
    Late,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) job: Job,
    plan: Plan,
    seen: Seen,
    stage: Stage,
    due_steps: u64,
    due_time: Duration,
}

pub(crate) struct Controller {
    pub(crate) config: Config,
    pub(crate) registers: Registers,
    pub(crate) now: Duration,
    steps: u64,
    pub(crate) iommu: Iommu,
    pub(crate) pieces: Pieces,
    list: Vec<u8>,
    pub(crate) compare: Compare,
    pub(crate) submissions: Vec<Option<SubmissionQueue>>,
    pub(crate) completions: Vec<Option<CompletionQueue>>,
    /// Where shadow doorbells and event indices are.
    pub(crate) shadow: Option<(u64, u64)>,
    pending: VecDeque<Pending>,
    /// Completions that wait, over all queues.
    waiting: usize,
    pub(crate) held: VecDeque<Pending>,
    pub(crate) features: Features,
    pub(crate) counters: Counters,
    pub(crate) observer: Option<Observer>,
    pub(crate) iommu_faults: Vec<IommuFault>,
    /// Vectors to raise.
    pub(crate) raised: Vec<u16>,
    gone: bool,
    stalled: bool,
    /// No DMA any more, for good.
    quiesced: bool,
    next_submission: usize,
    next_completion: usize,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("config", &self.config)
            .field("registers", &self.registers)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

fn none<T>(count: usize) -> Vec<Option<T>> {
    (0..count).map(|_| None).collect()
}

impl Controller {
    pub(crate) fn new(config: Config) -> Result<Self> {
        config.check()?;
        let queues = usize::from(config.io_queues) + 1;
        Ok(Self {
            registers: Registers::new(&config),
            now: Duration::ZERO,
            steps: 0,
            iommu: Iommu::new(&config)?,
            pieces: Pieces::default(),
            list: Vec::new(),
            compare: Compare::default(),
            submissions: none(queues),
            completions: none(queues),
            shadow: None,
            pending: VecDeque::new(),
            waiting: 0,
            held: VecDeque::new(),
            features: Features::new(&config),
            counters: Counters::default(),
            observer: None,
            iommu_faults: Vec::new(),
            raised: Vec::new(),
            gone: false,
            stalled: false,
            quiesced: false,
            next_submission: 0,
            next_completion: 0,
            config,
        })
    }

    pub(crate) fn read(&self, offset: u64) -> u32 {
        if self.gone {
            return nvme_sys::register::GONE;
        }
        self.registers.read(offset)
    }

    pub(crate) fn write(&mut self, offset: u64, value: u32) {
        if self.gone || self.quiesced {
            return;
        }
        if offset >= DOORBELLS {
            self.doorbell(offset - DOORBELLS, value);
        } else {
            self.registers.write(offset, value, self.now);
        }
    }

    pub(crate) fn inject(&mut self, fault: ControllerFault) {
        match fault {
            ControllerFault::Fatal => self.registers.fail(),
            ControllerFault::Stall => self.stalled = true,
            ControllerFault::Gone => self.gone = true,
            ControllerFault::SlowReady(delay) => self.registers.slow_down(delay),
        }
    }

    pub(crate) fn reformat(&mut self, id: u32, block_bytes: u32) {
        assert!(
            block_bytes.is_power_of_two() && (512..=65_536).contains(&block_bytes),
            "blocks of {block_bytes} bytes"
        );
        let index = usize::try_from(id).expect("a small number") - 1;
        let shift = u8::try_from(block_bytes.ilog2()).expect("below 32");
        self.config.namespaces[index].block_shift = shift;
        self.features.namespace_changed(id);
    }

    /// Bus mastering off, function reset.
    pub(crate) fn quiesce(&mut self) {
        self.registers.clear();
        self.reset();
        self.pending.clear();
        self.quiesced = true;
    }

    fn doorbell(&mut self, offset: u64, value: u32) {
        self.counters.doorbell_writes += 1;
        let stride = self.registers.doorbell_bytes();
        if !self.registers.is_running() || !offset.is_multiple_of(stride) {
            return;
        }
        let number = offset / stride;
        let id = usize::try_from(number / 2).unwrap_or(usize::MAX);
        let rung = if number.is_multiple_of(2) {
            self.submissions
                .get_mut(id)
                .and_then(Option::as_mut)
                .map(|queue| {
                    match queue.shadow {
                        // The value in memory counts, and may be ahead of this one.
                        Some(_) => value < queue.places.entries,
                        None => value != queue.places.tail && queue.ring(value).is_ok(),
                    }
                })
        } else {
            self.completions
                .get_mut(id)
                .and_then(Option::as_mut)
                .map(|queue| match queue.shadow {
                    Some(_) => value < queue.places.entries,
                    None => value != queue.places.head && queue.ring(value).is_ok(),
                })
        };
        match rung {
            Some(true) => {}
            Some(false) => self.features.report(Event::INVALID_DOORBELL_VALUE),
            None => self.features.report(Event::INVALID_DOORBELL),
        }
    }

    /// Does one unit of work; whether there was any, or some comes closer with steps.
    pub(crate) fn step(&mut self) -> bool {
        if self.gone || self.quiesced {
            return false;
        }
        self.steps += 1;
        if let Some(change) = self.registers.tick(self.now) {
            self.change(change);
            return true;
        }
        self.tell_late();
        if self.registers.is_running() && !self.stalled {
            self.deliver() || self.answer_event() || self.fetch() || self.work()
        } else {
            self.work()
        }
    }

    /// When something happens by itself, should no step find anything before.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.gone || self.quiesced {
            return None;
        }
        let pending = self.pending.iter().filter(|pending| {
            self.may_go_on(pending) && pending.due_steps <= self.steps && self.is_over(pending)
        });
        let pending = pending.map(|pending| pending.due_time);
        let coalesced = self.features.coalescing.map(|(_, span)| span);
        let untold = self
            .completions
            .iter()
            .flatten()
            .filter(|queue| queue.untold > 0);
        let untold = untold.map(|queue| {
            queue
                .untold_since
                .saturating_add(coalesced.unwrap_or_default())
        });
        self.registers
            .deadline()
            .into_iter()
            .chain(pending)
            .chain(untold)
            .min()
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Ready => {
                let [submissions, completions] = self.registers.admin_entries();
                let [asq, acq] = self.registers.admin_addresses();
                self.submissions[0] = Some(SubmissionQueue::new(asq, submissions, 0));
                self.completions[0] = Some(CompletionQueue::new(acq, completions, Some(0)));
            }
            Change::Reset => {
                self.reset();
                self.counters.resets += 1;
            }
            Change::Shutdown => {
                for namespace in &mut self.config.namespaces {
                    // There is nobody left to tell of a failure.
                    let _unreported = namespace.disk.flush();
                }
            }
        }
    }

    fn reset(&mut self) {
        self.submissions.fill_with(|| None);
        self.completions.fill_with(|| None);
        self.pending
            .retain(|pending| matches!(pending.stage, Stage::Late));
        self.held.clear();
        self.shadow = None;
        self.waiting = 0;
        self.features = Features::new(&self.config);
        self.raised.clear();
        self.stalled = false;
        (self.next_submission, self.next_completion) = (0, 0);
    }

    /// The controller cannot go on: queues or doorbells are not where they should be.
    fn fail(&mut self, Unmapped(address): Unmapped, write: bool, queue: u16) {
        self.fault(address, write, queue, None);
        self.registers.fail();
    }

    fn fault(&mut self, address: u64, write: bool, queue: u16, command_id: Option<u16>) {
        self.counters.iommu_faults += 1;
        if self.iommu_faults.len() < MAX_FAULTS {
            self.iommu_faults.push(IommuFault {
                address: nvme::dma::Iova(address),
                write,
                queue,
                command_id,
            });
        }
    }

    fn observe(&mut self, write: &DmaWrite) {
        if let Some(observer) = &mut self.observer {
            observer(write);
        }
    }

    fn store_event_index(&mut self, address: u64, value: u32, queue: u16) -> bool {
        if let Err(unmapped) = self.iommu.store(address, value) {
            self.fail(unmapped, true, queue);
            return false;
        }
        // The host reads the index after it wrote its doorbell; we, the other way round.
        fence(Ordering::SeqCst);
        self.observe(&DmaWrite {
            run: run(address, 4),
            kind: WriteKind::EventIndex,
            queue,
            command_id: 0,
        });
        true
    }
}

fn narrow(id: usize) -> u16 {
    u16::try_from(id).expect("queue identifiers are 16 bits")
}

fn run(address: u64, len_bytes: u64) -> nvme::dma::DmaRun {
    nvme::dma::DmaRun {
        start: nvme::dma::Iova(address),
        len_bytes,
    }
}
