//! The cases, one function each; each opens a source of its own and panics when it finds
//! something wrong. See [`run`](super::run) and [`source_suite!`](crate::source_suite).
//!
//! long: one case after the other, each read on its own.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ubio::source::{FillCommand, Target, Wait, Waker};
use ubio_core::{FillErrorKind, FillPlan, ItemIndex, Landing, ObjectId, Piece, StreamPlan, Token};

use super::session::{PATIENCE, Session, guarded, span};
use super::{Shape, SourceFixture};
use crate::guarded::{GUARD_BYTES, Guarded, assert_same};

/// Where usable memory starts in a [`Guarded`].
const START: u64 = GUARD_BYTES;

/// A fresh source has nothing to say, and limits one can work with.
pub fn a_fresh_source_is_idle_and_names_its_limits(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let limits = session.source.limits();
    assert!(limits.alignment.is_power_of_two());
    assert!(limits.depth >= 1);
    assert!(limits.command_bytes >= limits.alignment);
    assert!(limits.command_bytes.is_multiple_of(limits.alignment));
    assert_eq!(session.source.in_flight(), 0);
    assert_eq!(session.source.device_in_flight(), 0);
    assert_eq!(session.poll(Wait::No), []);
}

/// An empty object can be added, read and removed.
pub fn an_empty_object_gives_no_bytes(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let shape = Shape::full(0, 1);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let memory = guarded(fixture, 64 << 10);
    let id = session.attach(&memory, true);
    let block = session.alignment();
    session.check_read(object, &shape, (0, block), (&memory, id), START);
    session.check_read(object, &shape, (block, block), (&memory, id), START);
    session.source.remove_object(object);
}

/// One block from each of the first places to each of a few places.
pub fn one_block_lands_and_nothing_else_is_touched(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let shape = Shape::full(8 * block, 2);
    let Some(object) = session.add(&shape) else {
        return;
    };
    for register in [true, false] {
        for from in 0..8 {
            let memory = guarded(fixture, 8 * block);
            let id = session.attach(&memory, register);
            let at = START + (7 - from) * block;
            let range = (from * block, block);
            session.check_read(object, &shape, range, (&memory, id), at);
            session.source.detach(id);
        }
    }
}

/// Lengths from a block to the largest command.
pub fn every_size_up_to_the_largest_command(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let largest = u64::from(session.source.limits().command_bytes);
    let shape = Shape::full(largest + 3 * block, 3);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let sizes = [
        block,
        2 * block,
        3 * block,
        (128 << 10) + block,
        1 << 20,
        (1 << 20) + block,
        largest - block,
        largest,
    ];
    for len in sizes
        .into_iter()
        .filter(|&len| len > 0 && len <= largest && len.is_multiple_of(block))
    {
        let memory = guarded(fixture, largest);
        let id = session.attach(&memory, true);
        session.check_read(object, &shape, (3 * block, len), (&memory, id), START);
        session.source.detach(id);
    }
}

/// What an engine does with a range that starts and ends anywhere: the enclosing aligned
/// commands, cut as the source's limits say, and a slice of what they bring.
pub fn unaligned_ends_come_through_aligned_commands(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let largest = u64::from(session.source.limits().command_bytes);
    let shape = Shape::full(2 * largest + 5 * block + 77, 4);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let ends = [1, block - 1, block + 1, largest + 1, shape.len_bytes];
    for start in [1, block - 1, block + 1, largest - 1] {
        for end in ends.into_iter().filter(|&end| end > start) {
            let from = start / block * block;
            let to = end.next_multiple_of(block);
            let memory = guarded(fixture, to - from);
            let id = session.attach(&memory, false);
            let mut at = from;
            while at < to {
                let len = (to - at).min(largest);
                let command = session.command(object, (at, len), id, START + at - from);
                session.must_submit(command);
                at += len;
            }
            let brought: u64 = session
                .finish()
                .iter()
                .map(|completion| u64::from(completion.result.expect("a read")))
                .sum();
            assert_eq!(brought, shape.len_bytes.min(to) - from);
            let found = memory.bytes(START + start - from..START + end - from);
            assert_same(&found, &shape.bytes(start, end - start), "the slice");
            memory.check_poison_outside(&[span(START, to - from)]);
            session.source.detach(id);
        }
    }
}

