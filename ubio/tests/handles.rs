//! What a caller may do with handles at any moment: hold, drop, ask too early, hand over odd
//! memory. Every wait here has a bound, so a hang is a failure and not a stuck run.
//!
//! unsafe: maps a file, and forks.
#![expect(unsafe_code, reason = "to map a file is unsafe, and so is to fork")]

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use fs_adapter::placement::{self, Placement};
use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{Model, OpenOptions};
use ubio::map::Mapped;
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio::{Destination, Engine, ErrorKind, LoadRequest, Routes};

const SIZES: [usize; 5] = [70_000, 100_000, 1, 29_999, 100_000];

struct Files {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn files() -> Files {
    files_of(&SIZES)
}

fn files_of(sizes: &[usize]) -> Files {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
    let path = folder.path().join("model.safetensors");
    let mut header = String::from("{");
    let mut at = 0;
    for (index, size) in sizes.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let end = at + size;
        header += &format!(
            r#"{comma}"{index}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{at},{end}]}}"#
        );
        at = end;
    }
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    let payload = (0..at).map(|byte| u8::try_from(byte * 7 % 251).expect("below 251"));
    bytes.extend(payload);
    std::fs::write(&path, bytes).expect("write");
    std::fs::File::open(&path)
        .and_then(|file| file.sync_all())
        .expect("sync");
    Files {
        _folder: folder,
        path,
    }
}

fn open(path: &Path) -> (Arc<Model>, Plan, Placement) {
    let model = Arc::new(Model::open(path, &OpenOptions::default()).expect("model"));
    let plan = Plan::new(&model, &Selection::all(), Order::File).expect("plan");
    let place = placement::packed(&model, &plan, 256).expect("place");
    (model, plan, place)
}

fn engine() -> Engine {
    let builder = Engine::builder().windows(3).window_bytes(256 << 10);
    builder
        .command_bytes(64 << 10)
        .depth(8)
        .adaptive(false)
        .open()
        .expect("engine")
}

/// Runs `work` on a thread; a panic if it is not over in time.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || send.send(work()));
    let result = receive.recv_timeout(Duration::from_secs(20));
    match result {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sent nothing"))
        }
    }
}

#[test]
fn windows_that_were_never_taken_go_back_with_their_handle() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, plan, place) = open(&files.path);
        for _ in 0..5 {
            let lending = engine.lend(&model, &plan, Routes::Direct).expect("lend");
            // Long enough for windows to land and wait in the handle.
            std::thread::sleep(Duration::from_millis(50));
            drop(lending);
        }
        let mut request = LoadRequest::new(model, place);
        request.routes = Routes::Direct;
        engine.load(request).expect("load").wait().expect("bytes");
    });
}

#[test]
fn a_lending_ends_although_its_pieces_are_held() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, plan, _place) = open(&files.path);
        let mut lending = engine.lend(&model, &plan, Routes::Direct).expect("lend");
        let mut held = Vec::new();
        while let Some(piece) = lending.next_piece().expect("piece") {
            held.push(piece);
        }
        let bytes: usize = held.iter().map(|piece| piece.bytes.len()).sum();
        assert_eq!(bytes, SIZES.iter().sum::<usize>());
    });
}

#[test]
fn a_lending_fails_although_its_pieces_are_held() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, plan, _place) = open(&files.path);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&files.path)
            .expect("open");
        file.set_len(270_000).expect("cut");
        let mut lending = engine.lend(&model, &plan, Routes::Direct).expect("lend");
        let mut held = Vec::new();
        let error = loop {
            match lending.next_piece() {
                Ok(Some(piece)) => held.push(piece),
                Ok(None) => panic!("a cut file is no whole one"),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Changed),
            "{error}"
        );
    });
}

