//! The fake drivers: what the source writes and answers, what copy engine and caller report,
//! and what the model makes of it. Faults strike here, and only those the module's head lists.

use ubio_core::{Failure, FillError, FillErrorKind, Landing, Lease, Nanos, Outcome, Route};

use super::model::{At, Command, Progress, Retry, Verdict, on_window, pieces};
use super::tally::Fault;
use super::world::{Task, World};

/// Completed tokens and old leases that are remembered.
const MEMORY: usize = 64;

/// What a source that failed may leave in the range it was to fill.
const GARBAGE: u8 = 0xa5;

impl World {
    /// The source completes one of its commands.
    pub(crate) fn complete(&mut self) {
        let index = if self.scenario.pace.in_order {
            0
        } else {
            self.rng.below(self.outstanding.len())
        };
        if index > 0 {
            self.tally.strike(Fault::Reordered);
        }
        let command = self.outstanding.remove(index);
        if !self.streams[command.stream].is_running() {
            self.tally.strike(Fault::Late);
        }
        self.tally.completions += 1;
        let result = self.answer(&command);
        self.remember(command);
        self.note(4 ^ command.token.0 << 8, || {
            format!("complete {command:?}: {result:?}")
        });
        self.core.on_fill(command.token, result, Nanos(self.now));
        self.idle = false;
        self.completed(command, result);
    }

    fn remember(&mut self, command: Command) {
        if self.old_tokens.len() == MEMORY {
            let forgotten = self.rng.below(MEMORY);
            self.old_tokens.swap_remove(forgotten);
        }
        self.old_tokens.push(command.token);
        self.remember_lease(command.lease);
    }

    fn remember_lease(&mut self, lease: Lease) {
        if self.old_leases.len() == MEMORY {
            let forgotten = self.rng.below(MEMORY);
            self.old_leases.swap_remove(forgotten);
        }
        self.old_leases.push(lease);
    }

    /// What the source answers, having written what it writes.
    fn answer(&mut self, command: &Command) -> Result<u32, FillError> {
        if let Some((fault, kind)) = self.error(command) {
            self.tally.strike(fault);
            let torn = self.rng.range(0..command.len + 1);
            if self.rng.chance(500) {
                self.write(command, 0, torn, true);
            }
            let code = i32::try_from(self.rng.range(0..200)).unwrap_or(0);
            return Err(FillError { kind, code });
        }
        let shape = self.streams[command.stream].shape(command.fill);
        let object = shape.object.0 as usize;
        let from = usize::try_from(shape.offset).unwrap_or(usize::MAX) + command.offset as usize;
        let left = self.object_lens[object].saturating_sub(from);
        let there = u32::try_from(left).unwrap_or(u32::MAX).min(command.len);
        let faults = self.scenario.faults;
        if self.rng.chance(faults.overlong) {
            self.tally.strike(Fault::Overlong);
            self.write(command, 0, there, false);
            return Ok(command.len + self.rng.range(1..5000));
        }
        if self.rng.chance(faults.zero) {
            self.tally.strike(Fault::Zero);
            return Ok(0);
        }
        if there > 1 && self.rng.chance(faults.short) {
            self.tally.strike(Fault::Short);
            let alignment = self.scenario.limits.alignment;
            let some = self.rng.range(1..there);
            let bytes = match self.rng.below(4) {
                0 => there - 1,
                1 if some > alignment => some / alignment * alignment,
                _ => some,
            };
            self.write(command, 0, bytes, false);
            if self.rng.chance(500) {
                self.write(command, bytes, there, true);
            }
            return Ok(bytes);
        }
        self.write(command, 0, there, false);
        Ok(there)
    }

    /// Whether the command fails, and how.
    fn error(&mut self, command: &Command) -> Option<(Fault, FillErrorKind)> {
        let faults = self.scenario.faults;
        let absent = match command.route {
            Route::Cached => faults.not_resident,
            _ => faults.not_resident / 100,
        };
        if self.rng.chance(absent) {
            return Some((Fault::NotResident, FillErrorKind::NotResident));
        }
        if self.rng.chance(faults.transient) {
            let delay = Nanos(self.rng.pick(&[0, 0, 1, 100, 5000]));
            return Some((Fault::Transient, FillErrorKind::Transient { delay }));
        }
        if self.rng.chance(faults.device) {
            return Some((Fault::Device, FillErrorKind::Device));
        }
        if self.rng.chance(faults.truncated) {
            return Some((Fault::Truncated, FillErrorKind::Truncated));
        }
        if self.rng.chance(faults.fatal) {
            let kind = self
                .rng
                .pick(&[FillErrorKind::Fatal, FillErrorKind::Destination]);
            return Some((Fault::Fatal, kind));
        }
        None
    }

