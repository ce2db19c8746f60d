//! The machine's entry points: opening and ending streams, and what all of its parts share.
//! What it asks for is in `actions.rs`, what it makes of reports in `events.rs`.

use alloc::collections::BinaryHeap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::action::{Outcome, Stall};
use crate::arbiter::Arbiter;
use crate::commands::{Command, Commands, Place};
use crate::knobs::Knobs;
use crate::limits::{Limits, LimitsError};
use crate::plan::StreamPlan;
use crate::planted::{Planted, PlantedBug};
use crate::retry::Retries;
use crate::ring::Ring;
use crate::stats::Stats;
use crate::stream::{Phase, Stream};
use crate::tuner::Setting;
use crate::units::{ItemIndex, Nanos, StreamId};
use crate::validate::{OpenError, validate};
use crate::window_table::{Kind, State, WindowTable};

/// A ready flush: when it is needed, in which order it became ready, and the window.
pub(crate) type ReadyFlush = Reverse<(Nanos, u64, u16)>;

/// The state machine. See the crate's head for how it is driven.
///
/// Everything it holds per lease and per command is allocated by [`Core::new`], everything per
/// stream by [`Core::open_stream`]; no other call allocates.
#[derive(Debug)]
pub struct Core {
    pub(crate) limits: Limits,
    pub(crate) knobs: Knobs,
    pub(crate) table: WindowTable,
    pub(crate) commands: Commands,
    pub(crate) retries: Retries,
    pub(crate) arbiter: Arbiter,
    pub(crate) streams: Vec<Option<Stream>>,
    /// Stream slots to use next, with the round of ids each is in.
    free_streams: Ring<(u16, u32)>,
    /// Bits of a stream id that are its slot.
    slot_bits: u32,
    /// Tickets whose destination is to be prepared.
    pub(crate) to_prepare: Ring<u16>,
    /// Leases with bytes no command has asked for, in the order they were armed.
    pub(crate) armed: Ring<u16>,
    /// Landed windows to be flushed.
    pub(crate) to_flush: BinaryHeap<ReadyFlush>,
    /// Orders equal needs by arrival.
    pub(crate) flush_arrivals: u64,
    /// Landed windows to be lent.
    pub(crate) to_lend: Ring<u16>,
    pub(crate) to_scrub: Ring<u16>,
    /// Streams with news of visible items.
    pub(crate) announcing: Ring<u16>,
    /// Streams that are over.
    pub(crate) over: Ring<u16>,
    /// Whether there may be more to do than to submit commands. Only completions that are
    /// part of a fill leave it as it is, so that most calls look at commands alone.
    pub(crate) stirred: bool,
    /// Since the last completion of a direct read, the source had less to do than it might,
    /// or something else.
    pub(crate) starved: bool,
    pub(crate) stats: Stats,
    pub(crate) planted: Planted,
}

impl Core {
    /// A machine with all its room taken, at full depth and command size.
    pub fn new(limits: Limits) -> Result<Core, LimitsError> {
        limits.check()?;
        let leases = usize::from(limits.windows) + usize::from(limits.tickets);
        let streams = usize::from(limits.streams);
        // Commands that wait for their retry keep their slot but not their place in the
        // depth, so a device in trouble with some ranges goes on with others.
        let commands = limits.depth * 2;
        let mut free_streams = Ring::new(streams);
        (0..limits.streams).for_each(|slot| free_streams.push((slot, 0)));
        Ok(Core {
            limits,
            knobs: Knobs::new(limits),
            table: WindowTable::new(&limits),
            commands: Commands::new(commands),
            retries: Retries::new(commands),
            arbiter: Arbiter::new(limits.streams),
            streams: (0..streams).map(|_| None).collect(),
            free_streams,
            slot_bits: limits.streams.next_power_of_two().trailing_zeros(),
            to_prepare: Ring::new(leases),
            armed: Ring::new(leases),
            to_flush: BinaryHeap::with_capacity(leases),
            flush_arrivals: 0,
            to_lend: Ring::new(leases),
            to_scrub: Ring::new(leases),
            announcing: Ring::new(streams),
            over: Ring::new(streams),
            stirred: false,
            starved: true,
            stats: Stats::default(),
            planted: Planted::default(),
        })
    }