#[test]
fn an_in_place_load_refuses_memory_a_device_cannot_write() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, _place) = open(&files.path);
        let image = placement::image(&model).expect("image");
        let len = usize::try_from(image.len_bytes).expect("small");
        for memory in [vec![0; len], vec![0; len + 8192]] {
            let region = Region::adopt(memory);
            let aligned = (region.address(0, 0) as u64).is_multiple_of(4096);
            let mut request = LoadRequest::new(Arc::clone(&model), image.clone());
            request.destination = Destination::Buffer(VramBuffer::Host(Arc::new(region)));
            match engine.load(request) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}"),
                Ok(load) => {
                    assert!(aligned, "unaligned memory was taken");
                    load.wait().expect("aligned memory is filled");
                }
            }
        }
        // The engine is as good as new.
        engine
            .load(LoadRequest::new(model, image))
            .expect("load")
            .wait()
            .expect("bytes");
    });
}

#[test]
fn a_placement_that_lies_is_refused() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let lies: [fn(&mut Placement); 6] = [
            |place| place.tensors[1].offset = 1 << 40,
            |place| place.tensors[1].offset = u64::MAX,
            |place| place.tensors[1].offset = place.tensors[0].offset,
            |place| place.tensors[1].len += 1,
            |place| place.tensors[1].tensor.0 = 99,
            |place| place.header = Some(vec![0; 16]),
        ];
        for lie in lies {
            let mut wrong = place.clone();
            lie(&mut wrong);
            let refused = engine.load(LoadRequest::new(Arc::clone(&model), wrong));
            assert_eq!(refused.expect_err("a lie").kind(), ErrorKind::InvalidInput);
        }
        engine
            .load(LoadRequest::new(model, place))
            .expect("load")
            .wait()
            .expect("bytes");
    });
}

#[test]
fn an_image_that_lies_is_refused() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, _place) = open(&files.path);
        let place = placement::image(&model).expect("image");
        let lies: [fn(&mut Placement); 5] = [
            // Twice: the tensors are where the first one is.
            |place| {
                let mut again = place.files[0];
                again.offset = place.len_bytes.next_multiple_of(4096);
                place.len_bytes = again.offset + again.len;
                place.files.push(again);
            },
            |place| place.files[0].offset = 1,
            |place| place.files[0].len += 1,
            |place| place.tensors[0].offset += 4096,
            |place| place.len_bytes -= 1,
        ];
        for (index, lie) in lies.into_iter().enumerate() {
            let mut wrong = place.clone();
            lie(&mut wrong);
            let refused = engine.load(LoadRequest::new(Arc::clone(&model), wrong));
            let error = refused.expect_err("a lie");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "lie {index}");
        }
    });
}

#[test]
fn a_tensor_without_bytes_has_its_place_all_the_same() {
    let files = files_of(&[100, 0, 100]);
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let mut wrong = place.clone();
        wrong.tensors[1].offset = 1 << 40;
        let refused = engine.load(LoadRequest::new(Arc::clone(&model), wrong));
        assert_eq!(refused.expect_err("a lie").kind(), ErrorKind::InvalidInput);
        let loaded = engine.load(LoadRequest::new(model, place)).expect("load");
        let loaded = loaded.wait().expect("bytes");
        assert_eq!(loaded.tensor("1").expect("there").bytes.len(), 0);
    });
}

#[test]
fn what_was_in_a_larger_buffer_is_not_shown() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let len = usize::try_from(place.len_bytes).expect("small");
        let buffer = VramBuffer::Host(Arc::new(Region::adopt(vec![0xff; 3 * len])));
        let mut request = LoadRequest::new(model, place);
        request.destination = Destination::Buffer(buffer);
        let loaded = engine.load(request).expect("load").wait().expect("bytes");
        assert_eq!(loaded.bytes().len(), len);
    });
}

