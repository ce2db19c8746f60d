//! The cases of the transport suite, each a function over a fixture.

use std::time::{Duration, Instant};

use nvme::transport::{Direction, IoError};

use super::TransportFixture;
use super::session::{PATIENCE, Session};
use crate::guarded::{GUARD_BYTES, Guarded, assert_same};

const PAGE: u64 = 4096;

/// Numbers that look random and are the same each time.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % below
    }
}

/// It takes nothing, owes nothing, and says what it can.
pub fn a_fresh_transport_is_idle_and_names_its_limits(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    assert_eq!(session.transport.in_flight(), 0);
    assert!(session.poll().is_empty());
    let limits = session.transport.limits();
    let block = session.block();
    assert!(limits.depth > 0 && u64::from(limits.transfer_bytes) >= block);
    assert!(u64::from(limits.transfer_bytes).is_multiple_of(block));
    assert!(limits.alignment.is_power_of_two() && u64::from(limits.alignment) <= block);
    assert!(session.transport.namespace().len_bytes() >= 24 << 20);
}

/// Reads `len` bytes to `at` of poisoned memory, and looks at all of it.
fn check(session: &mut Session<'_>, memory: &Guarded, io: (u64, u64, u64), register: bool) {
    let (offset, len, at) = io;
    memory.poison(0..memory.region().len_bytes());
    let id = session.attach(memory, register);
    let io = session.io(Direction::Read, (offset, len), id, at);
    let ended = session.run(io);
    assert_eq!(ended, Ok(()), "{len} bytes to {at}");
    let wanted = session.fixture.bytes(offset, len);
    assert_same(&memory.bytes(at..at + len), &wanted, "read");
    let read = at..at + len;
    memory.check_poison_outside(&[read]);
    session.transport.detach(id);
}

/// The places in a page that a command may begin at.
fn in_page(session: &Session<'_>) -> impl Iterator<Item = u64> + use<> {
    let alignment = u64::from(session.transport.limits().alignment);
    let wanted: [u64; 4] = [0, 4, 512, 4092];
    wanted
        .into_iter()
        .filter(move |at| at.is_multiple_of(alignment))
}

/// PRP lists of every interesting length, from every interesting place in the first page.
pub fn every_count_of_pages_from_every_place_in_a_page(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let memory = session.memory(1040 * PAGE);
    let (largest, block) = (session.largest(), session.block());
    for pages in [1, 2, 3, 4, 511, 512, 513, 514, 1022, 1023, 1024] {
        for place in in_page(&session) {
            // As many whole blocks as touch so many pages.
            let len = (pages * PAGE - place) / block * block;
            if len == 0 || len > largest {
                continue;
            }
            let offset = (pages * 7 % 64) * PAGE;
            for register in [true, false] {
                check(
                    &mut session,
                    &memory,
                    (offset, len, GUARD_BYTES + place),
                    register,
                );
            }
        }
    }
}

/// A command's list may begin anywhere in the lists of its memory.
pub fn every_place_in_a_long_memory(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let memory = session.memory(1600 * PAGE);
    let id = session.attach(&memory, true);
    let largest = session.largest() / PAGE;
    let mut number = numbers(1);
    let mut tried = 0;
    for first in (0..1100)
        .step_by(13)
        .chain(250..262)
        .chain(505..516)
        .chain(1018..1026)
    {
        let most = largest.min(1600 - first);
        let pages = match number(3) {
            0 => 1 + number(most.min(4)),
            _ => 1 + number(most.min(600)),
        };
        let (at, len) = (GUARD_BYTES + first * PAGE, pages * PAGE);
        let offset = number(1000) * PAGE;
        memory.poison(at - PAGE..at + len + PAGE);
        let io = session.io(Direction::Read, (offset, len), id, at);
        assert_eq!(session.run(io), Ok(()));
        let wanted = fixture.bytes(offset, len);
        let what = format!("{pages} pages from page {first}");
        assert_same(&memory.bytes(at..at + len), &wanted, &what);
        for outside in [at - PAGE..at, at + len..at + len + PAGE] {
            let bytes = memory.bytes(outside);
            assert!(
                bytes.iter().all(|&byte| byte == bytes[0]),
                "{what}: too much"
            );
        }
        tried += 1;
    }
    assert!(tried > 100);
}

