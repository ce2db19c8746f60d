//! Admin commands, one by one: what they do, and what each refuses.

use nvme::device::Mapping;
use nvme_emulator::{Config, MemoryDisk, Namespace, status};
use nvme_sys::identify::{IdentifyController, IdentifyNamespace};
use nvme_sys::opcode::{admin, feature, nvm};
use nvme_sys::sqe::SubmissionEntry;
use zerocopy::FromBytes;

use crate::driver::{Driver, at, blocks, command, config, creation};

fn identify(cns: u32, namespace: u32, memory: &Mapping) -> SubmissionEntry {
    let mut entry = command(admin::IDENTIFY, cns, 0);
    entry.namespace_id = namespace.into();
    at(entry, memory.address(0).0, 0)
}

fn bytes(memory: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    memory.raw().copy_to(0, &mut bytes);
    bytes
}

#[test]
fn identify_tells_what_was_configured() {
    let mut second = Namespace::new(MemoryDisk::new(3 * 4096 + 1).read_only(), 4096);
    (second.metadata_bytes, second.protection) = (8, 1);
    let mut with_two = Config {
        max_data_transfer: 5,
        abort_limit: 7,
        ..config(1 << 20, 512)
    };
    with_two.namespaces.push(second);
    let mut driver = Driver::stepped(with_two);
    let memory = driver.memory(4096);
    driver
        .run_admin(identify(1, 0, &memory))
        .expect("a controller");
    let data = IdentifyController::read_from_bytes(&bytes(&memory)).expect("4096 bytes");
    assert_eq!(
        (
            data.max_data_transfer,
            data.abort_limit,
            data.namespaces.get()
        ),
        (5, 7, 2)
    );
    assert_eq!((data.sq_entry_sizes, data.cq_entry_sizes), (0x66, 0x44));
    assert_eq!(&data.serial, b"UBIO0001            ");
    driver
        .run_admin(identify(0, 1, &memory))
        .expect("a namespace");
    let data = IdentifyNamespace::read_from_bytes(&bytes(&memory)).expect("4096 bytes");
    assert_eq!((data.size.get(), data.lba_format().block_shift), (2048, 9));
    driver
        .run_admin(identify(0, 2, &memory))
        .expect("a namespace");
    let data = IdentifyNamespace::read_from_bytes(&bytes(&memory)).expect("4096 bytes");
    assert_eq!((data.size.get(), data.lba_format().block_shift), (4, 12));
    assert_eq!(
        (data.lba_format().metadata_bytes.get(), data.protection),
        (8, 1)
    );
    assert_eq!(bytes(&memory)[99], 1, "write protected");
    driver.run_admin(identify(2, 1, &memory)).expect("a list");
    assert_eq!(bytes(&memory)[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    driver
        .run_admin(identify(3, 2, &memory))
        .expect("descriptors");
    assert_eq!(bytes(&memory)[..4], [2, 16, 0, 0]);
    for (cns, namespace, status) in [
        (0, 0, status::INVALID_NAMESPACE),
        (0, 3, status::INVALID_NAMESPACE),
        (0, u32::MAX, status::INVALID_NAMESPACE),
        (3, 3, status::INVALID_NAMESPACE),
        (2, 0xffff_fffe, status::INVALID_NAMESPACE),
        (0x42, 1, status::INVALID_FIELD),
    ] {
        let result = driver.run_admin(identify(cns, namespace, &memory));
        assert_eq!(result, Err(status), "{cns} {namespace}");
    }
}

#[test]
fn queues_are_made_and_ended_by_the_book() {
    let mut driver = Driver::stepped(Config {
        io_queues: 4,
        vectors: 3,
        max_queue_entries: 64,
        ..config(1 << 20, 512)
    });
    let queue = driver.unknown_queue(1, 64);
    let [cq, sq] = creation(&queue, 1, 2);
    let with = |entry: SubmissionEntry, cdw10: u32, cdw11: u32| SubmissionEntry {
        cdw10: cdw10.into(),
        cdw11: cdw11.into(),
        ..entry
    };
    let (size, flags) = (63 << 16, 0b11);
    assert_eq!(driver.run_admin(sq), Err(status::INVALID_COMPLETION_QUEUE));
    for (entry, expected) in [
        (with(cq, size, flags), status::INVALID_QUEUE_ID),
        (with(cq, size | 5, flags), status::INVALID_QUEUE_ID),
        (with(cq, 1, flags), status::INVALID_QUEUE_SIZE),
        (with(cq, 64 << 16 | 1, flags), status::INVALID_QUEUE_SIZE),
        (with(cq, size | 1, 0b10), status::INVALID_FIELD),
        (with(cq, size | 1, 3 << 16 | flags), status::INVALID_VECTOR),
        (at(cq, 0x1004, 0), status::INVALID_PRP_OFFSET),
        (with(sq, size | 1, 1), status::INVALID_QUEUE_ID),
        (with(sq, size | 1, 5 << 16 | 1), status::INVALID_QUEUE_ID),
        (
            with(sq, size | 1, 2 << 16 | 1),
            status::INVALID_COMPLETION_QUEUE,
        ),
        (command(admin::DELETE_SQ, 0, 0), status::INVALID_QUEUE_ID),
        (command(admin::DELETE_SQ, 1, 0), status::INVALID_QUEUE_ID),
        (command(admin::DELETE_CQ, 9, 0), status::INVALID_QUEUE_ID),
        (command(admin::DELETE_CQ, 0, 0), status::INVALID_QUEUE_ID),
    ] {
        assert_eq!(driver.run_admin(entry), Err(expected), "{entry:?}");
    }
    driver.run_admin(cq).expect("made");
    assert_eq!(driver.run_admin(cq), Err(status::INVALID_QUEUE_ID));
    driver.run_admin(sq).expect("made");
    assert_eq!(driver.run_admin(sq), Err(status::INVALID_QUEUE_ID));
    let delete_cq = command(admin::DELETE_CQ, 1, 0);
    assert_eq!(
        driver.run_admin(delete_cq),
        Err(status::INVALID_QUEUE_DELETION)
    );
    driver
        .run_admin(command(admin::DELETE_SQ, 1, 0))
        .expect("ended");
    driver.run_admin(delete_cq).expect("ended");
    // Entry sizes that were not set.
    driver.device.write_u32(nvme_sys::register::CC, 0);
    driver.wait_ready(false);
    let mut driver_without = Driver::stepped(config(1 << 20, 512));
    driver_without.device.write_u32(nvme_sys::register::CC, 1);
    assert_eq!(
        driver_without.run_admin(cq),
        Err(status::INVALID_QUEUE_SIZE)
    );
}

#[test]
fn features_are_kept_until_a_reset() {
    let mut driver = Driver::stepped(Config {
        io_queues: 8,
        ..config(1 << 20, 512)
    });
    let set = |id: u8, value| command(admin::SET_FEATURES, id.into(), value);
    let get = |id: u8, select: u32| command(admin::GET_FEATURES, select << 8 | u32::from(id), 0);
    let queues = feature::NUMBER_OF_QUEUES;
    assert_eq!(driver.run_admin(get(queues, 0)), Ok(7 << 16 | 7));
    assert_eq!(driver.run_admin(set(queues, 3 << 16 | 99)), Ok(3 << 16 | 7));
    assert_eq!(driver.run_admin(get(queues, 0)), Ok(3 << 16 | 7));
    assert_eq!(
        driver.run_admin(set(queues, 0xffff)),
        Err(status::INVALID_FIELD)
    );
    let _queue = driver.queue(4, 16);
    assert_eq!(
        driver.run_admin(set(queues, 0)),
        Err(status::COMMAND_SEQUENCE)
    );
    let beyond = driver.unknown_queue(5, 16);
    let [cq, _] = creation(&beyond, 5, 0);
    assert_eq!(driver.run_admin(cq), Err(status::INVALID_QUEUE_ID));
    for (id, value) in [
        (feature::VOLATILE_WRITE_CACHE, 0),
        (feature::ASYNC_EVENT_CONFIG, 0x1ff),
        (feature::INTERRUPT_COALESCING, 0x0a05),
    ] {
        let first = driver.run_admin(get(id, 1)).expect("a default");
        assert_ne!(first, value);
        driver.run_admin(set(id, value)).expect("set");
        assert_eq!(driver.run_admin(get(id, 0)), Ok(value));
    }
    let saved = command(admin::SET_FEATURES, 1 << 31 | 6, 1);
    assert_eq!(driver.run_admin(saved), Err(status::FEATURE_NOT_SAVEABLE));
    assert_eq!(driver.run_admin(get(0x7f, 0)), Err(status::INVALID_FIELD));
    assert_eq!(driver.run_admin(set(0x7f, 0)), Err(status::INVALID_FIELD));
    driver.reset();
    assert_eq!(
        driver.run_admin(get(feature::VOLATILE_WRITE_CACHE, 0)),
        Ok(1)
    );
    assert_eq!(driver.run_admin(get(queues, 0)), Ok(7 << 16 | 7));
}

#[test]
fn log_pages_and_unknown_opcodes() {
    let mut driver = Driver::stepped(config(1 << 20, 512));
    let memory = driver.memory(4096);
    let log = |page: u32, bytes: u32| {
        at(
            command(admin::GET_LOG_PAGE, (bytes / 4 - 1) << 16 | page, 0),
            memory.address(0).0,
            0,
        )
    };
    assert_eq!(
        driver.run_admin(command(0xc0, 0, 0)),
        Err(status::INVALID_OPCODE)
    );
    assert_eq!(
        driver.run_admin(command(admin::DOORBELL_BUFFER, 0, 0)),
        Err(status::INVALID_OPCODE)
    );
    driver.run_admin(log(1, 64)).expect("errors");
    assert_eq!(
        bytes(&memory)[..8],
        [2, 0, 0, 0, 0, 0, 0, 0],
        "two commands failed"
    );
    assert_eq!(
        bytes(&memory)[12..14],
        (status::INVALID_OPCODE << 1).to_le_bytes()
    );
    driver.run_admin(log(2, 512)).expect("health");
    assert_eq!(bytes(&memory)[1..5], [303_u16.to_le_bytes()[0], 1, 100, 10]);
    driver.run_admin(log(3, 512)).expect("firmware");
    assert_eq!(
        driver.run_admin(log(0x70, 512)),
        Err(status::INVALID_LOG_PAGE)
    );
    let mut fused = command(admin::IDENTIFY, 1, 0);
    fused.flags = 1;
    assert_eq!(driver.run_admin(fused), Err(status::INVALID_FIELD));
    fused.flags = 0x40;
    assert_eq!(
        driver.run_admin(fused),
        Err(status::INVALID_FIELD),
        "no SGLs here"
    );
}

#[test]
fn event_requests_wait_are_bounded_and_can_be_aborted() {
    let mut driver = Driver::stepped(Config {
        async_event_limit: 1,
        ..config(1 << 20, 512)
    });
    let request = |id: u16| SubmissionEntry {
        command_id: id.into(),
        ..command(admin::ASYNC_EVENT, 0, 0)
    };
    let device = driver.device.clone();
    for id in [100, 101, 102] {
        driver.admin.submit(&*device, request(id));
    }
    driver.emulator.run();
    let refused = driver.admin.poll(&*device).expect("one is refused");
    assert_eq!(
        (refused.command_id.get(), refused.status()),
        (102, status::ASYNC_EVENT_LIMIT)
    );
    assert_eq!(driver.admin.poll(&*device), None);
    // A doorbell of a queue that is not there.
    device.write_u32(0x1000 + 8 * 7, 1);
    driver.emulator.run();
    let event = driver.admin.poll(&*device).expect("an event");
    assert_eq!((event.command_id.get(), event.result.get()), (100, 1 << 16));
    // The same kind waits until its log page was read.
    device.write_u32(0x1000, 99);
    driver.emulator.run();
    assert_eq!(driver.admin.poll(&*device), None);
    let memory = driver.memory(4096);
    let log = |rae: u32| {
        at(
            command(admin::GET_LOG_PAGE, 15 << 16 | rae << 15 | 1, 0),
            memory.address(0).0,
            0,
        )
    };
    driver.run_admin(log(1)).expect("errors");
    driver.emulator.run();
    assert_eq!(driver.admin.poll(&*device), None, "the event was retained");
    driver.admin.submit(
        &*device,
        SubmissionEntry {
            command_id: 9.into(),
            ..log(0)
        },
    );
    driver.emulator.run();
    assert_eq!(
        driver.admin.poll(&*device).map(|it| it.command_id.get()),
        Some(9)
    );
    let event = driver.admin.poll(&*device).expect("the other event");
    assert_eq!(
        (event.command_id.get(), event.result.get()),
        (101, 1 << 16 | 1 << 8)
    );
    driver.admin.submit(&*device, request(103));
    driver.emulator.run();
    let aborted = command(admin::ABORT, 103 << 16, 0);
    driver.admin.submit(
        &*device,
        SubmissionEntry {
            command_id: 10.into(),
            ..aborted
        },
    );
    driver.emulator.run();
    let ends: Vec<_> = std::iter::from_fn(|| driver.admin.poll(&*device))
        .map(|it| (it.command_id.get(), it.status(), it.result.get()))
        .collect();
    assert_eq!(ends, [(103, status::ABORT_REQUESTED, 0), (10, 0, 0)]);
}

#[test]
fn a_reset_forgets_everything() {
    let mut driver = Driver::stepped(config(1 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let device = driver.device.clone();
    driver
        .admin
        .submit(&*device, command(admin::ASYNC_EVENT, 0, 0));
    driver.emulator.run();
    let memory = driver.memory(4096);
    // Written and rung, and not fetched yet.
    queue.submit(
        &*device,
        at(blocks(nvm::READ, 0, 1), memory.address(0).0, 0),
    );
    driver.reset();
    driver.emulator.run();
    assert_eq!(queue.poll(&*device), None);
    assert_eq!(memory.raw().read::<u64>(0), 0);
    // The queue is not known any more.
    device.write_u32(0x1000 + 8, 5);
    driver.emulator.run();
    assert_eq!(
        driver.admin.poll(&*device),
        None,
        "and neither is the request"
    );
    let mut queue = driver.queue(1, 16);
    driver
        .run(
            &mut queue,
            at(blocks(nvm::READ, 1, 1), memory.address(0).0, 0),
        )
        .expect("read");
    assert_eq!(driver.emulator.counters().resets, 1);
}
