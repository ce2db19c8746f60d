//! The cases, one function each; each opens a backend of its own and panics when it finds
//! something wrong. See [`run`](super::run) and [`vram_suite!`](crate::vram_suite).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ubio::source::Wait;
use ubio::vram::{BufferId, VramWork};

use super::VramFixture;
use super::session::{CAPACITY, Place, Session, region_bytes, region_write};
use crate::guarded::{GUARD_BYTES, POISON, assert_same, fill};

const MIB: u64 = 1 << 20;

fn known(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).expect("64-bit")];
    fill(&mut bytes, seed, 0);
    bytes
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit")
}

/// Applies pieces to a picture of the buffer.
fn apply(picture: &mut [u8], window: &[u8], pieces: &[Place]) {
    for &(from, len, to) in pieces {
        let (from, len, to) = (size(from.into()), size(len.into()), size(to));
        picture[to..to + len].copy_from_slice(&window[from..from + len]);
    }
}

/// Nothing was asked for, nothing comes.
pub fn a_fresh_backend_has_nothing_to_say(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 4096);
    assert!(!session.vram.is_ready());
    assert_eq!(session.poll(), []);
}

/// Whatever length is asked for, also none at all.
pub fn allocated_memory_is_long_enough_and_zero(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 4 * MIB);
    for len in [0, 1, 4095, 4096, 4097, 2 * MIB - 1, 2 * MIB, 3 * MIB + 17] {
        let buffer = session.allocate(len);
        if len > 0 {
            assert_same(&session.look(buffer, 0, len), &vec![0; size(len)], "fresh");
            let last: Place = (0, 1, len - 1);
            session.put(0, &[77]);
            session.run(session.flush(buffer, 0, &[last]));
            assert_eq!(session.look(buffer, len - 1, 1), [77]);
        }
        session.vram.release(buffer);
    }
}

/// A caller's buffer keeps what it holds, and takes what is flushed.
pub fn callers_memory_is_taken_as_it_is(fixture: &dyn VramFixture) {
    for len in [1, 4097, MIB + 3] {
        for (what, buffer) in fixture.callers_buffers(len) {
            let mut session = Session::open(fixture, 2 * MIB);
            assert!(buffer.len_bytes() >= len, "{what}");
            let id = session.adopt(buffer);
            let bytes = known(1, len);
            session.put(0, &bytes);
            let all: Place = (0, u32::try_from(len).expect("small"), 0);
            session.run(session.flush(id, 0, &[all]));
            assert_same(&session.look(id, 0, len), &bytes, what);
        }
    }
}

/// What it cannot copy to is refused when it is brought.
pub fn foreign_memory_is_refused(fixture: &dyn VramFixture) {
    let Some(foreign) = fixture.foreign_buffer() else {
        return;
    };
    let mut session = Session::open(fixture, 4096);
    assert!(session.vram.adopt(foreign).is_err());
}

/// Offsets and lengths know no alignment.
pub fn pieces_go_to_odd_places_in_odd_lengths(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, MIB);
    let window = known(2, MIB);
    session.put(0, &window);
    let lists: [&[Place]; 5] = [
        &[(0, 1, 0)],
        &[(1, 1, 1), (2, 3, 7)],
        &[(3, 4095, 1), (4098, 4097, 8191), (8195, 63, 4097)],
        &[(0, 65_537, 3), (65_537, 1, 2), (65_538, 100_001, 1_000_003)],
        &[(17, 1_000_001, 11)],
    ];
    for pieces in lists {
        let buffer = session.allocate(2 * MIB);
        let mut picture = vec![0; size(2 * MIB)];
        apply(&mut picture, &window, pieces);
        session.run(session.flush(buffer, 0, pieces));
        for half in [0, MIB] {
            let wanted = &picture[size(half)..size(half + MIB)];
            assert_same(&session.look(buffer, half, MIB), wanted, "the buffer");
        }
        session.vram.release(buffer);
    }
    assert_same(&session.get(0, MIB), &window, "the window");
}

/// Ten thousand pieces in another order than they came.
pub fn many_tiny_pieces_each_find_their_place(fixture: &dyn VramFixture) {
    const COUNT: u32 = 10_000;
    let mut session = Session::open(fixture, MIB);
    let window = known(3, MIB);
    session.put(0, &window);
    let pieces: Vec<Place> = (0..COUNT)
        .map(|index| {
            let to = u64::from((index * 7919) % COUNT) * 16 + u64::from(index % 5);
            (index * 8 + index % 2, 1 + index % 7, to)
        })
        .collect();
    let buffer = session.allocate(MIB);
    let mut picture = vec![0; size(MIB)];
    apply(&mut picture, &window, &pieces);
    session.run(session.flush(buffer, 0, &pieces));
    assert_same(&session.look(buffer, 0, MIB), &picture, "the buffer");
}

