//! One run: the machine, its source over an emulated controller, and which of the possible
//! events comes next. What actions must look like is in `driver.rs`, what must be counted at the
//! end in `books.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvme::device::Device;
use nvme::memory::{RawMemory, TargetMemory};
use nvme::transport::Transport;
use nvme::transport::user::UserTransport;
use nvme_emulator::Emulator;
use nvme_emulator::fault::ControllerFault;
use ubio::source::nvme::{NamespaceInfo, NvmeSource};
use ubio::source::{MemoryId, Object, Source};
use ubio::sys::memory::Region;
use ubio::window::WindowMemory;
use ubio_core::{Core, ItemIndex, Lease, Nanos, ObjectId, Outcome, Route, StreamId, StreamPlan};

use super::super::model::{Command, Retry};
use super::super::rng::{Rng, mix};
use super::Options;
use super::books::Counted;
use super::faults::{self, Dice, Injected};
use super::scenario::{self, Geometry, NAMESPACE_BYTES, Pace, Rates, StreamSetup};
use super::tally::{Fault, Tally};
use super::watched::{self, Ledger, Watched};
use super::words::Words;

/// Events after which a run is said to hang.
const MAX_STEPS: u64 = 200_000;
/// Events without anything new before the clock jumps.
const CALM: u32 = 6;

/// What a driver other than the source has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Prepare,
    Flush,
    /// A lent window is out.
    Return,
    Scrub,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Action,
    Poll,
    Step,
    Clock,
    Report(Task),
    Consume,
    Open,
}

/// What a window is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Free,
    Filling,
    Flushing,
    Lent,
    Scrubbing,
}

/// One window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) at: At,
    pub(crate) stream: usize,
    pub(crate) fill: usize,
    /// It may hold what nobody else may see.
    pub(crate) dirty: bool,
}

/// A stream that was opened.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) plan: Arc<StreamPlan>,
    pub(crate) object: ObjectId,
    pub(crate) memory: MemoryId,
    /// Its first byte in the namespace, and in the memory of destinations.
    pub(crate) start: u64,
    pub(crate) base: u64,
    /// How it must end, if not whole.
    pub(crate) ending: Option<Outcome>,
    pub(crate) finished: bool,
    pub(crate) announced: u32,
    consumed: u32,
}

/// A command with the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) command: Command,
    pub(crate) at: u64,
    pub(crate) overdue: bool,
}

/// Everything of one run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) core: Core,
    /// `None` once dropped.
    pub(crate) source: Option<NvmeSource>,
    pub(crate) transport: Option<Rc<RefCell<UserTransport>>>,
    pub(crate) emulator: Arc<Emulator>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) injected: Arc<Mutex<Injected>>,
    pub(crate) words: Words,
    rates: Rates,
    pace: Pace,
    /// Where the windows are: attached, the first window's place, the memory.
    pub(crate) window_memory: MemoryId,
    pub(crate) window_lead: u64,
    pub(crate) windows: RawMemory,
    destinations: WindowMemory,
    pub(crate) destination: RawMemory,
    pub(crate) slots: Vec<Slot>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) by_id: BTreeMap<StreamId, usize>,
    unopened: VecDeque<StreamSetup>,
    pub(crate) submitted: Vec<Submitted>,
    pub(crate) retries: Vec<(Lease, Retry)>,
    pub(crate) tasks: Vec<(Task, Lease, usize, usize)>,
    /// The machine said there is nothing to do, and nothing was reported since.
    pub(crate) idle: bool,
    /// Events since something new.
    pub(crate) quiet: u32,
    jumps: u32,
    /// Resets of the controller that were asked for here.
    pub(crate) requests: u64,
    /// Resets of the controller before the run.
    pub(crate) resets_before: u64,
    pub(crate) counted: Counted,
    pub(crate) tally: Tally,
    verbose: bool,
}

/// Memory of `len_bytes`, in windows of `window_bytes`.
fn memory(len_bytes: u64, window_bytes: u64) -> (WindowMemory, RawMemory) {
    let region = Arc::new(Region::anonymous(len_bytes, false).expect("memory"));
    let raw = region.raw();
    (WindowMemory::host(region, window_bytes), raw)
}

