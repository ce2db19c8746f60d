//! Whole loads through the public API: every tensor equals the file's bytes, by every way.
//!
//! unsafe: maps a file.
#![expect(unsafe_code, reason = "to map a file is unsafe")]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use fs_adapter::placement;
use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{Model, OpenOptions};
use ubio::map::Mapped;
use ubio::{Builder, Engine, LoadRequest, Loaded, Routes};

/// A safetensors file of `sizes` U8 tensors with bytes that differ everywhere.
fn write_model(path: &Path, sizes: &[u64]) {
    let mut header = String::from("{");
    let mut at = 0;
    for (index, size) in sizes.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let end = at + size;
        header += &format!(
            r#"{comma}"layers.{index}.w":{{"dtype":"U8","shape":[{size}],"data_offsets":[{at},{end}]}}"#
        );
        at = end;
    }
    header.push('}');
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("create"));
    file.write_all(&(header.len() as u64).to_le_bytes())
        .expect("write");
    file.write_all(header.as_bytes()).expect("write");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut left = at;
    while left > 0 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let bytes = (state ^ (state >> 29)).to_le_bytes();
        let part = usize::try_from(left.min(8)).expect("at most 8");
        file.write_all(&bytes[..part]).expect("write");
        left -= part as u64;
    }
    file.into_inner().expect("flush").sync_all().expect("sync");
}

fn expected(model: &Model, name: &str) -> Vec<u8> {
    let tensor = &model.tensors()[model.tensors().find(name).expect("known")];
    let bytes = std::fs::read(model.file(tensor.file).path()).expect("read");
    let at = usize::try_from(tensor.offset).expect("small");
    bytes[at..at + usize::try_from(tensor.len).expect("small")].to_vec()
}

fn check(loaded: &Loaded) {
    for view in loaded.tensors() {
        assert!(
            view.bytes == expected(loaded.model(), &view.tensor.name),
            "{} differs",
            view.tensor.name
        );
    }
}

fn small() -> Builder {
    Engine::builder()
        .windows(3)
        .window_bytes(256 << 10)
        .command_bytes(64 << 10)
        .depth(8)
        .adaptive(false)
}

const SIZES: [u64; 9] = [1, 0, 4096, 5_000_001, 3, 70_000, 262_144, 0, 999_999];

#[test]
fn every_way_gives_the_same_bytes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, &SIZES);
    for order in [Order::File, Order::Layer] {
        for routes in [
            Routes::Auto,
            Routes::Direct,
            Routes::Cached,
            Routes::Traditional,
        ] {
            for uring in [true, false] {
                let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("model"));
                let plan = Plan::new(&model, &Selection::all(), order).expect("plan");
                let engine = small().io_uring(uring).open().expect("engine");
                let mut places = vec![placement::packed(&model, &plan, 256).expect("packed")];
                if order == Order::File {
                    places.push(placement::image(&model).expect("image"));
                }
                for place in places {
                    let mut request = LoadRequest::new(Arc::clone(&model), place);
                    request.routes = routes;
                    let loaded = engine.load(request).expect("start").wait().expect("load");
                    check(&loaded);
                }
            }
        }
    }
}

#[test]
fn tensors_come_in_plan_order() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, &SIZES);
    let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("model"));
    let plan = Plan::new(&model, &Selection::all(), Order::Layer).expect("plan");
    let place = placement::packed(&model, &plan, 256).expect("packed");
    let engine = small().open().expect("engine");
    let mut load = engine
        .load(LoadRequest::new(Arc::clone(&model), place))
        .expect("start");
    let mut names = Vec::new();
    while let Some(view) = load.next_tensor().expect("tensor") {
        assert!(view.bytes == expected(&model, &view.tensor.name));
        names.push(view.tensor.name.clone());
    }
    let wanted: Vec<_> = (0..SIZES.len())
        .map(|index| format!("layers.{index}.w"))
        .collect();
    assert_eq!(names, wanted);
}

#[test]
fn lent_windows_hold_the_bytes_and_go_back() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, &SIZES);
    for routes in [Routes::Direct, Routes::Auto, Routes::Cached] {
        let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("model"));
        let plan = Plan::new(&model, &Selection::all(), Order::File).expect("plan");
        let engine = small().open().expect("engine");
        let mut lending = engine.lend(&model, &plan, routes).expect("start");
        let mut whole: Vec<Vec<u8>> = vec![Vec::new(); SIZES.len()];
        while let Some(piece) = lending.next_piece().expect("piece") {
            let bytes = &mut whole[piece.tensor.as_usize()];
            assert_eq!(bytes.len() as u64, piece.offset);
            bytes.extend_from_slice(&piece.bytes);
        }
        for (index, tensor) in model.tensors().iter() {
            assert!(
                whole[index.as_usize()] == expected(&model, &tensor.name),
                "{}",
                tensor.name
            );
        }
    }
}

#[test]
fn a_mapped_model_holds_the_bytes() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, &SIZES);
    let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("model"));
    let plan = Plan::new(&model, &Selection::all(), Order::Layer).expect("plan");
    // SAFETY: the file is this test's own.
    let mapped = unsafe { Mapped::open(&model, &plan) }.expect("map");
    for view in mapped.tensors() {
        assert!(
            view.bytes == expected(&model, &view.tensor.name),
            "{} differs",
            view.tensor.name
        );
    }
    assert_eq!(mapped.tensors().len(), SIZES.len());
    assert!(mapped.is_intact());
    std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(b"more"))
        .expect("a writer gets on");
    assert!(!mapped.is_intact());
}

#[test]
fn a_dropped_load_leaves_an_engine_that_works() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, &SIZES);
    let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("model"));
    let plan = Plan::new(&model, &Selection::all(), Order::File).expect("plan");
    let engine = small().open().expect("engine");
    for round in 0..50 {
        let place = placement::packed(&model, &plan, 256).expect("packed");
        let mut request = LoadRequest::new(Arc::clone(&model), place);
        request.routes = Routes::Direct;
        let mut load = engine.load(request).expect("start");
        for _ in 0..round % 5 {
            load.next_tensor().expect("tensor");
        }
        drop(load);
        let mut lending = engine.lend(&model, &plan, Routes::Direct).expect("start");
        let kept = lending.next_piece().expect("piece");
        drop(lending);
        drop(kept);
    }
    let place = placement::packed(&model, &plan, 256).expect("packed");
    let loaded = engine
        .load(LoadRequest::new(model, place))
        .expect("start")
        .wait()
        .expect("load");
    check(&loaded);
}

#[test]
fn an_image_may_go_through_windows() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    write_model(&path, &SIZES);
    let model = Arc::new(Model::open(&path, &OpenOptions::default()).expect("model"));
    let engine = Engine::builder().open().expect("engine");
    for routes in [Routes::Direct, Routes::Auto, Routes::Cached] {
        let image = placement::image(&model).expect("image");
        let mut request = LoadRequest::new(Arc::clone(&model), image);
        request.routes = routes;
        request.through_windows = true;
        let loaded = engine.load(request).expect("load").wait().expect("bytes");
        let file = std::fs::read(&path).expect("file");
        assert!(loaded.bytes()[..file.len()] == file[..], "{routes:?}");
        let report = engine.take_report().expect("report");
        if routes == Routes::Direct {
            assert!(report.windows.switches > 0, "{report:?}");
        }
    }
}