/// Where the route is no DMA, commands need no alignment.
pub fn unaligned_commands_where_the_route_takes_them(fixture: &dyn SourceFixture) {
    if !fixture.takes_unaligned() {
        return;
    }
    let mut session = Session::open(fixture);
    let shape = Shape::full(300_000, 5);
    let Some(object) = session.add(&shape) else {
        return;
    };
    for (offset, len) in [(0, 1), (1, 1), (4095, 2), (299_999, 1), (17, 200_003)] {
        for shift in [0, 1, 4095] {
            let memory = guarded(fixture, 256 << 10);
            let id = session.attach(&memory, true);
            let wanted = shape.bytes(offset, len);
            let at = START + shift;
            let brought = session.read(object, (offset, len), id, at).expect("read");
            assert_eq!(u64::from(brought), len);
            assert_same(&memory.bytes(at..at + len), &wanted, "unaligned");
            memory.check_poison_outside(&[span(at, len)]);
            session.source.detach(id);
        }
    }
}

/// A command over the end brings what there is, says how much, and writes no further.
pub fn a_short_read_brings_the_rest_of_the_object(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    for rest in [1, 100, block - 1, block, block + 1, 5 * block + 17] {
        let shape = Shape::full(4 * block + rest, 6);
        let Some(object) = session.add(&shape) else {
            return;
        };
        for len in [block, 2 * block, 64 << 10, 1 << 20] {
            for register in [true, false] {
                let memory = guarded(fixture, 1 << 20);
                let id = session.attach(&memory, register);
                let range = (4 * block, len);
                session.check_read(object, &shape, range, (&memory, id), START);
                session.source.detach(id);
            }
        }
        session.source.remove_object(object);
    }
}

/// Nothing comes from where nothing is: 0 bytes, no error, no write.
pub fn reads_at_and_behind_the_end_bring_nothing(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    for len in [2 * block, 2 * block + 5] {
        let shape = Shape::full(len, 7);
        let Some(object) = session.add(&shape) else {
            return;
        };
        let memory = guarded(fixture, 1 << 20);
        let id = session.attach(&memory, true);
        let end = len.next_multiple_of(block);
        for offset in [end, end + block, 100 * block, 1 << 32, 1 << 40] {
            session.check_read(object, &shape, (offset, 4 * block), (&memory, id), START);
        }
        session.source.detach(id);
    }
}

/// Offsets that do not fit 32 bits, and ranges that cross them.
pub fn offsets_beyond_four_gib(fixture: &dyn SourceFixture) {
    const FOUR_GIB: u64 = 1 << 32;
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let end = (9 << 30) + 4 * block + 123;
    let shape = Shape {
        len_bytes: end,
        data: vec![
            0..4 * block,
            FOUR_GIB - 4 * block..FOUR_GIB + 4 * block,
            5 << 30..(5 << 30) + 4 * block,
            9 << 30..end,
        ],
        seed: 8,
    };
    let Some(object) = session.add(&shape) else {
        return;
    };
    let memory = guarded(fixture, 1 << 20);
    let places = [
        (0, 4 * block),
        (FOUR_GIB - 4 * block, 8 * block),
        (FOUR_GIB - block, block),
        (FOUR_GIB, block),
        (FOUR_GIB + block, 3 * block),
        (5 << 30, 4 * block),
        (9 << 30, 64 << 10),
        ((9 << 30) + 4 * block, block),
    ];
    for range in places {
        for register in [true, false] {
            let id = session.attach(&memory, register);
            session.check_read(object, &shape, range, (&memory, id), START);
            session.source.detach(id);
            memory.poison(memory.inside());
        }
    }
}

/// Offsets no object can have: an error or, where the number itself is legal, no bytes; in
/// no case a panic, a lost command or a byte in memory.
pub fn overflowing_offsets_are_errors(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let shape = Shape::full(8 * block, 9);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let memory = guarded(fixture, 1 << 20);
    let id = session.attach(&memory, true);
    let last = u64::MAX / block * block;
    let top = 1u64 << 63;
    let mut offsets = vec![last, last - block, top, top + block, top - block];
    if fixture.takes_unaligned() {
        offsets.extend([u64::MAX, u64::MAX - 1, top - 1, top + 1]);
    }
    for offset in offsets {
        let result = session.read(object, (offset, 2 * block), id, START);
        assert!(
            result.is_err() || (offset < top && result == Ok(0)),
            "a read at {offset} gave {result:?}"
        );
        memory.check_poison_outside(&[]);
    }
    if fixture.scatters() {
        let plan = one_fill(
            object,
            u64::MAX - 10,
            &[(0, 5, START), (5, 100, START + 512)],
        );
        let result = scatter(&mut session, object, &plan, id);
        assert!(
            result.is_err(),
            "a scatter at the end of numbers gave {result:?}"
        );
        memory.check_poison_outside(&[]);
    }
    // It still works.
    session.check_read(object, &shape, (0, block), (&memory, id), START);
}