    /// Opens a stream. The plan is checked whole first; a refused one leaves nothing behind.
    pub fn open_stream(
        &mut self,
        plan: Arc<StreamPlan>,
        _now: Nanos,
    ) -> Result<StreamId, OpenError> {
        validate(&plan, &self.limits)?;
        let Some((slot, round)) = self.free_streams.pop() else {
            let spent = self.streams.iter().all(Option::is_none);
            return Err(if spent {
                OpenError::IdsExhausted
            } else {
                OpenError::Busy
            });
        };
        let id = StreamId(round << self.slot_bits | u32::from(slot));
        let stream = Stream::new(id, plan, &self.limits);
        assert!(self.streams[usize::from(slot)].is_none());
        self.streams[usize::from(slot)] = Some(stream);
        self.choose_knobs();
        self.stirred = true;
        self.want(slot);
        self.announce(slot);
        self.settle(slot);
        Ok(id)
    }

    /// Ends a stream early. What the source still writes is waited for; then the stream is
    /// told to be finished. A stream that is over (or unknown) is left as it is.
    pub fn cancel(&mut self, stream: StreamId, _now: Nanos) {
        if let Some(slot) = self.slot_of(stream) {
            self.stirred = true;
            self.end(slot, Outcome::Cancelled);
        }
    }

    /// The consumer is done with all items before `items`. A count beyond what is visible, or
    /// below an earlier one, is cut to what can be.
    pub fn consumed(&mut self, stream: StreamId, items: ItemIndex, _now: Nanos) {
        if let Some(slot) = self.slot_of(stream) {
            self.stirred = true;
            self.stream_mut(slot).consumed(items.0);
            self.want(slot);
        }
    }

    /// How a stream will end that has failed or was cancelled and waits for its leases to come
    /// back; `None` while it runs, and of streams unknown. What was lent to a caller may take
    /// its time, so drivers tell the failure of such streams before `Action::Finished`.
    pub fn ending(&self, stream: StreamId) -> Option<Outcome> {
        match self.streams[usize::from(self.slot_of(stream)?)]
            .as_ref()?
            .phase
        {
            Phase::Running => None,
            Phase::Draining(outcome) | Phase::Over(outcome) => Some(outcome),
        }
    }

    /// When compute needs the stream's next item; counts for flushes that become ready from
    /// now on.
    pub fn set_needed_by(&mut self, stream: StreamId, needed_by: Option<Nanos>) {
        if let Some(slot) = self.slot_of(stream) {
            self.stream_mut(slot).needed_by = needed_by;
        }
    }

