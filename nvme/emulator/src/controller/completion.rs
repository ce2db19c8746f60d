//! Completions out: to their queues as there is room, and interrupts. Knows no commands.

use nvme_sys::cqe::CompletionEntry;

use super::{Controller, narrow, run};
use crate::features::Event;
use crate::observe::{DmaWrite, WriteKind};
use crate::queue::{SubmissionQueue, Waiting};

impl Controller {
    pub(super) fn post(&mut self, completions: u16, waiting: Waiting) {
        if let Some(queue) = &mut self.completions[usize::from(completions)] {
            queue.waiting.push_back(waiting);
            self.waiting += 1;
        }
    }

    pub(super) fn deliver(&mut self) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let count = self.completions.len();
        for turn in 0..count {
            let id = (self.next_completion + turn) % count;
            let queue = self.completions[id].as_ref();
            if queue.is_some_and(|queue| !queue.waiting.is_empty()) && self.has_room(id) {
                self.next_completion = (id + 1) % count;
                self.deliver_to(id);
                return true;
            }
        }
        false
    }

    pub(super) fn has_room(&mut self, id: usize) -> bool {
        loop {
            let Some(queue) = &mut self.completions[id] else {
                return false;
            };
            if !queue.is_full() {
                return true;
            }
            let Some(shadow) = queue.shadow else {
                return false;
            };
            let head = match self.iommu.load(shadow.doorbell) {
                Ok(head) => head,
                Err(unmapped) => {
                    self.fail(unmapped, false, narrow(id));
                    return false;
                }
            };
            if head != queue.places.head {
                if queue.ring(head).is_err() {
                    self.features.report(Event::INVALID_DOORBELL_VALUE);
                    return false;
                }
                continue;
            }
            if queue.event_index.replace(head) == Some(head)
                || !self.store_event_index(shadow.event_index, head, narrow(id))
            {
                return false;
            }
        }
    }

    pub(super) fn deliver_to(&mut self, id: usize) {
        let Some(queue) = &mut self.completions[id] else {
            return;
        };
        let Some(waiting) = queue.waiting.pop_front() else {
            return;
        };
        self.waiting -= 1;
        let (address, phase) = queue.take();
        let sq = self.submissions[usize::from(waiting.queue)].as_ref();
        let entry = CompletionEntry {
            result: waiting.result.into(),
            dw1: 0.into(),
            sq_head: sq.map_or(waiting.head, SubmissionQueue::head).into(),
            sq_id: waiting.named.into(),
            command_id: waiting.command_id.into(),
            status_phase: (waiting.status << 1 | u16::from(phase)).into(),
        };
        let bytes = zerocopy::IntoBytes::as_bytes(&entry);
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        }
        if let Err(unmapped) = self.iommu.store_entry(address, words) {
            return self.fail(unmapped, true, narrow(id));
        }
        self.counters.completions += 1;
        self.observe(&DmaWrite {
            run: run(address, 16),
            kind: WriteKind::Completion,
            queue: waiting.queue,
            command_id: waiting.command_id,
        });
        self.tell(id);
    }

    /// Raises a queue's interrupt, now or with others.
    pub(super) fn tell(&mut self, id: usize) {
        let coalescing = self.features.coalescing.filter(|_| id != 0);
        let Some(queue) = &mut self.completions[id] else {
            return;
        };
        if queue.untold == 0 {
            queue.untold_since = self.now;
        }
        queue.untold += 1;
        if coalescing.is_none_or(|(threshold, _)| queue.untold >= threshold) {
            self.raise(id);
        }
    }

    /// Raises interrupts that have waited for others long enough.
    pub(super) fn tell_late(&mut self) {
        let Some((_, span)) = self.features.coalescing else {
            return;
        };
        for id in 1..self.completions.len() {
            let queue = self.completions[id].as_ref();
            if queue.is_some_and(|queue| {
                queue.untold > 0 && queue.untold_since.saturating_add(span) <= self.now
            }) {
                self.raise(id);
            }
        }
    }

    pub(super) fn raise(&mut self, id: usize) {
        let Some(queue) = &mut self.completions[id] else {
            return;
        };
        queue.untold = 0;
        if let Some(vector) = queue.vector
            && !self.raised.contains(&vector)
        {
            self.raised.push(vector);
        }
    }

    pub(crate) fn delete_completions(&mut self, id: usize) {
        if let Some(queue) = self.completions[id].take() {
            self.waiting -= queue.waiting.len();
        }
    }

    pub(super) fn answer_event(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let Some(event) = self.features.next_event() else {
            return false;
        };
        let pending = self.held.pop_front().expect("just seen");
        self.finish(&pending, event.result(), 0);
        true
    }
}
