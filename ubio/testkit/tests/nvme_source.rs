//! The NVMe source while its controller is reset: stepped, with the emulator's clock, and over a
//! transport that takes nothing for a while.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the test's own"
)]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::Device;
use nvme::lba::BlockSize;
use nvme::memory::TargetMemory;
use nvme::status::Status;
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Done, Incidents, Io, MemoryId, Transport, TransportLimits};
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

/// Takes commands from its third poll on, and ends them at once.
#[derive(Debug)]
struct Shy {
    namespace: nvme::namespace::Namespace,
    polls: u32,
    taken: Vec<u64>,
}

impl Transport for Shy {
    fn namespace(&self) -> &nvme::namespace::Namespace {
        &self.namespace
    }

    fn limits(&self) -> TransportLimits {
        TransportLimits {
            transfer_bytes: 4096,
            alignment: 4,
            depth: 4,
        }
    }

    fn attach(&mut self, _: Arc<dyn TargetMemory>, _: bool) -> nvme::Result<MemoryId> {
        Ok(MemoryId(0))
    }

    fn is_registered(&self, _: MemoryId) -> bool {
        true
    }

    fn detach(&mut self, _: MemoryId) {}

    unsafe fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.polls < 3 {
            return Err(io);
        }
        self.taken.push(io.token);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> nvme::Result<()> {
        self.polls += 1;
        let result = Ok(());
        let ends = self.taken.drain(..).map(|token| Done { token, result });
        done.extend(ends);
        Ok(())
    }

    fn wait(&mut self, _: BorrowedFd<'_>, span: Option<Duration>) -> nvme::Result<()> {
        let bound = Some(Duration::from_millis(100));
        assert!(
            span.is_some() && span < bound,
            "it would sleep on commands that wait: {span:?}"
        );
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.taken.len()
    }

    fn retry_delay(&self, _: Status) -> Duration {
        Duration::ZERO
    }

    fn incidents(&self) -> Incidents {
        Incidents::default()
    }
}

/// A transport may take commands again at any poll, and nothing wakes whoever sleeps on it.
#[test]
fn nobody_sleeps_while_commands_wait_for_a_transport() {
    let namespace = nvme::namespace::Namespace {
        id: NamespaceId(1),
        block: BlockSize::from_shift(9).expect("a size"),
        blocks: 1024,
        guid: None,
        eui64: None,
    };
    let shy = Shy {
        namespace,
        polls: 0,
        taken: Vec::new(),
    };
    let info = NamespaceInfo {
        name: "shy".to_owned(),
        model: String::new(),
        len_bytes: namespace.len_bytes(),
        block_bytes: 512,
        route: Route::Emulated,
        how: String::new(),
    };
    let mut source = NvmeSource::new(Box::new(shy), info).expect("a source");
    let region = Arc::new(Region::anonymous(4096, false).expect("memory"));
    let memory = source
        .attach(&WindowMemory::host(region, 4096), true)
        .expect("room");
    let object = source.add_object(Object::Namespace {
        offset: 0,
        len_bytes: 4096,
    });
    let command = FillCommand {
        token: Token(7),
        object: object.expect("blocks"),
        offset: 0,
        len: 4096,
        route: Route::Emulated,
        target: Target::Memory { memory, offset: 0 },
    };
    // SAFETY: the transport writes nothing.
    assert!(unsafe { source.submit(command) }.is_ok());
    let mut ended = Vec::new();
    for _ in 0..4 {
        source.poll(Wait::Forever, &mut ended).expect("not broken");
        if !ended.is_empty() {
            break;
        }
    }
    let result = Ok(4096);
    assert_eq!(
        ended,
        [Completion {
            token: Token(7),
            result
        }]
    );
}