/// MDTS and NLB at their limit.
pub fn commands_at_the_largest_transfer(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let largest = session.largest().min(16 << 20);
    let memory = session.memory(largest + PAGE);
    let block = session.block();
    for (len, place) in [
        (largest, 0),
        (largest - block, 0),
        (block, 0),
        (largest - block, block),
    ] {
        if len > 0 {
            check(&mut session, &memory, (0, len, GUARD_BYTES + place), true);
        }
    }
}

/// The shortest commands, at every dword of the alignment's choice.
pub fn single_blocks_land_anywhere_in_a_page(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let memory = session.memory(4 * PAGE);
    let block = session.block();
    let alignment = u64::from(session.transport.limits().alignment).max(4);
    for place in (0..PAGE).step_by(252).map(|at| at / alignment * alignment) {
        let offset = (place / 4 % 4096) * block;
        check(
            &mut session,
            &memory,
            (offset, block, GUARD_BYTES + place),
            true,
        );
    }
}

/// `count` reads of `len` bytes at a depth of `depth`, each compared.
fn verify(session: &mut Session<'_>, len: u64, depth: usize, count: usize) {
    let depth = depth.min(session.transport.limits().depth.into());
    let memory = session.memory(depth as u64 * len);
    let id = session.attach(&memory, true);
    let places = (24 << 20) / len;
    let mut number = numbers(len);
    let mut at_place = std::collections::HashMap::new();
    let mut free: Vec<u64> = (0..depth as u64).collect();
    let (mut started, mut ended) = (0, 0);
    let start = Instant::now();
    while ended < count {
        assert!(start.elapsed() < PATIENCE, "{ended} of {count} have ended");
        while started < count
            && let Some(slot) = free.pop()
        {
            let offset = number(places) * len;
            let at = GUARD_BYTES + slot * len;
            let io = session.io(Direction::Read, (offset, len), id, at);
            at_place.insert(io.token, (slot, offset, at));
            session.must_submit(io);
            started += 1;
        }
        let done = session.poll();
        if done.is_empty() {
            let span = Some(Duration::from_millis(100));
            session
                .transport
                .wait(session.waker.event(), span)
                .expect("a wait");
        }
        for end in done {
            assert_eq!(end.result, Ok(()));
            let (slot, offset, at) = at_place.remove(&end.token).expect("started");
            let wanted = session.fixture.bytes(offset, len);
            assert_same(&memory.bytes(at..at + len), &wanted, "verify");
            free.push(slot);
            ended += 1;
        }
    }
    let all = memory.inside();
    memory.check_poison_outside(&[all]);
}

/// 4 KiB at random, many in flight.
pub fn small_reads_at_random_are_the_right_ones(fixture: &dyn TransportFixture) {
    verify(&mut Session::open(fixture), PAGE, 64, 3000);
}

/// 128 KiB at random, several in flight.
pub fn large_reads_at_random_are_the_right_ones(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let len = session.largest().min(128 << 10);
    verify(&mut session, len, 16, 300);
}

/// Memory → blocks → memory, over several list pages.
pub fn what_is_written_is_read_again(fixture: &dyn TransportFixture) {
    let Some(scratch) = fixture.scratch() else {
        return;
    };
    let mut session = Session::open(fixture);
    let memory = session.memory(1100 * PAGE);
    let id = session.attach(&memory, true);
    let mut number = numbers(3);
    for pages in [1, 2, 3, 64, 513, 1000] {
        let len = (pages * PAGE).min(session.largest());
        let written: Vec<u8> = (0..len).map(|_| number(256).to_le_bytes()[0]).collect();
        let at = GUARD_BYTES + 4 * number(8) * u64::from(session.transport.limits().alignment / 4);
        memory.write(at, &written);
        let io = session.io(Direction::Write, (scratch, len), id, at);
        assert_eq!(session.run(io), Ok(()));
        let all = 0..memory.region().len_bytes();
        memory.poison(all);
        let io = session.io(Direction::Read, (scratch, len), id, at);
        assert_eq!(session.run(io), Ok(()));
        assert_same(&memory.bytes(at..at + len), &written, "read again");
        let read = at..at + len;
        memory.check_poison_outside(&[read]);
    }
}

/// The controller itself finds the difference: it read the right memory.
pub fn a_compare_tells_one_byte_of_difference(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let len = (64 * PAGE).min(session.largest());
    let memory = session.memory(len);
    let id = session.attach(&memory, true);
    let at = GUARD_BYTES;
    memory.write(at, &fixture.bytes(0, len));
    let io = session.io(Direction::Compare, (0, len), id, at);
    match session.run(io) {
        // Compare is optional.
        Err(IoError::Status(status)) if status.field() & 0x7ff == 0x001 => return,
        ended => assert_eq!(ended, Ok(()), "equal"),
    }
    let one = at + len - 1;
    memory.write(one, &[!memory.bytes(one..one + 1)[0]]);
    let io = session.io(Direction::Compare, (0, len), id, at);
    let Err(IoError::Status(status)) = session.run(io) else {
        panic!("a difference was not found");
    };
    assert_eq!(status.field() & 0x7ff, 0x285, "{status}");
}