    /// When [`next_action`](Core::next_action) may have something new without a report: the
    /// earliest delayed retry. `None` also while the depth is used up, since then a completion
    /// comes first.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        if self.stats.in_flight.now >= self.knobs.now.depth {
            return None;
        }
        self.retries.next_due()
    }

    /// What everything waits for, when there is nothing to do.
    pub fn stall(&self) -> Stall {
        let of = |state| self.table.windows_in(state);
        // With nothing to do, what has landed waits to be lent after what has not.
        let at_source = of(State::Armed) + of(State::Filling) + of(State::Landed);
        let at_copy = of(State::Flushing);
        let unusable = of(State::Quarantined) + of(State::Scrub) + of(State::Scrubbing);
        let source_busy = self.commands.used() > 0;
        let streams = || {
            (0..)
                .zip(&self.streams)
                .filter_map(|(slot, s)| Some((slot, s.as_ref()?)))
        };
        let starved = !self.table.has_free(Kind::Window)
            && streams().any(|(_, stream)| stream.wants() == Some(Kind::Window));
        if starved && self.stats.in_flight.now < self.knobs.now.depth {
            // Whoever holds most of the windows.
            let (_, stall) = [
                (of(State::Lent), Stall::Compute),
                (unusable, Stall::Window),
                (at_copy, Stall::Copy),
                (at_source, Stall::Source),
            ]
            .into_iter()
            .max_by_key(|(windows, _)| *windows)
            .unwrap_or((0, Stall::Window));
            return stall;
        }
        if source_busy {
            Stall::Source
        } else if at_copy > 0 || self.is_preparing() {
            Stall::Copy
        } else if unusable > 0 {
            Stall::Window
        } else if of(State::Lent) > 0 || streams().any(|(_, stream)| stream.waits_for_consumer()) {
            Stall::Compute
        } else {
            Stall::Idle
        }
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The limits the machine was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Sets the size of commands from now on; cut to a multiple of the alignment within the
    /// limits. Tuning, if it is on, begins anew from there.
    pub fn set_command_bytes(&mut self, bytes: u32) {
        self.knobs.hint(|setting| Setting {
            command_bytes: bytes,
            ..setting
        });
    }

    /// Sets how many commands may be in flight from now on; cut to 1 and the limits. Those in
    /// flight beyond a smaller depth are waited for. Tuning, if it is on, begins anew from
    /// there.
    pub fn set_depth(&mut self, depth: u16) {
        self.knobs.hint(|setting| Setting { depth, ..setting });
    }

    /// Sets both for as long as a stream is open that lands in place
    /// ([`Landing::Destination`](crate::Landing::Destination)): no window bounds its commands.
    pub fn set_in_place(&mut self, setting: Setting) {
        self.knobs.hint_one(true, |_| setting);
    }

    /// Whether command size and depth are adapted to what direct reads like best, beginning
    /// with what was set.
    pub fn tune(&mut self, on: bool) {
        self.knobs.tune(on);
    }

    /// The command size and depth in use now.
    pub fn setting(&self) -> Setting {
        self.knobs.now
    }

    /// Gives the machine a bug, for tests of its tests.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, bug: PlantedBug) {
        self.planted.bug = Some(bug);
    }

    /// The slot of a stream that is open.
    fn slot_of(&self, stream: StreamId) -> Option<u16> {
        let slot = u16::try_from(stream.0 & ((1 << self.slot_bits) - 1)).ok()?;
        let open = self.streams.get(usize::from(slot))?.as_ref()?;
        (open.id == stream).then_some(slot)
    }

    #[inline]
    pub(crate) fn stream(&self, slot: u16) -> &Stream {
        self.streams[usize::from(slot)]
            .as_ref()
            .expect("an open stream")
    }

    #[inline]
    pub(crate) fn stream_mut(&mut self, slot: u16) -> &mut Stream {
        self.streams[usize::from(slot)]
            .as_mut()
            .expect("an open stream")
    }

    /// Queues the stream for the kind of lease it wants now.
    #[inline]
    pub(crate) fn want(&mut self, slot: u16) {
        if let Some(kind) = self.stream(slot).wants() {
            self.arbiter.push(kind, slot);
        }
    }

    /// Queues the stream's news of visible items, if it has any.
    #[inline]
    pub(crate) fn announce(&mut self, slot: u16) {
        let stream = self.stream_mut(slot);
        if stream.has_news() && !stream.announcing {
            stream.announcing = true;
            self.announcing.push(slot);
        }
    }

    /// Calls the stream over if nothing of it is left to happen.
    #[inline]
    pub(crate) fn settle(&mut self, slot: u16) {
        let stream = self.stream_mut(slot);
        let outcome = match stream.phase {
            Phase::Running if stream.is_through() => Outcome::Complete,
            Phase::Draining(outcome) if stream.leases == 0 => outcome,
            _ => return,
        };
        stream.phase = Phase::Over(outcome);
        self.over.push(slot);
        if self.planted.is(PlantedBug::FinishedTwice) {
            self.over.push(slot);
        }
    }

    /// Forgets a stream that is over; its id is never given again.
    pub(crate) fn forget(&mut self, slot: u16) {
        let Some(stream) = self.streams[usize::from(slot)].take() else {
            return;
        };
        // A slot whose rounds are used up is not used again.
        let round = stream.id.0 >> self.slot_bits;
        if round < u32::MAX >> self.slot_bits {
            self.free_streams.push((slot, round + 1));
        }
        self.choose_knobs();
    }

    /// Takes the knobs for what is open. With nothing open they stay as they are.
    fn choose_knobs(&mut self) {
        let mut open = self.streams.iter().flatten().peekable();
        if open.peek().is_some() {
            let in_place = open.any(|stream| stream.in_place);
            self.starved |= self.knobs.choose(in_place, self.stats.in_flight.now);
        }
    }

    /// Ends a running stream: nothing more of it is armed, submitted, flushed or told. Leases
    /// that a driver holds are waited for; the others are given back.
    pub(crate) fn end(&mut self, slot: u16, outcome: Outcome) {
        if !self.stream_mut(slot).end(outcome) {
            return;
        }
        let Core {
            table,
            commands,
            retries,
            armed,
            to_prepare,
            to_lend,
            to_flush,
            ..
        } = self;
        let ended = |table: &WindowTable, id: u16| table[id].stream == slot;
        armed.retain(|id| !ended(table, id));
        to_prepare.retain(|id| !ended(table, id));
        to_lend.retain(|id| !ended(table, id));
        to_flush.retain(|Reverse((_, _, id))| !ended(table, *id));
        retries.retain(|command| !ended(table, commands[command].lease));
        for id in 0..commands.len() {
            let Command { place, lease, .. } = commands[id];
            if place == Place::Waiting && ended(table, lease) {
                table[lease].waiting -= 1;
                commands.release(id);
            }
        }
        for id in 0..self.table.len() {
            if self.table[id].stream == slot {
                self.end_lease(id);
            }
        }
        self.settle(slot);
    }

    /// One lease of a stream that ends.
    fn end_lease(&mut self, id: u16) {
        let lease = self.table[id];
        match lease.state {
            State::Armed | State::Filling if lease.in_flight > 0 => {
                self.table.set_state(id, State::Quarantined);
                if self.planted.is(PlantedBug::ReleaseOnCancel) {
                    self.forget_commands(id);
                    self.release(id, false);
                }
            }
            State::Prepare | State::Armed | State::Filling | State::Landed => {
                self.release(id, lease.touched);
            }
            State::Lent if self.planted.is(PlantedBug::FinishedWhileLent) => {
                self.release(id, true);
            }
            // A driver has them: its report comes. Quarantined ones cannot be: they are of
            // streams that have ended.
            State::Preparing | State::Flushing | State::Lent => {}
            State::Free | State::Quarantined | State::Scrub | State::Scrubbing => {}
        }
    }

    /// Gives a lease up: a window with foreign bytes in it is scrubbed first.
    pub(crate) fn release(&mut self, id: u16, soiled: bool) {
        if soiled && self.table.is_window(id) && !self.planted.is(PlantedBug::SkipScrub) {
            self.table.set_state(id, State::Scrub);
            self.to_scrub.push(id);
        } else {
            self.free(id);
        }
    }

    /// Gives a lease back to the pool.
    pub(crate) fn free(&mut self, id: u16) {
        let stream = self.table[id].stream;
        self.table.give_back(id);
        self.stream_mut(stream).leases -= 1;
    }

    /// Whether a destination is being prepared.
    fn is_preparing(&self) -> bool {
        let tickets = self.limits.windows..self.table.len();
        tickets
            .into_iter()
            .any(|id| self.table[id].state == State::Preparing)
    }
}
