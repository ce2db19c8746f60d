//! Preloading one file, as a future for any executor: into memory, tensor by tensor as they
//! become visible, or out of lent windows without a copy. Knows no runtime and no terminal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{Model, OpenOptions, placement};
use ubio::{Engine, LoadRequest, Loaded, Result, Routes};

/// What became of one file.
#[derive(Debug)]
pub struct Preloaded {
    /// Where it came from.
    pub path: PathBuf,
    /// How many tensors are in it; 1 for a file that is no model.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// CRC-32C of the tensors' bytes, in file order.
    pub crc32c: u32,
    /// From the open to the last byte.
    pub took: Duration,
    /// The memory it is in, if it was kept.
    pub kept: Option<Loaded>,
}

fn open(path: &Path) -> Result<(Arc<Model>, Plan)> {
    let model = Model::open(path, &OpenOptions::default())?;
    let plan = Plan::new(&model, &Selection::all(), Order::File)?;
    Ok((Arc::new(model), plan))
}

/// Loads a file into host memory, and hashes each tensor as soon as it is visible, while
/// those behind it are still on their way.
///
/// # Errors
/// The file cannot be opened, is not what it claims to be, cannot be read, or changes
/// meanwhile; there is no memory for it.
pub async fn keep(engine: &Engine, path: &Path) -> Result<Preloaded> {
    let start = Instant::now();
    let (model, plan) = open(path)?;
    let place = placement::packed(&model, &plan, 256)?;
    let (tensors, bytes) = (plan.order.len(), plan.payload_bytes);
    let mut load = engine.load(LoadRequest::new(model, place))?;
    let mut crc32c = 0;
    while let Some(view) = load.next_tensor_async().await? {
        crc32c = crc32c::crc32c_append(crc32c, view.bytes);
    }
    let loaded = load.await?;
    Ok(Preloaded {
        path: path.to_owned(),
        tensors,
        bytes,
        crc32c,
        took: start.elapsed(),
        kept: Some(loaded),
    })
}

/// Passes a file through windows: each is hashed where storage put its bytes, and given back.
/// No copy is made, and no more memory is used than the windows.
///
/// # Errors
/// As for [`keep`], but for the memory.
pub async fn pass(engine: &Engine, path: &Path) -> Result<Preloaded> {
    let start = Instant::now();
    let (model, plan) = open(path)?;
    let (tensors, bytes) = (plan.order.len(), plan.payload_bytes);
    let mut lending = engine.lend(&model, &plan, Routes::Auto)?;
    let mut crc32c = 0;
    while let Some(piece) = lending.next_piece_async().await? {
        crc32c = crc32c::crc32c_append(crc32c, &piece.bytes);
        // Here the window goes back, and is filled anew.
        drop(piece);
    }
    Ok(Preloaded {
        path: path.to_owned(),
        tensors,
        bytes,
        crc32c,
        took: start.elapsed(),
        kept: None,
    })
}

/// The files that `paths` stand for: files as they are, folders with everything in them that
/// is a file and not empty, sorted by name.
///
/// # Errors
/// A path that is not there, or a folder that cannot be listed.
pub fn files(paths: &[PathBuf]) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        let named = |cause: std::io::Error| {
            std::io::Error::new(cause.kind(), format!("{}: {cause}", path.display()))
        };
        if std::fs::metadata(path).map_err(named)?.is_dir() {
            walk(path, &mut found).map_err(named)?;
        } else {
            found.push(path.clone());
        }
    }
    Ok(found)
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        // Links to folders are not followed: they may lead in a circle.
        let is_folder = std::fs::symlink_metadata(&path)?.is_dir();
        if is_folder {
            walk(&path, found)?;
        } else if std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() > 0) {
            found.push(path);
        }
    }
    Ok(())
}