/// A controller's source, and what it stands on.
fn open(geometry: &Geometry, words: Words) -> (NvmeSource, Watched) {
    let emulator = Emulator::stepped(geometry.config(words)).expect("an emulator");
    let emulator = Arc::new(emulator);
    let device: Arc<dyn Device> = Arc::clone(&emulator) as _;
    let transport = UserTransport::open(device, geometry.options()).expect("a controller");
    let watched = Watched {
        namespace: *transport.namespace(),
        inner: Rc::new(RefCell::new(transport)),
        emulator,
        ledger: Arc::default(),
        abort_after: geometry.abort_after,
        starts: Vec::new(),
    };
    let info = NamespaceInfo {
        name: "simulated".to_owned(),
        model: String::new(),
        len_bytes: NAMESPACE_BYTES,
        block_bytes: geometry.block_bytes,
        route: Route::Emulated,
        how: String::new(),
    };
    let source = NvmeSource::new(Box::new(watched.clone()), info);
    (source.expect("a source"), watched)
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed ^ 0x6e76_6d65);
        let geometry = Geometry::new(&mut rng);
        let rates = Rates::new(&mut rng);
        let pace = Pace::new(&mut rng);
        let words = Words::new(mix(seed), NAMESPACE_BYTES);
        let (mut source, watched) = open(&geometry, words.clone());
        let Watched {
            inner: transport,
            emulator,
            ledger,
            ..
        } = watched;
        let (limits, window_lead) = scenario::pool(&mut rng, source.limits());
        let core = Core::new(limits).expect("the scenario's limits hold");
        let (unopened, destination_bytes) = scenario::streams(&mut rng, &limits);
        let window_bytes = u64::from(limits.window_bytes);
        let pool_bytes = window_lead + u64::from(limits.windows) * window_bytes;
        let (pool, windows) = memory(pool_bytes, window_bytes);
        let (destinations, destination) = memory(destination_bytes, destination_bytes);
        let window_memory = source.attach(&pool, true).expect("room");
        let injected: Arc<Mutex<Injected>> = Arc::default();
        emulator.set_faults(Dice {
            rng: Rng::new(rng.next()),
            rates,
            injected: Arc::clone(&injected),
            violates: options.violates(),
        });
        let observer = Arc::clone(&ledger);
        emulator.observe(Box::new(move |write| watched::lock(&observer).judge(write)));
        let free = Slot {
            generation: 0,
            at: At::Free,
            stream: 0,
            fill: 0,
            dirty: false,
        };
        World {
            resets_before: emulator.counters().resets,
            core,
            source: Some(source),
            transport: Some(transport),
            emulator,
            ledger,
            injected,
            words,
            rates,
            pace,
            window_memory,
            window_lead,
            windows,
            destinations,
            destination,
            slots: vec![free; limits.windows.into()],
            streams: Vec::new(),
            by_id: BTreeMap::new(),
            unopened: unopened.into(),
            submitted: Vec::new(),
            retries: Vec::new(),
            tasks: Vec::new(),
            idle: false,
            quiet: 0,
            jumps: 0,
            requests: 0,
            counted: Counted::default(),
            tally: Tally::default(),
            verbose: options.verbose,
            rng,
        }
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn plant(&mut self, bug: ubio_core::PlantedBug) {
        self.core.plant(bug);
    }

    /// Runs to the end. Panics when anything does what it must not.
    pub(crate) fn run(&mut self) {
        while self.source.is_some() && self.step() {
            let hangs = self.tally.steps >= MAX_STEPS;
            assert!(!hangs, "I3: no end after {MAX_STEPS} events");
        }
        self.check_end();
    }

    pub(crate) fn now(&self) -> Nanos {
        let now = self.emulator.now().as_nanos();
        Nanos(u64::try_from(now).unwrap_or(u64::MAX))
    }

    fn open_streams(&self) -> usize {
        self.streams
            .iter()
            .filter(|stream| !stream.finished)
            .count()
    }

    /// One event. False when all is over.
    fn step(&mut self) -> bool {
        if self.unopened.is_empty() && self.open_streams() == 0 {
            return false;
        }
        self.tally.steps += 1;
        self.quiet += 1;
        match self.next_event() {
            Event::Action => self.take_action(),
            Event::Poll => self.poll(),
            Event::Step => self.step_emulator(),
            Event::Clock => self.pass_time(),
            Event::Report(task) => self.report(task),
            Event::Consume => self.consume(),
            Event::Open => self.open(),
        }
        self.strike();
        let in_flight = usize::from(self.core.stats().in_flight.now);
        assert_eq!(in_flight, self.submitted.len(), "I3: commands in flight");
        self.check_writes();
        true
    }

    fn next_event(&mut self) -> Event {
        let pace = self.pace;
        let waits = |task| self.tasks.iter().any(|(other, ..)| *other == task);
        let when = |holds: bool, weight: u32| if holds { weight } else { 0 };
        let consumes = |stream: &Stream| !stream.finished && stream.announced > stream.consumed;
        let clock = if self.quiet > CALM { 60 } else { pace.clock };
        let events = [
            (Event::Action, when(!self.idle, pace.actions)),
            (Event::Poll, pace.poll),
            (Event::Step, pace.step),
            (Event::Clock, clock),
            (
                Event::Report(Task::Flush),
                when(waits(Task::Flush), pace.copy),
            ),
            (
                Event::Report(Task::Prepare),
                when(waits(Task::Prepare), pace.copy),
            ),
            (
                Event::Report(Task::Scrub),
                when(waits(Task::Scrub), pace.copy),
            ),
            (
                Event::Report(Task::Return),
                when(waits(Task::Return), pace.give_back),
            ),
            (
                Event::Consume,
                when(self.streams.iter().any(consumes), pace.consume),
            ),
            (Event::Open, when(!self.unopened.is_empty(), pace.open)),
        ];
        let total: u32 = events.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.range(0..total);
        for (event, weight) in events {
            if left < weight {
                return event;
            }
            left -= weight;
        }
        Event::Clock
    }

    /// Something new: nobody waits for the clock alone.
    pub(crate) fn moved(&mut self) {
        (self.quiet, self.jumps) = (0, 0);
    }

    /// An event, for the digest and whoever looks.
    pub(crate) fn note(&mut self, word: u64, what: impl FnOnce() -> String) {
        let now = self.now().0;
        self.tally.digest = mix(self.tally.digest ^ word ^ now << 20);
        if self.verbose {
            eprintln!("{:>6} at {now:>9} ns: {}", self.tally.steps, what());
        }
    }

    fn take_action(&mut self) {
        match self.core.next_action(self.now()) {
            Some(action) => {
                self.note(3, || format!("{action:?}"));
                self.moved();
                self.asked(action);
            }
            None => {
                self.core.check_idle();
                self.idle = true;
            }
        }
    }

    fn step_emulator(&mut self) {
        for _ in 0..self.rng.range(1..5) {
            if self.emulator.step() {
                self.moved();
            }
        }
    }

    fn pass_time(&mut self) {
        let now = self.emulator.now();
        let span = if self.quiet > CALM {
            // One poll and one step later it may be seen that nobody is served by less.
            self.quiet = CALM - 2;
            self.jumps += 1;
            let most = Duration::from_millis(1 << self.jumps.min(8));
            let wakeup = self.core.next_wakeup().map(|at| Duration::from_nanos(at.0));
            let due = [self.emulator.deadline(), wakeup].into_iter().flatten();
            let due = due.filter(|at| *at > now).min();
            due.map_or(most, |at| (at - now).min(most))
        } else {
            Duration::from_micros(self.rng.range(0..self.pace.span_us).into())
        };
        self.emulator.advance(span);
        if self.core.next_wakeup().is_some_and(|at| at <= self.now()) {
            self.idle = false;
        }
    }

    fn open(&mut self) {
        let Some(setup) = self.unopened.front() else {
            return;
        };
        let opened = self.core.open_stream(Arc::clone(&setup.plan), self.now());
        let Ok(id) = opened else {
            assert!(
                opened.is_err_and(|error| error.is_busy()),
                "a plan is refused"
            );
            return;
        };
        let setup = self.unopened.pop_front().expect("seen");
        if setup.cut {
            self.tally.strike(Fault::Cut);
        }
        let source = self.source.as_mut().expect("not dropped");
        let (offset, len_bytes) = setup.object;
        let object = source.add_object(Object::Namespace { offset, len_bytes });
        let memory = source.attach(&self.destinations, false);
        let index = self.streams.len();
        self.streams.push(Stream {
            id,
            plan: setup.plan,
            object: object.expect("a range of blocks"),
            memory: memory.expect("room"),
            start: offset,
            base: setup.destination.0,
            ending: None,
            finished: false,
            announced: 0,
            consumed: 0,
        });
        assert!(self.by_id.insert(id, index).is_none(), "an id used twice");
        self.note(1, || format!("open {id:?} as stream {index}"));
        self.moved();
        self.idle = false;
    }

    fn consume(&mut self) {
        let wants = |stream: &Stream| !stream.finished && stream.announced > stream.consumed;
        let of: Vec<usize> = (0..self.streams.len())
            .filter(|index| wants(&self.streams[*index]))
            .collect();
        let index = self.rng.pick(&of);
        let stream = &mut self.streams[index];
        stream.consumed = self.rng.range(stream.consumed + 1..stream.announced + 1);
        let (id, items) = (stream.id, ItemIndex(stream.consumed));
        self.core.consumed(id, items, self.now());
        self.moved();
        self.idle = false;
    }

    /// Tells the machine of commands that take longer than a load may wait.
    pub(crate) fn check_deadlines(&mut self) {
        let Some(deadline) = self.pace.deadline else {
            return;
        };
        let late = self
            .now()
            .0
            .saturating_sub(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
        for index in 0..self.submitted.len() {
            let known = &mut self.submitted[index];
            if known.overdue || known.at > late {
                continue;
            }
            known.overdue = true;
            let command = known.command;
            self.tally.strike(Fault::Overdue);
            self.core.on_overdue(command.token);
            self.overdue(command);
            self.idle = false;
        }
    }

    /// What happens whatever comes next.
    fn strike(&mut self) {
        let rates = self.rates;
        if self.rng.rare(rates.cancel) && !self.streams.is_empty() {
            let index = self.rng.below(self.streams.len());
            let stream = &self.streams[index];
            if !stream.finished && self.core.ending(stream.id).is_none() {
                self.tally.strike(Fault::Cancel);
                self.core.cancel(stream.id, self.now());
                self.end(index, Outcome::Cancelled);
                self.idle = false;
            }
        }
        if self.rng.rare(rates.knobs) {
            self.turn_knobs();
        }
        if self.rng.rare(rates.reset)
            && let Some(transport) = &self.transport
        {
            self.requests += 1;
            self.tally.strike(Fault::Reset);
            transport.borrow_mut().reset();
            self.note(7, || "a reset is asked for".to_owned());
        }
        if self.rng.rare(rates.strike) {
            let slow = Duration::from_millis(self.rng.pick(&[1, 100, 900, 30_000]));
            let faults = [
                ControllerFault::Fatal,
                ControllerFault::Stall,
                ControllerFault::SlowReady(slow),
                ControllerFault::SlowReady(slow),
            ];
            self.inject(faults);
        }
        if self.rng.rare(rates.gone / 30) {
            self.inject([ControllerFault::Gone; 4]);
        }
        if self.rng.rare(rates.drop) {
            self.tally.strike(Fault::Dropped);
            self.note(8, || "the engine is dropped".to_owned());
            self.drop_source();
        }
    }

    pub(crate) fn copy_fails(&mut self) -> bool {
        self.rng.chance(self.rates.copy)
    }

    fn inject(&mut self, of: [ControllerFault; 4]) {
        let fault = self.rng.pick(&of);
        faults::lock(&self.injected).note(fault);
        self.emulator.inject(fault);
        self.note(9, || format!("{fault:?}"));
    }

    fn turn_knobs(&mut self) {
        self.tally.strike(Fault::Knob);
        let limits = *self.core.limits();
        match self.rng.below(4) {
            0 => self
                .core
                .set_depth(u16::try_from(self.rng.range(1..20)).unwrap_or(1)),
            1 => {
                let bytes = self.rng.range(1..limits.command_bytes + 1);
                self.core.set_command_bytes(bytes);
            }
            2 => self.core.tune(self.rng.chance(500)),
            _ => {
                let Some(stream) = self.streams.last() else {
                    return;
                };
                let needed_by = self.rng.range(0..100_000_000);
                let needed_by = self.rng.chance(700).then_some(Nanos(needed_by.into()));
                self.core.set_needed_by(stream.id, needed_by);
            }
        }
        self.idle = false;
    }
}
