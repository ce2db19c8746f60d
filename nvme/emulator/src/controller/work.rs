//! Commands under way: which is due, what it does, and what is told of its end. Which command
//! does what is in `admin` and `nvm`.

use super::{Controller, Did, Done, Job, Pending, Stage, Wait};
use crate::fault::{Deed, Delay, Ending, Plan};
use crate::observe::WriteKind;
use crate::queue::{SubmissionQueue, Waiting};

impl Controller {
    /// Whether the controller's state lets this one go on.
    pub(super) fn may_go_on(&self, pending: &Pending) -> bool {
        match pending.stage {
            Stage::Late => true,
            _ if self.stalled => false,
            Stage::Data => self.registers.may_move(),
            Stage::Ended { .. } | Stage::After { .. } => self.registers.is_running(),
        }
    }

    /// Whether what it waits for has happened.
    pub(super) fn is_over(&self, pending: &Pending) -> bool {
        let Stage::After { wait, .. } = pending.stage else {
            return true;
        };
        let (Wait::Posted { queue, .. } | Wait::Closed { queue }) = wait;
        let Some(submissions) = &self.submissions[usize::from(queue)] else {
            return true;
        };
        let completions = &self.completions[usize::from(submissions.completions)];
        let mut waiting = completions.iter().flat_map(|queue| &queue.waiting);
        match wait {
            Wait::Posted { command_id, .. } => {
                !waiting.any(|it| it.queue == queue && it.command_id == command_id)
            }
            Wait::Closed { .. } => {
                let under_way = |other: &Pending| {
                    other.job.queue == queue && !matches!(other.stage, Stage::Late)
                };
                !waiting.any(|it| it.queue == queue) && !self.pending.iter().any(under_way)
            }
        }
    }

    pub(super) fn is_due(&self, pending: &Pending) -> bool {
        pending.due_steps <= self.steps
            && pending.due_time <= self.now
            && self.may_go_on(pending)
            && self.is_over(pending)
    }

    pub(super) fn work(&mut self) -> bool {
        let mut due = (0..self.pending.len()).filter(|&at| self.is_due(&self.pending[at]));
        let chosen = if self.config.faults.reorders() {
            let due: Vec<_> = due.collect();
            match due.len() {
                0 => None,
                count => due.get(self.config.faults.pick(count) % count).copied(),
            }
        } else {
            due.next()
        };
        if let Some(pending) = chosen.and_then(|at| self.pending.remove(at)) {
            self.go_on(pending);
            return true;
        }
        self.pending.iter().any(|pending| {
            let finite = pending.due_steps != u64::MAX && pending.due_steps > self.steps;
            finite && pending.due_time <= self.now && self.may_go_on(pending)
        })
    }

    pub(super) fn go_on(&mut self, mut pending: Pending) {
        match pending.stage {
            Stage::Ended { result, status } => self.finish(&pending, result, status),
            Stage::After { wait, result } => {
                if let Wait::Closed { queue } = wait {
                    self.submissions[usize::from(queue)] = None;
                }
                self.finish(&pending, result, 0);
            }
            Stage::Late => {
                pending.job.kind = WriteKind::Violation;
                let _nobody_is_told = self.execute_io(&pending.job);
            }
            Stage::Data => match self.execute(&mut pending) {
                Ok(Done::Held) => self.held.push_back(pending),
                Ok(Done::Ended(result)) => self.ended(pending, result, 0),
                Err(status) => self.ended(pending, 0, status),
                Ok(Done::After(wait, result)) => {
                    pending.stage = Stage::After { wait, result };
                    self.pending.push_back(pending);
                }
            },
        }
    }

    pub(super) fn execute(&mut self, pending: &mut Pending) -> Did {
        let job = &mut pending.job;
        let admin = job.is_admin();
        match pending.plan.deed {
            Deed::Execute if admin => self.execute_admin(job),
            Deed::Execute => self.execute_io(job),
            Deed::Fail(status) => Err(status),
            Deed::Short { len_bytes, status } => {
                job.limit_bytes = Some(len_bytes);
                if !admin {
                    self.execute_io(job)?;
                }
                Err(status)
            }
        }
    }

    pub(super) fn ended(&mut self, mut pending: Pending, result: u32, status: u16) {
        let linger = pending.plan.linger;
        if linger == Delay::NONE {
            return self.finish(&pending, result, status);
        }
        pending.stage = Stage::Ended { result, status };
        pending.due_steps = self.steps.saturating_add(linger.steps);
        pending.due_time = self.now.saturating_add(linger.time);
        self.pending.push_back(pending);
    }

    /// Tells of a command's end, as the hook wants it told.
    pub(crate) fn finish(&mut self, pending: &Pending, result: u32, status: u16) {
        let (job, seen) = (&pending.job, &pending.seen);
        if status != 0 {
            self.features.error(job, status);
        }
        let right = Waiting {
            result,
            queue: job.queue,
            named: job.queue,
            command_id: job.command_id(),
            status,
            head: self.head(job.queue),
        };
        let other = |command_id| Waiting {
            command_id,
            ..right
        };
        match self.config.faults.ending(seen, status, pending.plan.ending) {
            Ending::Once => self.post(job.completions, right),
            Ending::Never => {}
            Ending::Twice => {
                self.post(job.completions, right);
                self.post(job.completions, right);
            }
            Ending::CommandId(command_id) => self.post(job.completions, other(command_id)),
            Ending::Queue(named) => self.post(job.completions, Waiting { named, ..right }),
            Ending::Stray(command_id) => {
                self.post(job.completions, other(command_id));
                self.post(job.completions, right);
            }
        }
        if let Some(delay) = pending.plan.dma_after_completion
            && !job.is_admin()
        {
            self.push(*job, Plan::default(), *seen, Stage::Late, delay);
        }
    }

    /// Ends a command that has not moved data yet, unless its plan says that it is too late.
    pub(crate) fn cancel(&mut self, status: u16, is_meant: impl Fn(&Job) -> bool) -> usize {
        let mut canceled = 0;
        let mut at = 0;
        while let Some(pending) = self.pending.get(at) {
            let stoppable = matches!(pending.stage, Stage::Data) && !pending.plan.ignores_abort;
            if !stoppable || !is_meant(&pending.job) {
                at += 1;
                continue;
            }
            let pending = self.pending.remove(at).expect("just seen");
            self.finish(&pending, 0, status);
            canceled += 1;
        }
        canceled
    }

    /// Commands under way that are meant.
    pub(crate) fn count_pending(&self, is_meant: impl Fn(&Job) -> bool) -> usize {
        let pending = self.pending.iter().filter(|pending| is_meant(&pending.job));
        pending.count()
    }

    pub(super) fn head(&self, queue: u16) -> u16 {
        let queue = &self.submissions[usize::from(queue)];
        queue.as_ref().map_or(0, SubmissionQueue::head)
    }
}