    /// Writes bytes `from..to` of a command's range to where they land, whoever holds that
    /// place by now.
    fn write(&mut self, command: &Command, from: u32, to: u32, garbage: bool) {
        let stream = &mut self.streams[command.stream];
        let shape = &stream.plan.fills[command.fill];
        let object = &self.objects[shape.object.0 as usize];
        let base = usize::try_from(shape.offset).unwrap_or(usize::MAX);
        let put = |at: &mut [u8], fill_offset: usize| {
            let right = object.get(base + fill_offset..).unwrap_or(&[]);
            if garbage || right.len() < at.len() {
                at.fill(GARBAGE);
            } else {
                at.copy_from_slice(&right[..at.len()]);
            }
        };
        let (from, to) = (
            (command.offset + from) as usize,
            (command.offset + to) as usize,
        );
        let first = pieces(&stream.plan, command.fill);
        match command.landing {
            Landing::Window | Landing::Lent => {
                let slot = &mut self.slots[usize::from(command.lease.id.0)];
                put(&mut slot.bytes[from..to], from);
            }
            Landing::Destination => {
                let run = &stream.plan.pieces[first.start];
                let run = usize::try_from(run.destination).unwrap_or(usize::MAX);
                put(&mut stream.destination[run + from..run + to], from);
            }
            Landing::Scatter => {
                for piece in &stream.plan.pieces[first] {
                    let start = piece.fill_offset as usize;
                    let (low, high) = (from.max(start), to.min(start + piece.len as usize));
                    if low < high {
                        let run = usize::try_from(piece.destination).unwrap_or(usize::MAX);
                        put(
                            &mut stream.destination[run + low - start..run + high - start],
                            low,
                        );
                    }
                }
            }
        }
    }

    /// What the rules make of a completion.
    fn completed(&mut self, mut command: Command, result: Result<u32, FillError>) {
        let id = usize::from(command.lease.id.0);
        let expected = self.streams[command.stream].shape(command.fill).expected;
        let running = self.streams[command.stream].is_running();
        let held = self.slots[id]
            .held
            .as_mut()
            .expect("held until its commands are back");
        assert_eq!(
            held.lease, command.lease,
            "I2: leased anew before its commands were back"
        );
        held.in_flight -= 1;
        if !running || held.redo {
            self.quiet(id);
            return;
        }
        let needed = (expected - command.offset).min(command.len);
        self.counted.short += u64::from(result.is_ok_and(|bytes| bytes < needed));
        self.counted.overlong += u64::from(result.is_ok_and(|bytes| bytes > command.len));
        let verdict = command.judge(needed, self.scenario.limits.alignment, result);
        let has_other = self.streams[command.stream]
            .shape(command.fill)
            .otherwise
            .is_some();
        match verdict {
            Verdict::Landed => {}
            Verdict::Again { landed, delay } => {
                self.counted.retries += u64::from(landed == 0);
                held.retries.push(Retry {
                    offset: command.offset + landed,
                    len: command.len - landed,
                    tries: command.tries,
                    due: self.now + delay,
                });
            }
            Verdict::NotResident if has_other && !held.second_way => {
                held.redo = true;
                held.retries.clear();
                held.end = held.next;
            }
            Verdict::NotResident => {
                let error = result.expect_err("not resident is an error");
                self.fail(command, error);
            }
            Verdict::Failed(error) => self.fail(command, error),
        }
        self.quiet(id);
    }

    /// A command failed for good.
    pub(crate) fn fail(&mut self, command: Command, error: FillError) {
        let shape = self.streams[command.stream].shape(command.fill);
        let failure = Failure {
            fill: u32::try_from(command.fill).unwrap_or(u32::MAX),
            object: shape.object,
            offset: shape.offset + u64::from(command.offset),
            len: command.len,
            tries: command.tries.all,
            error,
        };
        self.end(command.stream, Outcome::Failed(failure));
    }

    /// A flush or preparation failed.
    fn fail_lease(&mut self, stream: usize, fill: usize, error: FillError) {
        let shape = self.streams[stream].shape(fill);
        let failure = Failure {
            fill: u32::try_from(fill).unwrap_or(u32::MAX),
            object: shape.object,
            offset: shape.offset,
            len: shape.expected,
            tries: 1,
            error,
        };
        self.end(stream, Outcome::Failed(failure));
    }

    /// A stream ends before its time, if it has not ended yet.
    pub(crate) fn end(&mut self, stream: usize, outcome: Outcome) {
        if !self.streams[stream].is_running() {
            return;
        }
        self.streams[stream].ending = Some(outcome);
        for id in 0..self.slots.len() {
            let Some(held) = &mut self.slots[id].held else {
                continue;
            };
            if held.stream != stream {
                continue;
            }
            held.retries.clear();
            let in_hand = matches!(
                held.at,
                At::Preparing | At::Flushing | At::Lent | At::Scrub | At::Scrubbing
            );
            if !in_hand && held.in_flight == 0 {
                self.give_up(id);
            }
        }
    }

