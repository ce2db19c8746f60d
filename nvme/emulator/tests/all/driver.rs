//! A driver as small as can be: it pokes registers and queues, and checks little.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvme::device::{Device, Mapping};
use nvme_emulator::{Config, Emulator, MemoryDisk, Namespace};
use nvme_sys::cqe::CompletionEntry;
use nvme_sys::opcode::admin;
use nvme_sys::register::{
    ACQ, AQA, ASQ, CC, CC_ENABLE, CC_IOCQES_SHIFT, CC_IOSQES_SHIFT, CC_MPS_SHIFT, CSTS, CSTS_READY,
};
use nvme_sys::sqe::SubmissionEntry;

/// CC with the entry sizes set, enabled.
pub(crate) const ENABLED: u32 = CC_ENABLE | 6 << CC_IOSQES_SHIFT | 4 << CC_IOCQES_SHIFT;

/// A pair of queues.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: u16,
    pub(crate) entries: u32,
    pub(crate) sq: Mapping,
    pub(crate) cq: Mapping,
    pub(crate) tail: u32,
    pub(crate) head: u32,
    phase: bool,
    /// Bytes between doorbells.
    stride: u64,
    /// Doorbells and event indices in memory.
    pub(crate) shadow: Option<Arc<(Mapping, Mapping)>>,
    /// Writes to doorbell registers.
    pub(crate) rung: u64,
}

impl Queue {
    fn new(device: &Arc<dyn Device>, id: u16, entries: u32, stride: u64) -> Self {
        // As large as the page that is set, so that they begin with one.
        let page_bytes = 4096 << (device.read_u32(CC) >> CC_MPS_SHIFT & 0xf);
        let pages = |bytes: u32| {
            let len_bytes = u64::from(entries * bytes).max(page_bytes);
            Mapping::pages(device, len_bytes).expect("maps")
        };
        Self {
            id,
            entries,
            sq: pages(64),
            cq: pages(16),
            tail: 0,
            head: 0,
            phase: true,
            stride,
            shadow: None,
            rung: 0,
        }
    }

    /// Writes a command; the controller does not know yet.
    pub(crate) fn put(&mut self, entry: SubmissionEntry) {
        let bytes = zerocopy::IntoBytes::as_bytes(&entry);
        self.sq.raw().copy_from(u64::from(self.tail) * 64, bytes);
        self.tail = (self.tail + 1) % self.entries;
    }

    fn ring(&mut self, device: &dyn Device, kind: u64, value: u32, before: u32) {
        let offset = (2 * u64::from(self.id) + kind) * self.stride;
        if let Some(shadow) = &self.shadow {
            shadow.0.raw().store(offset, value, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
            let index = shadow.1.raw().load(offset, Ordering::SeqCst);
            let [index, value, before] = [index, value, before].map(low_half);
            if value.wrapping_sub(index).wrapping_sub(1) >= value.wrapping_sub(before) {
                return;
            }
        }
        self.rung += 1;
        device.write_u32(0x1000 + offset, value);
    }

    pub(crate) fn submit(&mut self, device: &dyn Device, entry: SubmissionEntry) {
        let before = self.tail;
        self.put(entry);
        self.ring(device, 0, self.tail, before);
    }

    /// Tells of what `put` wrote.
    pub(crate) fn ring_tail(&mut self, device: &dyn Device) {
        self.ring(device, 0, self.tail, self.tail);
    }

    /// Takes a completion, if there is one.
    pub(crate) fn poll(&mut self, device: &dyn Device) -> Option<CompletionEntry> {
        let at = u64::from(self.head) * 16;
        let last = self.cq.raw().load(at + 12, Ordering::Acquire);
        if (last >> 16 & 1 == 1) != self.phase {
            return None;
        }
        let entry = self.cq.raw().read(at);
        let before = self.head;
        self.head = (self.head + 1) % self.entries;
        if self.head == 0 {
            self.phase = !self.phase;
        }
        self.ring(device, 1, self.head, before);
        Some(entry)
    }
}

/// The controller and its queues.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) emulator: Arc<Emulator>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) admin: Queue,
    threaded: bool,
    next_id: u16,
    pub(crate) page_bytes: u64,
}

/// A disk of which each byte tells where it is.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ at >> 8 ^ at >> 16).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

pub(crate) fn config(len: usize, block_bytes: u32) -> Config {
    Config::new(Namespace::new(MemoryDisk::of(&pattern(len)), block_bytes))
}

