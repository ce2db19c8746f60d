//! Device memory has to be seen to be reached: by which drive, where, and by all of a read.

use super::*;

/// The drive says that it has written, and nothing is there: found before anything is used.
#[test]
fn a_canary_finds_reads_that_land_nowhere() {
    for windows_in_bar in [false, true] {
        let bar = EmulatedBar::new(16 << 20).expect("a stand-in");
        let emulator = emulator(1 << 20);
        emulator.black_hole(bar.memory().region().raw());
        let engine = over(&emulator, WAIT)
            .bar(Arc::clone(bar.memory()))
            .windows_in_bar(windows_in_bar)
            .open()
            .expect("an engine");
        let region = bar.memory().allocate(1 << 20).expect("room");
        let load = engine.read_raw(RawRequest {
            destination: Destination::Buffer(VramBuffer::Bar(region)),
            in_place: !windows_in_bar,
            ..request(0, 1 << 20)
        });
        let error = load.expect("started").wait().expect_err("nothing landed");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("did not arrive"), "{error}");
        let report = engine.take_report().expect("a report");
        assert_eq!(
            report.route_bytes["emulated"], 0,
            "something was used all the same"
        );
        // Host memory is reached all the same.
        if !windows_in_bar {
            let loaded = engine
                .read_raw(request(0, 1 << 20))
                .expect("started")
                .wait();
            assert!(loaded.expect("read").bytes() == Some(&bytes(0, 1 << 20)[..]));
        }
    }
}

/// Whatever the drive holds: also what the memory held before.
#[test]
fn a_canary_is_not_fooled_by_what_memory_holds() {
    for byte in [0, 0x55, 0xaa, 0xff] {
        let bar = EmulatedBar::new(4 << 20).expect("a stand-in");
        let disk = MemoryDisk::of(&vec![byte; 1 << 20]);
        let config = Config::new(Namespace::new(disk, 512));
        let emulator = Arc::new(Emulator::threaded(config).expect("an emulator"));
        emulator.black_hole(bar.memory().region().raw());
        let engine = over(&emulator, WAIT)
            .bar(Arc::clone(bar.memory()))
            .open()
            .expect("an engine");
        let region = bar.memory().allocate(1 << 20).expect("room");
        let load = engine.read_raw(RawRequest {
            destination: Destination::Buffer(VramBuffer::Bar(region)),
            in_place: true,
            ..request(0, 1 << 20)
        });
        let ended = load.expect("started").wait();
        assert!(
            ended.is_err(),
            "{byte:#x}: nothing landed, and nobody noticed"
        );
    }
}

/// Only part of a read lands: as wrong as nothing.
#[test]
fn a_canary_finds_a_page_that_is_missing() {
    let bar = EmulatedBar::new(4 << 20).expect("a stand-in");
    let mut config = Config::new(Namespace::new(MemoryDisk::of(&bytes(0, 1 << 20)), 512));
    // Each page by itself, so that one can be missing.
    config.scatter = Scatter::Pages;
    let emulator = Arc::new(Emulator::threaded(config).expect("an emulator"));
    let region = bar.memory().allocate(1 << 20).expect("room");
    emulator.black_hole(region.raw().part((1 << 20) - 4096, 4096));
    let engine = over(&emulator, WAIT)
        .bar(Arc::clone(bar.memory()))
        .open()
        .expect("an engine");
    let load = engine.read_raw(RawRequest {
        destination: Destination::Buffer(VramBuffer::Bar(region)),
        in_place: true,
        ..request(0, 1 << 20)
    });
    let error = load
        .expect("started")
        .wait()
        .expect_err("a page is missing");
    assert!(error.to_string().contains("did not arrive"), "{error}");
}

/// What was proven once is not proven again; other memory is.
#[test]
fn each_range_of_a_bar_is_proven_once() {
    let bar = EmulatedBar::new(4 << 20).expect("a stand-in");
    let emulator = emulator(1 << 20);
    let engine = over(&emulator, WAIT)
        .bar(Arc::clone(bar.memory()))
        .open()
        .expect("an engine");
    let load = |region: &Arc<Region>| {
        let before = emulator.counters().dma_write_bytes;
        let request = RawRequest {
            destination: Destination::Buffer(VramBuffer::Bar(Arc::clone(region))),
            in_place: true,
            ..request(0, 1 << 20)
        };
        let load = engine.read_raw(request).expect("started");
        drop(load.wait().expect("read"));
        emulator.counters().dma_write_bytes - before
    };
    let [one, other] = [0, 1].map(|_| bar.memory().allocate(1 << 20).expect("room"));
    assert!(load(&one) > 1 << 20, "used without a proof");
    assert_eq!(load(&one), 1 << 20, "proven again");
    assert!(load(&other) > 1 << 20, "used without a proof");
}

/// A drive that does not answer the canary: the load ends in its time, and as nobody knows what
/// the read will still write, so does the engine.
#[test]
fn a_canary_that_does_not_come_back_ends_the_engine() {
    let lost = Plan {
        ending: Ending::Never,
        ..Plan::default()
    };
    for (skip, windows_in_bar) in [(0, false), (1, false), (1, true)] {
        let bar = EmulatedBar::new(4 << 20).expect("a stand-in");
        let emulator = emulator(1 << 20);
        emulator.set_faults(Script::new().nth(skip, Match::io(READ), lost));
        let engine = over(&emulator, Duration::from_millis(200))
            .bar(Arc::clone(bar.memory()))
            .windows_in_bar(windows_in_bar)
            .windows(2)
            .open()
            .expect("an engine");
        let region = bar.memory().allocate(1 << 20).expect("room");
        let to = || RawRequest {
            destination: Destination::Buffer(VramBuffer::Bar(Arc::clone(&region))),
            in_place: !windows_in_bar,
            ..request(0, 1 << 20)
        };
        let error = engine.read_raw(to()).expect("started").wait();
        assert_eq!(error.expect_err("no answer").kind(), ErrorKind::Timeout);
        let again = engine.read_raw(to()).map(RawLoad::wait);
        assert!(!matches!(again, Ok(Ok(_))), "the memory was used again");
        engine.abandon();
    }
}
