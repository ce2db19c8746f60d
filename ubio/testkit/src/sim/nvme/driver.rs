//! The driver's part: what the machine asks for is held against the rules and carried out, and
//! what the source and the fake copy engine answer is handed back.
//!
//! unsafe: submits commands into windows and destinations.
#![expect(
    unsafe_code,
    reason = "submits operations on memory that the core leased exclusively"
)]

use nvme::memory::RawMemory;
use ubio::source::{Completion, FillCommand, Source, Target, Wait};
use ubio_core::{
    Action, Failure, FillError, FillErrorKind, ItemIndex, Landing, Lease, Outcome, StreamId,
};

use super::super::model::{Command, Retry, Tries, Verdict, pieces};
use super::tally::Fault;
use super::watched;
use super::world::{At, Submitted, Task, World};

/// What windows hold before they are filled.
const POISON: u8 = 0xa5;

impl World {
    /// The index of an open stream.
    fn stream_of(&self, id: StreamId) -> usize {
        let index = *self
            .by_id
            .get(&id)
            .expect("an action for a stream never opened");
        let over = self.streams[index].finished;
        assert!(!over, "I3: an action for stream {index}, which is over");
        index
    }

    /// A window's memory.
    fn window(&self, lease: Lease) -> RawMemory {
        let bytes = u64::from(self.core.limits().window_bytes);
        self.windows
            .part(self.window_lead + u64::from(lease.id.0) * bytes, bytes)
    }

    /// No device may write there.
    fn nobody_writes(&self, memory: RawMemory, what: &str) {
        let start = memory.start().as_ptr() as u64;
        let writers = watched::lock(&self.ledger).writers(start, memory.len_bytes());
        assert_eq!(writers, 0, "I2: {what} while the device may write into it");
    }

    pub(crate) fn asked(&mut self, action: Action) {
        match action {
            Action::Prepare {
                lease,
                stream,
                fill,
            } => {
                let stream = self.stream_of(stream);
                self.tasks
                    .push((Task::Prepare, lease, stream, fill as usize));
            }
            Action::Fill { .. } => self.submit(action),
            Action::Flush {
                lease,
                stream,
                fill,
            } => {
                self.counted.flushes += 1;
                self.hand_out(lease, stream, fill as usize, At::Flushing);
            }
            Action::Lend {
                lease,
                stream,
                fill,
            } => {
                self.counted.lends += 1;
                self.hand_out(lease, stream, fill as usize, At::Lent);
            }
            Action::Scrub { lease } => {
                self.counted.scrubs += 1;
                self.nobody_writes(self.window(lease), "scrubbed");
                let slot = &mut self.slots[usize::from(lease.id.0)];
                assert_eq!(slot.generation, lease.generation.0, "I2: another's window");
                slot.at = At::Scrubbing;
                self.tasks
                    .push((Task::Scrub, lease, slot.stream, slot.fill));
            }
            Action::Visible { stream, from, to } => self.visible(stream, from, to),
            Action::Finished {
                stream, outcome, ..
            } => self.finished(stream, outcome),
        }
    }

    /// A window is seen under a new lease: nobody else has it, and nothing of anybody else's is
    /// in it.
    fn lease_anew(&mut self, lease: Lease, stream: usize, fill: usize) {
        let window = self.window(lease);
        self.nobody_writes(window, "leased anew");
        let slot = &mut self.slots[usize::from(lease.id.0)];
        assert!(
            lease.generation.0 > slot.generation,
            "I2: a generation used twice"
        );
        let left = slot.at == At::Filling && self.streams[slot.stream].ending.is_some();
        assert!(
            !left && !slot.dirty,
            "I4: {lease:?} given anew and not scrubbed"
        );
        assert_eq!(slot.at, At::Free, "I2: {lease:?} given while in use");
        slot.generation = lease.generation.0;
        (slot.stream, slot.fill) = (stream, fill);
        slot.at = At::Filling;
        slot.dirty = true;
        let len = self.streams[stream].plan.fills[fill].len;
        window.copy_from(0, &vec![POISON; len as usize]);
    }

