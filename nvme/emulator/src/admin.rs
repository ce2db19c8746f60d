//! Admin commands: Base 5. What each refuses, it refuses with the specification's status.

use nvme_sys::opcode::{admin, cns, feature};
use nvme_sys::sqe::{
    ALL_NAMESPACES, CDW11_CONTIGUOUS, CDW11_INTERRUPTS, ENTRY_LOG2 as SQ_ENTRY_LOG2, PSDT_MASK,
};

use crate::controller::{Controller, Did, Done, Job, Wait};
use crate::features::CHANGED_NAMESPACES;
use crate::identify;
use crate::queue::{CompletionQueue, Shadow, SubmissionQueue};
use crate::status;
use crate::transfer::is_fused;

/// More than any log page here has.
const MAX_LOG_BYTES: u64 = 64 << 10;

fn fields(dword: u32) -> [u16; 2] {
    let field = |value: u32| u16::try_from(value & 0xffff).expect("16 bits");
    [field(dword), field(dword >> 16)]
}

impl Controller {
    pub(crate) fn execute_admin(&mut self, job: &Job) -> Did {
        if is_fused(&job.entry) || job.entry.flags & PSDT_MASK != 0 {
            return Err(status::INVALID_FIELD);
        }
        let done = |()| Done::Ended(0);
        match job.entry.opcode {
            admin::IDENTIFY => self.identify(job).map(done),
            admin::CREATE_CQ => self.create_completions(job).map(done),
            admin::CREATE_SQ => self.create_submissions(job).map(done),
            admin::DELETE_CQ => self.delete_cq(job).map(done),
            admin::DELETE_SQ => self.delete_sq(job),
            admin::SET_FEATURES => self.set_features(job).map(Done::Ended),
            admin::GET_FEATURES => self.get_features(job).map(Done::Ended),
            admin::ABORT => self.abort(job),
            admin::ASYNC_EVENT => {
                if self.held.len() > usize::from(self.config.async_event_limit) {
                    return Err(status::ASYNC_EVENT_LIMIT);
                }
                Ok(Done::Held)
            }
            admin::GET_LOG_PAGE => self.get_log_page(job).map(done),
            admin::DOORBELL_BUFFER if self.config.doorbell_buffer => {
                self.doorbell_buffer(job).map(done)
            }
            _ => Err(status::INVALID_OPCODE),
        }
    }

    fn identify(&mut self, job: &Job) -> Result<(), u16> {
        let id = job.entry.namespace_id.get();
        let [cns, _controller] = fields(job.entry.cdw10.get());
        let at = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
        let namespace = at.and_then(|at| self.config.namespaces.get(at));
        let namespace = namespace.ok_or(status::INVALID_NAMESPACE);
        let data = match u8::try_from(cns & 0xff).expect("eight bits") {
            cns::NAMESPACE => identify::namespace(namespace?, id),
            cns::CONTROLLER => identify::controller(&self.config),
            cns::ACTIVE_NAMESPACES if id >= ALL_NAMESPACES - 1 => {
                return Err(status::INVALID_NAMESPACE);
            }
            cns::ACTIVE_NAMESPACES => identify::active(&self.config, id),
            cns::NAMESPACE_DESCRIPTORS => {
                let _is_there = namespace?;
                identify::descriptors(id)
            }
            _ => return Err(status::INVALID_FIELD),
        };
        self.send(job, &data)
    }

    /// Checks what both kinds of queues have in common, and gives identifier and entries.
    fn new_queue(&self, job: &Job, kind: usize) -> Result<(usize, u32), u16> {
        let [id, zero_based] = fields(job.entry.cdw10.get());
        let exists = match kind {
            0 => self
                .submissions
                .get(usize::from(id))
                .is_some_and(Option::is_some),
            _ => self
                .completions
                .get(usize::from(id))
                .is_some_and(Option::is_some),
        };
        if id == 0 || id > self.features.queues[kind] || exists {
            return Err(status::INVALID_QUEUE_ID);
        }
        let entries = u32::from(zero_based) + 1;
        let entry_sizes = [
            u32::from(SQ_ENTRY_LOG2),
            u32::from(nvme_sys::cqe::ENTRY_LOG2),
        ];
        let size_is_set = self.registers.entry_sizes()[kind] == entry_sizes[kind];
        if entries < 2 || entries > self.config.max_queue_entries || !size_is_set {
            return Err(status::INVALID_QUEUE_SIZE);
        }
        if job.entry.cdw11.get() & CDW11_CONTIGUOUS == 0 {
            return Err(status::INVALID_FIELD);
        }
        if !(job.entry.data1.get()).is_multiple_of(self.registers.page_bytes()) {
            return Err(status::INVALID_PRP_OFFSET);
        }
        Ok((usize::from(id), entries))
    }