/// A source takes `limits.depth` commands at least, some day refuses one, hands that back as
/// it was, and takes it when there is room again.
pub fn a_full_source_gives_the_command_back(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let depth = u64::from(session.source.limits().depth);
    let most = 4 * depth + 1024;
    let shape = Shape::full(64 * block, 10);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let memory = guarded(fixture, (most + 1) * block);
    let id = session.attach(&memory, false);
    for _round in 0..3 {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let refused = loop {
            let count = taken.len() as u64;
            assert!(
                count < most,
                "{count} commands in flight, and depth {depth}"
            );
            let (from, at) = (count * 7 % 64 * block, START + count * block);
            let command = session.command(object, (from, block), id, at);
            let copy = command.clone();
            match session.submit(command) {
                Ok(()) => taken.push((from, at)),
                Err(back) => {
                    assert_eq!(back.token, copy.token);
                    assert_eq!((back.object, back.offset), (copy.object, copy.offset));
                    assert_eq!((back.len, back.route), (copy.len, copy.route));
                    taken.push((from, at));
                    break back;
                }
            }
        };
        assert!(taken.len() as u64 > depth, "full after {}", taken.len() - 1);
        let mut completions = Vec::new();
        let start = Instant::now();
        while completions.is_empty() {
            completions = session.poll(Wait::AtMost(Duration::from_millis(50)));
            assert!(start.elapsed() < PATIENCE, "nothing ever completed");
        }
        session.must_submit(refused);
        completions.extend(session.finish());
        for completion in completions {
            assert_eq!(completion.result.map(u64::from), Ok(block));
        }
        for (from, at) in taken {
            let found = memory.bytes(at..at + block);
            assert_same(&found, &shape.bytes(from, block), "after being full");
        }
        memory.poison(memory.inside());
    }
}

/// As many as the source takes, over and over: each completes once, with its own bytes at
/// its own place.
pub fn many_commands_complete_once_each(fixture: &dyn SourceFixture) {
    const ROUNDS: u64 = 4;
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let depth = u64::from(session.source.limits().depth);
    let shape = Shape::full(1024 * block, 11);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let slot = 32 * block;
    let memory = guarded(fixture, depth * slot);
    let id = session.attach(&memory, true);
    let total = depth * ROUNDS;
    let mut free: Vec<u64> = (0..depth).collect();
    let mut under_way = std::collections::HashMap::new();
    let mut state = 0x1234_5678_9abc_def1u64;
    let (mut sent, mut completed) = (0, 0);
    let start = Instant::now();
    while completed < total {
        while sent < total
            && let Some(slot_index) = free.pop()
        {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let len = ((state >> 59) + 1) * block;
            let from = (state >> 33) % (1024 - 32) * block;
            let at = START + slot_index * slot;
            let command = session.command(object, (from, len), id, at);
            under_way.insert(command.token.0, (slot_index, from, len));
            session.must_submit(command);
            sent += 1;
        }
        for completion in session.poll(Wait::AtMost(Duration::from_millis(50))) {
            let (slot_index, from, len) = under_way
                .remove(&completion.token.0)
                .expect("the session knows the token");
            assert_eq!(completion.result.map(u64::from), Ok(len));
            let at = START + slot_index * slot;
            assert_same(&memory.bytes(at..at + len), &shape.bytes(from, len), "many");
            memory.poison(at..at + len);
            free.push(slot_index);
            completed += 1;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{completed} of {total} completed"
        );
    }
    session.finish();
    memory.check_poison_outside(&[]);
}

/// Any 64 bits are a token.
pub fn tokens_come_back_unread(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let Some(object) = session.add(&Shape::full(block, 12)) else {
        return;
    };
    let memory = guarded(fixture, 64 * block);
    let id = session.attach(&memory, true);
    let tokens = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32, 0xffff_ffff];
    let mut at = START;
    for token in tokens {
        let mut command = session.command(object, (0, block), id, at);
        command.token = Token(token);
        session.must_submit(command);
        at += block;
    }
    let mut found: Vec<u64> = session.finish().iter().map(|done| done.token.0).collect();
    found.sort_unstable();
    let mut wanted = tokens.to_vec();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

