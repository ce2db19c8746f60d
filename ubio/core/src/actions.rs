//! What the machine asks for next: news first, then what frees windows, then what fills them.

use core::cmp::Reverse;

use crate::action::{Action, Outcome};
use crate::core::Core;
use crate::plan::Landing;
use crate::planted::PlantedBug;
use crate::stream::{NextFill, Phase};
use crate::units::{ItemIndex, Lease, LeaseId, Nanos, Token};
use crate::window_table::{Kind, NO_LEASE, Slot, State};

impl Core {
    /// The next thing to do, or `None` until something is reported (or
    /// [`next_wakeup`](Core::next_wakeup) has come).
    ///
    /// Each action is given once; drivers carry it out and report as the action says.
    #[inline]
    pub fn next_action(&mut self, now: Nanos) -> Option<Action> {
        if self.stirred {
            if let Some(action) = self.next_but_commands() {
                return Some(action);
            }
            self.stirred = false;
        }
        let over = u16::from(self.planted.is(PlantedBug::OverDepth));
        if self.stats.in_flight.now >= self.knobs.now.depth + over {
            return None;
        }
        self.next_command(now)
    }

    /// Everything but commands and the windows for them.
    fn next_but_commands(&mut self) -> Option<Action> {
        if let Some(action) = self.next_news() {
            return Some(action);
        }
        if let Some(Reverse((_, _, id))) = self.to_flush.pop() {
            self.table.set_state(id, State::Flushing);
            self.stats.flushes += 1;
            let slot = &self.table[id];
            let stream = self.stream(slot.stream).id;
            return Some(Action::Flush {
                lease: self.table.lease(id),
                stream,
                fill: slot.fill,
            });
        }
        if let Some(id) = self.to_lend.pop() {
            return Some(self.lend(id));
        }
        if let Some(id) = self.to_scrub.pop() {
            self.table.set_state(id, State::Scrubbing);
            self.stats.scrubs += 1;
            return Some(Action::Scrub {
                lease: self.table.lease(id),
            });
        }
        // Tickets as far as they go: destinations are prepared ahead of the reads.
        while self.table.has_free(Kind::Ticket) && self.arm_next(Kind::Ticket) {}
        if let Some(id) = self.to_prepare.pop() {
            self.table.set_state(id, State::Preparing);
            let slot = &self.table[id];
            let stream = self.stream(slot.stream).id;
            return Some(Action::Prepare {
                lease: self.table.lease(id),
                stream,
                fill: slot.fill,
            });
        }
        None
    }

    /// Items that became visible, then streams that are over.
    fn next_news(&mut self) -> Option<Action> {
        while let Some(slot) = self.announcing.pop() {
            let twice = self.planted.is(PlantedBug::VisibleTwice);
            let late = self.planted.is(PlantedBug::VisibleAfterEnd);
            let stream = self.stream_mut(slot);
            stream.announcing = false;
            if matches!(
                stream.phase,
                Phase::Running | Phase::Over(Outcome::Complete)
            ) || late
            {
                let (mut from, to) = stream.take_news();
                if twice {
                    from = from.saturating_sub(1);
                }
                let stream = stream.id;
                self.stats.items_visible += u64::from(to - from);
                return Some(Action::Visible {
                    stream,
                    from: ItemIndex(from),
                    to: ItemIndex(to),
                });
            }
        }
        let slot = self.over.pop()?;
        let stream = self.stream(slot);
        let fallbacks = stream.fallbacks;
        let (stream, Phase::Over(outcome)) = (stream.id, stream.phase) else {
            unreachable!("a stream among those that are over is not")
        };
        match outcome {
            Outcome::Complete => self.stats.streams_complete += 1,
            Outcome::Cancelled => self.stats.streams_cancelled += 1,
            Outcome::Failed(_) => self.stats.streams_failed += 1,
        }
        self.forget(slot);
        Some(Action::Finished {
            stream,
            outcome,
            fallbacks,
        })
    }

    /// Hands a landed window out; its pieces count as arrived.
    fn lend(&mut self, id: u16) -> Action {
        self.table.set_state(id, State::Lent);
        self.stats.lends += 1;
        let (stream, fill) = (self.table[id].stream, self.table[id].fill);
        self.stream_mut(stream).deliver(fill);
        self.announce(stream);
        let lease = self.table.lease(id);
        Action::Lend {
            lease,
            stream: self.stream(stream).id,
            fill,
        }
    }

    /// Arms a window if none waits for its first command. Called no earlier than the source has
    /// room for that command, so that no window is promised to a stream before it is of use, and
    /// few windows, which stay in the cache, serve where few are enough.
    fn arm_window(&mut self) -> bool {
        self.table.windows_in(State::Armed) == 0
            && self.table.has_free(Kind::Window)
            && self.arm_next(Kind::Window)
    }

