//! Planning: what happens before the first byte moves. A model of 100,000 tensors is
//! selected, ordered and placed; and a load as small as loads get, from request to the end,
//! which is planning and the way to the ring thread and back.

use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{FileIndex, Model, OpenOptions, placement};
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio::{Destination, Engine, LoadRequest, Opened, RangeRequest, Routes};

const TENSORS: u64 = 100_000;
const TENSOR_BYTES: u64 = 24;

/// A safetensors file of `tensors` U8 tensors.
fn write_model(path: &Path, tensors: u64) {
    let entry = |index: u64| {
        let (from, to) = (index * TENSOR_BYTES, (index + 1) * TENSOR_BYTES);
        format!(
            r#""model.layers.{}.part.{index}":{{"dtype":"U8","shape":[{TENSOR_BYTES}],"data_offsets":[{from},{to}]}}"#,
            index % 80
        )
    };
    let entries: Vec<String> = (0..tensors).map(entry).collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = std::fs::File::create(path).expect("create");
    file.write_all(&(header.len() as u64).to_le_bytes())
        .expect("write");
    file.write_all(header.as_bytes()).expect("write");
    let payload = vec![7; usize::try_from(tensors * TENSOR_BYTES).expect("small")];
    file.write_all(&payload).expect("write");
    file.sync_all().expect("sync");
}

fn planning(criterion: &mut Criterion) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, TENSORS);
    let open = || Arc::new(Model::open(&path, &OpenOptions::default()).expect("a model"));
    let model = open();
    let mut group = criterion.benchmark_group("planning, 100k tensors");
    group
        .throughput(Throughput::Elements(TENSORS))
        .sample_size(20);
    group.bench_function("open", |bencher| bencher.iter(open));
    for (name, order) in [("file order", Order::File), ("layer order", Order::Layer)] {
        group.bench_function(format!("plan and place, {name}"), |bencher| {
            bencher.iter(|| {
                let plan = Plan::new(&model, &Selection::all(), order).expect("a plan");
                black_box(placement::packed(&model, &plan, 256).expect("a placement"))
            });
        });
    }
    let engine = Engine::builder().open().expect("an engine");
    let plan = Plan::new(&model, &Selection::all(), Order::File).expect("a plan");
    let place = placement::packed(&model, &plan, 256).expect("a placement");
    let to = buffer(place.len_bytes);
    group.bench_function("whole load, warm", |bencher| {
        bencher.iter(|| load(&engine, &model, &place, &to));
    });
    group.finish();
}

fn buffer(len_bytes: u64) -> VramBuffer {
    let region = Region::anonymous(len_bytes, true).expect("memory");
    region.populate(0, len_bytes).expect("memory");
    VramBuffer::Host(Arc::new(region))
}

fn load(engine: &Engine, model: &Arc<Model>, place: &placement::Placement, to: &VramBuffer) {
    let mut request = LoadRequest::new(Arc::clone(model), place.clone());
    request.destination = Destination::Buffer(to.clone());
    black_box(engine.load(request).expect("start").wait().expect("a load"));
}

fn tiny_loads(criterion: &mut Criterion) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, 4);
    let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("a model"));
    let plan = Plan::new(&model, &Selection::all(), Order::File).expect("a plan");
    let place = placement::packed(&model, &plan, 256).expect("a placement");
    let engine = Engine::builder().open().expect("an engine");
    let to = buffer(1 << 20);
    let mut group = criterion.benchmark_group("a tiny load, warm");
    group.bench_function("load", |bencher| {
        bencher.iter(|| load(&engine, &model, &place, &to));
    });
    let opened = Opened::new(Arc::clone(&model)).expect("descriptors");
    group.bench_function("read_range", |bencher| {
        bencher.iter(|| {
            let request = RangeRequest {
                file: FileIndex(0),
                offset: 100,
                len_bytes: 64,
                to: to.clone(),
                at: 0,
                routes: Routes::Auto,
                in_place: false,
            };
            let transfer = engine.read_range(&opened, request).expect("start");
            transfer.wait().expect("a range");
        });
    });
    group.finish();
}

criterion_group!(benches, planning, tiny_loads);
criterion_main!(benches);