#[test]
fn a_plan_of_another_model_is_refused() {
    let (small, large) = (files_of(&[100]), files());
    within(move || {
        let engine = engine();
        let (model, _plan, _place) = open(&small.path);
        let (_model, plan, _place) = open(&large.path);
        let refused = engine.lend(&model, &plan, Routes::Auto);
        let error = refused.expect_err("not its plan");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_is_taken() {
    for builder in [
        Engine::builder().windows(0),
        Engine::builder().window_bytes(0),
        Engine::builder().window_bytes(u32::MAX),
        Engine::builder().window_bytes(5000),
        Engine::builder().windows(u16::MAX),
    ] {
        let refused = within(move || builder.open().map(drop));
        let error = refused.expect_err("no such engine");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

/// A child has no ring thread: whoever waits there hears so, and does not wait for ever.
#[test]
fn a_forked_child_does_not_hang() {
    let files = files();
    let engine = engine();
    let (model, _plan, place) = open(&files.path);
    for asynchronous in [false, true] {
        let mut request = LoadRequest::new(Arc::clone(&model), place.clone());
        // It waits for a consumer, so it is under way when the fork comes.
        request.lookahead_bytes = Some(1);
        let mut load = engine.load(request).expect("load");
        load.next_tensor().expect("the first tensor");
        // The ring thread rests: whatever it locks while it works, it does not hold now.
        std::thread::sleep(Duration::from_millis(100));
        // SAFETY: the child only waits, and leaves without unwinding or destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            // SAFETY: the default of SIGALRM ends the process, whatever it is doing.
            unsafe { libc::alarm(10) };
            let ended = if asynchronous {
                futures_lite::future::block_on(load.into_future())
            } else {
                load.wait()
            };
            let code = i32::from(ended.is_ok());
            // SAFETY: leaves at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the child is ours, and the status outlives the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        assert!(libc::WIFEXITED(status), "it hung: {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "a load ended well in a child");
        drop(load);
    }
}

#[test]
fn one_destination_is_filled_by_one_load_at_a_time() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let region = Region::anonymous(place.len_bytes, false).expect("memory");
        let buffer = VramBuffer::Host(Arc::new(region));
        let load = |buffer: &VramBuffer| {
            let mut request = LoadRequest::new(Arc::clone(&model), place.clone());
            request.destination = Destination::Buffer(buffer.clone());
            engine.load(request)
        };
        let loaded = load(&buffer).expect("load").wait().expect("bytes");
        // Its tensors can be looked at: nobody may write under them.
        assert_eq!(load(&buffer).expect_err("in use").kind(), ErrorKind::Busy);
        assert_eq!(loaded.tensors().len(), SIZES.len());
        drop(loaded);
        load(&buffer).expect("free again").wait().expect("bytes");
    });
}

#[test]
fn padding_of_used_memory_is_zero() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let memory = vec![0xff; usize::try_from(place.len_bytes).expect("small")];
        let buffer = VramBuffer::Host(Arc::new(Region::adopt(memory)));
        let mut request = LoadRequest::new(model, place.clone());
        request.destination = Destination::Buffer(buffer);
        let loaded = engine.load(request).expect("load").wait().expect("bytes");
        let mut end = 0;
        for placed in &place.tensors {
            let gap = usize::try_from(end).expect("small")
                ..usize::try_from(placed.offset).expect("small");
            assert!(loaded.bytes()[gap].iter().all(|&byte| byte == 0));
            end = placed.offset + placed.len;
        }
    });
}

#[test]
fn what_was_consumed_too_early_counts_when_it_is_visible() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let mut request = LoadRequest::new(model, place);
        request.lookahead_bytes = Some(100_000);
        let mut load = engine.load(request).expect("load");
        load.consumed(u32::MAX);
        let mut seen = 0;
        while load.next_tensor().expect("tensor").is_some() {
            seen += 1;
        }
        assert_eq!(seen, SIZES.len());
    });
}

#[test]
fn waiting_for_all_needs_no_consumption() {
    let files = files();
    within(move || {
        let engine = engine();
        let (model, _plan, place) = open(&files.path);
        let mut request = LoadRequest::new(model, place);
        request.lookahead_bytes = Some(1);
        engine.load(request).expect("load").wait().expect("bytes");
    });
}

#[test]
fn each_map_has_a_lease_of_its_own() {
    let files = files();
    within(move || {
        let (model, plan, _place) = open(&files.path);
        // SAFETY: the file is this test's own.
        let map = || unsafe { Mapped::open(&model, &plan) }.expect("map");
        let (first, second) = (map(), map());
        if second.unleased().is_some() {
            return; // No leases on this file system.
        }
        drop(first);
        let held = std::fs::OpenOptions::new().append(true).open(&files.path);
        drop(held.expect("a writer gets on"));
        assert!(!second.is_intact(), "the writer was not noticed");
    });
}
