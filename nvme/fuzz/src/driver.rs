//! What must hold for every controller, however wrong: no panic, no waiting without end, a
//! command ends at most once, and only by a completion with its identifier or when the
//! controller has stopped; its slot is usable after that, its memory kept until then, and
//! never written by the driver. Shared by the fuzz target and the driver's tests; knows no
//! fuzzer and no emulator.
//!
//! unsafe: submits commands into memory that nobody uses.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; nobody reads or writes the memory"
)]

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nvme::command::{Command, NamespaceId, QueueEntries};
use nvme::controller::{Controller, Settings};
use nvme::device::Device;
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, RawMemory, TargetMemory};
use nvme::queue_pair::CommandId;
use nvme::status::Status;
use nvme::transport::user::{DataNames, Options, UserTransport};
use nvme::transport::{Direction, Done, Io, IoError, MemoryId, Transport};
use rustix::event::{EventfdFlags, eventfd};

use super::input::Input;
use super::liar::Liar;

/// Memory of a command: the largest block, and room to begin inside of a page.
const REGION_BYTES: u64 = 68 << 10;
const REGIONS: u64 = 48;
const POOL_BYTES: u64 = REGIONS * REGION_BYTES + 8192;
const CANARY: u8 = 0xa5;

/// What happened, for tests of seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The controller came up.
    pub opened: bool,
    /// Commands that succeeded.
    pub good: u64,
    /// Commands that ended with a status.
    pub failed: u64,
    /// Commands that a reset ended.
    pub aborted: u64,
    /// Commands that ended because the controller is gone.
    pub gone: u64,
    /// Completions of nothing.
    pub strays: u64,
    /// Events.
    pub events: u64,
    /// Resets.
    pub resets: u64,
    /// Aborts.
    pub aborts: u64,
    /// The controller could neither be reached nor kept from memory.
    pub broken: bool,
}

/// Memory that all runs share: neither driver nor controller writes it.
fn pool() -> &'static Arc<Pages> {
    static POOL: OnceLock<Arc<Pages>> = OnceLock::new();
    POOL.get_or_init(|| {
        let pages = Arc::new(Pages::new(POOL_BYTES).expect("memory"));
        let len = usize::try_from(pages.raw().len_bytes()).expect("small");
        pages.raw().copy_from(0, &vec![CANARY; len]);
        pages
    })
}

/// By whole pages, since instrumented loops over bytes are slow.
fn check_canary(memory: RawMemory) {
    let (canary, mut page) = ([CANARY; 4096], [0; 4096]);
    for at in 0..memory.len_bytes() / 4096 {
        memory.copy_to(at * 4096, &mut page);
        assert!(page == canary, "page {at} was written");
    }
}

/// Half of the pool's regions.
struct Window {
    pool: &'static Arc<Pages>,
    half: u64,
}

// SAFETY: the pool is never freed.
unsafe impl TargetMemory for Window {
    fn raw(&self) -> RawMemory {
        // The second one does not begin with a page.
        let start = 4096 + self.half * (REGIONS / 2 * REGION_BYTES + 512);
        self.pool.raw().part(start, REGIONS / 2 * REGION_BYTES)
    }
}

struct Op {
    region: u64,
    memory: usize,
    address: u64,
    stops: u64,
}

struct Drive {
    liar: Arc<Liar>,
    transport: UserTransport,
    input: Input,
    event: OwnedFd,
    ids: [Option<MemoryId>; 2],
    windows: [Weak<Window>; 2],
    live: HashMap<u64, Op>,
    next_token: u64,
    done: Vec<Done>,
    ends: Ends,
}

fn settings(input: &mut Input) -> Settings {
    let kinds = input.byte();
    let mut settings = Settings::new(NamespaceId(1));
    settings.queues = u16::from(kinds & 3);
    settings.entries = QueueEntries::new(2 + u32::from(kinds >> 2 & 15)).expect("a size");
    settings.interrupts = kinds & 0x40 != 0;
    settings.shadow_doorbells = kinds & 0x80 == 0;
    settings
}

/// A driver whose calls and whose controller follow the input; what came of it.
///
/// # Panics
/// If something does not hold that must.
pub fn driver_completions(bytes: &[u8]) -> Ends {
    // One byte for the driver's calls, one for the controller, in turn.
    let half = |first: usize| -> Vec<u8> {
        let bytes = bytes.iter().skip(first).step_by(2);
        bytes.copied().collect()
    };
    let mut input = Input::new(&half(0));
    let pool = pool();
    let liar = Arc::new(Liar::new(&half(1), pool.raw()));
    let device: Arc<dyn Device> = Arc::clone(&liar) as _;
    let settings = settings(&mut input);
    let ends = if input.byte() >= 224 {
        of_controller(&liar, device, settings, &mut input)
    } else {
        of_transport(&liar, device, settings, input)
    };
    check_canary(pool.raw());
    ends
}