    /// Arms the next fill of the stream whose turn it is. False when no stream wants a lease
    /// of the kind.
    fn arm_next(&mut self, kind: Kind) -> bool {
        while let Some(slot) = self.arbiter.pop(kind) {
            if self.planted.is(PlantedBug::Unfair)
                && (0..slot).any(|other| self.arbiter.contains(kind, other))
            {
                self.arbiter.push(kind, slot);
                continue;
            }
            let Some(stream) = &mut self.streams[usize::from(slot)] else {
                continue;
            };
            let Some(next) = stream.next() else { continue };
            if Kind::of(next.landing) != kind {
                continue;
            }
            let Some(id) = self.table.take(kind) else {
                unreachable!("one was free")
            };
            stream.armed(next);
            self.table[id].stream = slot;
            self.table[id].lend_next = NO_LEASE;
            self.table[id].touched = false;
            if next.landing == Landing::Lent {
                let tail = core::mem::replace(&mut stream.lend_tail, id);
                if tail == NO_LEASE {
                    stream.lend_head = id;
                } else {
                    self.table[tail].lend_next = id;
                }
            }
            self.arm(id, next);
            self.want(slot);
            let in_use = self.table.in_use(kind);
            match kind {
                Kind::Window => {
                    self.stats.window_switches += 1;
                    self.stats.peak_windows_in_use = self.stats.peak_windows_in_use.max(in_use);
                }
                Kind::Ticket => {
                    self.stats.peak_tickets_in_use = self.stats.peak_tickets_in_use.max(in_use);
                }
            }
            return true;
        }
        false
    }

    /// Leases a window or ticket that is held for the stream already to one of its fills.
    pub(crate) fn arm(&mut self, id: u16, next: NextFill) {
        let alignment = self.limits.alignment;
        let slot = &mut self.table[id];
        let stream = self.streams[usize::from(slot.stream)]
            .as_ref()
            .expect("an open stream");
        let shape = &stream.plan.fills[next.fill as usize];
        slot.generation.0 = slot.generation.0.wrapping_add(1);
        slot.stream_id = stream.id;
        slot.fill = next.fill;
        slot.object = shape.object;
        slot.offset = shape.offset;
        slot.expected = shape.expected;
        // Past the last expected byte there is nothing to ask for.
        slot.end = shape
            .expected
            .checked_next_multiple_of(alignment)
            .unwrap_or(shape.len);
        slot.next = 0;
        slot.landed = 0;
        slot.route = next.route;
        slot.landing = next.landing;
        slot.fallen_back = next.fallen_back;
        slot.redo = false;
        if self.planted.is(PlantedBug::ForgetTouched) {
            slot.touched = false;
        }
        if next.landing == Landing::Destination && !self.planted.is(PlantedBug::Unprepared) {
            self.table.set_state(id, State::Prepare);
            self.to_prepare.push(id);
        } else {
            self.table.set_state(id, State::Armed);
            self.armed.push(id);
        }
    }

    /// The next command for the source: due retries, then the oldest lease with bytes left to
    /// ask for. The depth has room for it.
    #[inline]
    fn next_command(&mut self, now: Nanos) -> Option<Action> {
        if !self.retries.is_empty()
            && let Some(command) = self.retries.pop(now)
        {
            return Some(self.submit_again(command, now));
        }
        let id = match self.armed.front() {
            Some(id) if self.table.is_window(id) => id,
            other => {
                // The stream may want a ticket next.
                if self.arm_window()
                    && let Some(action) = self.next_but_commands()
                {
                    self.stirred = true;
                    return Some(action);
                }
                let Some(id) = other.or_else(|| self.armed.front()) else {
                    self.starved = true;
                    return None;
                };
                id
            }
        };
        let slot = &mut self.table[id];
        let left = slot.end - slot.next;
        let len = match slot.landing {
            Landing::Scatter => left,
            Landing::Window | Landing::Lent | Landing::Destination => {
                left.min(self.knobs.now.command_bytes)
            }
        };
        let offset = slot.next;
        let token = self.commands.start(id, offset, len)?;
        self.stats.commands += 1;
        self.stats.in_flight.add(now);
        slot.next += len;
        slot.in_flight += 1;
        let action = fill_action(token, id, slot, offset, len);
        if len == left {
            self.armed.pop();
        }
        if slot.state == State::Armed {
            slot.touched = true;
            self.table.set_state(id, State::Filling);
        }
        Some(action)
    }

    /// Puts a command that waited in flight.
    #[cold]
    fn submit_again(&mut self, command: u16, now: Nanos) -> Action {
        let token = self.commands.submit(command);
        self.stats.commands += 1;
        self.stats.in_flight.add(now);
        let command = &self.commands[command];
        let slot = &mut self.table[command.lease];
        slot.waiting -= 1;
        slot.in_flight += 1;
        fill_action(token, command.lease, slot, command.offset, command.len)
    }
}

/// A command over `len` bytes from `offset` on, both counted within the lease's fill.
#[inline]
fn fill_action(token: Token, id: u16, slot: &Slot, offset: u32, len: u32) -> Action {
    Action::Fill {
        token,
        lease: Lease {
            id: LeaseId(id),
            generation: slot.generation,
        },
        stream: slot.stream_id,
        fill: slot.fill,
        object: slot.object,
        offset: slot.offset + u64::from(offset),
        lease_offset: offset,
        len,
        route: slot.route,
        landing: slot.landing,
    }
}
