//! The NVMe source while its controller is reset: stepped, with the emulator's clock.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the test's own"
)]

use std::sync::Arc;
use std::time::Duration;

use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::Device;
use nvme::memory::TargetMemory;
use nvme::transport::user::{Options, UserTransport};
use nvme_emulator::fault::ControllerFault;
use nvme_emulator::{Config, Emulator, MemoryDisk, Namespace};
use ubio::source::nvme::{NamespaceInfo, NvmeSource};
use ubio::source::{Completion, FillCommand, Object, Source, Target, Wait};
use ubio::sys::memory::Region;
use ubio::window::WindowMemory;
use ubio_core::{FillErrorKind, Nanos, Route, Token};

/// A load goes on after a reset: commands that come meanwhile are neither refused nor lost.
#[test]
fn commands_submitted_during_a_reset_are_kept_for_its_end() {
    let mut config = Config::new(Namespace::new(MemoryDisk::of(&[7; 1 << 20]), 512));
    config.reset_delay = Duration::from_secs(1);
    let emulator = Arc::new(Emulator::stepped(config).expect("an emulator"));
    let device: Arc<dyn Device> = Arc::clone(&emulator) as _;
    let options = Options::new(Settings::new(NamespaceId(1)));
    let transport = UserTransport::open(device, options).expect("a controller");
    let info = NamespaceInfo {
        name: "emulated".to_owned(),
        model: String::new(),
        len_bytes: 1 << 20,
        block_bytes: 512,
        route: Route::Emulated,
        how: String::new(),
    };
    let mut source = NvmeSource::new(Box::new(transport), info).expect("a source");
    let region = Arc::new(Region::anonymous(1 << 20, false).expect("memory"));
    let memory = region.raw();
    let windows = WindowMemory::host(region, 4096);
    let id = source.attach(&windows, true).expect("room");
    let object = source.add_object(Object::Namespace {
        offset: 0,
        len_bytes: 1 << 20,
    });
    let object = object.expect("blocks");
    let submit = |source: &mut NvmeSource, number: u64| {
        let command = FillCommand {
            token: Token(number),
            object,
            offset: number * 4096,
            len: 4096,
            route: Route::Emulated,
            target: Target::Memory {
                memory: id,
                offset: number * 4096,
            },
        };
        // SAFETY: each command has a window of its own.
        unsafe { source.submit(command) }.is_ok()
    };
    let mut ended: Vec<Completion> = Vec::new();

    emulator.inject(ControllerFault::Fatal);
    assert!(submit(&mut source, 0), "room for the first");
    emulator.advance(Duration::from_millis(20));
    source.poll(Wait::No, &mut ended).expect("it is noticed");
    // The reset goes on for a second.
    for number in 1..20 {
        assert!(submit(&mut source, number), "{number} is refused");
    }
    assert_eq!((source.in_flight(), ended.len()), (20, 0));
    for _ in 0..200 {
        source.poll(Wait::No, &mut ended).expect("not broken");
        emulator.pause(Duration::from_millis(10));
    }
    assert_eq!(source.in_flight(), 0, "commands were forgotten");
    ended.sort_by_key(|end| end.token.0);
    let aborted = ended[0].result.expect_err("the reset has ended it");
    let at_once = FillErrorKind::Transient { delay: Nanos(0) };
    assert_eq!(aborted.kind, at_once);
    for (number, end) in (1..20).zip(&ended[1..]) {
        assert_eq!((end.token, end.result), (Token(number), Ok(4096)));
        let mut found = [0; 4096];
        memory.copy_to(number * 4096, &mut found);
        assert_eq!(found, [7; 4096]);
    }
}