/// Commands on objects that are not (or no more) there complete with an error.
pub fn unknown_and_removed_objects_are_errors(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let memory = guarded(fixture, 64 << 10);
    let id = session.attach(&memory, true);
    for unknown in [0, 1, 1000, u32::MAX] {
        let result = session.read(ObjectId(unknown), (0, block), id, START);
        assert!(result.is_err(), "object {unknown} gave {result:?}");
    }
    let Some(object) = session.add(&Shape::full(block, 13)) else {
        return;
    };
    session.source.remove_object(object);
    let result = session.read(object, (0, block), id, START);
    assert!(result.is_err(), "a removed object gave {result:?}");
    memory.check_poison_outside(&[]);
    // Removing what is not there is no crime.
    session.source.remove_object(object);
    session.source.remove_object(ObjectId(u32::MAX));
}

/// Ids may come back; what they name is the new object, never the old one.
pub fn a_new_object_in_an_old_place_is_the_new_one(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let memory = guarded(fixture, 64 << 10);
    let id = session.attach(&memory, true);
    let mut others = Vec::new();
    for round in 0..20 {
        let shape = Shape::full((1 + round % 3) * block, 100 + round);
        let Some(object) = session.add(&shape) else {
            return;
        };
        memory.poison(memory.inside());
        session.check_read(object, &shape, (0, 3 * block), (&memory, id), START);
        if round % 3 == 0 {
            others.push((object, shape));
        } else {
            session.source.remove_object(object);
        }
    }
    for (object, shape) in others {
        memory.poison(memory.inside());
        session.check_read(object, &shape, (0, 3 * block), (&memory, id), START);
    }
}

/// Registered or not, attached once or twice: the same bytes at the same places.
pub fn memory_registered_or_not(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let shape = Shape::full(64 * block, 14);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let memories: Vec<Guarded> = (0..6).map(|_| guarded(fixture, 64 * block)).collect();
    let ids: Vec<_> = memories
        .iter()
        .enumerate()
        .map(|(index, memory)| session.attach(memory, index % 2 == 0))
        .collect();
    let again = session.attach(&memories[0], false);
    for (index, at) in (0u64..).zip([0, 1, 5, 20, 40, 60]) {
        let memory = &memories[usize::try_from(index).expect("six")];
        let id = ids[usize::try_from(index).expect("six")];
        let range = (at * block, 3 * block);
        session.check_read(object, &shape, range, (memory, id), START + index * block);
    }
    memories[0].poison(memories[0].inside());
    let range = (7 * block, block);
    session.check_read(object, &shape, range, (&memories[0], again), START);
}

/// Attaching and detaching leaves nothing behind that runs out, and a new memory in an old
/// place is the new one.
pub fn memory_can_be_detached_and_attached_again(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let shape = Shape::full(4 * block, 15);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let first = guarded(fixture, 64 << 10);
    let first_id = session.attach(&first, true);
    session.check_read(object, &shape, (0, block), (&first, first_id), START);
    session.source.detach(first_id);
    first.poison(first.inside());
    let second = guarded(fixture, 64 << 10);
    let second_id = session.attach(&second, true);
    session.check_read(object, &shape, (block, block), (&second, second_id), START);
    first.check_poison_outside(&[]);
    // More often than any table is long.
    let memory = guarded(fixture, 4 * block);
    for round in 0..3000u64 {
        let id = session.attach(&memory, true);
        if round % 500 == 0 {
            memory.poison(memory.inside());
            session.check_read(object, &shape, (0, 4 * block), (&memory, id), START);
        }
        session.source.detach(id);
    }
    let first_id = session.attach(&first, true);
    session.check_read(object, &shape, (0, block), (&first, first_id), START);
}

