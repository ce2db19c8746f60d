//! Queues of our own against the emulated controller: the suite every transport passes, over
//! controllers of every kind, and what happens when something goes wrong.

mod arbitrary;
mod faults;
mod flood;
mod removal;

use std::sync::Arc;
use std::time::Duration;

use nvme::command::{NamespaceId, QueueEntries};
use nvme::controller::Settings;
use nvme::transport::Transport;
use nvme::transport::user::{DataNames, Options, UserTransport};
use nvme_emulator::{Config, Emulator, MemoryDisk, Namespace, Scatter, SglSupport};
use ubio_testkit::source::fill;
use ubio_testkit::transport::TransportFixture;
use ubio_testkit::transport_suite;

const SEED: u64 = 0x5eed;
const DISK_BYTES: usize = 32 << 20;
const SCRATCH: u64 = 24 << 20;

/// A disk with known bytes.
fn disk() -> MemoryDisk {
    let mut bytes = vec![0; DISK_BYTES];
    fill(&mut bytes, SEED, 0);
    MemoryDisk::of(&bytes)
}

/// A kind of controller, and how it is driven.
#[derive(Clone, Copy)]
struct Fixture {
    block_bytes: u32,
    scatter: Scatter,
    sgl: SglSupport,
    data: DataNames,
    doorbell_buffer: bool,
    max_data_transfer: u8,
    stride: u8,
    queues: u16,
    entries: u32,
    interrupts: bool,
    reset_delay: Duration,
}

impl Fixture {
    const PLAIN: Self = Self {
        block_bytes: 512,
        scatter: Scatter::Contiguous,
        sgl: SglSupport::None,
        data: DataNames::Auto,
        doorbell_buffer: false,
        max_data_transfer: 0,
        stride: 0,
        queues: 1,
        entries: 64,
        interrupts: true,
        reset_delay: Duration::ZERO,
    };

    fn config(&self) -> Config {
        let mut config = Config::new(Namespace::new(disk(), self.block_bytes));
        config.scatter = self.scatter;
        config.sgl = self.sgl;
        config.doorbell_buffer = self.doorbell_buffer;
        config.max_data_transfer = self.max_data_transfer;
        config.doorbell_stride = self.stride;
        config.reset_delay = self.reset_delay;
        config
    }

    fn options(&self) -> Options {
        let mut settings = Settings::new(NamespaceId(1));
        settings.queues = self.queues;
        settings.entries = QueueEntries::new(self.entries).expect("a size");
        settings.interrupts = self.interrupts;
        let mut options = Options::new(settings);
        options.data = self.data;
        options
    }
}

impl TransportFixture for Fixture {
    fn open(&self) -> Box<dyn Transport> {
        let emulator = Emulator::threaded(self.config()).expect("an emulator");
        let transport = UserTransport::open(Arc::new(emulator), self.options());
        Box::new(transport.expect("a controller"))
    }

    fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        fill(&mut bytes, SEED, offset);
        bytes
    }

    fn scratch(&self) -> Option<u64> {
        Some(SCRATCH)
    }
}

transport_suite!(plain, Fixture::PLAIN);

// Every 4 KiB at a bus address of its own: only a right list finds them.
transport_suite!(
    scattered,
    Fixture {
        scatter: Scatter::Pages,
        ..Fixture::PLAIN
    }
);

transport_suite!(
    huge_pages,
    Fixture {
        scatter: Scatter::HugePages,
        block_bytes: 4096,
        sgl: SglSupport::Bytes,
        ..Fixture::PLAIN
    }
);

transport_suite!(
    sgls,
    Fixture {
        sgl: SglSupport::Dwords,
        block_bytes: 4096,
        ..Fixture::PLAIN
    }
);

transport_suite!(
    shadow_doorbells,
    Fixture {
        doorbell_buffer: true,
        queues: 4,
        ..Fixture::PLAIN
    }
);

transport_suite!(
    polled_queues,
    Fixture {
        interrupts: false,
        queues: 4,
        stride: 2,
        entries: 5,
        ..Fixture::PLAIN
    }
);

transport_suite!(
    small_transfers,
    Fixture {
        max_data_transfer: 2,
        ..Fixture::PLAIN
    }
);

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);