/// Nothing to copy is no error, and is reported.
pub fn a_fill_without_pieces_is_done(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 4096);
    let buffer = session.allocate(4096);
    session.run(session.flush(buffer, 0, &[]));
    session.run(session.gather(buffer, 0, &[]));
    assert_eq!(session.look(buffer, 0, 4096), [0; 4096]);
    assert_eq!(session.get(0, 4096), [POISON; 4096]);
}

/// What was flushed comes back to where it was, and nothing else is written.
pub fn a_gather_is_a_flush_backwards(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, MIB);
    let window = known(4, MIB);
    session.put(0, &window);
    let pieces: Vec<Place> = (0..100u32)
        .map(|index| {
            let to = u64::from((index * 37) % 100) * 9000 + 1;
            (index * 10_000 + 3, 8191 - index, to)
        })
        .collect();
    let buffer = session.allocate(MIB);
    session.run(session.flush(buffer, 0, &pieces));
    session.windows.poison(session.windows.inside());
    session.run(session.gather(buffer, 0, &pieces));
    let mut picture = vec![POISON; size(MIB)];
    let back: Vec<Place> = pieces
        .iter()
        .map(|&(from, len, _)| (from, len, from.into()))
        .collect();
    apply(&mut picture, &window, &back);
    assert_same(&session.get(0, MIB), &picture, "the window");
    session
        .windows
        .check_poison_outside(&[session.windows.inside()]);
}

/// A fill starts at its window, not at the first one.
pub fn windows_start_where_they_are_said_to(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, MIB);
    let window = known(5, MIB);
    session.put(0, &window);
    let buffer = session.allocate(MIB);
    for at in [0, 4096, 65_536, MIB - 4096] {
        session.run(session.flush(buffer, at, &[(5, 1000, 50)]));
        let wanted = &window[size(at + 5)..size(at + 1005)];
        assert_same(&session.look(buffer, 50, 1000), wanted, "the buffer");
    }
    session.windows.poison(session.windows.inside());
    session.run(session.gather(buffer, MIB - 4096, &[(5, 1000, 50)]));
    let at = MIB - 4096 + 5;
    let wanted = &window[size(at)..size(at + 1000)];
    assert_same(&session.get(at, 1000), wanted, "the window");
    let touched = GUARD_BYTES + at..GUARD_BYTES + at + 1000;
    session.windows.check_poison_outside(&[touched]);
}

/// Preparing is legal for any range of a buffer, and changes no byte of it.
pub fn preparing_changes_nothing_up_to_the_edges(fixture: &dyn VramFixture) {
    const LEN: u64 = MIB + 4097;
    let mut buffers = fixture.callers_buffers(LEN);
    let mut session = Session::open(fixture, 2 * MIB);
    buffers.push(("its own", session.vram.allocate(LEN).expect("memory")));
    for (what, buffer) in buffers {
        let len = buffer.len_bytes().min(2 * MIB);
        let id = session.adopt(buffer);
        let bytes = known(6, len);
        session.put(0, &bytes);
        let all: Place = (0, u32::try_from(len).expect("small"), 0);
        session.run(session.flush(id, 0, &[all]));
        let ranges = [
            (0, 0),
            (0, 1),
            (0, len),
            (len - 1, 1),
            (len, 0),
            (1, len - 1),
            (4095, 2),
            (len / 2, 4096),
        ];
        for (offset, len_bytes) in ranges {
            session.run(VramWork::Prepare {
                buffer: id,
                offset,
                len_bytes,
            });
        }
        assert_same(&session.look(id, 0, len), &bytes, what);
    }
}

/// Scrubbing zeroes what it is asked to, to the byte.
pub fn a_scrub_zeroes_its_range_and_no_more(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, MIB);
    for (at, len) in [
        (0, 0),
        (0, 1),
        (1, 4095),
        (4097, 65_537),
        (0, MIB),
        (MIB - 1, 1),
    ] {
        session.windows.poison(session.windows.inside());
        session.run(session.scrub(at, len));
        assert_same(&session.get(at, len), &vec![0; size(len)], "the range");
        let touched = GUARD_BYTES + at..GUARD_BYTES + at + len;
        session.windows.check_poison_outside(&[touched]);
    }
}