/// Dropping a source waits for what is in flight: afterwards memory is not written any more.
pub fn a_dropped_source_writes_no_more(fixture: &dyn SourceFixture) {
    for count in [1, 3, 16, 64, 64] {
        let mut session = Session::open(fixture);
        let limits = session.source.limits();
        let len = u64::from(limits.command_bytes).min(1 << 20);
        let shape = Shape::full(2 * len, 16);
        let Some(object) = session.add(&shape) else {
            return;
        };
        let count = u64::from(limits.depth).min(count);
        let memory = guarded(fixture, count * len);
        let id = session.attach(&memory, count % 2 == 0);
        for index in 0..count {
            let command = session.command(object, (index % 2 * len, len), id, START + index * len);
            session.must_submit(command);
        }
        if count > 3 {
            // Have some of them with the device, some not.
            session.poll(Wait::No);
        }
        // The ends of all targets: what a device writes last.
        let ends = || -> Vec<Vec<u8>> {
            let end = |index| START + (index + 1) * len;
            (0..count)
                .map(|index| memory.bytes(end(index) - 8..end(index)))
                .collect()
        };
        drop(session);
        let before = ends();
        std::thread::sleep(Duration::from_millis(100));
        assert!(before == ends(), "written after the source was dropped");
        memory.check_poison_outside(&[span(START, count * len)]);
        assert_eq!(
            Arc::strong_count(memory.region()),
            1,
            "a dropped source still holds the memory"
        );
    }
}

/// `Wait::No` returns at once, and commands complete though nobody ever waits.
pub fn polling_without_wait_does_not_block_and_gets_there(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let block = session.alignment();
    let Some(object) = session.add(&Shape::full(64 * block, 17)) else {
        return;
    };
    let memory = guarded(fixture, 64 * block);
    let id = session.attach(&memory, true);
    let start = Instant::now();
    for _ in 0..1000 {
        assert_eq!(session.poll(Wait::No), []);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "idle polls block");
    for index in 0..8 {
        let command = session.command(object, (index * block, block), id, START + index * block);
        session.must_submit(command);
    }
    let start = Instant::now();
    let mut completed = 0;
    while completed < 8 {
        completed += session.poll(Wait::No).len();
        std::thread::yield_now();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{completed} of 8 commands completed by polls without a wait"
        );
    }
}

/// With nothing to report a bounded wait takes its time, and not much more.
pub fn a_bounded_wait_ends(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    for span_ms in [1, 20, 120] {
        let span = Duration::from_millis(span_ms);
        let start = Instant::now();
        assert_eq!(session.poll(Wait::AtMost(span)), []);
        let took = start.elapsed();
        assert!(
            took + Duration::from_millis(1) >= span,
            "{took:?} of {span:?}"
        );
        assert!(took < span + Duration::from_secs(5), "{took:?} of {span:?}");
    }
}

/// Wakes `waker` for certain after a long while, should the case itself fail to.
struct Rescue {
    done: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rescue {
    fn new(waker: Waker) -> Self {
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let over = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            while !over.load(std::sync::atomic::Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_millis(100));
                if start.elapsed() > Duration::from_secs(10) {
                    waker.wake_always();
                }
            }
        });
        Self {
            done,
            thread: Some(thread),
        }
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        self.done.store(true, std::sync::atomic::Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            thread.join().expect("the rescue thread");
        }
    }
}

/// Another thread ends a wait without end.
pub fn a_wake_ends_a_wait(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    for wait in [Wait::Forever, Wait::AtMost(Duration::from_secs(60))] {
        for _ in 0..3 {
            let _rescue = Rescue::new(session.source.waker());
            let waker = session.source.waker();
            let start = Instant::now();
            let other = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                waker.wake();
            });
            // A wait may end early for no reason; it may not end late.
            while start.elapsed() < Duration::from_millis(30) {
                assert_eq!(session.poll(wait), []);
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(5), "woken after {took:?}");
            other.join().expect("the waking thread");
        }
    }
}

/// A wake between "about to sleep" and the sleep itself ends that sleep.
pub fn a_wake_before_the_wait_is_not_lost(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    let waker = session.source.waker();
    for _ in 0..3 {
        let _rescue = Rescue::new(waker.clone());
        waker.about_to_sleep();
        let other = waker.clone();
        std::thread::spawn(move || other.wake())
            .join()
            .expect("the waking thread");
        let start = Instant::now();
        let mut completions = Vec::new();
        let polled = session.source.poll(Wait::Forever, &mut completions);
        waker.awake();
        polled.expect("the source is not broken");
        assert_eq!(completions, []);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "woken after {took:?}");
    }
}

