//! One run: the machine, its drivers' memory, and which of the possible events comes next.
//! What actions must look like is in `asked.rs`, what drivers answer in `answers.rs`.

use std::collections::{BTreeMap, VecDeque};

use ubio_core::{Core, ItemIndex, Lease, Nanos, ObjectId, Outcome, Stall, StreamId, Token};

use super::Options;
use super::knobs::Knobs;
use super::model::{At, Command, Slot, Stream};
use super::rng::{Rng, mix};
use super::scenario::{Scenario, StreamSetup};
use super::tally::{Fault, Tally};

/// Events after which a run is said to hang.
const MAX_STEPS: u64 = 2_000_000;

/// What a driver other than the source has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Prepare,
    Flush,
    /// A lent window is out.
    Return,
    Scrub,
}

/// One thing that may happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Action,
    Complete,
    Report(Task),
    Consume,
    Open,
    Clock,
}

/// Everything of one run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) core: Core,
    pub(crate) scenario: Scenario,
    pub(crate) now: u64,
    pub(crate) knobs: Knobs,
    /// Windows, then tickets.
    pub(crate) slots: Vec<Slot>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) by_id: BTreeMap<StreamId, usize>,
    unopened: VecDeque<StreamSetup>,
    /// Commands with the source, in the order of submission.
    pub(crate) outstanding: Vec<Command>,
    pub(crate) tasks: Vec<(Task, Lease)>,
    /// The machine said there is nothing to do, and nothing was reported since.
    pub(crate) idle: bool,
    /// Some tokens that completed, and some leases that were.
    pub(crate) old_tokens: Vec<Token>,
    pub(crate) old_leases: Vec<Lease>,
    /// What each object holds, and how much of it is left.
    pub(crate) objects: Vec<Vec<u8>>,
    pub(crate) object_lens: Vec<usize>,
    pub(crate) landed: u64,
    pub(crate) counted: Counted,
    pub(crate) tally: Tally,
    pub(crate) verbose: bool,
}