    fn submit(&mut self, action: Action) {
        let Action::Fill {
            token,
            lease,
            stream,
            fill,
            offset,
            lease_offset,
            len,
            route,
            landing,
            ..
        } = action
        else {
            return;
        };
        self.counted.commands += 1;
        let (stream, fill) = (self.stream_of(stream), fill as usize);
        let ended = self.streams[stream].ending.is_some();
        assert!(!ended, "a command for stream {stream}, which ended");
        let of = &self.streams[stream];
        let target = if landing == Landing::Destination {
            let run = of.plan.pieces[pieces(&of.plan, fill).start].destination;
            Target::Memory {
                memory: of.memory,
                offset: of.base + run + u64::from(lease_offset),
            }
        } else {
            let slot = &self.slots[usize::from(lease.id.0)];
            if slot.generation != lease.generation.0 {
                self.lease_anew(lease, stream, fill);
            }
            let slot = &self.slots[usize::from(lease.id.0)];
            assert_eq!(slot.at, At::Filling, "I2: filled while in use otherwise");
            let window = u64::from(lease.id.0) * u64::from(self.core.limits().window_bytes);
            Target::Memory {
                memory: self.window_memory,
                offset: self.window_lead + window + u64::from(lease_offset),
            }
        };
        let command = FillCommand {
            token,
            object: self.streams[stream].object,
            offset,
            len,
            route,
            target,
        };
        let tries = self.tries(lease, lease_offset);
        let source = self.source.as_mut().expect("not dropped");
        // SAFETY: the lease makes the target this command's alone until its completion.
        let taken = unsafe { source.submit(command) };
        assert!(taken.is_ok(), "a command within the depth was handed back");
        self.submitted.push(Submitted {
            command: Command {
                token,
                lease,
                stream,
                fill,
                offset: lease_offset,
                len,
                route,
                landing,
                tries,
            },
            at: self.now().0,
            overdue: false,
        });
    }

    /// How often a range was tried, this time included.
    fn tries(&mut self, lease: Lease, offset: u32) -> Tries {
        let mut all = self.retries.iter();
        let again = all.position(|(of, retry)| *of == lease && retry.offset == offset);
        let mut tries = Tries::default();
        if let Some(again) = again {
            let (_, retry) = self.retries.swap_remove(again);
            assert!(retry.due <= self.now().0, "again before its time");
            tries = retry.tries;
        }
        tries.all = tries.all.saturating_add(1);
        tries
    }

    /// A window is to be flushed or lent: nothing writes into it, and it holds the fill's bytes.
    fn hand_out(&mut self, lease: Lease, stream: StreamId, fill: usize, to: At) {
        let stream = self.stream_of(stream);
        assert!(
            self.streams[stream].ending.is_none(),
            "handed out after the end"
        );
        self.nobody_writes(self.window(lease), "handed out");
        let filled = self
            .submitted
            .iter()
            .any(|known| known.command.lease == lease);
        assert!(!filled, "I2: {lease:?} handed out while commands fill it");
        let slot = &mut self.slots[usize::from(lease.id.0)];
        let expected = (lease.generation.0, At::Filling, stream, fill);
        let found = (slot.generation, slot.at, slot.stream, slot.fill);
        assert_eq!(found, expected, "I2: another's window");
        slot.at = to;
        self.check_window(lease);
        let task = if to == At::Lent {
            Task::Return
        } else {
            Task::Flush
        };
        self.tasks.push((task, lease, stream, fill));
    }

    /// A window holds exactly what its fill expects.
    fn check_window(&mut self, lease: Lease) {
        let slot = self.slots[usize::from(lease.id.0)];
        let stream = &self.streams[slot.stream];
        let fill = &stream.plan.fills[slot.fill];
        let window = self.window(lease).part(0, fill.expected.into());
        let differs = self.words.difference(stream.start + fill.offset, window);
        assert_eq!(differs, None, "I1, I4: other bytes in {lease:?}");
    }

