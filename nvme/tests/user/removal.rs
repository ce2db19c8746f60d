//! A controller that somebody wants back while commands are in flight: it is let go, and every
//! command ends.
//!
//! unsafe: submits commands into memory that it owns, and hands on an unsafe method.
#![expect(
    unsafe_code,
    reason = "submit and map are unsafe methods; the memory is the test's own"
)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvme::Result;
use nvme::device::Device;
use nvme::dma::DmaRun;
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, RawMemory};
use nvme::transport::user::UserTransport;
use nvme::transport::{Direction, Done, Io, IoError, Transport};
use nvme_emulator::{Delay, Emulator, Match, Plan, Script};
use nvme_sys::opcode::nvm;
use nvme_sys::register::{CC, CC_ENABLE};

use super::Fixture;

/// An emulated controller that can be asked for.
#[derive(Debug)]
struct Wanted {
    emulator: Emulator,
    wanted: AtomicBool,
}

impl Device for Wanted {
    fn name(&self) -> &str {
        self.emulator.name()
    }

    fn read_u32(&self, offset: u64) -> u32 {
        self.emulator.read_u32(offset)
    }

    fn write_u32(&self, offset: u64, value: u32) {
        self.emulator.write_u32(offset, value);
    }

    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        // SAFETY: the caller's promise.
        unsafe { self.emulator.map(memory) }
    }

    fn unmap(&self, runs: &[DmaRun]) -> Result<()> {
        self.emulator.unmap(runs)
    }

    fn vectors(&self) -> u16 {
        self.emulator.vectors()
    }

    fn interrupt(&self, vector: u16) -> Result<Arc<OwnedFd>> {
        self.emulator.interrupt(vector)
    }

    fn quiesce(&self) -> Result<()> {
        self.emulator.quiesce()
    }

    fn is_wanted_back(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn now(&self) -> Duration {
        self.emulator.now()
    }

    fn pause(&self, span: Duration) {
        self.emulator.pause(span);
    }
}

#[test]
fn a_controller_that_is_wanted_back_is_let_go_and_everything_ends() {
    let emulator = Emulator::stepped(Fixture::PLAIN.config()).expect("an emulator");
    let device = Arc::new(Wanted {
        emulator,
        wanted: AtomicBool::new(false),
    });
    let handed: Arc<dyn Device> = Arc::clone(&device) as _;
    let mut transport = UserTransport::open(handed, Fixture::PLAIN.options()).expect("up");
    let never = Plan {
        delay: Delay::FOREVER,
        ..Plan::default()
    };
    let faults = Script::new().always(Match::io(nvm::READ), never);
    device.emulator.set_faults(faults);
    let pages = Arc::new(Pages::new(4096).expect("memory"));
    let memory = transport.attach(pages, true).expect("room");
    let read = |transport: &mut UserTransport, token| {
        let io = Io {
            token,
            direction: Direction::Read,
            lba: Lba(0),
            blocks: BlockCount::new(1).expect("a count"),
            memory,
            offset: 0,
        };
        // SAFETY: nobody looks at the page.
        assert!(unsafe { transport.submit(io) }.is_ok(), "no room");
    };
    let mut done = Vec::new();
    let mut pass = |transport: &mut UserTransport| {
        device.emulator.advance(Duration::from_millis(20));
        transport.poll(&mut done).expect("not broken");
        std::mem::take(&mut done)
    };
    let gone = |token| Done {
        token,
        result: Err(IoError::Gone),
    };
    read(&mut transport, 1);
    assert_eq!(pass(&mut transport), []);
    device.wanted.store(true, Ordering::Relaxed);
    assert_eq!(pass(&mut transport), [gone(1)]);
    assert_eq!(device.read_u32(CC) & CC_ENABLE, 0, "it still runs");
    // Whoever does not know yet is told, too.
    read(&mut transport, 2);
    assert_eq!(pass(&mut transport), [gone(2)]);
}
