//! What must hold for every host, however wrong: no panic, every step ends, no write outside of
//! what is mapped. Shared by the fuzz target and the emulator's tests; knows no fuzzer and no
//! driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvme::device::{Device, Mapping};
use nvme::dma::DmaRun;
use nvme::memory::{Pages, RawMemory, TargetMemory};
use nvme_emulator::fault::ControllerFault;
use nvme_emulator::observe::DmaWrite;
use nvme_emulator::{
    Config, Counters, Deed, Delay, Emulator, Ending, Match, MemoryDisk, Namespace, Plan, Scatter,
    Script, SglSupport,
};
use nvme_sys::opcode::{admin, nvm};
use nvme_sys::register::{ACQ, AQA, ASQ, CC, DOORBELLS};

use super::input::Input;

const PAGES: u64 = 16;
/// What memory that is not mapped holds, and must still hold at the end.
const CANARY: [u8; 64] = [0xa5; 64];

/// Memory that keeps what it was filled with.
fn canary() -> Arc<Pages> {
    let pages = Arc::new(Pages::new(2 * 4096).expect("memory"));
    for at in 0..2 * 4096 / 64 {
        pages.raw().copy_from(at * 64, &CANARY);
    }
    pages
}

fn check_canary(memory: RawMemory) {
    for at in 0..2 * 4096 / 64 {
        assert_eq!(
            memory.read::<[u8; 64]>(at * 64),
            CANARY,
            "written: {}",
            at * 64
        );
    }
}

struct Host {
    emulator: Arc<Emulator>,
    device: Arc<dyn Device>,
    memory: Mapping,
    /// Comes and goes.
    second: Option<Mapping>,
    mapped: Arc<Mutex<Vec<DmaRun>>>,
    /// Addresses that are worth naming: mapped, unmapped, and this process's own.
    addresses: Vec<u64>,
    tails: [u16; 4],
}

/// A host that follows the bytes of its input; what the controller counted meanwhile.
///
/// # Panics
/// If something does not hold that must.
pub fn emulator_commands(bytes: &[u8]) -> Counters {
    let mut input = Input::new(bytes);
    let mut host = Host::new(&mut input);
    let canary = canary();
    let gone = Mapping::new(&host.device, canary.clone()).expect("maps");
    host.addresses.push(gone.address(0).0);
    drop(gone);
    let own = canary.raw().start().as_ptr().addr() as u64;
    host.addresses.extend([own, 0, 4096, !4095, 1 << 48]);
    while !input.is_empty() {
        host.act(&mut input);
    }
    for _ in 0..2000 {
        if !host.emulator.step() {
            break;
        }
    }
    check_canary(canary.raw());
    let counters = host.emulator.counters();
    // Whatever was done to it: a reset makes it work again.
    host.recover();
    counters
}

fn config(input: &mut Input) -> Config {
    let kinds = input.byte();
    let mut second = Namespace::new(MemoryDisk::new(64 << 10).read_only(), 4096);
    second.metadata_bytes = 8;
    let mut config = Config::new(Namespace::new(MemoryDisk::new(128 << 10), 512));
    config.namespaces.push(second);
    config.io_queues = 3;
    config.vectors = 4;
    config.max_queue_entries = 64;
    config.doorbell_buffer = true;
    config.scatter = [Scatter::Contiguous, Scatter::Pages][usize::from(kinds & 1)];
    config.sgl =
        [SglSupport::None, SglSupport::Bytes, SglSupport::Dwords][usize::from(kinds >> 1) % 3];
    config.doorbell_stride = kinds >> 4 & 1;
    config.max_data_transfer = kinds >> 5 & 3;
    config.reset_delay = Duration::from_millis(u64::from(kinds >> 7));
    config.faults = Box::new(script(input));
    config
}