/// What the machine's counters must say.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) commands: u64,
    pub(crate) retries: u64,
    pub(crate) short: u64,
    pub(crate) fallbacks: u64,
    pub(crate) flushes: u64,
    pub(crate) lends: u64,
    pub(crate) scrubs: u64,
    pub(crate) fills: u64,
    pub(crate) items: u64,
    pub(crate) foreign: u64,
    pub(crate) overlong: u64,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::new(&mut rng);
        let limits = scenario.limits;
        #[cfg_attr(
            not(feature = "planted-bugs"),
            expect(unused_mut, reason = "changed with the feature")
        )]
        let mut core = Core::new(limits).expect("the scenario's limits hold");
        #[cfg(feature = "planted-bugs")]
        if let Some(bug) = options.plant {
            core.plant(bug);
        }
        let mut slots = Vec::new();
        for slot in 0..limits.windows + limits.tickets {
            let bytes = if slot < limits.windows {
                limits.window_bytes
            } else {
                0
            };
            slots.push(Slot {
                bytes: vec![0; bytes as usize],
                zeroed: true,
                ..Slot::default()
            });
        }
        let objects = contents(&scenario);
        World {
            now: 0,
            knobs: Knobs::new(limits),
            slots,
            streams: Vec::new(),
            by_id: BTreeMap::new(),
            unopened: scenario.streams.clone().into(),
            outstanding: Vec::new(),
            tasks: Vec::new(),
            idle: false,
            old_tokens: Vec::new(),
            old_leases: Vec::new(),
            object_lens: objects.iter().map(Vec::len).collect(),
            objects,
            landed: 0,
            counted: Counted::default(),
            tally: Tally::default(),
            verbose: options.verbose,
            rng,
            core,
            scenario,
        }
    }

    /// Runs to the end. Panics when the machine does what it must not.
    pub(crate) fn run(&mut self) {
        while self.step() {
            assert!(
                self.tally.steps < MAX_STEPS,
                "no end after {MAX_STEPS} events"
            );
        }
        self.core.check();
        self.check_end();
    }

    /// One event. False when all is over.
    fn step(&mut self) -> bool {
        self.tally.steps += 1;
        let events = self.events();
        let total: u32 = events.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            assert!(
                self.unopened.is_empty() && self.open_streams() == 0,
                "hangs: nothing to do, nothing under way, {} streams open",
                self.open_streams()
            );
            return false;
        }
        let mut left = self.rng.range(0..total);
        let mut chosen = Event::Clock;
        for (event, weight) in events {
            if left < weight {
                chosen = event;
                break;
            }
            left -= weight;
        }
        match chosen {
            Event::Action => self.take_action(),
            Event::Complete => self.complete(),
            Event::Report(task) => self.report(task),
            Event::Consume => self.consume(),
            Event::Open => self.open(),
            Event::Clock => self.pass_time(),
        }
        self.strike();
        self.note_waits();
        self.now += u64::from(self.rng.range(0..3));
        if self.core.next_wakeup().is_some_and(|at| at.0 <= self.now) {
            self.idle = false;
        }
        let in_flight = usize::from(self.core.stats().in_flight.now);
        assert_eq!(
            in_flight,
            self.outstanding.len(),
            "I3: commands with the source"
        );
        if self.verbose || self.tally.steps.is_multiple_of(8) {
            self.core.check();
        }
        true
    }

    /// What may happen next, weighted.
    fn events(&self) -> [(Event, u32); 9] {
        let pace = self.scenario.pace;
        let when = |may: bool, weight: u32| if may { weight } else { 0 };
        let task = |task: Task, weight: u32| {
            let waits = self.tasks.iter().any(|(other, _)| *other == task);
            (Event::Report(task), when(waits, weight))
        };
        let consumable = self
            .streams
            .iter()
            .any(|stream| stream.announced > stream.consumed);
        let woken = self.idle && self.core.next_wakeup().is_some();
        let opens = !self.unopened.is_empty();
        let room = self.open_streams() < usize::from(self.scenario.limits.streams);
        [
            (Event::Action, when(!self.idle, pace.actions)),
            (
                Event::Complete,
                when(!self.outstanding.is_empty(), pace.source),
            ),
            task(Task::Prepare, pace.prepare),
            task(Task::Flush, pace.copy),
            task(Task::Return, pace.give_back),
            task(Task::Scrub, pace.scrub),
            (Event::Consume, when(consumable, pace.consume)),
            (
                Event::Open,
                when(
                    opens && (room || !self.idle),
                    if room { pace.open } else { 1 },
                ),
            ),
            (Event::Clock, when(woken, pace.clock)),
        ]
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.streams
            .iter()
            .filter(|stream| !stream.finished)
            .count()
    }

    /// The knobs are those of what is open; with nothing open they stay as they are.
    pub(crate) fn choose_knobs(&mut self) {
        if self.open_streams() > 0 {
            let mut open = self.streams.iter().filter(|stream| !stream.finished);
            self.knobs.is_in_place = open.any(Stream::lands_in_place);
        }
    }

    /// Notes an event in the digest, and tells it if asked to.
    pub(crate) fn note(&mut self, word: u64, what: impl FnOnce() -> String) {
        self.tally.digest = mix(self.tally.digest ^ word ^ self.now << 20);
        if self.verbose {
            eprintln!("{:>6} at {:>6} ns: {}", self.tally.steps, self.now, what());
        }
    }

    fn open(&mut self) {
        let room = self.open_streams() < usize::from(self.scenario.limits.streams);
        let Some(setup) = self.unopened.front() else {
            return;
        };
        let opened = self.core.open_stream(setup.plan.clone(), Nanos(self.now));
        if !room {
            assert!(
                opened.is_err_and(|error| error.is_busy()),
                "a stream too many"
            );
            self.tally.strike(Fault::Busy);
            return;
        }
        let id = opened.expect("there is room, and the plan is valid");
        let stream = Stream::new(id, setup.plan.clone(), setup.destination_bytes);
        self.unopened.pop_front();
        let index = self.streams.len();
        assert!(
            self.by_id.insert(id, index).is_none(),
            "a stream id used twice"
        );
        self.note(1, || format!("open {id:?} as stream {index}: {stream:?}"));
        self.streams.push(stream);
        self.choose_knobs();
        self.settle(index);
        self.idle = false;
    }

    fn consume(&mut self) {
        let of: Vec<usize> = (0..self.streams.len())
            .filter(|index| self.streams[*index].announced > self.streams[*index].consumed)
            .collect();
        let index = self.rng.pick(&of);
        let stream = &mut self.streams[index];
        let to = self.rng.range(stream.consumed + 1..stream.announced + 1);
        // Nothing is consumed that is not visible: such counts are cut.
        let said = if self.rng.chance(50) { u32::MAX } else { to };
        stream.consumed = said.min(stream.announced);
        let id = stream.id;
        self.core.consumed(id, ItemIndex(said), Nanos(self.now));
        self.note(2, || format!("stream {index} consumed {said}"));
        self.idle = false;
    }

    fn pass_time(&mut self) {
        let Some(at) = self.core.next_wakeup() else {
            return;
        };
        self.now = self.now.max(at.0);
        self.idle = false;
    }

    fn take_action(&mut self) {
        match self.core.next_action(Nanos(self.now)) {
            Some(action) => {
                self.note(3, || format!("{action:?}"));
                self.asked(action);
            }
            None => {
                self.idle = true;
                self.check_idle();
            }
        }
    }

    /// Nothing to do: what it says it waits for must be so, and someone must be there to end it.
    fn check_idle(&self) {
        self.core.check_idle();
        let due = self.core.next_wakeup();
        assert!(
            due.is_none_or(|at| at.0 > self.now),
            "a wakeup for what could go on now"
        );
        let waits = |task: Task| self.tasks.iter().any(|(other, _)| *other == task);
        let held = || self.slots.iter().filter_map(|slot| slot.held.as_ref());
        let stall = self.core.stall();
        let holds = match stall {
            Stall::Idle => self.open_streams() == 0,
            Stall::Source => {
                !self.outstanding.is_empty() || held().any(|held| !held.retries.is_empty())
            }
            Stall::Copy => waits(Task::Flush) || waits(Task::Prepare),
            Stall::Window => {
                let ended = |held: &super::model::Held| {
                    held.at == At::Filling && !self.streams[held.stream].is_running()
                };
                waits(Task::Scrub) || held().any(ended)
            }
            Stall::Compute => {
                waits(Task::Return)
                    || self
                        .streams
                        .iter()
                        .any(|stream| stream.announced > stream.consumed)
            }
        };
        assert!(
            holds,
            "it says that it waits for {stall:?}, and that is not so"
        );
    }

    /// A stream of which nothing is left to happen ends whole.
    pub(crate) fn settle(&mut self, index: usize) {
        use super::model::Progress;
        let stream = &self.streams[index];
        let whole = stream.fills.iter().all(|fill| *fill == Progress::Delivered);
        if whole && stream.is_running() && !self.holds_any(index) {
            self.streams[index].ending = Some(Outcome::Complete);
        }
    }

    pub(crate) fn holds_any(&self, stream: usize) -> bool {
        let mut held = self.slots.iter().filter_map(|slot| slot.held.as_ref());
        held.any(|held| held.stream == stream)
    }

    /// Keeps track of who waits for a window since when.
    fn note_waits(&mut self) {
        let count = self.streams.len();
        for stream in &mut self.streams {
            stream.overtaken.resize(count, 0);
            let wants = stream.wants_window();
            if wants && !stream.waits {
                stream.overtaken.fill(0);
            }
            stream.waits = wants;
        }
    }

    /// Everything is over: nothing is out, and the machine counted as was counted here.
    fn check_end(&self) {
        assert!(
            self.outstanding.is_empty() && self.tasks.is_empty(),
            "work after the end"
        );
        for index in 0..self.streams.len() {
            if self.streams[index].ending == Some(Outcome::Complete) {
                self.check_destination(index, 0..self.streams[index].plan.pieces.len());
            }
        }
        let (stats, counted) = (self.core.stats(), &self.counted);
        let foreign = stats.stale_completions
            + stats.duplicate_completions
            + stats.unknown_completions
            + stats.stale_reports;
        let outcomes = [
            stats.streams_complete,
            stats.streams_cancelled,
            stats.streams_failed,
        ];
        assert_eq!(
            stats.fallbacks.not_resident, counted.fallbacks,
            "I6: fallbacks"
        );
        assert_eq!(stats.commands, counted.commands, "commands counted");
        assert_eq!(stats.retries, counted.retries, "retries counted");
        assert_eq!(stats.short_reads, counted.short, "short reads counted");
        assert_eq!(stats.flushes, counted.flushes, "flushes counted");
        assert_eq!(stats.lends, counted.lends, "lends counted");
        assert_eq!(stats.scrubs, counted.scrubs, "scrubs counted");
        assert_eq!(stats.fills, counted.fills, "fills counted");
        assert_eq!(stats.items_visible, counted.items, "visible items counted");
        assert_eq!(
            stats.overlong_completions, counted.overlong,
            "overlong completions counted"
        );
        assert_eq!(stats.bytes(), self.landed, "bytes counted");
        assert_eq!(foreign, counted.foreign, "completions and reports dropped");
        assert_eq!(outcomes, self.tally.outcomes, "outcomes counted");
    }
}

/// What the objects hold: words that tell object and place apart.
fn contents(scenario: &Scenario) -> Vec<Vec<u8>> {
    let mut lens: Vec<u64> = Vec::new();
    for fill in scenario
        .streams
        .iter()
        .flat_map(|stream| &stream.plan.fills)
    {
        let ObjectId(object) = fill.object;
        let object = object as usize;
        lens.resize(lens.len().max(object + 1), 0);
        lens[object] = lens[object].max(fill.offset + u64::from(fill.expected));
    }
    let object = |(object, len): (u64, u64)| {
        let words = (0..len.div_ceil(8)).flat_map(|word| mix(object << 40 ^ word).to_le_bytes());
        let mut bytes: Vec<u8> = words.collect();
        bytes.truncate(usize::try_from(len).unwrap_or(0));
        bytes
    };
    (1..).zip(lens).map(object).collect()
}
