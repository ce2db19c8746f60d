//! The NVMe driver in time: commands against a controller of registers only and against the
//! stepped emulator, PRP lists when memory is attached, and a command's way into them.
//!
//! unsafe: submits commands into memory that nobody uses.
#![expect(unsafe_code, reason = "submit is an unsafe method")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::dma::{Iova, PageSize};
use nvme::lba::{BlockCount, Lba};
use nvme::memory::Pages;
use nvme::prp::table::TableLayout;
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Direction, Done, Io, Transport};
use nvme_emulator::{Config, Emulator, MemoryDisk, Namespace};
use ubio_benches::nvme::{DEPTH, Loop, Shape};

const COMMAND_BYTES: u32 = 4 << 10;

/// The driver, and the few stores of a controller that moves nothing.
fn driver(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("32 commands of 4 KiB");
    group.throughput(Throughput::Elements(DEPTH.into()));
    for (source, name) in [(false, "transport"), (true, "source")] {
        let mut commands = Loop::new(Shape {
            command_bytes: COMMAND_BYTES,
            sgl: false,
            source,
        });
        group.bench_function(format!("{name}, registers only"), |bencher| {
            bencher.iter(|| {
                commands.submit();
                commands.device().answer();
                commands.poll()
            });
        });
    }
    let disk = MemoryDisk::new(8 << 20);
    let emulator = Emulator::stepped(Config::new(Namespace::new(disk, 4096)));
    let emulator = Arc::new(emulator.expect("an emulator"));
    let options = Options::new(Settings::new(NamespaceId(1)));
    let opened = UserTransport::open(Arc::clone(&emulator) as _, options);
    let mut transport = opened.expect("a controller");
    let len_bytes = u64::from(DEPTH * COMMAND_BYTES);
    let pages = Arc::new(Pages::new(len_bytes).expect("memory"));
    let memory = transport.attach(pages, true).expect("room");
    let mut done: Vec<Done> = Vec::new();
    group.bench_function("transport, stepped emulator", |bencher| {
        bencher.iter(|| {
            for index in 0..u64::from(DEPTH) {
                let io = Io {
                    token: index,
                    direction: Direction::Read,
                    lba: Lba(index),
                    blocks: BlockCount::new(1).expect("one"),
                    memory,
                    offset: index * u64::from(COMMAND_BYTES),
                };
                // SAFETY: nobody looks at the memory.
                assert!(unsafe { transport.submit(io) }.is_ok(), "no room");
            }
            while transport.in_flight() > 0 {
                transport.poll(&mut done).expect("not broken");
                while emulator.step() {}
            }
            done.clear();
        });
    });
    group.finish();
}

fn lists(criterion: &mut Criterion) {
    const PAGES: u64 = 256;
    let layout = TableLayout::new(PAGES, PageSize::MIN);
    let mut entries = vec![[0_u64; 512]; usize::try_from(layout.lists()).expect("few")];
    let address = |page: u64| Iova((1 << 32) + page * 4096);
    let list = |list: u64| Iova((1 << 40) + list * 4096);
    let mut group = criterion.benchmark_group("PRP lists");
    group.bench_function("made for 1 MiB", |bencher| {
        bencher.iter(|| {
            let index = |at: u64| usize::try_from(at).expect("small");
            layout.fill(address, list, |at, slot, entry| {
                entries[index(at)][index(slot)] = entry;
            });
            black_box(&mut entries);
        });
    });
    group.bench_function("pointer of 128 KiB", |bencher| {
        bencher.iter(|| layout.pointer(black_box(4096), black_box(128 << 10), address, list));
    });
    group.bench_function("pointer of 4 KiB", |bencher| {
        bencher.iter(|| layout.pointer(black_box(4096), black_box(4096), address, list));
    });
    group.finish();
}

criterion_group!(benches, driver, lists);
criterion_main!(benches);