fn script(input: &mut Input) -> Script {
    let kind = input.byte();
    let mut plan = Plan {
        delay: Delay::steps(u64::from(kind & 7)),
        ..Plan::default()
    };
    plan.ending = match kind >> 3 & 7 {
        1 => Ending::Never,
        2 => Ending::Twice,
        3 => Ending::Stray(input.u16()),
        4 => Ending::Queue(input.u16()),
        _ => Ending::Once,
    };
    if kind & 64 != 0 {
        plan.deed = Deed::Short {
            len_bytes: input.u16().into(),
            status: 4,
        };
    }
    plan.ignores_abort = kind & 128 != 0;
    let opcode = input.one(&[nvm::READ, nvm::WRITE, nvm::COMPARE, nvm::FLUSH]);
    Script::new()
        .times(3, Match::io(opcode), plan)
        .times(2, Match::admin(input.byte()), plan)
        .shuffled(u64::from(kind))
}

impl Host {
    fn new(input: &mut Input) -> Self {
        let emulator = Arc::new(Emulator::stepped(config(input)).expect("an emulator"));
        let device: Arc<dyn Device> = emulator.clone();
        let memory = Mapping::pages(&device, PAGES * 4096).expect("maps");
        let mapped = Arc::new(Mutex::new(memory.runs().to_vec()));
        let known = Arc::clone(&mapped);
        emulator.observe(Box::new(move |write: &DmaWrite| {
            let run = write.run;
            let end = run.start.0 + run.len_bytes;
            let inside =
                |of: &DmaRun| of.start.0 <= run.start.0 && end <= of.start.0 + of.len_bytes;
            let known = known.lock().expect("no panic");
            assert!(known.iter().any(inside), "{write:?} is not mapped");
        }));
        let addresses = (0..PAGES)
            .map(|page| memory.address(page * 4096).0)
            .collect();
        Self {
            emulator,
            device,
            memory,
            second: None,
            mapped,
            addresses,
            tails: [0; 4],
        }
    }

