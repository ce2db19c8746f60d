//! What the machine makes of its drivers' reports. A report that does not fit the lease or
//! command it names is counted and dropped, and touches nothing.

use core::cmp::Reverse;

use crate::action::{Failure, FillError, FillErrorKind, Outcome};
use crate::commands::Foreign;
use crate::core::Core;
use crate::plan::Landing;
use crate::planted::PlantedBug;
use crate::retry::{Verdict, judge};
use crate::stream::{NextFill, Phase};
use crate::units::{Lease, Nanos, Token};
use crate::window_table::{Kind, NO_LEASE, State};

impl Core {
    /// A command came back: with the bytes it brought from its first byte on, or with an
    /// error.
    ///
    /// For [`Landing::Scatter`] the bytes are counted from the fill's first byte as for every
    /// landing. More bytes than were asked for are a driver's bug: the stream fails with
    /// [`FillErrorKind::Fatal`], code 0.
    pub fn on_fill(&mut self, token: Token, result: Result<u32, FillError>, now: Nanos) {
        let command = match self.commands.find(token) {
            Ok(command) => command,
            Err(foreign) => match self.believed(token, foreign) {
                Some(command) => command,
                None => return,
            },
        };
        self.stats.in_flight.remove(now);
        let part = &self.commands[command];
        let id = part.lease;
        let slot = &mut self.table[id];
        slot.in_flight -= 1;
        let needed = slot.expected.saturating_sub(part.offset).min(part.len);
        match result {
            Ok(bytes)
                if bytes >= needed
                    && bytes <= part.len
                    && slot.state == State::Filling
                    && !slot.redo =>
            {
                slot.landed += needed;
                let early = self.planted.is(PlantedBug::FlushEarly);
                let whole = (slot.is_quiet() || early) && slot.next == slot.end;
                let direct = slot.route.is_dma();
                self.commands.release(command);
                self.tell_tuner(bytes, direct, now);
                if whole {
                    self.on_landed(id);
                }
            }
            _ => self.on_other_fill(command, id, result, now),
        }
    }

    /// A command takes longer than its stream may wait for it: the stream fails, with
    /// [`FillErrorKind::Overdue`]. The command stays in flight, and its window or ticket is
    /// held, until it comes back.
    pub fn on_overdue(&mut self, token: Token) {
        let Ok(command) = self.commands.find(token) else {
            self.believed(token, Foreign::Stale);
            return;
        };
        let part = &self.commands[command];
        let id = part.lease;
        let slot = &self.table[id];
        self.stirred = true;
        if self.stream(slot.stream).phase != Phase::Running {
            return;
        }
        let failure = Failure {
            fill: slot.fill,
            object: slot.object,
            offset: slot.offset + u64::from(part.offset),
            len: part.len,
            tries: part.tries,
            error: FillError {
                kind: FillErrorKind::Overdue,
                code: 0,
            },
        };
        let stream = slot.stream;
        if self.planted.is(PlantedBug::ReleaseOnOverdue) {
            self.forget_commands(id);
        }
        self.end(stream, Outcome::Failed(failure));
    }

    /// Tells the tuner of a direct read. After any other it counts none of those in flight.
    #[inline]
    fn tell_tuner(&mut self, bytes: u32, direct: bool, now: Nanos) {
        let starved = core::mem::replace(&mut self.starved, !direct);
        if direct {
            self.knobs.on_completed(bytes, !starved, now);
        }
    }

    /// What to make of a completion that fits no command in flight: nothing, but for a planted
    /// bug.
    #[cold]
    fn believed(&mut self, token: Token, foreign: Foreign) -> Option<u16> {
        if self.planted.is(PlantedBug::IgnoreSequence)
            && let Ok(command) = self.commands.find_whatever_sequence(token)
        {
            return Some(command);
        }
        match foreign {
            Foreign::Stale => self.stats.stale_completions += 1,
            Foreign::Duplicate => self.stats.duplicate_completions += 1,
            Foreign::Unknown => self.stats.unknown_completions += 1,
        }
        None
    }

