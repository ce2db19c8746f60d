//! Flushing a window of 4 MiB to host memory: as one piece and as a thousand, through the
//! copy workers, against a plain memory copy of as many bytes.
//!
//! unsafe: submits flushes and copies raw memory.
#![expect(
    unsafe_code,
    reason = "flushes and copies between regions of the bench's own"
)]

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ubio::source::{Wait, Waker};
use ubio::sys::memory::Region;
use ubio::vram::mapped::MappedVram;
use ubio::vram::{Vram, VramBuffer, VramDone, VramWork};
use ubio::window::WindowMemory;
use ubio::workers::Workers;
use ubio_core::{FillPlan, ItemIndex, Landing, ObjectId, Piece, Route, StreamPlan};

const WINDOW_BYTES: u32 = 4 << 20;

/// A plan of one fill in `count` pieces, each placed at a multiple of 256 bytes.
fn plan(count: u32) -> Arc<StreamPlan> {
    let len = WINDOW_BYTES / count;
    let pieces = (0..count).map(|index| Piece {
        fill_offset: index * len,
        len,
        destination: u64::from(index) * u64::from(len.next_multiple_of(256)),
        item: ItemIndex(index),
    });
    Arc::new(StreamPlan {
        fills: vec![FillPlan {
            object: ObjectId(0),
            offset: 0,
            len: WINDOW_BYTES,
            expected: WINDOW_BYTES,
            route: Route::Direct,
            landing: Landing::Window,
            otherwise: None,
            pieces: 0..count,
        }],
        pieces: pieces.collect(),
        items: count,
        ..StreamPlan::default()
    })
}

fn region(len_bytes: u64) -> Arc<Region> {
    let region = Region::anonymous(len_bytes, true).expect("memory");
    region.populate(0, len_bytes).expect("memory");
    Arc::new(region)
}

fn flush(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("flush of 4 MiB");
    group.throughput(Throughput::Bytes(WINDOW_BYTES.into()));
    let window = region(WINDOW_BYTES.into());
    let to = region(2 * u64::from(WINDOW_BYTES));
    group.bench_function("plain copy", |bencher| {
        // SAFETY: nobody else has these regions.
        bencher.iter(|| unsafe { to.copy_from(0, &window, 0, WINDOW_BYTES.into()) });
    });
    for workers in [1, 2] {
        let waker = Waker::new().expect("an eventfd");
        let threads = Workers::start("bench", workers, 16).expect("threads");
        let mut vram = MappedVram::new(threads, 16, waker.clone());
        let memory = WindowMemory::host(Arc::clone(&window), WINDOW_BYTES.into());
        let windows = vram.attach(&memory).expect("windows");
        let buffer = vram
            .adopt(VramBuffer::Host(Arc::clone(&to)))
            .expect("a buffer");
        for count in [1, 1000] {
            let plan = plan(count);
            group.bench_function(format!("{count} pieces, {workers} workers"), |bencher| {
                bencher.iter(|| {
                    let work = VramWork::Flush {
                        windows,
                        window_offset: 0,
                        buffer,
                        plan: Arc::clone(&plan),
                        fill: 0,
                    };
                    // SAFETY: one flush at a time uses these regions.
                    unsafe { vram.submit(1, work) };
                    wait(&mut vram, &waker);
                });
            });
        }
    }
    group.finish();
}

fn wait(vram: &mut MappedVram, waker: &Waker) {
    let mut done: Vec<VramDone> = Vec::new();
    loop {
        waker.about_to_sleep();
        vram.poll(&mut done);
        if let Some(done) = done.first() {
            assert_eq!(done.result, Ok(()));
            waker.awake();
            return;
        }
        let span = Duration::from_secs(1);
        waker.sleep(Wait::AtMost(span)).expect("a sleep");
    }
}

criterion_group!(benches, flush);
criterion_main!(benches);
