//! Ranges of an emulated namespace, and of files, into memory of every kind: the bytes, the
//! bounds, the canary, and deadlines.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fs_adapter::plan::{Order, Plan as LoadPlan, Selection};
use fs_adapter::{FileIndex, Model, OpenOptions, placement};
use nvme::memory::{RawMemory, TargetMemory};
use nvme_emulator::fault::ControllerFault;
use nvme_emulator::{
    Config, Deed, Delay, Disk, Emulator, Ending, Match, MemoryDisk, Namespace, Plan, Scatter,
    Script,
};
use nvme_sys::opcode::nvm::READ;
use tempfile::NamedTempFile;
use ubio::range::Opened;
use ubio::source::nvme::{NvmeAddress, NvmeOptions};
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio::vram::bar::EmulatedBar;
use ubio::{Builder, Destination, Engine, ErrorKind, LoadRequest, RawLoad, RawRequest, Routes};
use ubio_testkit::source::{emulated_source, fill};

mod canary;

const SEED: u64 = 0xb10c;

fn bytes(offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, SEED, offset);
    bytes
}

/// A file of known bytes.
fn image(len: usize) -> NamedTempFile {
    let mut file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.write_all(&bytes(0, len)).expect("room");
    file
}

fn address(file: &NamedTempFile) -> NvmeAddress {
    format!("nvme:emulated?file={}", file.path().display())
        .parse()
        .expect("an address")
}

fn builder(file: &NamedTempFile) -> Builder {
    Engine::builder().nvme(address(file), NvmeOptions::default())
}

fn request(offset: u64, len_bytes: u64) -> RawRequest {
    RawRequest {
        offset,
        len_bytes,
        ..RawRequest::default()
    }
}