fn low_half(value: u32) -> u16 {
    u16::try_from(value & 0xffff).expect("16 bits")
}

/// A command without data.
pub(crate) fn command(opcode: u8, cdw10: u32, cdw11: u32) -> SubmissionEntry {
    SubmissionEntry {
        opcode,
        cdw10: cdw10.into(),
        cdw11: cdw11.into(),
        ..SubmissionEntry::default()
    }
}

/// A command of blocks of namespace 1, without data.
pub(crate) fn blocks(opcode: u8, lba: u64, count: u32) -> SubmissionEntry {
    SubmissionEntry {
        namespace_id: 1.into(),
        cdw12: (count - 1).into(),
        cdw11: u32::try_from(lba >> 32).expect("32 bits").into(),
        ..command(
            opcode,
            u32::try_from(lba & 0xffff_ffff).expect("32 bits"),
            0,
        )
    }
}

pub(crate) fn at(mut entry: SubmissionEntry, prp1: u64, prp2: u64) -> SubmissionEntry {
    (entry.data1, entry.data2) = (prp1.into(), prp2.into());
    entry
}

impl Driver {
    pub(crate) fn stepped(config: Config) -> Self {
        Self::up(Emulator::stepped(config).expect("an emulator"), false, 0)
    }

    pub(crate) fn threaded(config: Config) -> Self {
        Self::up(Emulator::threaded(config).expect("an emulator"), true, 0)
    }

    pub(crate) fn with_pages(config: Config, mps: u32) -> Self {
        Self::up(Emulator::stepped(config).expect("an emulator"), false, mps)
    }

    fn up(emulator: Emulator, threaded: bool, mps: u32) -> Self {
        let emulator = Arc::new(emulator);
        let device: Arc<dyn Device> = emulator.clone();
        let stride = 4 << (device.read_u64(0) >> 32 & 0xf);
        device.write_u32(CC, mps << CC_MPS_SHIFT);
        let admin = Queue::new(&device, 0, 32, stride);
        let mut driver = Self {
            emulator,
            device,
            admin,
            threaded,
            next_id: 0,
            page_bytes: 4096 << mps,
        };
        driver.enable(ENABLED | mps << CC_MPS_SHIFT);
        driver
    }

    pub(crate) fn enable(&mut self, cc: u32) {
        self.device.write_u32(AQA, 31 | 31 << 16);
        self.device.write_u64(ASQ, self.admin.sq.address(0).0);
        self.device.write_u64(ACQ, self.admin.cq.address(0).0);
        self.device.write_u32(CC, cc);
        self.wait_ready(true);
    }

    pub(crate) fn wait_ready(&self, ready: bool) {
        let start = self.device.now();
        while (self.device.read_u32(CSTS) & CSTS_READY != 0) != ready {
            self.device.pause(Duration::from_millis(1));
            let waited = self.device.now() - start;
            assert!(waited < Duration::from_secs(10), "no answer");
        }
    }

    /// Resets, forgets the admin queue's state, and enables again.
    pub(crate) fn reset(&mut self) {
        self.device.write_u32(CC, 0);
        self.wait_ready(false);
        self.admin = Queue::new(&self.device, 0, 32, self.admin.stride);
        self.enable(ENABLED);
    }

    pub(crate) fn id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Lets the emulator go on until there is nothing to do; or waits a little.
    pub(crate) fn go(&self) {
        if self.threaded {
            std::thread::sleep(Duration::from_micros(20));
        } else {
            self.emulator.run();
        }
    }

    /// The next completion of a queue.
    pub(crate) fn wait(&self, queue: &mut Queue) -> CompletionEntry {
        let start = Instant::now();
        loop {
            if let Some(entry) = queue.poll(&*self.device) {
                return entry;
            }
            self.go();
            assert!(start.elapsed() < Duration::from_secs(10), "no completion");
        }
    }

    /// Everything that has completed once there is nothing to do.
    pub(crate) fn drain(&self, queue: &mut Queue) -> Vec<CompletionEntry> {
        self.go();
        let mut all = Vec::new();
        while let Some(entry) = queue.poll(&*self.device) {
            all.push(entry);
            self.go();
        }
        all
    }