fn of_transport(
    liar: &Arc<Liar>,
    device: Arc<dyn Device>,
    settings: Settings,
    mut input: Input,
) -> Ends {
    let mut options = Options::new(settings);
    if input.byte() & 1 == 1 {
        options.data = DataNames::Prp;
    }
    let Ok(transport) = UserTransport::open(device, options) else {
        assert_eq!(liar.mapped(), 0, "mapped after a failed open");
        return Ends::default();
    };
    let mut drive = Drive {
        liar: Arc::clone(liar),
        transport,
        input,
        event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"),
        ids: [None; 2],
        windows: [Weak::new(), Weak::new()],
        live: HashMap::new(),
        next_token: 1,
        done: Vec::new(),
        ends: Ends {
            opened: true,
            ..Ends::default()
        },
    };
    drive.attach(0);
    drive.attach(1);
    while !drive.input.is_empty() {
        drive.act();
    }
    if drive.input.one(&[true, true, true, false]) {
        drive.finish();
    }
    drive.end()
}

impl Drive {
    fn act(&mut self) {
        match self.input.byte() % 16 {
            0..6 => {
                for _ in 0..=self.input.byte() % 8 {
                    self.submit();
                }
            }
            6 => {
                let span = [1, 10, 1_000, 11_000, 31_000][usize::from(self.input.byte()) % 5];
                self.liar.pause(Duration::from_millis(span));
            }
            7 => {
                let span = Some(Duration::ZERO);
                self.transport
                    .wait(self.event.as_fd(), span)
                    .expect("a wait");
            }
            8 if self.input.byte() < 64 => self.transport.reset(),
            9 => {
                let index = usize::from(self.input.byte() & 1);
                if self.live.values().all(|op| op.memory != index) {
                    // Of one that was given up, identifiers are of nothing any more.
                    if let Some(id) = self.ids[index].take_if(|_| !self.ends.broken) {
                        self.transport.detach(id);
                        self.attach(index);
                    } else if !self.ends.broken {
                        self.attach(index);
                    }
                }
            }
            10 => {
                if let Err(status) = Status::check(self.input.u16() >> 1) {
                    let _delay = self.transport.retry_delay(status);
                }
                let _incidents = self.transport.incidents();
            }
            _ => self.poll(),
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.transport.in_flight(), self.live.len(), "in flight");
    }

    fn attach(&mut self, index: usize) {
        let pool = pool();
        let half = index as u64;
        let window = Arc::new(Window { pool, half });
        self.windows[index] = Arc::downgrade(&window);
        self.ids[index] = self.transport.attach(window, true).ok();
    }

    /// Whether it was taken.
    fn submit(&mut self) -> bool {
        let used = |region: u64| self.live.values().any(|op| op.region == region);
        let Some(region) = (0..REGIONS).find(|&region| !used(region)) else {
            return false;
        };
        let (half, index) = (region / (REGIONS / 2), region % (REGIONS / 2));
        let memory = usize::try_from(half).expect("two");
        let Some(id) = self.ids[memory] else {
            return false;
        };
        let namespace = *self.transport.namespace();
        let block = u64::from(namespace.block.bytes());
        let most = u64::from(self.transport.limits().transfer_bytes).min(64 << 10) / block;
        let most = most.min(namespace.blocks).max(1);
        let blocks = 1 + u64::from(self.input.u16()) % most;
        let lba = u64::from(self.input.u32()) % (namespace.blocks - blocks + 1);
        let room = REGION_BYTES - blocks * block;
        let offset = index * REGION_BYTES + u64::from(self.input.u16()) % (room + 1) / 4 * 4;
        let window = Window { pool: pool(), half };
        let address = window.raw().start().as_ptr().addr() as u64 + offset;
        let token = self.next_token;
        let io = Io {
            token,
            direction: [Direction::Read, Direction::Write, Direction::Compare]
                [usize::from(self.input.byte()) % 3],
            lba: Lba(lba),
            blocks: BlockCount::new(u32::try_from(blocks).expect("few")).expect("some"),
            memory: id,
            offset,
        };
        let stops = self.liar.stops();
        // SAFETY: nobody uses the region, and the controller never writes it.
        if unsafe { self.transport.submit(io) } != Ok(()) {
            return false;
        }
        self.next_token += 1;
        let op = Op {
            region,
            memory,
            address,
            stops,
        };
        assert!(self.live.insert(token, op).is_none(), "a new token");
        true
    }

    fn poll(&mut self) {
        let polled = self.transport.poll(&mut self.done);
        for done in std::mem::take(&mut self.done) {
            self.ended(done);
        }
        if polled.is_err() {
            assert!(self.liar.quiesce_failed(), "given up without need");
            self.ends.broken = true;
        }
        self.check();
    }