    fn create_completions(&mut self, job: &Job) -> Result<(), u16> {
        let (id, entries) = self.new_queue(job, 1)?;
        let [flags, vector] = fields(job.entry.cdw11.get());
        if vector >= self.config.vectors {
            return Err(status::INVALID_VECTOR);
        }
        let interrupts = u32::from(flags) & CDW11_INTERRUPTS != 0;
        let vector = interrupts.then_some(vector);
        let mut queue = CompletionQueue::new(job.entry.data1.get(), entries, vector);
        queue.shadow = self.shadow_of(id, 1);
        self.completions[id] = Some(queue);
        Ok(())
    }

    fn create_submissions(&mut self, job: &Job) -> Result<(), u16> {
        let (id, entries) = self.new_queue(job, 0)?;
        let [_flags, completions] = fields(job.entry.cdw11.get());
        if completions == 0 || completions > self.features.queues[1] {
            return Err(status::INVALID_QUEUE_ID);
        }
        if self.completions[usize::from(completions)].is_none() {
            return Err(status::INVALID_COMPLETION_QUEUE);
        }
        let mut queue = SubmissionQueue::new(job.entry.data1.get(), entries, completions);
        queue.shadow = self.shadow_of(id, 0);
        self.submissions[id] = Some(queue);
        Ok(())
    }

    fn delete_cq(&mut self, job: &Job) -> Result<(), u16> {
        let [id, _] = fields(job.entry.cdw10.get());
        let exists = self
            .completions
            .get(usize::from(id))
            .is_some_and(Option::is_some);
        if id == 0 || !exists {
            return Err(status::INVALID_QUEUE_ID);
        }
        if self
            .submissions
            .iter()
            .flatten()
            .any(|queue| queue.completions == id)
        {
            return Err(status::INVALID_QUEUE_DELETION);
        }
        self.delete_completions(usize::from(id));
        Ok(())
    }

    fn delete_sq(&mut self, job: &Job) -> Did {
        let [id, _] = fields(job.entry.cdw10.get());
        let queue = self.submissions.get_mut(usize::from(id));
        let queue = queue
            .and_then(Option::as_mut)
            .filter(|queue| id != 0 && !queue.closing);
        queue.ok_or(status::INVALID_QUEUE_ID)?.closing = true;
        self.cancel(status::ABORTED_SQ_DELETION, |job| job.queue == id);
        Ok(Done::After(Wait::Closed { queue: id }, 0))
    }

    fn abort(&mut self, job: &Job) -> Did {
        let others = |job: &Job| job.is_admin() && job.entry.opcode == admin::ABORT;
        if self.count_pending(others) > usize::from(self.config.abort_limit) {
            return Err(status::ABORT_LIMIT);
        }
        let [queue, command_id] = fields(job.entry.cdw10.get());
        if usize::from(queue) >= self.submissions.len() {
            return Err(status::INVALID_FIELD);
        }
        let meant = |job: &Job| job.queue == queue && job.command_id() == command_id;
        let mut aborted = self.cancel(status::ABORT_REQUESTED, meant);
        if let Some(at) = self.held.iter().position(|held| meant(&held.job)) {
            let held = self.held.remove(at).expect("just found");
            self.finish(&held, 0, status::ABORT_REQUESTED);
            aborted += 1;
        }
        if aborted == 0 {
            // Bit 0: it was not aborted.
            return Ok(Done::Ended(1));
        }
        Ok(Done::After(Wait::Posted { queue, command_id }, 0))
    }

    fn set_features(&mut self, job: &Job) -> Result<u32, u16> {
        let (dword, value) = (job.entry.cdw10.get(), job.entry.cdw11.get());
        let id = dword.to_le_bytes()[0];
        if self.features.get(id, false).is_none() {
            return Err(status::INVALID_FIELD);
        }
        if dword >> 31 != 0 {
            return Err(status::FEATURE_NOT_SAVEABLE);
        }
        if id == feature::NUMBER_OF_QUEUES {
            if fields(value).contains(&u16::MAX) {
                return Err(status::INVALID_FIELD);
            }
            let io = self.completions.iter().skip(1).flatten().count();
            if io > 0 {
                return Err(status::COMMAND_SEQUENCE);
            }
        }
        self.features.set(id, value).ok_or(status::INVALID_FIELD)
    }