/// As many as there may be, of all kinds, over disjoint ranges.
pub fn many_operations_end_once_each(fixture: &dyn VramFixture) {
    const PART: u64 = 128 << 10;
    let count = CAPACITY as u64;
    let mut session = Session::open(fixture, count * PART);
    let buffer = session.allocate(count * PART);
    for round in 0..3 {
        let window = known(7 + round, count * PART);
        session.put(0, &window);
        let mut ids: Vec<u64> = Vec::new();
        for index in 0..count {
            let at = index * PART;
            let (first, second) = parts(index);
            let work = match index % 4 {
                0 => VramWork::Prepare {
                    buffer,
                    offset: at,
                    len_bytes: PART,
                },
                3 => session.scrub(at, u64::from(first)),
                _ => {
                    let behind = u64::from(first) + 1;
                    let pieces = [(1, first, at + 1), (1 + first, second, at + behind)];
                    session.flush(buffer, at, &pieces)
                }
            };
            ids.push(session.submit(work));
        }
        let mut ended = session.finish();
        ended.sort_unstable();
        assert_eq!(ended, ids);
        for index in 0..count {
            let at = index * PART;
            let (first, second) = parts(index);
            match index % 4 {
                0 => {}
                3 => {
                    let zeros = vec![0; size(first.into())];
                    assert_same(&session.get(at, first.into()), &zeros, "scrubbed");
                }
                _ => {
                    let len = u64::from(first + second);
                    let wanted = &window[size(at + 1)..size(at + 1 + len)];
                    assert_same(&session.look(buffer, at + 1, len), wanted, "flushed");
                }
            }
        }
    }
}

/// Lengths of two pieces: a backend may treat small operations in another way.
fn parts(index: u64) -> (u32, u32) {
    if index.is_multiple_of(3) {
        (99_999, 26_000)
    } else {
        (9_999, 6_000)
    }
}

/// Any 64 bits are a name.
pub fn ids_come_back_unread(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 4096);
    let names = [0, 1, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
    for name in names {
        let work = session.scrub(0, 0);
        session.submit_as(name, work);
    }
    let mut ended = session.finish();
    ended.sort_unstable();
    assert_eq!(ended, names);
}

/// Releasing one buffer disturbs no other, and its id may name a new one.
pub fn a_released_buffer_makes_room_for_another(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 64 << 10);
    let fill_with = |session: &mut Session, id: BufferId, seed: u64| {
        session.put(0, &known(seed, 4096));
        session.run(session.flush(id, 0, &[(0, 4096, 0)]));
    };
    let ids: Vec<BufferId> = (0..4).map(|_| session.allocate(4096)).collect();
    for (&id, seed) in ids.iter().zip(0..) {
        fill_with(&mut session, id, seed);
    }
    session.vram.release(ids[1]);
    session.vram.release(ids[2]);
    // Once more is no crime.
    session.vram.release(ids[2]);
    let new: Vec<BufferId> = (0..3).map(|_| session.allocate(4096)).collect();
    for (&id, seed) in new.iter().zip(10..) {
        assert_eq!(
            session.look(id, 0, 4096),
            [0; 4096],
            "a new buffer is not an old one"
        );
        fill_with(&mut session, id, seed);
    }
    for (id, seed) in [
        (ids[0], 0),
        (ids[3], 3),
        (new[0], 10),
        (new[1], 11),
        (new[2], 12),
    ] {
        assert_same(&session.look(id, 0, 4096), &known(seed, 4096), "a buffer");
    }
    for _ in 0..1000 {
        let id = session.allocate(4096);
        session.vram.release(id);
    }
}

/// Where sources can fill a buffer themselves, what they fill is the buffer.
pub fn in_place_memory_is_the_buffer(fixture: &dyn VramFixture) {
    const LEN: u64 = 100_000;
    let mut session = Session::open(fixture, 256 << 10);
    let mut ids = vec![session.allocate(LEN)];
    for (_what, buffer) in fixture.callers_buffers(LEN) {
        ids.push(session.adopt(buffer));
    }
    for id in ids {
        let Some(memory) = session.vram.in_place(id) else {
            continue;
        };
        let bytes = known(8, LEN);
        assert!(memory.region().len_bytes() >= LEN && memory.windows() == 1);
        region_write(memory.region(), 0, &bytes);
        assert_same(&session.look(id, 0, LEN), &bytes, "filled in place");
        session.put(0, &[1, 2, 3]);
        session.run(session.flush(id, 0, &[(0, 3, LEN - 3)]));
        assert_eq!(region_bytes(memory.region(), LEN - 3, 3), [1, 2, 3]);
    }
}

