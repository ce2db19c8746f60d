//! Doorbells in registers and in memory, full queues, interrupts.

use std::sync::Arc;
use std::time::Duration;

use nvme_emulator::Config;
use nvme_emulator::observe::WriteKind;
use nvme_sys::opcode::{admin, feature, nvm};
use nvme_sys::sqe::SubmissionEntry;
use rustix::io::{Errno, read};

use crate::driver::{Driver, Queue, at, blocks, command, config, creation};

fn flush(id: u16) -> SubmissionEntry {
    SubmissionEntry {
        command_id: id.into(),
        ..blocks(nvm::FLUSH, 0, 1)
    }
}

/// How often an eventfd was raised since it was last asked.
fn raised(driver: &Driver, vector: u16) -> u64 {
    let eventfd = driver.device.interrupt(vector).expect("a vector");
    let mut bytes = [0; 8];
    match read(&*eventfd, &mut bytes) {
        Ok(8) => u64::from_ne_bytes(bytes),
        Err(Errno::AGAIN) => 0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_that_cannot_be_are_ignored_and_reported() {
    let mut driver = Driver::stepped(Config {
        doorbell_stride: 2,
        ..config(1 << 20, 512)
    });
    let mut queue = driver.queue(1, 4);
    let device = driver.device.clone();
    let (tail, head) = (0x1000 + 2 * 16, 0x1000 + 3 * 16);
    let memory = driver.memory(4096);
    let mut events = 0;
    for (offset, value) in [(tail, 4), (tail, u32::MAX), (tail, 0), (head, 1), (head, 4)] {
        let request = command(admin::ASYNC_EVENT, 0, 0);
        driver.admin.submit(
            &*device,
            SubmissionEntry {
                command_id: 77.into(),
                ..request
            },
        );
        device.write_u32(offset, value);
        driver.emulator.run();
        let event = driver.admin.poll(&*device).expect("an event");
        assert_eq!(event.result.get(), 1 << 16 | 1 << 8, "{offset:#x} {value}");
        let log = command(admin::GET_LOG_PAGE, 15 << 16 | 1, 0);
        driver
            .run_admin(at(log, memory.address(0).0, 0))
            .expect("the log");
        events += 1;
    }
    assert_eq!(events, 5);
    // Between two doorbells there is nothing.
    device.write_u32(tail + 4, 1);
    for id in 0..3 {
        queue.put(flush(id));
    }
    queue.ring_tail(&*device);
    assert_eq!(driver.drain(&mut queue).len(), 3);
}

#[test]
fn a_full_completion_queue_is_never_overwritten() {
    let mut driver = Driver::stepped(config(1 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let device = driver.device.clone();
    // Nine commands of one queue, and completions into a queue with room for three.
    let small = driver.unknown_queue(2, 4);
    let mut large = driver.unknown_queue(3, 16);
    let [cq, _] = creation(&small, 2, 2);
    let [_, sq] = creation(&large, 2, 2);
    driver.run_admin(cq).expect("made");
    driver.run_admin(sq).expect("made");
    for id in 0..9 {
        large.put(flush(id));
    }
    large.ring_tail(&*device);
    driver.emulator.run();
    assert_eq!(raised(&driver, 2), 3);
    // A queue beside it is not held up.
    driver.run(&mut queue, flush(0)).expect("flushed");
    for head in [1, 2, 3, 0, 1, 2] {
        device.write_u32(0x1000 + 5 * 4, head);
        driver.emulator.run();
        assert_eq!(raised(&driver, 2), 1, "{head}");
    }
}

#[test]
fn interrupts_come_where_they_were_asked_for_and_together_where_that_was() {
    let mut driver = Driver::stepped(config(1 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let _admin = raised(&driver, 0);
    let device = driver.device.clone();
    let mut submit = |driver: &Driver, count: u16| {
        for id in 0..count {
            queue.submit(&*device, flush(id));
        }
        assert_eq!(driver.drain(&mut queue).len(), usize::from(count));
    };
    submit(&driver, 1);
    assert_eq!((raised(&driver, 0), raised(&driver, 1)), (0, 1));
    assert!(driver.device.interrupt(65).is_err());
    // Four together, or 500 microseconds.
    let set = command(
        admin::SET_FEATURES,
        feature::INTERRUPT_COALESCING.into(),
        5 << 8 | 3,
    );
    driver.run_admin(set).expect("set");
    submit(&driver, 3);
    assert_eq!(raised(&driver, 1), 0);
    let deadline = driver.emulator.deadline().expect("a deadline");
    assert_eq!(deadline - driver.device.now(), Duration::from_micros(500));
    submit(&driver, 1);
    assert_eq!(raised(&driver, 1), 1);
    submit(&driver, 1);
    assert_eq!(raised(&driver, 1), 0);
    driver.emulator.advance(Duration::from_micros(500));
    driver.emulator.run();
    assert_eq!(raised(&driver, 1), 1);
    assert!(
        raised(&driver, 0) > 0,
        "the admin queue's are never held back"
    );
}

/// Puts a queue's doorbells into memory before it is made.
fn shadow_queue(driver: &mut Driver, entries: u32) -> Queue {
    let [doorbells, indices] = [0; 2].map(|_: i32| driver.memory(4096));
    let buffer = command(admin::DOORBELL_BUFFER, 0, 0);
    driver
        .run_admin(at(buffer, doorbells.address(0).0, indices.address(0).0))
        .expect("taken");
    let mut queue = driver.queue(1, entries);
    queue.shadow = Some(Arc::new((doorbells, indices)));
    queue
}

#[test]
fn doorbells_in_memory_spare_those_in_registers() {
    for threaded in [false, true] {
        let config = Config {
            doorbell_buffer: true,
            ..config(1 << 20, 512)
        };
        let mut driver = if threaded {
            Driver::threaded(config)
        } else {
            Driver::stepped(config)
        };
        let mut queue = shadow_queue(&mut driver, 8);
        let device = driver.device.clone();
        let (mut sent, mut ended) = (0_u16, 0_u16);
        while ended < 20_000 {
            while sent < 20_000 && sent - ended < 7 {
                queue.submit(&*device, flush(sent));
                sent += 1;
            }
            let first = driver.wait(&mut queue);
            assert_eq!(first.command_id.get(), ended);
            ended += 1;
            while let Some(next) = queue.poll(&*device) {
                assert_eq!(next.command_id.get(), ended);
                ended += 1;
            }
        }
        assert!(
            queue.rung > 0 && queue.rung < 20_000,
            "{} writes",
            queue.rung
        );
        assert_eq!(driver.emulator.counters().io_commands[0], 20_000);
    }
}

#[test]
fn doorbells_in_memory_that_cannot_be_are_reported_once() {
    let mut driver = Driver::stepped(Config {
        doorbell_buffer: true,
        ..config(1 << 20, 512)
    });
    let unaligned = command(admin::DOORBELL_BUFFER, 0, 0);
    for (doorbells, indices) in [(0, 0x1000), (0x1000, 0), (0x1004, 0x2000)] {
        let result = driver.run_admin(at(unaligned, doorbells, indices));
        assert_eq!(result, Err(nvme_emulator::status::INVALID_FIELD));
    }
    let mut queue = shadow_queue(&mut driver, 8);
    let device = driver.device.clone();
    let shadow = queue.shadow.clone().expect("set");
    driver.admin.submit(
        &*device,
        SubmissionEntry {
            command_id: 50.into(),
            ..command(admin::ASYNC_EVENT, 0, 0)
        },
    );
    shadow.0.raw().write(8, 99_u32);
    driver.emulator.run();
    let event = driver.admin.poll(&*device).expect("an event");
    assert_eq!(event.result.get(), 1 << 16 | 1 << 8);
    shadow.0.raw().write(8, 0_u32);
    queue.submit(&*device, flush(3));
    assert_eq!(driver.drain(&mut queue).len(), 1);
}

#[test]
fn a_doorbell_in_memory_that_changes_while_the_index_is_written_is_seen() {
    let mut driver = Driver::stepped(Config {
        doorbell_buffer: true,
        ..config(1 << 20, 512)
    });
    let [doorbells, indices] = [0; 2].map(|_: i32| driver.memory(4096));
    let buffer = command(admin::DOORBELL_BUFFER, 0, 0);
    driver
        .run_admin(at(buffer, doorbells.address(0).0, indices.address(0).0))
        .expect("taken");
    let mut queue = driver.unknown_queue(1, 8);
    queue.put(flush(2));
    // The host looks at the index right before it is written, finds that it need not ring,
    // and goes to sleep.
    let (tail, index) = (doorbells.raw(), indices.address(8).0);
    driver.emulator.observe(Box::new(move |write| {
        if write.kind == WriteKind::EventIndex && write.run.start.0 == index {
            tail.store(8, 1, std::sync::atomic::Ordering::SeqCst);
        }
    }));
    let [cq, sq] = creation(&queue, 1, 1);
    driver.run_admin(cq).expect("made");
    driver.run_admin(sq).expect("made");
    let end = queue.poll(&*driver.device).expect("it was seen");
    assert_eq!(end.command_id.get(), 2);
}

#[test]
fn a_reset_brings_doorbells_back_to_registers() {
    let mut driver = Driver::stepped(Config {
        doorbell_buffer: true,
        ..config(1 << 20, 512)
    });
    let before = shadow_queue(&mut driver, 8);
    driver.reset();
    let mut queue = driver.queue(1, 8);
    driver.run(&mut queue, flush(1)).expect("flushed");
    assert!(queue.shadow.is_none() && before.shadow.is_some());
}