/// Back-pressure hands the command back, and there is room again afterwards.
pub fn a_full_transport_gives_the_command_back(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let depth = u64::from(session.transport.limits().depth);
    let block = session.block();
    let memory = session.memory((depth + 1) * block);
    let id = session.attach(&memory, true);
    for round in 0..3 {
        for slot in 0..depth {
            let at = GUARD_BYTES + slot * block;
            let io = session.io(Direction::Read, (slot % 1024 * block, block), id, at);
            session.must_submit(io);
        }
        let at = GUARD_BYTES + depth * block;
        let io = session.io(Direction::Read, (0, block), id, at);
        assert_eq!(session.submit(io), Err(io), "round {round}");
        let done = session.finish();
        assert_eq!(done.len() as u64, depth);
        assert!(done.iter().all(|end| end.result == Ok(())));
    }
    for slot in 0..depth {
        let at = GUARD_BYTES + slot * block;
        let wanted = fixture.bytes(slot % 1024 * block, block);
        assert_same(&memory.bytes(at..at + block), &wanted, "after three rounds");
    }
}

/// Descriptors, pinned pages and bus addresses come back.
pub fn memory_is_attached_and_detached_again_and_again(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    for round in 0..200 {
        let memory = session.memory((1 + round % 5) * 64 * PAGE);
        check(
            &mut session,
            &memory,
            (round * PAGE, PAGE, GUARD_BYTES),
            round % 2 == 0,
        );
    }
}

/// Attached memory need not begin or end with a page.
pub fn memory_that_begins_anywhere(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let alignment = usize::try_from(session.transport.limits().alignment.max(4)).expect("small");
    let len = usize::try_from(5 * PAGE).expect("small");
    for lead in [0, alignment, 2048 / alignment * alignment] {
        let memory = Guarded::unaligned(lead, len);
        let id = session.attach(&memory, false);
        for (at, bytes) in [(0, PAGE), (PAGE, 4 * PAGE), (4 * PAGE, PAGE)] {
            let io = session.io(Direction::Read, (3 * PAGE, bytes), id, at);
            assert_eq!(session.run(io), Ok(()), "{lead} {at}");
            let wanted = fixture.bytes(3 * PAGE, bytes);
            assert_same(&memory.bytes(at..at + bytes), &wanted, "unaligned memory");
        }
        session.transport.detach(id);
    }
}

/// Whoever waits for commands can be woken for something else.
pub fn another_descriptor_ends_a_wait(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let waker = session.waker.clone();
    let woken = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        waker.wake_always();
    });
    let start = Instant::now();
    let span = Some(Duration::from_secs(60));
    // It may return early, so it is asked until the descriptor is what ended it.
    while !woken.is_finished() {
        session
            .transport
            .wait(session.waker.event(), span)
            .expect("a wait");
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "nobody was woken"
        );
    }
    woken.join().expect("the other thread");
}

/// A wait is over when its time is, whether or not anything came.
pub fn a_bounded_wait_ends(fixture: &dyn TransportFixture) {
    let mut session = Session::open(fixture);
    let start = Instant::now();
    let span = Some(Duration::from_millis(20));
    session
        .transport
        .wait(session.waker.event(), span)
        .expect("a wait");
    assert!(start.elapsed() < Duration::from_secs(30));
}

/// After the drop the memory is the caller's alone.
pub fn a_dropped_transport_writes_no_more(fixture: &dyn TransportFixture) {
    let memory = {
        let mut session = Session::open(fixture);
        let len = session.largest().min(256 << 10);
        let depth = u64::from(session.transport.limits().depth.min(32));
        let memory = session.memory(depth * len);
        let id = session.attach(&memory, false);
        for slot in 0..depth {
            let at = GUARD_BYTES + slot * len;
            let io = session.io(Direction::Read, (slot * len, len), id, at);
            session.must_submit(io);
        }
        let _some = session.poll();
        memory
    };
    let all = memory.region().len_bytes();
    memory.poison(0..all);
    std::thread::sleep(Duration::from_millis(50));
    memory.check_poison_outside(&[]);
}
