//! Byte ranges of files opened once: every way gives the file's bytes, and nothing else of
//! the memory changes.
//!
//! unsafe: looks at raw memory between transfers.
#![expect(unsafe_code, reason = "memory of these tests' own, between transfers")]

use std::sync::Arc;

use fs_adapter::{FileIndex, Format, Model, OpenOptions};
use ubio::limits::CALLER_COPY_BYTES;
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio::{Engine, ErrorKind, Opened, RangeRequest, Routes};

const LEN: u64 = 3_000_001;
const MEMORY: u64 = 4 << 20;

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0]
}

fn opened(folder: &std::path::Path) -> Opened {
    let path = folder.join("raw.bin");
    let bytes: Vec<u8> = (0..LEN).map(byte).collect();
    std::fs::write(&path, bytes).expect("write");
    std::fs::File::open(&path)
        .and_then(|file| file.sync_all())
        .expect("sync");
    let options = OpenOptions::default().format(Format::Raw);
    let model = Model::open(&path, &options).expect("model");
    Opened::new(Arc::new(model)).expect("descriptors")
}

/// 4 MiB of 0xff at an address that is a multiple of 4 KiB, and what it holds.
fn memory() -> Arc<Region> {
    let region = Arc::new(Region::anonymous(MEMORY, false).expect("memory"));
    write(&region, &vec![0xff; 4 << 20]);
    region
}

fn write(region: &Region, bytes: &[u8]) {
    // SAFETY: no transfer is under way.
    unsafe { region.write(0, bytes) };
}

fn read(region: &Region) -> Vec<u8> {
    // SAFETY: no transfer is under way.
    unsafe { region.bytes(0, MEMORY) }.to_vec()
}

fn request(region: &Arc<Region>, offset: u64, len_bytes: u64, at: u64) -> RangeRequest {
    RangeRequest {
        file: FileIndex(0),
        offset,
        len_bytes,
        to: VramBuffer::Host(Arc::clone(region)),
        at,
        routes: Routes::Direct,
        in_place: false,
    }
}

#[test]
fn ranges_land_where_they_should_by_every_way() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let opened = opened(folder.path());
    for uring in [true, false] {
        let builder = Engine::builder().windows(3).window_bytes(256 << 10);
        let engine = builder.io_uring(uring).open().expect("engine");
        for routes in [Routes::Direct, Routes::Auto, Routes::Cached] {
            let ranges = [
                (0, 0, 0, false),
                (0, 1, 7, false),
                (4095, 2, 1, false),
                (1_000_001, 1_999_999, 4097, false),
                (LEN - 1, 1, 99, false),
                (0, LEN, 1, false),
                // Around what the asking thread copies itself.
                (5, CALLER_COPY_BYTES, 9, false),
                (5, CALLER_COPY_BYTES + 1, 9, false),
                (8192, 8192, 4096, true),
                (0, 2 << 20, 1 << 20, true),
            ];
            for (offset, len, at, in_place) in ranges {
                let region = memory();
                let mut asked = request(&region, offset, len, at);
                asked.routes = routes;
                asked.in_place = in_place;
                let transfer = engine.read_range(&opened, asked).expect("start");
                transfer.wait().expect("a range");
                let found = read(&region);
                for (index, &found) in (0..).zip(&found) {
                    let inside = index >= at && index < at + len;
                    let wanted = if inside {
                        byte(offset + index - at)
                    } else {
                        0xff
                    };
                    assert_eq!(found, wanted, "{offset}+{len} to {at}: byte {index}");
                }
            }
        }
    }
}

#[test]
fn ranges_that_cannot_be_are_refused_before_anything_moves() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let opened = opened(folder.path());
    let engine = Engine::builder().open().expect("engine");
    let region = memory();
    let mut wrong = vec![
        request(&region, LEN, 1, 0),
        request(&region, u64::MAX, 2, 0),
        request(&region, 1, u64::MAX, 0),
        request(&region, 0, 2, MEMORY - 1),
        request(&region, 0, 2, u64::MAX),
    ];
    let mut traditional = request(&region, 0, 1, 0);
    traditional.routes = Routes::Traditional;
    wrong.push(traditional);
    let mut of_no_file = request(&region, 0, 1, 0);
    of_no_file.file = FileIndex(7);
    wrong.push(of_no_file);
    for (offset, len, at) in [(1, 4096, 0), (0, 4095, 0), (0, 4096, 1)] {
        let mut unaligned = request(&region, offset, len, at);
        unaligned.in_place = true;
        wrong.push(unaligned);
    }
    for request in wrong {
        let what = format!("{request:?}");
        let error = engine.read_range(&opened, request).expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{what}: {error}");
    }
    assert!(read(&region).iter().all(|&byte| byte == 0xff));
}

#[test]
fn a_dropped_transfer_leaves_an_engine_that_works() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let opened = opened(folder.path());
    let engine = Engine::builder().open().expect("engine");
    for _ in 0..100 {
        let region = memory();
        drop(engine.read_range(&opened, request(&region, 0, LEN, 0)));
    }
    let region = memory();
    let transfer = engine.read_range(&opened, request(&region, 0, LEN, 0));
    transfer.expect("start").wait().expect("a range");
    assert_eq!(read(&region)[1000], byte(1000));
}