    /// A lease is of no more use, and its window holds what must not be seen.
    fn give_up(&mut self, id: usize) {
        let slot = &mut self.slots[id];
        let held = slot.held.as_mut().expect("held");
        if on_window(held.landing) {
            held.at = At::Scrub;
        } else {
            slot.held = None;
        }
    }

    /// What becomes of a lease once no command of it is with the source.
    fn quiet(&mut self, id: usize) {
        // Ending its stream may have seen to it already.
        let Some(held) = &mut self.slots[id].held else {
            return;
        };
        let (stream, fill, landing) = (held.stream, held.fill, held.landing);
        if held.in_flight > 0 || held.at != At::Filling {
            return;
        }
        if !self.streams[stream].is_running() {
            return self.give_up(id);
        }
        if held.redo {
            self.counted.fallbacks += 1;
            self.streams[stream].fallbacks += 1;
            let (_, other) = self.streams[stream].way(fill, true);
            if on_window(other) == on_window(landing) {
                held.at = At::Rearm;
            } else {
                self.streams[stream].fills[fill] = Progress::Redo;
                self.give_up(id);
            }
            return;
        }
        if !held.is_whole() {
            return;
        }
        self.counted.fills += 1;
        self.landed += u64::from(self.streams[stream].shape(fill).expected);
        if on_window(landing) {
            let needed_by = self.streams[stream].needed_by.unwrap_or(u64::MAX);
            held.at = At::Landed;
            held.ready = (needed_by, self.counted.fills);
        } else {
            self.streams[stream].deliver(fill);
            self.slots[id].held = None;
            self.settle(stream);
        }
    }

    /// A driver other than the source is through with one of its tasks.
    pub(crate) fn report(&mut self, task: Task) {
        let of: Vec<usize> = (0..self.tasks.len())
            .filter(|index| self.tasks[*index].0 == task)
            .collect();
        let index = self.rng.pick(&of);
        let (_, lease) = self.tasks.swap_remove(index);
        self.remember_lease(lease);
        let now = Nanos(self.now);
        let result = match task {
            Task::Prepare => self.outcome(Fault::Prepare, self.scenario.faults.prepare),
            Task::Flush => self.flush(lease),
            Task::Return => {
                self.check_window(lease);
                Ok(())
            }
            Task::Scrub => {
                self.slots[usize::from(lease.id.0)].bytes.fill(0);
                Ok(())
            }
        };
        self.note(5 ^ u64::from(lease.id.0) << 8, || {
            format!("{task:?} of {lease:?}: {result:?}")
        });
        match task {
            Task::Prepare => self.core.on_prepared(lease, result, now),
            Task::Flush => self.core.on_flushed(lease, result, now),
            Task::Return => self.core.on_returned(lease, now),
            Task::Scrub => self.core.on_scrubbed(lease, now),
        }
        self.idle = false;
        self.reported(task, lease, result);
    }

    /// What the rules make of a report.
    fn reported(&mut self, task: Task, lease: Lease, result: Result<(), FillError>) {
        let id = usize::from(lease.id.0);
        let at = match task {
            Task::Prepare => At::Preparing,
            Task::Flush => At::Flushing,
            Task::Return => At::Lent,
            Task::Scrub => At::Scrubbing,
        };
        let held = self.held(lease, at);
        let (stream, fill) = (held.stream, held.fill);
        if let Err(error) = result {
            self.fail_lease(stream, fill, error);
        }
        let running = self.streams[stream].is_running();
        match task {
            Task::Prepare if running => self.held(lease, at).at = At::Filling,
            Task::Flush | Task::Return if !running => self.give_up(id),
            Task::Flush => {
                self.slots[id].held = None;
                self.streams[stream].deliver(fill);
            }
            Task::Scrub => {
                self.slots[id].held = None;
                self.slots[id].zeroed = true;
            }
            Task::Prepare | Task::Return => self.slots[id].held = None,
        }
        self.settle(stream);
    }

    /// Copies a window's pieces to their destination, at the moment of its report.
    fn flush(&mut self, lease: Lease) -> Result<(), FillError> {
        self.outcome(Fault::Flush, self.scenario.faults.flush)?;
        self.check_window(lease);
        let slot = &self.slots[usize::from(lease.id.0)];
        let held = slot.held.as_ref().expect("held");
        let stream = &mut self.streams[held.stream];
        for piece in &stream.plan.pieces[pieces(&stream.plan, held.fill)] {
            let from = piece.fill_offset as usize;
            let to = usize::try_from(piece.destination).unwrap_or(usize::MAX);
            let len = piece.len as usize;
            stream.destination[to..to + len].copy_from_slice(&slot.bytes[from..from + len]);
        }
        Ok(())
    }

    fn outcome(&mut self, fault: Fault, rate: u32) -> Result<(), FillError> {
        if !self.rng.chance(rate) {
            return Ok(());
        }
        self.tally.strike(fault);
        Err(FillError {
            kind: FillErrorKind::Destination,
            code: 5,
        })
    }
}
