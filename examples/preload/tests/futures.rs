//! The engine's futures under tokio-uring and under a bare `block_on`; dropped at any point
//! they leave an engine that works.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;

use futures_lite::future;
use preload::{files, keep, pass};
use ubio::{Builder, Engine};

fn small() -> Builder {
    Engine::builder().windows(3).window_bytes(256 << 10)
}

/// Three raw files of different content, and the checksums they should have.
fn make(folder: &Path) -> Vec<(PathBuf, u32)> {
    (0..3u32)
        .map(|index| {
            let path = folder.join(format!("part-{index}.bin"));
            let len = 1_500_001 + 700_000 * index;
            let bytes: Vec<u8> = (0..len)
                .map(|at| (at.wrapping_mul(2_654_435_761 + 2 * index) >> 24).to_le_bytes()[0])
                .collect();
            std::fs::write(&path, &bytes).expect("write");
            (path, crc32c::crc32c(&bytes))
        })
        .collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder")
}

#[test]
fn under_tokio_uring_several_at_once() {
    let folder = folder();
    let made = make(folder.path());
    tokio_uring::start(async {
        let engine = Rc::new(small().open().expect("engine"));
        let tasks: Vec<_> = made
            .iter()
            .flat_map(|(path, crc)| [(path.clone(), *crc, true), (path.clone(), *crc, false)])
            .map(|(path, crc, kept)| {
                let engine = Rc::clone(&engine);
                tokio_uring::spawn(async move {
                    let file = if kept {
                        keep(&engine, &path).await
                    } else {
                        pass(&engine, &path).await
                    };
                    let file = file.expect("a file");
                    assert_eq!(file.crc32c, crc, "{}", path.display());
                    assert_eq!(file.kept.is_some(), kept);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
    });
}

#[test]
fn tokio_uring_and_the_engine_read_side_by_side() {
    let folder = folder();
    let made = make(folder.path());
    tokio_uring::start(async {
        let engine = small().open().expect("engine");
        let (path, crc) = &made[0];
        let file = tokio_uring::fs::File::open(path).await.expect("open");
        let (own, engines) = future::zip(file.read_at(vec![0; 4096], 0), keep(&engine, path)).await;
        let (read, bytes) = own;
        assert_eq!(read.expect("read"), 4096);
        let engines = engines.expect("a file");
        assert_eq!(engines.crc32c, *crc);
        let kept = engines.kept.expect("kept");
        let view = kept.tensors().next().expect("one tensor");
        assert_eq!(bytes, view.bytes[..4096]);
    });
}

#[test]
fn under_a_bare_block_on() {
    let folder = folder();
    let made = make(folder.path());
    let engine = small().open().expect("engine");
    for (path, crc) in &made {
        let kept = future::block_on(keep(&engine, path)).expect("kept");
        let passed = future::block_on(pass(&engine, path)).expect("passed");
        assert_eq!((kept.crc32c, passed.crc32c), (*crc, *crc));
    }
}

#[test]
fn a_future_dropped_midway_leaves_an_engine_that_works() {
    let folder = folder();
    let made = make(folder.path());
    let engine = small().open().expect("engine");
    for round in 0..60u64 {
        let (path, _crc) = &made[usize::try_from(round % 3).expect("small")];
        let polls = round % 7;
        future::block_on(async {
            let mut kept = pin!(keep(&engine, path));
            let mut passed = pin!(pass(&engine, path));
            for _ in 0..polls {
                if future::poll_once(&mut kept).await.is_some()
                    || future::poll_once(&mut passed).await.is_some()
                {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_micros(20 * round));
            }
        });
    }
    for (path, crc) in &made {
        let kept = future::block_on(keep(&engine, path)).expect("kept");
        assert_eq!(kept.crc32c, *crc);
    }
}

#[test]
fn folders_stand_for_their_files() {
    let folder = folder();
    let made = make(folder.path());
    std::fs::create_dir(folder.path().join("deeper")).expect("folder");
    let deeper = folder.path().join("deeper/more.bin");
    std::fs::write(&deeper, b"more").expect("write");
    std::fs::write(folder.path().join("empty"), b"").expect("write");
    let found = files(&[folder.path().to_owned()]).expect("list");
    let mut wanted = vec![deeper];
    wanted.extend(made.into_iter().map(|(path, _)| path));
    assert_eq!(found, wanted);
    assert!(files(&[folder.path().join("not there")]).is_err());
}