    fn ended(&mut self, done: Done) {
        let Some(op) = self.live.remove(&done.token) else {
            panic!("{done:?}: not in flight, or ended before");
        };
        let fetched = self.liar.command_of(op.address);
        let status = match done.result {
            Ok(()) => Some(0),
            Err(IoError::Status(status)) => Some(status.field()),
            Err(_) => None,
        };
        let named = self.liar.take(op.address, status.unwrap_or(0));
        match (status, done.result) {
            (Some(status), _) => {
                assert!(named, "{done:?}: no completion of {fetched:?}");
                let ends = &mut self.ends;
                *if status == 0 {
                    &mut ends.good
                } else {
                    &mut ends.failed
                } += 1;
            }
            (None, Err(IoError::Gone)) => {
                let stopped = self.liar.stops() > op.stops;
                assert!(stopped || fetched.is_none(), "{done:?}: it may go on");
                self.ends.gone += 1;
            }
            (None, Err(IoError::Aborted)) => {
                assert!(self.liar.stops() > op.stops, "{done:?}: not stopped yet");
                self.ends.aborted += 1;
            }
            (None, result) => panic!("{result:?}"),
        }
    }

    /// The controller lies no more: everything ends in its time, and there is room again.
    fn finish(&mut self) {
        self.liar.calm();
        for round in 0..4 {
            let (good, gone) = (self.ends.good, self.ends.gone);
            let wanted = usize::from(self.transport.limits().depth);
            let mut taken = 0;
            for _ in 0..2000 {
                if self.ends.broken || (taken > 0 && self.live.is_empty()) {
                    break;
                }
                if taken == 0 && self.live.is_empty() && self.submit() {
                    taken = 1;
                    while taken < wanted && self.submit() {
                        taken += 1;
                    }
                }
                self.poll();
                self.liar.pause(Duration::from_millis(250));
            }
            if self.ends.broken || self.ids.contains(&None) {
                // The memory of what is in flight is given up; what comes after is refused.
                return;
            }
            assert!(self.live.is_empty() && taken > 0, "commands never end");
            assert_eq!(taken, wanted, "slots were lost");
            let all = |count: u64| count == wanted as u64;
            if all(self.ends.good - good) || all(self.ends.gone - gone) {
                return;
            }
            assert!(round < 3, "an honest controller cannot be used");
        }
    }

    fn end(mut self) -> Ends {
        let incidents = self.transport.incidents();
        self.ends.strays = incidents.strays;
        self.ends.events = incidents.events;
        self.ends.resets = incidents.resets;
        self.ends.aborts = incidents.aborts;
        drop(self.transport);
        let stops = self.liar.stops();
        for op in self.live.values() {
            let is_kept = self.windows[op.memory].strong_count() > 0;
            assert!(stops > op.stops || is_kept, "freed under a command");
        }
        if !self.liar.quiesce_failed() && !self.liar.keeps_memory() {
            assert_eq!(self.liar.mapped(), 0, "still mapped");
            let kept = self.windows.iter().map(Weak::strong_count).sum::<usize>();
            assert_eq!(kept, 0, "never freed");
        }
        self.ends
    }
}

/// The controller without a transport over it.
fn of_controller(
    liar: &Liar,
    device: Arc<dyn Device>,
    settings: Settings,
    input: &mut Input,
) -> Ends {
    let mut ends = Ends::default();
    let Ok(mut controller) = Controller::<u64>::open(device, settings) else {
        return ends;
    };
    ends.opened = true;
    let mut live: HashMap<u64, CommandId> = HashMap::new();
    let mut token = 0;
    while !input.is_empty() {
        let count = controller.queues_now().len();
        let queue = usize::from(input.byte()) % count;
        match input.byte() % 12 {
            0..4 if controller.is_ready() => {
                token += 1;
                let command = Command::flush(NamespaceId(1));
                if let Ok(id) = controller.queues()[queue].submit(command, token) {
                    live.insert(token, id);
                }
                controller.queues()[queue].send();
            }
            4 => {
                let id = CommandId(input.u16());
                let queue = controller.queues_now()[queue].id();
                let _asked = controller.abort(queue, id);
            }
            5 => controller.reset(),
            6 => controller.look(),
            7 => liar.pause(Duration::from_millis(u64::from(input.u16()))),
            8 if input.byte() > 250 => controller.stop(),
            _ => controller.advance(),
        }
        for queue in controller.queues() {
            for _ in 0..=queue.depth() + 1 {
                let Some((token, outcome)) = queue.pop() else {
                    break;
                };
                assert!(live.remove(&token).is_some(), "{token} ended before");
                ends.good += u64::from(outcome.status.is_ok());
                ends.failed += u64::from(outcome.status.is_err());
            }
            queue.acknowledge();
        }
        for token in controller.take_ended() {
            assert!(live.remove(&token).is_some(), "{token} ended before");
            ends.aborted += 1;
        }
        let in_flight: usize = controller
            .queues_now()
            .iter()
            .map(|one| one.in_flight())
            .sum();
        assert_eq!(in_flight, live.len(), "in flight");
    }
    ends.events = controller.events();
    ends.resets = controller.resets();
    ends
}
