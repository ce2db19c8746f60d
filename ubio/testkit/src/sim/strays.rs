//! What comes between the answers: cancels, turned knobs, cut objects, and completions and
//! reports that nobody is owed. The last two must change nothing but a counter.

use ubio_core::{
    FillError, FillErrorKind, ItemIndex, Lease, LeaseId, Nanos, Outcome, Setting, StreamId, Token,
};

use super::tally::Fault;
use super::world::{Task, World};

impl World {
    /// Lets faults strike that belong to no answer.
    pub(crate) fn strike(&mut self) {
        let faults = self.scenario.faults;
        if self.rng.chance(faults.cancel) {
            self.cancel();
        }
        if self.rng.chance(faults.duplicate) {
            self.repeat();
        }
        if self.rng.chance(faults.unknown) {
            self.make_up();
        }
        if self.rng.chance(faults.stale_report) {
            self.report_again();
        }
        if self.rng.chance(faults.object_cut) {
            self.cut_object();
        }
        if self.rng.chance(faults.knobs) {
            self.turn_knob();
        }
        if self.rng.chance(faults.overdue) {
            self.overdue();
        }
    }

    /// One of the source's commands takes too long for its stream, or one that came back is
    /// said to.
    fn overdue(&mut self) {
        if !self.old_tokens.is_empty() && self.rng.chance(100) {
            let token = self.rng.pick(&self.old_tokens);
            if self
                .outstanding
                .iter()
                .all(|command| command.token != token)
            {
                self.counted.foreign += 1;
                self.core.on_overdue(token);
                self.expect_still_idle();
            }
            return;
        }
        if self.outstanding.is_empty() {
            return;
        }
        let command = self.rng.below(self.outstanding.len());
        let command = self.outstanding[command];
        self.note(11, || format!("overdue {command:?}"));
        self.core.on_overdue(command.token);
        self.idle = false;
        if self.streams[command.stream].is_running() {
            self.tally.strike(Fault::Overdue);
            let error = FillError {
                kind: FillErrorKind::Overdue,
                code: 0,
            };
            self.fail(command, error);
        }
    }

    /// The caller of a stream leaves: of any stream, also of one that is over.
    fn cancel(&mut self) {
        if self.streams.is_empty() {
            return;
        }
        let index = self.rng.below(self.streams.len());
        let id = self.streams[index].id;
        self.note(6, || format!("cancel stream {index}"));
        self.core.cancel(id, Nanos(self.now));
        self.core.cancel(StreamId(u32::MAX), Nanos(self.now));
        if self.streams[index].is_running() {
            self.tally.strike(Fault::Cancel);
            self.end(index, Outcome::Cancelled);
        }
        self.idle = false;
    }

    /// A completion that was delivered comes again.
    fn repeat(&mut self) {
        if self.old_tokens.is_empty() {
            return;
        }
        let token = if self.rng.chance(300) {
            self.old_tokens[self.old_tokens.len() - 1]
        } else {
            self.rng.pick(&self.old_tokens)
        };
        let reused = self
            .outstanding
            .iter()
            .any(|command| slot(command.token) == slot(token));
        self.tally.strike(if reused {
            Fault::Stale
        } else {
            Fault::Duplicate
        });
        self.foreign(token);
    }

    /// A completion comes under a token that was never given out.
    fn make_up(&mut self) {
        let sequence = self.rng.pick(&[0, 0xffff_ffff, 0xffff_0000]);
        let of = self.rng.pick(&[0, 1, 7, 0xffff, 0x1_0000, 0xffff_ffff]);
        self.tally.strike(Fault::Unknown);
        self.foreign(Token(sequence << 32 | of));
    }

    fn foreign(&mut self, token: Token) {
        let result = Ok(self.rng.pick(&[0, 1, 512, 4096, 1 << 20]));
        self.note(7 ^ token.0 << 8, || {
            format!("stray completion {token:?}: {result:?}")
        });
        self.counted.foreign += 1;
        self.core.on_fill(token, result, Nanos(self.now));
        self.expect_still_idle();
    }

    /// What was dropped gave the machine nothing to do.
    fn expect_still_idle(&mut self) {
        if self.idle {
            let action = self.core.next_action(Nanos(self.now));
            assert_eq!(action, None, "a stray made work");
        }
    }

    /// A report on a lease comes that was not asked for: of an earlier lease, or of this one
    /// in another state.
    fn report_again(&mut self) {
        let task = self
            .rng
            .pick(&[Task::Prepare, Task::Flush, Task::Return, Task::Scrub]);
        let lease = if self.old_leases.is_empty() || self.rng.chance(100) {
            let any = self.rng.pick(&[0, 1, 5, u16::MAX]);
            Lease {
                id: LeaseId(any),
                generation: ubio_core::Generation(0),
            }
        } else {
            self.rng.pick(&self.old_leases)
        };
        if self.tasks.contains(&(task, lease)) {
            return;
        }
        self.note(8, || format!("stray report {task:?} of {lease:?}"));
        self.tally.strike(Fault::StaleReport);
        self.counted.foreign += 1;
        let now = Nanos(self.now);
        match task {
            Task::Prepare => self.core.on_prepared(lease, Ok(()), now),
            Task::Flush => self.core.on_flushed(lease, Ok(()), now),
            Task::Return => self.core.on_returned(lease, now),
            Task::Scrub => self.core.on_scrubbed(lease, now),
        }
        self.expect_still_idle();
    }

    fn cut_object(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let object = self.rng.below(self.objects.len());
        let len = self.object_lens[object];
        if len > 0 {
            self.tally.strike(Fault::Cut);
            self.object_lens[object] = self.rng.below(len);
            self.note(9, || format!("object {object} is cut"));
        }
    }

    fn turn_knob(&mut self) {
        self.tally.strike(Fault::Knob);
        let limits = self.scenario.limits;
        match self.rng.below(6) {
            0 => {
                let depth = self.any_depth();
                self.knobs.set_depth(&mut self.core, depth);
            }
            1 => {
                let bytes = self.rng.range(0..limits.window_bytes * 2);
                self.knobs.set_command_bytes(&mut self.core, bytes);
            }
            2 => {
                let setting = Setting {
                    command_bytes: self.rng.range(0..limits.command_bytes * 2),
                    depth: self.any_depth(),
                };
                self.knobs.set_in_place(&mut self.core, setting);
            }
            3 => {
                let on = self.rng.chance(500);
                self.knobs.tune(&mut self.core, on);
            }
            _ if self.streams.is_empty() => {}
            4 => {
                let index = self.rng.below(self.streams.len());
                let id = self.streams[index].id;
                let at = self
                    .rng
                    .chance(800)
                    .then(|| u64::from(self.rng.range(0..5000)));
                self.core.set_needed_by(id, at.map(Nanos));
                self.streams[index].needed_by = at;
            }
            _ => {
                // What was consumed before is consumed again: nothing changes.
                let index = self.rng.below(self.streams.len());
                let (id, items) = (self.streams[index].id, self.streams[index].consumed);
                self.core
                    .consumed(id, ItemIndex(items / 2), Nanos(self.now));
            }
        }
        self.note(10, || "a knob".to_owned());
        self.idle = false;
    }

    fn any_depth(&mut self) -> u16 {
        u16::try_from(self.rng.range(0..40)).unwrap_or(0)
    }
}

/// The command slot a token names; tokens of one slot follow each other.
fn slot(token: Token) -> u64 {
    token.0 & 0xffff_ffff
}
