//! The transport over `/dev/null`, which ends every passthrough command with success at once,
//! and `/dev/zero`, which takes none. Knows no drives: those are in the lab.
//!
//! unsafe: submits commands.
#![expect(unsafe_code, reason = "submits commands on memory of its own")]

use std::fs::File;

use rustix::event::{EventfdFlags, eventfd};

use super::node::ControllerFacts;
use super::*;
use crate::command::NamespaceId;
use crate::error::ErrorKind;
use crate::lba::BlockSize;

fn over(path: &str, options: &Options) -> Passthrough {
    let (_root, sysfs) = sysfs::tests::tree();
    let generic = sysfs.generic(Path::new(path), (241, 0)).expect("there");
    let node = Node {
        file: File::open(path).expect("there").into(),
        namespace: Namespace {
            id: NamespaceId(1),
            block: BlockSize::from_shift(9).expect("a size"),
            blocks: 1 << 20,
            guid: None,
            eui64: None,
        },
        identity: generic.identity(NamespaceId(1)).expect("complete"),
        queue: generic.queue_limits().expect("complete"),
        controller: ControllerFacts {
            mdts_bytes: Some(512 << 10),
            retry_delays_ms: [100, 0, 0],
        },
    };
    Passthrough::with_node(node, options).expect("io_uring")
}

/// It may be opened on one thread and used on another.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Passthrough>();
};

fn null(options: &Options) -> Passthrough {
    over("/dev/null", options)
}

fn pages(len_bytes: u64) -> Arc<dyn TargetMemory> {
    Arc::new(Pages::new(len_bytes).expect("memory"))
}

fn io(token: u64, memory: MemoryId) -> Io {
    Io {
        token,
        direction: Direction::Read,
        lba: Lba(8),
        blocks: BlockCount::new(8).expect("a count"),
        memory,
        offset: 4096,
    }
}

fn submit(transport: &mut Passthrough, io: Io) -> Result<(), Io> {
    // SAFETY: the devices of these tests touch no memory.
    unsafe { transport.submit(io) }
}

fn ends(transport: &mut Passthrough) -> Vec<Done> {
    let mut done = Vec::new();
    transport.poll(&mut done).expect("not broken");
    done
}

#[test]
fn limits_are_those_of_queue_and_options() {
    let transport = null(&Options::default());
    let expected = TransportLimits {
        transfer_bytes: 127 * 4096,
        alignment: 4,
        depth: 64,
    };
    assert_eq!(transport.limits(), expected);
    let pages = MemoryShape {
        alignment: 4096,
        contiguous_bytes: 4096,
    };
    let options = Options {
        memory: pages,
        depth: 4000,
        ..Options::default()
    };
    let expected = TransportLimits {
        transfer_bytes: 512 << 10,
        alignment: 4096,
        depth: 1023,
    };
    assert_eq!(null(&options).limits(), expected);
    let options = Options {
        depth: 0,
        ..Options::default()
    };
    assert_eq!(null(&options).limits().depth, 1);
}