    fn get_features(&mut self, job: &Job) -> Result<u32, u16> {
        let [id, select, ..] = job.entry.cdw10.get().to_le_bytes();
        let value = |first| self.features.get(id, first).ok_or(status::INVALID_FIELD);
        match select & 0b111 {
            0 => value(false),
            // Nothing is saved, so what was saved is what it is at first.
            1 | 2 => value(true),
            // Capabilities: it can be changed, and not saved.
            3 => value(false).map(|_| 0b100),
            _ => Err(status::INVALID_FIELD),
        }
    }

    fn get_log_page(&mut self, job: &Job) -> Result<(), u16> {
        let (cdw10, cdw11) = (job.entry.cdw10.get(), job.entry.cdw11.get());
        let dwords = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xffff) << 16;
        let len_bytes = (dwords + 1) * 4;
        let offset = u64::from(job.entry.cdw12.get()) | u64::from(job.entry.cdw13.get()) << 32;
        let page = cdw10.to_le_bytes()[0];
        let mut data = match page {
            1 => self.features.error_log().to_vec(),
            2 => self.smart_log().to_vec(),
            // Firmware slots: slot 1 is active and holds revision "1".
            3 => {
                let mut data = vec![0; 512];
                (data[0], data[8]) = (1, b'1');
                data[9..16].fill(b' ');
                data
            }
            CHANGED_NAMESPACES => self.features.changed_namespaces(),
            _ => return Err(status::INVALID_LOG_PAGE),
        };
        if offset > data.len() as u64 || !offset.is_multiple_of(4) || len_bytes > MAX_LOG_BYTES {
            return Err(status::INVALID_FIELD);
        }
        data.drain(..usize::try_from(offset).expect("inside"));
        data.resize(usize::try_from(len_bytes).expect("bounded"), 0);
        self.send(job, &data)?;
        // RAE: the event stays as it is.
        if cdw10 >> 15 & 1 == 0 {
            self.features.unmask(page);
        }
        Ok(())
    }

    /// Base figure 208: nothing is wrong, it is 30 degrees Celsius.
    fn smart_log(&self) -> [u8; 512] {
        let mut data = [0; 512];
        data[1..3].copy_from_slice(&303_u16.to_le_bytes());
        (data[3], data[4]) = (100, 10);
        let units = |bytes: u64| bytes.div_ceil(512_000).to_le_bytes();
        // The host's reads are our writes to memory.
        data[32..40].copy_from_slice(&units(self.counters.dma_write_bytes));
        data[48..56].copy_from_slice(&units(self.counters.dma_read_bytes));
        let commands = self.counters.io_commands;
        let of = |opcode: u8| commands[usize::from(opcode)].to_le_bytes();
        data[64..72].copy_from_slice(&of(nvme_sys::opcode::nvm::READ));
        data[80..88].copy_from_slice(&of(nvme_sys::opcode::nvm::WRITE));
        data[176..184].copy_from_slice(&self.features.errors().to_le_bytes());
        data
    }

    fn doorbell_buffer(&mut self, job: &Job) -> Result<(), u16> {
        let (doorbells, indices) = (job.entry.data1.get(), job.entry.data2.get());
        let page = self.registers.page_bytes();
        let fits = |at: u64| at != 0 && at.is_multiple_of(page);
        if !fits(doorbells) || !fits(indices) {
            return Err(status::INVALID_FIELD);
        }
        // A page each holds so many queues; more could not be served.
        if (self.submissions.len() as u64) * 2 * self.registers.doorbell_bytes() > page {
            return Err(status::INVALID_FIELD);
        }
        self.shadow = Some((doorbells, indices));
        for id in 1..self.submissions.len() {
            let shadows = [self.shadow_of(id, 0), self.shadow_of(id, 1)];
            if let Some(queue) = &mut self.submissions[id] {
                (queue.shadow, queue.event_index) = (shadows[0], None);
            }
            if let Some(queue) = &mut self.completions[id] {
                (queue.shadow, queue.event_index) = (shadows[1], None);
            }
        }
        Ok(())
    }

    /// Where a queue's doorbell is in memory. The admin queue keeps its register.
    fn shadow_of(&self, id: usize, kind: u64) -> Option<Shadow> {
        let (doorbells, indices) = self.shadow?;
        let offset = (2 * id as u64 + kind) * self.registers.doorbell_bytes();
        Some(Shadow {
            doorbell: doorbells + offset,
            event_index: indices + offset,
        })
    }
}