/// A plan of one fill: pieces of (offset in the fill, bytes, place).
fn one_fill(object: ObjectId, offset: u64, pieces: &[(u32, u32, u64)]) -> Arc<StreamPlan> {
    let end = pieces.last().map_or(0, |piece| piece.0 + piece.1);
    let count = u32::try_from(pieces.len()).expect("few pieces");
    Arc::new(StreamPlan {
        fills: vec![FillPlan {
            object,
            offset,
            len: end.next_multiple_of(4096),
            expected: end,
            route: ubio_core::Route::Buffered,
            landing: Landing::Scatter,
            otherwise: None,
            pieces: 0..count,
        }],
        pieces: pieces
            .iter()
            .map(|&(fill_offset, len, destination)| Piece {
                fill_offset,
                len,
                destination,
                item: ItemIndex(0),
            })
            .collect(),
        items: 1,
        ..StreamPlan::default()
    })
}

fn scatter(
    session: &mut Session<'_>,
    object: ObjectId,
    plan: &Arc<StreamPlan>,
    memory: ubio::source::MemoryId,
) -> Result<u32, ubio_core::FillError> {
    let fill = &plan.fills[0];
    let range = (fill.offset, u64::from(fill.len));
    let command = FillCommand {
        target: Target::Scatter {
            memory,
            plan: Arc::clone(plan),
            fill: 0,
        },
        ..session.command(object, range, memory, 0)
    };
    session.must_submit(command);
    let completions = session.finish();
    assert_eq!(completions.len(), 1);
    completions[0].result
}

/// Each piece to its place: neighbours and gaps, more pieces than one call takes, odd sizes;
/// a piece over the end is an error.
pub fn pieces_are_scattered_to_their_places(fixture: &dyn SourceFixture) {
    if !fixture.scatters() {
        return;
    }
    let mut session = Session::open(fixture);
    let shape = Shape::full(300_001, 18);
    let Some(object) = session.add(&shape) else {
        return;
    };
    let memory = guarded(fixture, 1 << 20);
    let id = session.attach(&memory, false);
    let many: Vec<(u32, u32, u64)> = (0..1000u32)
        .map(|index| {
            let gap = if index % 10 == 9 { 3 } else { 0 };
            let at = START + u64::from((index * 337) % 1000) * 500;
            (index * 200, 200 - gap, at)
        })
        .collect();
    let plans = [
        (0, vec![(0, 1, START)]),
        (
            4096,
            vec![
                (1, 1, START + 1),
                (2, 5000, START + 8192),
                (6000, 7, START + 100),
            ],
        ),
        (0, many),
        (
            300_001 - 200,
            vec![(0, 199, START + 700), (199, 1, START + 5)],
        ),
    ];
    for (offset, pieces) in plans {
        memory.poison(memory.inside());
        let plan = one_fill(object, offset, &pieces);
        let brought = scatter(&mut session, object, &plan, id).expect("scatter");
        assert_eq!(brought, plan.fills[0].expected);
        let mut touched: Vec<Range<u64>> = Vec::new();
        for &(from, len, at) in &pieces {
            let range = at..at + u64::from(len);
            let wanted = shape.bytes(offset + u64::from(from), len.into());
            assert_same(&memory.bytes(range.clone()), &wanted, "a piece");
            touched.push(range);
        }
        memory.check_poison_outside(&touched);
    }
    memory.poison(memory.inside());
    let over = one_fill(object, 300_000, &[(0, 1, START), (1, 1, START + 10)]);
    let result = scatter(&mut session, object, &over, id);
    assert_eq!(
        result.map_err(|error| error.kind),
        Err(FillErrorKind::Truncated)
    );
    memory.check_poison_outside(&[span(START, 1)]);
}

/// For a fixture whose objects are not in the page cache, on a route that reads nothing
/// else: commands say so, and touch at most their target. Not part of the suite's list.
pub fn cold_ranges_are_not_resident(fixture: &dyn SourceFixture) {
    let mut session = Session::open(fixture);
    session.resident = false;
    let block = session.alignment();
    let shape = Shape::full(256 * block, 19);
    let object = session.add(&shape).expect("a fixture for this");
    let memory = guarded(fixture, 1 << 20);
    let id = session.attach(&memory, true);
    for from in [0, 16, 255] {
        let result = session.read(object, (from * block, block), id, START);
        let kind = result.map_err(|error| error.kind);
        assert_eq!(kind, Err(FillErrorKind::NotResident), "block {from}");
        memory.check_poison_outside(&[span(START, block)]);
    }
    if fixture.scatters() {
        let plan = one_fill(object, 64 * block, &[(0, 10, START), (100, 7, START + 99)]);
        let result = scatter(&mut session, object, &plan, id);
        let kind = result.map_err(|error| error.kind);
        assert_eq!(kind, Err(FillErrorKind::NotResident));
    }
}
