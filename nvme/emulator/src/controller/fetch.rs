//! Commands in: from doorbells, or what stands for them in memory, to commands under way.
//! Executes none.

use std::time::Duration;

use nvme_sys::opcode::nvm;
use nvme_sys::sqe::SubmissionEntry;
use zerocopy::FromBytes;

use super::{Controller, Job, MAX_PENDING, Pending, Stage, narrow};
use crate::fault::{Deed, Delay, Plan, Seen};
use crate::features::Event;
use crate::observe::WriteKind;
use crate::queue::Shadow;
use crate::status;

impl Controller {
    pub(super) fn fetch(&mut self) -> bool {
        if self.pending.len() >= MAX_PENDING {
            return false;
        }
        let count = self.submissions.len();
        for turn in 0..count {
            let id = (self.next_submission + turn) % count;
            if self.has_command(id) {
                self.next_submission = (id + 1) % count;
                self.fetch_from(id);
                return true;
            }
            if !self.registers.is_running() {
                return true;
            }
        }
        false
    }

    /// Whether a queue has commands, by its doorbell or what stands for it in memory.
    pub(super) fn has_command(&mut self, id: usize) -> bool {
        let queue_id = narrow(id);
        loop {
            let Some(queue) = self.submissions[id].as_mut().filter(|queue| !queue.closing) else {
                return false;
            };
            if queue.places.used() > 0 {
                return true;
            }
            let Some(Shadow {
                doorbell,
                event_index,
            }) = queue.shadow
            else {
                return false;
            };
            let tail = match self.iommu.load(doorbell) {
                Ok(tail) => tail,
                Err(unmapped) => {
                    self.fail(unmapped, false, queue_id);
                    return false;
                }
            };
            if tail != queue.places.tail {
                if queue.ring(tail).is_ok() {
                    return true;
                }
                if queue.refused.replace(tail) != Some(tail) {
                    self.features.report(Event::INVALID_DOORBELL_VALUE);
                }
                return false;
            }
            if queue.event_index.replace(tail) == Some(tail)
                || !self.store_event_index(event_index, tail, queue_id)
            {
                return false;
            }
            // Once more: the host may have looked at the old index.
        }
    }

    pub(super) fn fetch_from(&mut self, id: usize) {
        let queue_id = narrow(id);
        let Some(queue) = &mut self.submissions[id] else {
            return;
        };
        let completions = queue.completions;
        let words = match self.iommu.read::<[u64; 8]>(queue.take()) {
            Ok(words) => words,
            Err(unmapped) => return self.fail(unmapped, false, queue_id),
        };
        let bytes = words.map(u64::to_ne_bytes);
        let entry = SubmissionEntry::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
        let job = Job {
            entry,
            queue: queue_id,
            completions,
            limit_bytes: None,
            kind: WriteKind::Data,
        };
        let counts = if job.is_admin() {
            &mut self.counters.admin_commands
        } else {
            &mut self.counters.io_commands
        };
        counts[usize::from(entry.opcode)] += 1;
        let seen = seen(&job, self.now);
        let mut plan = self.config.faults.command(&seen);
        if self.is_under_way(&job) {
            plan.deed = Deed::Fail(status::COMMAND_ID_CONFLICT);
        }
        if let Some(fault) = plan.controller {
            self.inject(fault);
        }
        self.push(job, plan, seen, Stage::Data, plan.delay);
    }

    pub(super) fn is_under_way(&self, job: &Job) -> bool {
        let same = |other: &Pending| {
            other.job.queue == job.queue
                && other.job.command_id() == job.command_id()
                && !matches!(other.stage, Stage::Late)
        };
        self.pending.iter().any(same) || job.is_admin() && self.held.iter().any(same)
    }

    pub(super) fn push(&mut self, job: Job, plan: Plan, seen: Seen, stage: Stage, delay: Delay) {
        self.pending.push_back(Pending {
            job,
            plan,
            seen,
            stage,
            due_steps: self.steps.saturating_add(delay.steps),
            due_time: self.now.saturating_add(delay.time),
        });
    }
}

fn seen(job: &Job, now: Duration) -> Seen {
    let entry = &job.entry;
    let opcode = entry.opcode;
    let with_blocks = [nvm::READ, nvm::WRITE, nvm::COMPARE, nvm::WRITE_ZEROES];
    let (lba, blocks) = if !job.is_admin() && with_blocks.contains(&opcode) {
        let lba = u64::from(entry.cdw10.get()) | u64::from(entry.cdw11.get()) << 32;
        (lba, (entry.cdw12.get() & 0xffff) + 1)
    } else {
        (0, 0)
    };
    Seen {
        queue: job.queue,
        command_id: job.command_id(),
        opcode,
        namespace: entry.namespace_id.get(),
        lba,
        blocks,
        now,
    }
}
