//! How long the core takes: for a window from lease to visible, and to open a stream of ten
//! thousand fills. The instructions of the same cycle are counted by `instructions.rs`.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ubio_benches::cycle::{Cycle, Shape};

/// Windows of one stream.
const FILLS: u32 = 1024;
/// Windows of one iteration: so many that opening and ending streams is not measured.
const WINDOWS: u64 = 512;

fn window_cycle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core/512 windows");
    for (commands, pieces) in [(8, 1), (16, 1), (8, 9)] {
        let shape = Shape {
            commands,
            pieces,
            ..Shape::BASE
        };
        let plan = shape.plan(FILLS);
        let setup = || {
            let mut cycle = Cycle::new(shape);
            cycle.open(Arc::clone(&plan));
            cycle.advance(32 * u64::from(pieces));
            cycle
        };
        let name = format!("{commands} commands, {pieces} pieces");
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                setup,
                |cycle| cycle.advance(WINDOWS * u64::from(pieces)),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn open_stream(criterion: &mut Criterion) {
    let plan = Shape::BASE.plan(10_000);
    criterion.bench_function("core/open 10,000 fills", |bencher| {
        bencher.iter_batched_ref(
            || Cycle::new(Shape::BASE),
            |cycle| cycle.open(Arc::clone(&plan)),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, window_cycle, open_stream);
criterion_main!(benches);