/// Places that do not fit 32 bits, in a buffer of which little is touched.
pub fn places_beyond_four_gib(fixture: &dyn VramFixture) {
    const FOUR_GIB: u64 = 1 << 32;
    const LEN: u64 = 6 << 30;
    if fixture.largest_buffer() < LEN {
        return;
    }
    let mut session = Session::open(fixture, 64 << 10);
    let window = known(9, 64 << 10);
    session.put(0, &window);
    let buffer = session.allocate(LEN);
    let places = [0, FOUR_GIB - 5000, FOUR_GIB + 12_345, 5 << 30, LEN - 10_001];
    for to in places {
        session.run(VramWork::Prepare {
            buffer,
            offset: to,
            len_bytes: 10_001,
        });
        session.run(session.flush(buffer, 0, &[(7, 10_001, to)]));
    }
    for to in places {
        let found = session.look(buffer, to, 10_001);
        assert_same(&found, &window[7..10_008], "a far place");
        if to >= 100 {
            assert_eq!(session.look(buffer, to - 100, 100), [0; 100], "before it");
        }
        if to + 10_101 <= LEN {
            assert_eq!(
                session.look(buffer, to + 10_001, 100),
                [0; 100],
                "behind it"
            );
        }
    }
}

/// Polling gives what there is; the waker tells when that changes.
pub fn polling_never_blocks_and_the_waker_is_woken(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 16 * MIB);
    let buffer = session.allocate(16 * MIB);
    let start = Instant::now();
    for _ in 0..1000 {
        assert_eq!(session.poll(), []);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "idle polls block");
    for _ in 0..10 {
        let all: Place = (0, 16 << 20, 0);
        let work = session.flush(buffer, 0, &[all]);
        session.waker.about_to_sleep();
        session.submit(work);
        let start = Instant::now();
        while session.poll().is_empty() {
            let span = Duration::from_secs(20);
            session.waker.sleep(Wait::AtMost(span)).expect("a sleep");
            let took = start.elapsed();
            assert!(took < Duration::from_secs(10), "nobody woke: {took:?}");
            session.waker.about_to_sleep();
        }
        session.waker.awake();
    }
}

/// Dropped with operations under way: once those are over, nothing holds the memory, and
/// nothing writes it.
pub fn a_dropped_backend_keeps_nobodys_memory(fixture: &dyn VramFixture) {
    let mut session = Session::open(fixture, 4 * MIB);
    let buffer = session.allocate(4 * MIB);
    for _ in 0..8 {
        let work = session.flush(buffer, 0, &[(0, 1 << 20, 0)]);
        session.submit(work);
    }
    let Session { vram, windows, .. } = session;
    drop(vram);
    let start = Instant::now();
    while Arc::strong_count(windows.region()) > 1 {
        std::thread::yield_now();
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "a dropped backend still holds the windows"
        );
    }
    windows.check_poison_outside(&[]);
}

/// Stores into a device are read back before an operation is reported done, once for all of
/// its pieces, and an operation without any has nothing to wait for. Other memory needs none
/// of it.
pub fn what_is_done_has_reached_the_device(fixture: &dyn VramFixture) {
    const PIECES: &[Place] = &[(0, 1, 5), (7, 70_001, 100), (80_000, 3, 90_001)];
    let mut session = Session::open(fixture, 128 << 10);
    let buffer = session.vram.allocate(128 << 10).expect("memory");
    let to = Arc::clone(buffer.region());
    let id = session.adopt(buffer);
    let windows = Arc::clone(session.windows.region());
    let read_backs = || (to.read_backs(), windows.read_backs());
    let works = [
        (session.flush(id, 0, PIECES), 1, 0, "a flush"),
        (session.flush(id, 0, &[]), 0, 0, "an empty flush"),
        (session.gather(id, 0, PIECES), 0, 1, "a gather"),
        (session.scrub(9, 70_001), 0, 1, "a scrub"),
        (session.scrub(9, 0), 0, 0, "an empty scrub"),
    ];
    for (work, buffers, of_windows, what) in works {
        let before = read_backs();
        session.run(work);
        let buffers = before.0 + buffers * u64::from(to.kind().is_device());
        let of_windows = before.1 + of_windows * u64::from(windows.kind().is_device());
        assert_eq!(read_backs(), (buffers, of_windows), "read-backs of {what}");
    }
}