    /// A command came back short, with an error, or for a lease that is not to be filled any
    /// more.
    #[cold]
    fn on_other_fill(&mut self, command: u16, id: u16, result: Result<u32, FillError>, now: Nanos) {
        self.stirred = true;
        self.starved = true;
        let slot = &mut self.table[id];
        if slot.state == State::Quarantined {
            self.commands.release(command);
            self.release_when_quiet(id);
            return;
        }
        debug_assert_eq!(slot.state, State::Filling);
        if slot.redo {
            // Whatever came, the fill is done over.
            self.commands.release(command);
            self.redo_when_quiet(id);
            return;
        }
        let part = &mut self.commands[command];
        let needed = (slot.expected - part.offset).min(part.len);
        if matches!(result, Ok(bytes) if bytes < needed) {
            self.stats.short_reads += 1;
        }
        if matches!(result, Ok(bytes) if bytes > part.len) {
            self.stats.overlong_completions += 1;
        }
        let verdict = judge(part, needed, self.limits.alignment, result);
        match self.planted.bend(verdict, needed, result) {
            Verdict::Landed => {
                slot.landed += needed;
                self.commands.release(command);
                if slot.is_quiet() && slot.next == slot.end {
                    self.on_landed(id);
                }
            }
            Verdict::Rest { landed } => {
                slot.landed += landed;
                slot.waiting += 1;
                self.commands.wait(command, landed);
                self.retries.push(command, Nanos(0), now);
            }
            Verdict::Again { delay } => {
                slot.waiting += 1;
                self.stats.retries += 1;
                self.commands.wait(command, 0);
                if !(self.planted.is(PlantedBug::LostRetry) && delay > Nanos(0)) {
                    self.retries.push(command, delay, now);
                }
            }
            Verdict::NotResident => self.on_not_resident(command, id, result.err()),
            Verdict::Failed(error) => self.fail_command(command, id, error),
        }
    }

    /// A destination is ready for DMA, or cannot be made so.
    pub fn on_prepared(&mut self, lease: Lease, result: Result<(), FillError>, _now: Nanos) {
        let Some(id) = self.reported(lease, State::Preparing) else {
            return;
        };
        let stream = self.table[id].stream;
        if let Err(error) = result {
            self.fail_lease(id, error);
        }
        if self.stream(stream).phase == Phase::Running {
            self.table.set_state(id, State::Armed);
            self.armed.push(id);
        } else {
            self.free(id);
            self.settle(stream);
        }
    }

    /// A window's pieces are at their destination, or could not be brought there.
    pub fn on_flushed(&mut self, lease: Lease, result: Result<(), FillError>, _now: Nanos) {
        let Some(id) = self.reported(lease, State::Flushing) else {
            return;
        };
        let (stream, fill) = (self.table[id].stream, self.table[id].fill);
        if let Err(error) = result {
            self.fail_lease(id, error);
        }
        if self.stream(stream).phase == Phase::Running {
            self.stream_mut(stream).deliver(fill);
            self.announce(stream);
            self.free(id);
        } else {
            self.release(id, true);
        }
        self.settle(stream);
    }

    /// The caller has let go of a lent window.
    pub fn on_returned(&mut self, lease: Lease, _now: Nanos) {
        let Some(id) = self.reported(lease, State::Lent) else {
            return;
        };
        let stream = self.table[id].stream;
        let ended = self.stream(stream).phase != Phase::Running;
        self.release(id, ended);
        self.settle(stream);
    }

    /// A window holds nothing but zeros.
    pub fn on_scrubbed(&mut self, lease: Lease, _now: Nanos) {
        let Some(id) = self.reported(lease, State::Scrubbing) else {
            return;
        };
        let stream = self.table[id].stream;
        self.free(id);
        self.settle(stream);
    }

    /// The slot a report is about; counts the report when it does not fit.
    #[inline]
    fn reported(&mut self, lease: Lease, state: State) -> Option<u16> {
        let lease = match self.planted.is(PlantedBug::IgnoreGeneration) {
            true if lease.id.0 < self.table.len() => self.table.lease(lease.id.0),
            _ => lease,
        };
        let found = self.table.find(lease, state);
        self.stirred = true;
        if found.is_none() {
            self.stats.stale_reports += 1;
        }
        found
    }

    /// All bytes of a lease are there.
    #[inline]
    fn on_landed(&mut self, id: u16) {
        let slot = &self.table[id];
        let (stream, fill) = (slot.stream, slot.fill);
        assert!(
            slot.landed == slot.expected || self.planted.any(),
            "a fill landed in part"
        );
        self.stirred = true;
        self.stats.fills += 1;
        self.stats.route_bytes[slot.route.index()] += u64::from(slot.expected);
        match slot.landing {
            Landing::Window => {
                self.table.set_state(id, State::Landed);
                let needed_by = self.stream(stream).needed_by.unwrap_or(Nanos(u64::MAX));
                self.to_flush
                    .push(Reverse((needed_by, self.flush_arrivals, id)));
                self.flush_arrivals += 1;
            }
            Landing::Lent => {
                self.table.set_state(id, State::Landed);
                self.lend_in_order(id, stream);
            }
            Landing::Destination | Landing::Scatter => {
                self.stream_mut(stream).deliver(fill);
                self.announce(stream);
                self.free(id);
                self.settle(stream);
            }
        }
    }

