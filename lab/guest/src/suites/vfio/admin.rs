//! An admin queue by hand, polled: enough to see a controller write into memory, also into
//! memory that no transport would name. Knows one command, Identify.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nvme::device::vfio::VfioDevice;
use nvme::device::{Device, Mapping};
use nvme::memory::RawMemory;
use nvme_sys::register::{
    ACQ, AQA, AQA_ACQS_SHIFT, ASQ, CAP, CC, CC_ENABLE, CC_IOCQES_SHIFT, CC_IOSQES_SHIFT, CSTS,
    CSTS_READY, Cap, cq_doorbell, sq_doorbell,
};

const ENTRIES: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Admin {
    pub(super) device: Arc<dyn Device>,
    submissions: Mapping,
    completions: Mapping,
    tail: u32,
    head: u32,
    phase: bool,
    stride: u8,
}

impl Admin {
    pub(super) fn new(device: &Arc<VfioDevice>) -> Result<Self> {
        let device = Arc::clone(device) as Arc<dyn Device>;
        let mut this = Self {
            submissions: Mapping::pages(&device, 4096)?,
            completions: Mapping::pages(&device, 4096)?,
            device,
            tail: 0,
            head: 0,
            phase: true,
            stride: 0,
        };
        this.start()?;
        Ok(this)
    }

    /// Enables the controller with empty queues.
    pub(super) fn start(&mut self) -> Result<()> {
        (self.tail, self.head, self.phase) = (0, 0, true);
        self.completions.raw().zero(0, 4096);
        let device = &self.device;
        self.stride = Cap(device.read_u64(CAP)).doorbell_stride();
        device.write_u32(CC, 0);
        self.wait_ready(false)?;
        device.write_u32(AQA, (ENTRIES - 1) << AQA_ACQS_SHIFT | (ENTRIES - 1));
        device.write_u64(ASQ, self.submissions.address(0).0);
        device.write_u64(ACQ, self.completions.address(0).0);
        let sizes = 6 << CC_IOSQES_SHIFT | 4 << CC_IOCQES_SHIFT;
        device.write_u32(CC, sizes | CC_ENABLE);
        self.wait_ready(true)
    }

    fn wait_ready(&self, ready: bool) -> Result<()> {
        let start = Instant::now();
        while (self.device.read_u32(CSTS) & CSTS_READY != 0) != ready {
            let status = self.device.read_u32(CSTS);
            ensure!(start.elapsed() < PATIENCE, "CSTS stays {status:#x}");
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends Identify Controller, which writes a page at a device address.
    pub(super) fn send_identify(&mut self, address: u64) {
        const IDENTIFY: u32 = 0x06;
        const CONTROLLER: u32 = 1;
        let [low, high] = [address & u64::from(u32::MAX), address >> 32]
            .map(|half| u32::try_from(half).expect("half of an address"));
        let mut dwords = [0_u32; 16];
        (dwords[0], dwords[6], dwords[7]) = (IDENTIFY | 7 << 16, low, high);
        dwords[10] = CONTROLLER;
        for (at, dword) in (u64::from(self.tail) * 64..).step_by(4).zip(dwords) {
            self.submissions.raw().write(at, dword);
        }
        self.tail = (self.tail + 1) % ENTRIES;
        let doorbell = sq_doorbell(0, self.stride);
        self.device.write_u32(doorbell, self.tail);
    }

    /// The status of the next completion, or `None` after `span`.
    pub(super) fn wait(&mut self, span: Duration) -> Option<u32> {
        let start = Instant::now();
        let at = u64::from(self.head) * 16 + 12;
        loop {
            let word = self.completions.raw().load(at, Ordering::Acquire);
            if (word >> 16 & 1 != 0) == self.phase {
                self.head = (self.head + 1) % ENTRIES;
                self.phase ^= self.head == 0;
                let doorbell = cq_doorbell(0, self.stride);
                self.device.write_u32(doorbell, self.head);
                return Some(word >> 17);
            }
            if start.elapsed() > span {
                return None;
            }
            sleep(Duration::from_micros(200));
        }
    }

    pub(super) fn identify(&mut self, address: u64) -> Result<()> {
        self.send_identify(address);
        let status = self.wait(PATIENCE).context("no completion")?;
        ensure!(status == 0, "status {status:#x}");
        Ok(())
    }
}

/// The serial number in what Identify wrote.
pub(super) fn serial(memory: RawMemory, offset: u64) -> String {
    let bytes: Vec<u8> = (4..24).map(|at| memory.read(offset + at)).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