#[test]
fn any_range_of_a_namespace_lands() {
    const LEN: usize = (5 << 20) + 1234;
    let file = image(LEN);
    let engine = builder(&file)
        .windows(3)
        .window_bytes(64 << 10)
        .open()
        .expect("an engine");
    let whole = LEN as u64;
    for (offset, len) in [
        (0, whole),
        (0, 0),
        (whole, 0),
        (0, 1),
        (whole - 1, 1),
        (511, 2),
        (4095, 4098),
        (1 << 20, 1 << 20),
        (12_345, 3_333_333),
        (whole - 1235, 1235),
    ] {
        let loaded = engine
            .read_raw(request(offset, len))
            .expect("started")
            .wait();
        let loaded = loaded.expect("read");
        let wanted = bytes(offset, usize::try_from(len).expect("small"));
        assert!(
            loaded.bytes() == Some(&wanted[..]),
            "{len} bytes at {offset}"
        );
    }
    let report = engine.take_report().expect("a report");
    assert!(report.route_bytes["emulated"] > whole, "{report:?}");
    assert_eq!(report.route_bytes["direct"], 0);
    for (offset, len) in [(0, whole + 1), (whole + 1, 0), (u64::MAX, 2)] {
        let error = engine
            .read_raw(request(offset, len))
            .expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

/// Longer than what counts as one item.
#[test]
fn long_ranges_keep_their_order() {
    const LEN: usize = (33 << 20) + 5;
    let file = image(LEN);
    let engine = builder(&file).open().expect("an engine");
    let load = engine.read_raw(request(0, LEN as u64)).expect("started");
    let watch = load.watch();
    let loaded = load.wait().expect("read");
    assert!(loaded.bytes() == Some(&bytes(0, LEN)[..]));
    assert_eq!(watch.visible_bytes(), LEN as u64);
}

#[test]
fn in_place_wants_pages_and_lands_without_windows() {
    const LEN: usize = (1 << 20) + 777;
    let file = image(LEN);
    let engine = builder(&file).open().expect("an engine");
    let buffer = ubio::vram::host::allocate(2 << 20).expect("memory");
    let to = |offset: u64, len_bytes: u64| RawRequest {
        destination: Destination::Buffer(VramBuffer::Host(Arc::clone(&buffer))),
        in_place: true,
        ..request(offset, len_bytes)
    };
    let loaded = engine
        .read_raw(to(8192, 1 << 20))
        .expect_err("beyond the end");
    assert_eq!(loaded.kind(), ErrorKind::InvalidInput);
    let len = LEN as u64 - 8192;
    let loaded = engine
        .read_raw(to(8192, len))
        .expect("started")
        .wait()
        .expect("read");
    assert!(loaded.bytes() == Some(&bytes(8192, LEN - 8192)[..]));
    assert_eq!(engine.take_report().expect("one").windows.switches, 0);
    drop(loaded);
    let error = engine.read_raw(to(100, 4096)).expect_err("not a page");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let held = engine
        .read_raw(to(0, 4096))
        .expect("started")
        .wait()
        .expect("read");
    let error = engine.read_raw(to(0, 4096)).expect_err("in use");
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(held);
}

#[test]
fn an_engine_for_blocks_takes_no_files_and_the_other_way_round() {
    let file = image(9000);
    let model = Model::open(file.path(), &OpenOptions::default()).expect("bytes");
    let opened = Opened::new(Arc::new(model)).expect("opened");
    let blocks = builder(&file).open().expect("an engine");
    let load = blocks
        .read_raw_file(&opened, FileIndex(0), request(0, 9000))
        .expect("started");
    assert_eq!(
        load.wait().expect_err("no files").kind(),
        ErrorKind::Unsupported
    );
    let files = Engine::builder().open().expect("an engine");
    let error = files.read_raw(request(0, 1)).expect_err("no namespace");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// From a drive that reaches it: straight, through windows there, and through host windows.
#[test]
fn a_bar_is_filled_in_every_way() {
    const LEN: usize = (3 << 20) + 333;
    let file = image(LEN);
    for (windows_in_bar, in_place) in [(false, true), (true, false), (false, false)] {
        let bar = EmulatedBar::new(16 << 20).expect("a stand-in");
        let engine = builder(&file)
            .bar(Arc::clone(bar.memory()))
            .windows_in_bar(windows_in_bar)
            .open()
            .expect("an engine");
        let region = bar.memory().allocate(4 << 20).expect("room");
        let load = engine.read_raw(RawRequest {
            destination: Destination::Buffer(VramBuffer::Bar(Arc::clone(&region))),
            in_place,
            ..request(0, LEN as u64)
        });
        let loaded = load.expect("started").wait().expect("read");
        assert!(loaded.bytes().is_none(), "no slice of a device's memory");
        let mut found = vec![0; LEN];
        loaded.copy_to(0, &mut found);
        assert!(found == bytes(0, LEN), "{windows_in_bar} {in_place}");
        assert!(bar.seen_by_device(&region, 0, LEN as u64) == found);
    }
}

#[test]
fn files_are_read_into_a_bar_through_host_windows_only() {
    const LEN: usize = (1 << 20) + 5;
    let file = image(LEN);
    let model = Model::open(file.path(), &OpenOptions::default()).expect("bytes");
    let opened = Opened::new(Arc::new(model)).expect("opened");
    let bar = EmulatedBar::new(8 << 20).expect("a stand-in");
    let engine = Engine::builder()
        .bar(Arc::clone(bar.memory()))
        .open()
        .expect("an engine");
    let region = bar.memory().allocate(2 << 20).expect("room");
    let to = |in_place| RawRequest {
        destination: Destination::Buffer(VramBuffer::Bar(Arc::clone(&region))),
        in_place,
        ..request(0, LEN as u64)
    };
    let start = |request| {
        engine
            .read_raw_file(&opened, FileIndex(0), request)
            .expect("started")
    };
    let loaded = start(to(false)).wait().expect("read");
    let mut found = vec![0; LEN];
    loaded.copy_to(0, &mut found);
    assert!(found == bytes(0, LEN));
    drop(loaded);
    assert_eq!(
        start(to(true)).wait().expect_err("no pages").kind(),
        ErrorKind::Unsupported
    );
}

const WAIT: Duration = Duration::from_secs(60);

/// A controller over known bytes.
fn emulator(len: usize) -> Arc<Emulator> {
    let disk = MemoryDisk::of(&bytes(0, len));
    let config = Config::new(Namespace::new(disk, 512));
    Arc::new(Emulator::threaded(config).expect("an emulator"))
}

fn over(emulator: &Arc<Emulator>, deadline: Duration) -> Builder {
    let emulator = Arc::clone(emulator);
    Engine::builder().nvme_source(
        move || emulated_source(Arc::clone(&emulator), true),
        deadline,
    )
}

/// The load ends in its time, its windows when the drive is through with them.
#[test]
fn a_deadline_ends_the_load_and_not_the_command() {
    const WINDOW: u64 = 64 << 10;
    let emulator = emulator(1 << 20);
    let slow = Plan {
        delay: Delay::time(Duration::from_millis(1500)),
        ..Plan::default()
    };
    // The first read of this block only.
    emulator.set_faults(Script::new().times(1, Match::io(READ).lbas(0..1), slow));
    let engine = over(&emulator, Duration::from_millis(200))
        .windows(2)
        .window_bytes(u32::try_from(WINDOW).expect("small"))
        .open()
        .expect("an engine");
    let start = Instant::now();
    let error = engine.read_raw(request(0, WINDOW)).expect("started").wait();
    let error = error.expect_err("it takes too long");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        start.elapsed() < Duration::from_millis(1400),
        "{:?}",
        start.elapsed()
    );
    // One window is left, and serves; the other is not given to anybody.
    let loaded = engine
        .read_raw(request(WINDOW, 8 * WINDOW))
        .expect("started")
        .wait();
    let wanted = bytes(WINDOW, 8 * usize::try_from(WINDOW).expect("small"));
    assert!(loaded.expect("read").bytes() == Some(&wanted[..]));
    let report = engine.take_report().expect("a report");
    if start.elapsed() < Duration::from_millis(1400) {
        assert_eq!(
            report.windows.peak_in_use, 2,
            "the quarantined one and the other"
        );
    }
    std::thread::sleep(Duration::from_millis(1600).saturating_sub(start.elapsed()));
    let loaded = engine
        .read_raw(request(0, 8 * WINDOW))
        .expect("started")
        .wait();
    let wanted = bytes(0, 8 * usize::try_from(WINDOW).expect("small"));
    assert!(loaded.expect("read").bytes() == Some(&wanted[..]));
}

/// A disk that answers no read while the lock is held.
#[derive(Debug)]
struct Stalling(MemoryDisk, Arc<Mutex<()>>);

impl Disk for Stalling {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read(&mut self, offset: u64, to: &[RawMemory]) -> std::io::Result<()> {
        let _passes = self.1.lock().expect("not poisoned");
        self.0.read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[RawMemory]) -> std::io::Result<()> {
        self.0.write(offset, from)
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) -> std::io::Result<()> {
        self.0.zero(offset, len_bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// What stalls under an emulated controller stalls a command, and nobody else.
#[test]
fn a_deadline_holds_also_where_a_disk_keeps_the_controller() {
    let gate = Arc::new(Mutex::new(()));
    let disk = Stalling(MemoryDisk::of(&bytes(0, 1 << 20)), Arc::clone(&gate));
    let emulator = Emulator::threaded(Config::new(Namespace::new(disk, 512)));
    let emulator = Arc::new(emulator.expect("an emulator"));
    let engine = over(&emulator, Duration::from_millis(200));
    let engine = engine.open().expect("an engine");
    let stalls = gate.lock().expect("not poisoned");
    let error = engine.read_raw(request(0, 4096)).expect("started").wait();
    assert_eq!(error.expect_err("no answer").kind(), ErrorKind::Timeout);
    drop(stalls);
    let loaded = engine.read_raw(request(0, 4096)).expect("started").wait();
    assert!(loaded.expect("read").bytes() == Some(&bytes(0, 4096)[..]));
}

#[test]
fn failures_have_the_drives_words() {
    let emulator = emulator(1 << 20);
    let fail = |status| Plan {
        deed: Deed::Fail(status),
        ..Plan::default()
    };
    let script = Script::new()
        .always(Match::io(READ).lbas(8..9), fail(0x281))
        .always(Match::io(READ).lbas(1000..1001), fail(0x4080))
        .times(2, Match::io(READ).lbas(400..401), fail(0x082));
    emulator.set_faults(script);
    let engine = over(&emulator, WAIT).open().expect("an engine");
    let read = |offset| {
        engine
            .read_raw(request(offset, 4096))
            .expect("started")
            .wait()
    };
    let error = read(4096).expect_err("a bad block");
    assert_eq!(error.kind(), ErrorKind::Device);
    let text = error.to_string();
    assert!(
        text.contains("Unrecovered Read Error") && text.contains("2 tries"),
        "{text}"
    );
    assert!(text.contains("offset 4096"), "{text}");
    let error = read(512_000 / 4096 * 4096).expect_err("out of range");
    assert!(error.to_string().contains("LBA Out of Range"), "{error}");
    // A namespace that is not ready for a while.
    read(400 * 512).expect("the third try");
    assert_eq!(engine.take_report().expect("a report").retries, 3);
    read(0).expect("other blocks are readable");
}

#[test]
fn a_reset_is_told_of_in_the_report_and_in_one_only() {
    let emulator = emulator(1 << 20);
    let fatal = Plan {
        controller: Some(ControllerFault::Fatal),
        ..Plan::default()
    };
    emulator.set_faults(Script::new().times(1, Match::io(READ), fatal));
    let engine = over(&emulator, WAIT).open().expect("an engine");
    for resets in [1, 0] {
        let load = engine.read_raw(request(0, 1 << 20)).expect("started");
        assert!(load.wait().expect("read").bytes() == Some(&bytes(0, 1 << 20)[..]));
        let report = engine.take_report().expect("a report");
        assert_eq!(report.drive.resets, resets);
    }
}

/// The kernel wants the drive while nothing is read: it gets it, although the engine is there.
#[test]
fn a_drive_that_is_wanted_back_is_let_go_by_an_idle_engine() {
    let emulator = emulator(1 << 20);
    let engine = over(&emulator, WAIT).open().expect("an engine");
    let load = engine.read_raw(request(0, 1 << 20)).expect("started");
    drop(load.wait().expect("read"));
    // Those of the test, and of the function that opened the source.
    let others = 2;
    assert!(Arc::strong_count(&emulator) > others);
    emulator.request_removal();
    let start = Instant::now();
    while Arc::strong_count(&emulator) > others {
        assert!(start.elapsed() < WAIT, "the drive is kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    for in_place in [false, true] {
        let again = RawRequest {
            in_place,
            ..request(0, 4096)
        };
        let error = engine.read_raw(again).expect("started").wait();
        let error = error.expect_err("nothing to read from");
        assert_eq!(error.kind(), ErrorKind::Device);
        assert!(error.to_string().contains("removed"), "{error}");
    }
}

#[test]
fn a_drive_that_goes_away_ends_every_load() {
    let emulator = emulator(8 << 20);
    let slow = Plan {
        delay: Delay::time(Duration::from_millis(20)),
        ..Plan::default()
    };
    emulator.set_faults(Script::new().always(Match::io(READ), slow));
    let engine = over(&emulator, WAIT).open().expect("an engine");
    let load = engine.read_raw(request(0, 8 << 20)).expect("started");
    std::thread::sleep(Duration::from_millis(30));
    emulator.inject(ControllerFault::Gone);
    let error = load.wait().expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Device);
    let error = engine.read_raw(request(0, 4096)).expect("started").wait();
    assert_eq!(error.expect_err("gone").kind(), ErrorKind::Device);
}

#[test]
fn windows_of_a_device_are_not_lent_and_not_flushed_to_host_memory() {
    let file = image(100_000);
    let bar = EmulatedBar::p2pmem(16 << 20).expect("a stand-in");
    let model = Model::open(file.path(), &OpenOptions::default()).expect("bytes");
    let model = Arc::new(model);
    let plan = LoadPlan::new(&model, &Selection::all(), Order::File).expect("a plan");
    let engine = Engine::builder()
        .bar(Arc::clone(bar.memory()))
        .windows_in_bar(true);
    let engine = engine.open().expect("an engine");
    let error = engine
        .lend(&model, &plan, Routes::Direct)
        .expect_err("no slices");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let placement = placement::packed(&model, &plan, 256).expect("placed");
    let load = engine
        .load(LoadRequest::new(model, placement))
        .expect("started");
    assert_eq!(
        load.wait().expect_err("no loads").kind(),
        ErrorKind::Unsupported
    );
}