#[test]
fn commands_end_with_their_tokens_and_full_is_full() {
    let options = Options {
        depth: 3,
        ..Options::default()
    };
    let mut transport = null(&options);
    let owned = pages(8192);
    for register in [true, false] {
        let memory = transport.attach(Arc::clone(&owned), register);
        let memory = memory.expect("attached");
        let expected = if register {
            Registration::Registered
        } else {
            Registration::NotAsked
        };
        assert_eq!(transport.registration(memory), expected);
        for token in 0..3 {
            submit(&mut transport, io(token, memory)).expect("room");
        }
        let refused = io(3, memory);
        assert_eq!(submit(&mut transport, refused), Err(refused));
        assert_eq!(transport.flush(4), Err(4));
        assert_eq!(transport.in_flight(), 3);
        assert_eq!(Arc::strong_count(&owned), 5);
        let tokens: Vec<_> = ends(&mut transport)
            .into_iter()
            .map(|end| (end.token, end.result))
            .collect();
        assert_eq!(tokens, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        assert_eq!(Arc::strong_count(&owned), 2);
        transport.flush(9).expect("room");
        assert_eq!(ends(&mut transport).len(), 1);
        transport.detach(memory);
        assert_eq!((transport.in_flight(), Arc::strong_count(&owned)), (0, 1));
    }
    assert_eq!(transport.incidents(), Incidents::default());
}

#[test]
fn a_wait_is_for_commands_or_for_the_other_descriptor() {
    let mut transport = null(&Options::default());
    let memory = transport.attach(pages(8192), true).expect("attached");
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("made");
    submit(&mut transport, io(1, memory)).expect("room");
    transport.wait(event.as_fd(), None).expect("waited");
    assert_eq!(ends(&mut transport).len(), 1);
    rustix::io::write(&event, &1_u64.to_ne_bytes()).expect("written");
    transport.wait(event.as_fd(), None).expect("waited");
    assert_eq!(ends(&mut transport).len(), 0);
}

#[test]
fn a_device_without_passthrough_fails_commands_only() {
    let mut transport = over("/dev/zero", &Options::default());
    let memory = transport.attach(pages(8192), false).expect("attached");
    submit(&mut transport, io(1, memory)).expect("room");
    let expected = Done {
        token: 1,
        result: Err(IoError::Os(libc::EOPNOTSUPP)),
    };
    assert_eq!(ends(&mut transport), [expected]);
}

#[test]
fn what_was_not_asked_for_is_counted_and_dropped() {
    let mut transport = null(&Options::default());
    let memory = transport.attach(pages(8192), false).expect("attached");
    submit(&mut transport, io(1, memory)).expect("room");
    assert_eq!(ends(&mut transport).len(), 1);
    // Of an earlier use of the slot, of no slot, of a slot that is free.
    for number in [0, 5000, 1 << 32, 9 << 32 | 1] {
        transport.ring.push_nop(number);
    }
    assert_eq!(ends(&mut transport), []);
    assert_eq!(transport.incidents().strays, 4);
    submit(&mut transport, io(2, memory)).expect("room");
    assert_eq!(ends(&mut transport).len(), 1);
}

#[test]
fn overdue_commands_are_counted_and_stay() {
    let options = Options {
        timeout: Some(Duration::from_nanos(1)),
        ..Options::default()
    };
    let mut transport = null(&options);
    let memory = transport.attach(pages(8192), false).expect("attached");
    submit(&mut transport, io(1, memory)).expect("room");
    std::thread::sleep(Duration::from_millis(1));
    transport.count_overdue();
    transport.count_overdue();
    assert_eq!(
        (transport.in_flight(), transport.incidents().overdue),
        (1, 1)
    );
    assert_eq!(transport.timeout_ms, 1);
    assert_eq!(ends(&mut transport).len(), 1);
}

#[test]
fn a_drop_waits_or_gives_memory_up() {
    for (broken, kept) in [(false, 1), (true, 2)] {
        let owned = pages(8192);
        let mut transport = null(&Options::default());
        let memory = transport.attach(Arc::clone(&owned), true);
        submit(&mut transport, io(1, memory.expect("attached"))).expect("room");
        transport.broken = broken;
        drop(transport);
        assert_eq!(Arc::strong_count(&owned), kept, "broken: {broken}");
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_used_by_address() {
    let mut transport = null(&Options::default());
    // A file's pages that are not writable cannot be registered.
    let file = File::open("/proc/self/exe").expect("there");
    let mapped = ReadOnly::new(&file);
    let owned: Arc<dyn TargetMemory> = Arc::new(mapped);
    let memory = transport.attach(owned, true).expect("attached");
    let refused = transport.registration(memory);
    assert_eq!(refused, Registration::Refused(libc::EFAULT));
    let mut first = io(1, memory);
    first.offset = 0;
    submit(&mut transport, first).expect("room");
    assert_eq!(ends(&mut transport).len(), 1);
}

#[test]
fn a_registered_buffer_that_the_kernel_cannot_use_is_not_used() {
    let mut transport = null(&Options::default());
    let memory = transport.attach(pages(8192), true).expect("attached");
    submit(&mut transport, io(7, memory)).expect("room");
    // As if it had been refused; its completion is a stray then.
    assert_eq!(transport.ended(0, -libc::EINVAL), None);
    let refused = Registration::Refused(libc::EINVAL);
    assert_eq!(transport.registration(memory), refused);
    assert_eq!(transport.in_flight(), 1);
    // Refused by address too: that is its end.
    let end = transport.ended(1 << 32, -libc::EINVAL).expect("an end");
    let expected = Err(IoError::Os(libc::EINVAL));
    assert_eq!((end.token, end.result), (7, expected));
    assert_eq!((ends(&mut transport), transport.in_flight()), (vec![], 0));
    assert_eq!(transport.incidents().strays, 2);
    submit(&mut transport, io(8, memory)).expect("room");
    assert_eq!(ends(&mut transport).len(), 1);
    transport.detach(memory);
}

/// A page of a file, mapped for reads.
struct ReadOnly(RawMemory);

impl ReadOnly {
    fn new(file: &File) -> Self {
        let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses, that nobody unmaps.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, file, 0) };
        let at = std::ptr::NonNull::new(at.expect("mapped").cast()).expect("no null");
        // SAFETY: as above; these tests do not touch it.
        Self(unsafe { RawMemory::new(at, 4096) })
    }
}

// SAFETY: one mapping, for good.
unsafe impl TargetMemory for ReadOnly {
    fn raw(&self) -> RawMemory {
        self.0
    }
}

/// Part of some memory.
struct Part {
    raw: RawMemory,
    _whole: Arc<dyn TargetMemory>,
}

// SAFETY: a part of memory that it keeps.
unsafe impl TargetMemory for Part {
    fn raw(&self) -> RawMemory {
        self.raw
    }
}

#[test]
fn memory_that_is_not_aligned_is_refused() {
    let whole = pages(8192);
    let mut transport = null(&Options::default());
    for (offset, len_bytes, refused) in [(2, 4096, true), (4, 4096, false), (0, 0, true)] {
        let part = Part {
            raw: whole.raw().part(offset, len_bytes),
            _whole: Arc::clone(&whole),
        };
        let attached = transport.attach(Arc::new(part), false);
        let kind = attached.map_err(|error| error.kind()).err();
        let expected = refused.then_some(ErrorKind::InvalidInput);
        assert_eq!(kind, expected, "{offset}+{len_bytes}");
    }
}

fn broken_rule(change: impl FnOnce(&mut Io)) {
    let mut transport = null(&Options::default());
    let memory = transport.attach(pages(1 << 20), false).expect("attached");
    let mut io = io(1, memory);
    change(&mut io);
    let _started = submit(&mut transport, io);
}

#[test]
#[should_panic(expected = "breaks the limits")]
fn an_offset_that_the_kernel_would_copy_is_a_bug() {
    broken_rule(|io| io.offset = 4098);
}

#[test]
#[should_panic(expected = "breaks the limits")]
fn more_than_the_limit_is_a_bug() {
    broken_rule(|io| io.blocks = BlockCount::new(127 * 8 + 1).expect("a count"));
}

#[test]
#[should_panic(expected = "leaves the namespace")]
fn blocks_that_are_not_there_are_a_bug() {
    broken_rule(|io| io.lba = Lba((1 << 20) - 7));
}

#[test]
#[should_panic(expected = "beyond")]
fn memory_that_is_not_there_is_a_bug() {
    broken_rule(|io| io.offset = (1 << 20) - 4092);
}

#[test]
#[should_panic(expected = "opened for reads")]
fn a_write_through_a_node_for_reads_is_a_bug() {
    broken_rule(|io| io.direction = Direction::Write);
}

#[test]
#[should_panic(expected = "in flight")]
fn memory_in_use_is_not_detached() {
    let mut transport = null(&Options::default());
    let memory = transport.attach(pages(8192), false).expect("attached");
    submit(&mut transport, io(1, memory)).expect("room");
    transport.detach(memory);
}

#[test]
fn results_are_told_apart() {
    assert_eq!(outcome(0), Ok(()));
    let status = |field: u16| Err(IoError::Status(Status::check(field).expect_err("one")));
    assert_eq!(outcome(0x281), status(0x281));
    assert_eq!(outcome(0x4012), status(0x4012));
    assert_eq!(outcome(0x4000), Err(IoError::Os(libc::EPROTO)));
    assert_eq!(outcome(0x1_0000), Err(IoError::Os(libc::EPROTO)));
    assert_eq!(outcome(-libc::EINTR), Err(IoError::Aborted));
    assert_eq!(outcome(-libc::ENODEV), Err(IoError::Gone));
    assert_eq!(outcome(-libc::EINVAL), Err(IoError::Os(libc::EINVAL)));
}

#[test]
fn a_first_read_that_fails_says_why() {
    let of = |error| probe_error(Path::new("/dev/ng0n1"), error);
    let error = of(IoError::Os(libc::EACCES));
    assert_eq!(error.kind(), ErrorKind::Permission);
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    let error = of(IoError::Os(libc::EOPNOTSUPP));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(of(IoError::Gone).kind(), ErrorKind::Gone);
    assert_eq!(of(IoError::Os(libc::EIO)).kind(), ErrorKind::Device);
}

#[test]
fn the_first_read_is_made_and_judged() {
    let path = Path::new("/dev/ng0n1");
    probe(&null(&Options::default()).node, path).expect("success at once");
    let error = probe(&over("/dev/zero", &Options::default()).node, path);
    assert_eq!(error.expect_err("none").kind(), ErrorKind::Unsupported);
}