    /// The pieces of items are at their destination, byte for byte, and stay.
    fn check_destination(&mut self, index: usize, items: std::ops::Range<u32>) {
        let plan = std::sync::Arc::clone(&self.streams[index].plan);
        let (start, base) = (self.streams[index].start, self.streams[index].base);
        for (number, fill) in plan.fills.iter().enumerate() {
            if fill.landing == Landing::Lent {
                continue;
            }
            for piece in &plan.pieces[pieces(&plan, number)] {
                if !items.contains(&piece.item.0) {
                    continue;
                }
                let memory = self
                    .destination
                    .part(base + piece.destination, piece.len.into());
                self.nobody_writes(memory, "visible");
                let offset = start + fill.offset + u64::from(piece.fill_offset);
                let differs = self.words.difference(offset, memory);
                assert_eq!(
                    differs, None,
                    "I1: other bytes at {piece:?} of stream {index}"
                );
            }
        }
    }

    fn visible(&mut self, stream: StreamId, from: ItemIndex, to: ItemIndex) {
        let index = self.stream_of(stream);
        let stream = &mut self.streams[index];
        assert!(
            stream.ending.is_none(),
            "visible items of a stream that ended"
        );
        assert_eq!(from.0, stream.announced, "I3: items told twice or left out");
        assert!(
            from < to && to.0 <= stream.plan.items,
            "I3: items that are not"
        );
        stream.announced = to.0;
        self.check_destination(index, from.0..to.0);
    }

    fn finished(&mut self, id: StreamId, outcome: Outcome) {
        let index = self.stream_of(id);
        let out = self
            .submitted
            .iter()
            .any(|known| known.command.stream == index);
        assert!(
            !out,
            "I2: stream {index} is over while the source writes for it"
        );
        let expected = self.streams[index].ending.unwrap_or(Outcome::Complete);
        assert_eq!(expected, outcome, "how stream {index} ended");
        let slot = match outcome {
            Outcome::Complete => 0,
            Outcome::Cancelled => 1,
            Outcome::Failed(_) => 2,
        };
        self.tally.outcomes[slot] += 1;
        let stream = &mut self.streams[index];
        stream.finished = true;
        let (items, announced) = (stream.plan.items, stream.announced);
        let source = self.source.as_mut().expect("not dropped");
        source.remove_object(stream.object);
        source.detach(stream.memory);
        if outcome == Outcome::Complete {
            assert_eq!(announced, items, "I3: items never told");
            self.check_destination(index, 0..items);
        }
    }

    /// A stream ends before its time, if it has not ended yet.
    pub(crate) fn end(&mut self, index: usize, outcome: Outcome) {
        if self.streams[index].ending.is_none() {
            self.streams[index].ending = Some(outcome);
            self.note(6, || format!("stream {index} ends: {outcome:?}"));
        }
    }

    fn fail(&mut self, command: Command, error: FillError) {
        let fill = &self.streams[command.stream].plan.fills[command.fill];
        let failure = Failure {
            fill: u32::try_from(command.fill).unwrap_or(u32::MAX),
            object: fill.object,
            offset: fill.offset + u64::from(command.offset),
            len: command.len,
            tries: command.tries.all,
            error,
        };
        self.end(command.stream, Outcome::Failed(failure));
    }

    /// A command was said to be overdue.
    pub(crate) fn overdue(&mut self, command: Command) {
        let kind = FillErrorKind::Overdue;
        self.fail(command, FillError { kind, code: 0 });
    }

    /// Takes in what the source has finished.
    pub(crate) fn poll(&mut self) {
        let mut completions = Vec::new();
        let source = self.source.as_mut().expect("not dropped");
        let polled = source.poll(Wait::No, &mut completions);
        assert!(polled.is_ok(), "the source is broken: {polled:?}");
        for completion in completions {
            self.completed(completion);
        }
        self.check_deadlines();
    }