    fn act(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0 => {
                let offset = input.one(&[0, 0x08, 0x14, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x38]);
                self.device.write_u32(offset, input.u32());
            }
            1 => self.device.write_u32(input.u32().into(), input.u32()),
            2 => {
                let offset = u64::from(input.byte() % 16) * 4;
                self.device
                    .write_u32(DOORBELLS + offset, input.byte().into());
            }
            3 => {
                let place = u64::from(input.u16()) % (PAGES * 4096 - 64);
                self.memory.raw().copy_from(place, &input.bytes::<64>());
            }
            4 => {
                // An address, where a list or a segment may be.
                let place = u64::from(input.u16()) % (PAGES * 512) * 8;
                let address = self.address(input);
                self.memory.raw().write(place, address.to_le());
            }
            5 => self.enable(),
            6 => self.make_queues(input),
            7 => self
                .emulator
                .advance(Duration::from_micros(input.u32().into())),
            8 => self.remap(),
            9 if input.byte() == 0 => self.emulator.inject(ControllerFault::Fatal),
            9 => self.emulator.set_faults(script(input)),
            10 => {
                let _value = self.device.read_u32(input.u16().into());
            }
            _ => self.submit(input),
        }
        for _ in 0..input.byte() % 16 {
            self.emulator.step();
        }
    }

    fn address(&self, input: &mut Input) -> u64 {
        let address = input.one(&self.addresses);
        match input.byte() {
            byte @ 0..64 => address + u64::from(byte) * 64,
            byte @ 64..80 => address + u64::from(byte) - 64,
            _ => address,
        }
    }

    /// Page 0 and 1 are the admin queue's, 2 and 3 the first pair's, and so on.
    fn enable(&mut self) {
        self.tails = [0; 4];
        self.device.write_u32(AQA, 31 << 16 | 31);
        self.device.write_u64(ASQ, self.memory.address(0).0);
        self.device.write_u64(ACQ, self.memory.address(4096).0);
        self.device.write_u32(CC, 1 | 6 << 16 | 4 << 20);
    }

    fn make_queues(&mut self, input: &mut Input) {
        let id = input.byte() % 4;
        let page = u64::from(id) * 2 * 4096;
        let id = u32::from(id);
        let mut words = [0; 16];
        for (opcode, page, cdw11) in [
            (admin::CREATE_CQ, page + 4096, id << 16 | 3),
            (admin::CREATE_SQ, page, id << 16 | 1),
        ] {
            words[0] = u32::from(opcode) | u32::from(self.tails[0]) << 16;
            let [low, high] = halves(self.memory.address(page).0);
            (words[6], words[7]) = (low, high);
            (words[10], words[11]) = (31 << 16 | id, cdw11);
            self.push(0, words);
        }
    }

    /// A command that is mostly sensible.
    fn submit(&mut self, input: &mut Input) {
        let queue = input.byte() % 4;
        let opcode = match (queue, input.byte()) {
            (_, byte @ 240..) => byte,
            (0, byte) => [
                admin::DELETE_SQ,
                admin::CREATE_SQ,
                admin::GET_LOG_PAGE,
                admin::DELETE_CQ,
                admin::CREATE_CQ,
                admin::IDENTIFY,
                admin::ABORT,
                admin::SET_FEATURES,
                admin::GET_FEATURES,
                admin::ASYNC_EVENT,
                admin::DOORBELL_BUFFER,
            ][usize::from(byte) % 11],
            (_, byte) => [
                nvm::FLUSH,
                nvm::WRITE,
                nvm::READ,
                nvm::COMPARE,
                nvm::WRITE_ZEROES,
                nvm::DATASET_MANAGEMENT,
            ][usize::from(byte) % 6],
        };
        let mut words = [0; 16];
        let flags = input.one(&[0, 0, 0, 0x40, 0x40, 0x80, 0xc1, 1]);
        words[0] = u32::from(opcode) | flags << 8 | u32::from(input.byte() % 32) << 16;
        words[1] = input.one(&[1, 1, 1, 2, 0, u32::MAX]);
        [words[6], words[7]] = halves(self.address(input));
        if flags & 0x40 != 0 {
            (words[8], words[9]) = (input.u16().into(), u32::from(input.byte()) << 24);
        } else {
            [words[8], words[9]] = halves(self.address(input));
        }
        words[10] = match input.byte() {
            byte @ 0..200 => u32::from(byte % 32) | u32::from(input.byte() % 64) << 16,
            _ => input.u32(),
        };
        if input.byte() > 200 {
            words[11..].fill_with(|| input.u32());
        } else {
            (words[11], words[12]) = (u32::from(input.byte() & 7), u32::from(input.byte()));
        }
        self.push(queue, words);
    }

    fn push(&mut self, queue: u8, words: [u32; 16]) {
        let tail = &mut self.tails[usize::from(queue)];
        let place = u64::from(queue) * 2 * 4096 + u64::from(*tail) * 64;
        self.memory.raw().write(place, words.map(u32::to_le));
        *tail = (*tail + 1) % 32;
        let stride = 4 << (self.device.read_u64(0) >> 32 & 0xf);
        let offset = DOORBELLS + 2 * u64::from(queue) * stride;
        self.device.write_u32(offset, u32::from(*tail));
        // Completions are read at once, whether there are any or not.
        for head in 0..32 {
            self.device.write_u32(offset + stride, head);
        }
    }

    /// Maps more memory, or unmaps it.
    fn remap(&mut self) {
        let mut mapped = self.memory.runs().to_vec();
        self.second = match self.second.take() {
            Some(_) => None,
            None => {
                let second = Mapping::pages(&self.device, 3 * 4096).expect("maps");
                self.addresses.push(second.address(4096).0);
                mapped.extend(second.runs());
                Some(second)
            }
        };
        *self.mapped.lock().expect("no panic") = mapped;
    }

    fn recover(&mut self) {
        self.emulator.set_faults(Script::new());
        // A reset is the change from enabled to not.
        self.device.write_u32(CC, 1);
        self.device.write_u32(CC, 0);
        self.device.pause(Duration::from_secs(1));
        assert_eq!(self.device.read_u32(0x1c), 0, "disabled");
        self.memory.raw().zero(0, PAGES * 4096);
        self.enable();
        self.device.pause(Duration::from_secs(1));
        assert_eq!(self.device.read_u32(0x1c), 1, "ready");
        let mut words = [0; 16];
        words[0] = u32::from(admin::IDENTIFY) | 7 << 16;
        [words[6], words[7]] = halves(self.memory.address(8 * 4096).0);
        words[10] = 1;
        self.push(0, words);
        self.emulator.run();
        let end: [u32; 4] = self.memory.raw().read(4096);
        assert_eq!(u32::from_le(end[3]), 1 << 16 | 7, "identified");
    }
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}
