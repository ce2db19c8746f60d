//! What an engine and the file source do with memory of a device: direct reads go into
//! p2pmem, and everything that would need pages, or a processor's copy, is refused by name.
//!
//! unsafe: submits commands, and looks at raw memory between them.
#![expect(unsafe_code, reason = "memory of these tests' own, between commands")]

use std::sync::Arc;

use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{FileIndex, Format, Model, OpenOptions, placement};
use ubio::source::file::FileSource;
use ubio::source::file::probe::probe;
use ubio::source::{FillCommand, Object, Source, Target, Wait};
use ubio::vram::VramBuffer;
use ubio::vram::bar::EmulatedBar;
use ubio::window::MemoryKind;
use ubio::workers::Workers;
use ubio::{Destination, Engine, ErrorKind, LoadRequest, Opened, RangeRequest, Routes};
use ubio_core::{FillErrorKind, Route, Token};

const LEN: usize = 64 << 10;

/// A file on the disk, in or out of the page cache as it may be.
fn file() -> tempfile::NamedTempFile {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let mut file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    let bytes: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    std::io::Write::write_all(&mut file, &bytes).expect("write");
    file.as_file().sync_all().expect("sync");
    file
}

fn source(uring: bool) -> FileSource {
    let workers = Workers::start("test", 1, 64).expect("threads");
    FileSource::open(workers, 8, uring).expect("a source")
}

#[test]
fn the_file_source_refuses_a_bar() {
    let bar = EmulatedBar::new(1 << 20).expect("a BAR");
    let windows = bar.memory().windows(4, LEN as u64).expect("room");
    for register in [false, true] {
        let error = source(true)
            .attach(&windows, register)
            .expect_err("no pages");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.advice().is_some());
    }
}

#[test]
fn p2pmem_takes_direct_reads_unregistered_and_no_others() {
    let file = file();
    for uring in [true, false] {
        let bar = EmulatedBar::p2pmem(1 << 20).expect("p2pmem");
        let windows = bar.memory().windows(4, LEN as u64).expect("room");
        assert_eq!(windows.kind(), MemoryKind::P2p);
        let mut source = source(uring);
        let memory = source.attach(&windows, true).expect("p2pmem");
        let probed = probe(file.as_file()).expect("descriptors");
        assert!(probed.object.direct.is_some(), "no direct I/O here");
        let object = source
            .add_object(Object::File(probed.object))
            .expect("room");
        let mut read = |route, token| {
            let command = FillCommand {
                token: Token(token),
                object,
                offset: 0,
                len: 4096,
                route,
                target: Target::Memory {
                    memory,
                    offset: 8192,
                },
            };
            // SAFETY: nobody else has the windows.
            unsafe { source.submit(command) }.expect("room");
            let mut completions = Vec::new();
            while completions.is_empty() {
                source.waker().about_to_sleep();
                source
                    .poll(Wait::Forever, &mut completions)
                    .expect("a poll");
                source.waker().awake();
            }
            assert_eq!((completions.len(), completions[0].token), (1, Token(token)));
            completions[0].result
        };
        for (route, token) in [(Route::Cached, 1), (Route::Buffered, 2)] {
            let error = read(route, token).expect_err("a processor's copy");
            assert_eq!(
                (error.kind, error.code),
                (FillErrorKind::Fatal, libc::EOPNOTSUPP)
            );
        }
        assert_eq!(
            bar.seen_by_device(windows.region(), 0, 1 << 18),
            vec![0; 1 << 18]
        );
        assert_eq!(read(Route::Direct, 3), Ok(4096));
        let found = bar.seen_by_device(windows.region(), 8191, 4098);
        let wanted = std::fs::read(file.path()).expect("a read");
        assert!(found[0] == 0 && found[4097] == 0 && found[1..4097] == wanted[..4096]);
        assert!(source.unregistered().is_none() && source.take_fallbacks().is_empty());
    }
}

#[test]
fn an_engine_over_host_memory_puts_ranges_into_a_bar_but_no_tensors() {
    let file = file();
    let options = OpenOptions::default().format(Format::Raw);
    let model = Arc::new(Model::open(file.path(), &options).expect("a model"));
    let bar = EmulatedBar::new(1 << 20).expect("a BAR");
    let buffer = || VramBuffer::Bar(bar.memory().allocate(LEN as u64).expect("room"));
    let engine = Engine::builder().open().expect("an engine");

    let plan = Plan::new(&model, &Selection::all(), Order::Layer).expect("a plan");
    let placement = placement::packed(&model, &plan, 256).expect("a placement");
    let mut request = LoadRequest::new(Arc::clone(&model), placement);
    request.destination = Destination::Buffer(buffer());
    let error = engine
        .load(request)
        .expect_err("no place to look at tensors");
    assert_eq!(error.kind(), ErrorKind::Unsupported);

    let opened = Opened::new(model).expect("descriptors");
    let to = buffer();
    let range = RangeRequest {
        file: FileIndex(0),
        offset: 5,
        len_bytes: 40_000,
        to: to.clone(),
        at: 3,
        routes: Routes::Auto,
        in_place: false,
    };
    let read = engine.read_range(&opened, range).expect("a transfer");
    read.wait().expect("through windows");
    let found = bar.seen_by_device(to.region(), 0, LEN as u64);
    let wanted = std::fs::read(file.path()).expect("a read");
    assert_eq!(found[3..40_003], wanted[5..40_005]);
    assert!(
        found[..3]
            .iter()
            .chain(&found[40_003..])
            .all(|&byte| byte == 0)
    );
}