    fn completed(&mut self, completion: Completion) {
        let Completion { token, result } = completion;
        let mut all = self.submitted.iter();
        let known = all.position(|known| known.command.token == token);
        let known = known.unwrap_or_else(|| panic!("I3: {completion:?} of nothing submitted"));
        let mut command = self.submitted.remove(known).command;
        self.tally.completions += 1;
        self.counted.failed += u64::from(result.is_err_and(|error| error.code < 0));
        self.note(4 ^ token.0 << 8, || format!("{command:?}: {result:?}"));
        self.moved();
        let now = self.now();
        self.core.on_fill(token, result, now);
        self.idle = false;
        if self.streams[command.stream].ending.is_some() {
            return;
        }
        let expected = self.streams[command.stream].plan.fills[command.fill].expected;
        let needed = expected.saturating_sub(command.offset).min(command.len);
        self.counted.short += u64::from(result.is_ok_and(|bytes| bytes < needed));
        match command.judge(needed, self.core.limits().alignment, result) {
            Verdict::Landed => {}
            Verdict::Again { landed, delay } => {
                self.counted.retries += u64::from(landed == 0);
                let retry = Retry {
                    offset: command.offset + landed,
                    len: command.len - landed,
                    tries: command.tries,
                    due: now.0 + delay,
                };
                self.retries.push((command.lease, retry));
            }
            Verdict::NotResident => panic!("no page cache is in this"),
            Verdict::Failed(error) => self.fail(command, error),
        }
    }

    /// Copy engine or caller is through with one of its tasks.
    pub(crate) fn report(&mut self, task: Task) {
        let of: Vec<usize> = (0..self.tasks.len())
            .filter(|index| self.tasks[*index].0 == task)
            .collect();
        let index = self.rng.pick(&of);
        let (_, lease, stream, fill) = self.tasks.swap_remove(index);
        let now = self.now();
        let running = self.streams[stream].ending.is_none();
        self.note(5, || format!("{task:?} of {lease:?} is done"));
        match task {
            Task::Prepare => {
                let result = self.copied(stream, fill);
                self.core.on_prepared(lease, result, now);
            }
            Task::Flush => {
                self.nobody_writes(self.window(lease), "flushed");
                let result = self.copied(stream, fill);
                if result.is_ok() {
                    self.copy_pieces(lease, stream, fill);
                }
                self.core.on_flushed(lease, result, now);
                self.let_go(lease, running && result.is_ok());
            }
            Task::Return => {
                self.nobody_writes(self.window(lease), "lent");
                self.check_window(lease);
                self.core.on_returned(lease, now);
                self.let_go(lease, running);
            }
            Task::Scrub => {
                let window = self.window(lease);
                self.nobody_writes(window, "scrubbed");
                window.zero(0, window.len_bytes());
                self.core.on_scrubbed(lease, now);
                self.let_go(lease, true);
            }
        }
        self.moved();
        self.idle = false;
    }

    fn let_go(&mut self, lease: Lease, clean: bool) {
        let slot = &mut self.slots[usize::from(lease.id.0)];
        slot.dirty = !clean;
        slot.at = At::Free;
    }

    fn copy_pieces(&mut self, lease: Lease, stream: usize, fill: usize) {
        let (window, of) = (self.window(lease), &self.streams[stream]);
        let mut bytes = Vec::new();
        for piece in &of.plan.pieces[pieces(&of.plan, fill)] {
            bytes.resize(piece.len as usize, 0);
            window.copy_to(piece.fill_offset.into(), &mut bytes);
            self.destination
                .copy_from(of.base + piece.destination, &bytes);
        }
    }

    /// How a copy, or a preparation, goes.
    fn copied(&mut self, stream: usize, fill: usize) -> Result<(), FillError> {
        if !self.copy_fails() {
            return Ok(());
        }
        self.tally.strike(Fault::Copy);
        let (kind, code) = (FillErrorKind::Destination, 0);
        let shape = &self.streams[stream].plan.fills[fill];
        let failure = Failure {
            fill: u32::try_from(fill).unwrap_or(u32::MAX),
            object: shape.object,
            offset: shape.offset,
            len: shape.expected,
            tries: 1,
            error: FillError { kind, code },
        };
        self.end(stream, Outcome::Failed(failure));
        Err(FillError { kind, code })
    }
}
