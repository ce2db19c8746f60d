//! A controller that somebody wants back: it is shut down, every command ends, and whoever
//! sleeps is woken.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the test's own"
)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nvme::ErrorKind;
use nvme::device::Device;
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, TargetMemory};
use nvme::transport::user::UserTransport;
use nvme::transport::withdrawn::Withdrawn;
use nvme::transport::{Direction, Done, Io, IoError, MemoryId, Transport};
use nvme_emulator::{Delay, Emulator, Match, Plan, Script};
use nvme_sys::opcode::nvm;
use nvme_sys::register::{CC, CC_ENABLE};
use rustix::event::{EventfdFlags, eventfd};

use super::Fixture;

fn open(emulator: &Arc<Emulator>) -> (UserTransport, MemoryId) {
    let device: Arc<dyn Device> = Arc::clone(emulator) as _;
    let mut transport = UserTransport::open(device, Fixture::PLAIN.options()).expect("up");
    let pages = Arc::new(Pages::new(4096).expect("memory"));
    let memory = transport.attach(pages, true).expect("room");
    (transport, memory)
}

fn read(transport: &mut dyn Transport, memory: MemoryId, token: u64) {
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
}

fn gone(token: u64) -> Done {
    Done {
        token,
        result: Err(IoError::Gone),
    }
}

#[test]
fn a_controller_that_is_wanted_back_is_let_go_and_everything_ends() {
    let emulator = Emulator::stepped(Fixture::PLAIN.config()).expect("an emulator");
    let emulator = Arc::new(emulator);
    let (mut transport, memory) = open(&emulator);
    let never = Plan {
        delay: Delay::FOREVER,
        ..Plan::default()
    };
    emulator.set_faults(Script::new().always(Match::io(nvm::READ), never));
    let mut done = Vec::new();
    let mut pass = |transport: &mut UserTransport| {
        emulator.pause(Duration::from_millis(20));
        transport.poll(&mut done).expect("not broken");
        std::mem::take(&mut done)
    };
    read(&mut transport, memory, 1);
    assert_eq!(pass(&mut transport), []);
    emulator.request_removal();
    // It shuts down, and stops, in steps that nobody waits for.
    let ended: Vec<Done> = (0..5).flat_map(|_| pass(&mut transport)).collect();
    assert_eq!(ended, [gone(1)]);
    assert_eq!(emulator.read_u32(CC) & CC_ENABLE, 0, "it still runs");
    assert!(transport.is_wanted_back());
    // Whoever does not know yet is told, too.
    read(&mut transport, memory, 2);
    assert_eq!(pass(&mut transport), [gone(2)]);
}

#[test]
fn whoever_sleeps_is_woken_and_what_is_left_refuses() {
    let emulator = Arc::new(Emulator::threaded(Fixture::PLAIN.config()).expect("an emulator"));
    let (mut transport, memory) = open(&emulator);
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let other = eventfd(0, flags).expect("an eventfd");
    let asks = std::thread::spawn({
        let emulator = Arc::clone(&emulator);
        move || {
            std::thread::sleep(Duration::from_millis(50));
            emulator.request_removal();
        }
    });
    let mut done = Vec::new();
    while !transport.is_wanted_back() {
        // Without an end: only the request can end it.
        transport.wait(other.as_fd(), None).expect("a wait");
        transport.poll(&mut done).expect("not broken");
    }
    asks.join().expect("asked");
    let mut left = Withdrawn::of(&transport);
    assert_eq!(left.namespace(), transport.namespace());
    let kept = Arc::strong_count(&emulator);
    drop(transport);
    assert!(Arc::strong_count(&emulator) < kept && done.is_empty());
    read(&mut left, memory, 3);
    assert_eq!(left.in_flight(), 1);
    left.wait(other.as_fd(), None).expect("there is an end");
    left.poll(&mut done).expect("not broken");
    assert_eq!((done, left.in_flight()), (vec![gone(3)], 0));
    let pages: Arc<dyn TargetMemory> = Arc::new(Pages::new(4096).expect("memory"));
    let error = left.attach(pages, true).expect_err("nothing to attach to");
    assert_eq!(error.kind(), ErrorKind::Gone);
}