    /// A window to be lent has landed: it goes when all before it have gone.
    fn lend_in_order(&mut self, landed: u16, stream: u16) {
        if self.planted.is(PlantedBug::LendAsLanded) {
            self.to_lend.push(landed);
            return;
        }
        let mut head = self.stream(stream).lend_head;
        while head != NO_LEASE && self.table[head].state == State::Landed {
            self.to_lend.push(head);
            head = self.table[head].lend_next;
        }
        let stream = self.stream_mut(stream);
        stream.lend_head = head;
        if head == NO_LEASE {
            stream.lend_tail = NO_LEASE;
        }
    }

    /// The bytes are not in the page cache: the fill is done by its other way, if it has one
    /// that was not taken yet.
    fn on_not_resident(&mut self, command: u16, id: u16, error: Option<FillError>) {
        let slot = &self.table[id];
        let shape = &self.stream(slot.stream).plan.fills[slot.fill as usize];
        if slot.fallen_back || shape.otherwise.is_none() {
            let error = error.unwrap_or(FillError {
                kind: FillErrorKind::NotResident,
                code: 0,
            });
            self.fail_command(command, id, error);
            return;
        }
        self.commands.release(command);
        let slot = &mut self.table[id];
        slot.redo = true;
        if slot.next < slot.end {
            slot.end = slot.next;
            self.armed.retain(|armed| armed != id);
        }
        if slot.waiting > 0 {
            slot.waiting = 0;
            let Core {
                retries, commands, ..
            } = self;
            retries.retain(|command| {
                let keep = commands[command].lease != id;
                if !keep {
                    commands.release(command);
                }
                keep
            });
        }
        self.redo_when_quiet(id);
    }

    /// Does a fill over by its other way, once no command of it is left: under a new lease of
    /// the same window or ticket where that will do, so that it cannot be overtaken; else it
    /// queues for one of the other kind.
    fn redo_when_quiet(&mut self, id: u16) {
        let slot = &self.table[id];
        if slot.in_flight > 0 {
            return;
        }
        let (stream, fill, touched) = (slot.stream, slot.fill, slot.touched);
        let otherwise = self.stream(stream).plan.fills[fill as usize].otherwise;
        let Some((route, landing)) = otherwise else {
            unreachable!("it has another way")
        };
        if !self.planted.is(PlantedBug::UncountedFallback) {
            self.stats.fallbacks.not_resident += 1;
            self.stream_mut(stream).fallbacks += 1;
        }
        if Kind::of(landing) == Kind::of(self.table[id].landing) {
            self.arm(
                id,
                NextFill {
                    fill,
                    route,
                    landing,
                    fallen_back: true,
                },
            );
        } else {
            self.stream_mut(stream).redo(fill);
            self.release(id, touched);
            self.want(stream);
        }
    }

    /// Gives a quarantined lease up once the source is through with it.
    fn release_when_quiet(&mut self, id: u16) {
        let slot = &self.table[id];
        if slot.in_flight == 0 {
            let stream = slot.stream;
            self.release(id, true);
            self.settle(stream);
        }
    }

    /// A command failed for good, and its stream with it.
    fn fail_command(&mut self, command: u16, id: u16, error: FillError) {
        let (slot, part) = (&self.table[id], &self.commands[command]);
        let failure = Failure {
            fill: slot.fill,
            object: slot.object,
            offset: slot.offset + u64::from(part.offset),
            len: part.len,
            tries: part.tries,
            error,
        };
        let stream = slot.stream;
        self.commands.release(command);
        self.end(stream, Outcome::Failed(failure));
    }

    /// A flush or preparation failed, and its stream with it.
    fn fail_lease(&mut self, id: u16, error: FillError) {
        let slot = &self.table[id];
        let failure = Failure {
            fill: slot.fill,
            object: slot.object,
            offset: slot.offset,
            len: slot.expected,
            tries: 1,
            error,
        };
        self.end(slot.stream, Outcome::Failed(failure));
    }
}