    /// Runs a command of a queue; its result, or its status field.
    pub(crate) fn run(
        &mut self,
        queue: &mut Queue,
        mut entry: SubmissionEntry,
    ) -> Result<u32, u16> {
        entry.command_id = self.id().into();
        queue.submit(&*self.device, entry);
        let completion = self.wait(queue);
        assert_eq!(completion.command_id, entry.command_id);
        assert_eq!(completion.sq_id.get(), queue.id);
        match completion.status() {
            0 => Ok(completion.result.get()),
            status => Err(status),
        }
    }

    pub(crate) fn run_admin(&mut self, entry: SubmissionEntry) -> Result<u32, u16> {
        let device = Arc::clone(&self.device);
        let spare = Queue::new(&device, 0, 2, self.admin.stride);
        let mut admin = std::mem::replace(&mut self.admin, spare);
        let result = self.run(&mut admin, entry);
        self.admin = admin;
        result
    }

    /// Memory that the device reaches.
    pub(crate) fn memory(&self, len_bytes: u64) -> Mapping {
        let len_bytes = len_bytes.max(self.page_bytes);
        Mapping::pages(&self.device, len_bytes).expect("maps")
    }

    /// A pair of queues of one size; interrupts by the vector of its number.
    pub(crate) fn queue(&mut self, id: u16, entries: u32) -> Queue {
        let queue = Queue::new(&self.device, id, entries, self.admin.stride);
        let [cq, sq] = creation(&queue, id, id);
        self.run_admin(cq).expect("a completion queue");
        self.run_admin(sq).expect("a submission queue");
        queue
    }

    /// A queue that the controller does not know yet.
    pub(crate) fn unknown_queue(&self, id: u16, entries: u32) -> Queue {
        Queue::new(&self.device, id, entries, self.admin.stride)
    }
}

/// Commands that make a completion queue with interrupts, and a submission queue.
pub(crate) fn creation(queue: &Queue, completions: u16, vector: u16) -> [SubmissionEntry; 2] {
    let size = (queue.entries - 1) << 16;
    let cq = command(
        admin::CREATE_CQ,
        size | u32::from(completions),
        u32::from(vector) << 16 | 0b11,
    );
    let sq = command(
        admin::CREATE_SQ,
        size | u32::from(queue.id),
        u32::from(completions) << 16 | 1,
    );
    [
        at(cq, queue.cq.address(0).0, 0),
        at(sq, queue.sq.address(0).0, 0),
    ]
}

/// Names memory by PRP entries the slow way; the lists live as long as the result.
#[derive(Debug)]
pub(crate) struct Prps {
    pub(crate) prp1: u64,
    pub(crate) prp2: u64,
    pub(crate) lists: Vec<Mapping>,
}

/// The address of each page of a transfer, the first one with its offset.
fn addresses(memory: &Mapping, offset: u64, len_bytes: u64, page: u64) -> Vec<u64> {
    let mut found = vec![memory.address(offset).0];
    let mut next = offset - offset % page + page;
    let mut runs = HashMap::new();
    let mut place = 0;
    for run in memory.runs() {
        for within in (0..run.len_bytes).step_by(4096) {
            runs.insert(place + within, run.start.0 + within);
        }
        place += run.len_bytes;
    }
    while next < offset + len_bytes {
        found.push(runs[&next]);
        next += page;
    }
    found
}

impl Driver {
    /// Names a part of mapped memory, which begins with a page in both address spaces.
    pub(crate) fn prps(&self, memory: &Mapping, offset: u64, len_bytes: u64) -> Prps {
        let page = self.page_bytes;
        let addresses = addresses(memory, offset, len_bytes, page);
        let mut prps = Prps {
            prp1: addresses[0],
            prp2: addresses.get(1).copied().unwrap_or(0),
            lists: Vec::new(),
        };
        if addresses.len() <= 2 {
            return prps;
        }
        // From the last list to the first, so that each knows the address of the next.
        let slots = usize::try_from(page / 8).expect("small");
        let mut rest = &addresses[1..];
        let mut parts = Vec::new();
        while rest.len() > slots {
            parts.push(&rest[..slots - 1]);
            rest = &rest[slots - 1..];
        }
        parts.push(rest);
        let mut next = None;
        for part in parts.into_iter().rev() {
            let list = self.memory(page);
            for (place, entry) in (0..).zip(part.iter().copied().chain(next)) {
                list.raw().write(place * 8, entry.to_le());
            }
            next = Some(list.address(0).0);
            prps.lists.push(list);
        }
        prps.prp2 = next.expect("a list at least");
        prps
    }
}
