//! The 2 GiB model of our own: four safetensors shards and their index, the same bytes everywhere.
//!
//! Content is a pure function of (shard, position), so any range can be made, or
//! checked, without the rest.

mod fill;
mod layout;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use self::layout::{Dims, Kind};
use self::layout::{Shard, shards};
use crate::repo;

/// The payload of the whole model.
pub(crate) const PAYLOAD_BYTES: u64 = 2 << 30;

/// One piece of work for a writer thread; a multiple of 8.
const PIECE_BYTES: u64 = 8 << 20;

/// A model on disk.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) folder: PathBuf,
    pub(crate) files: Vec<PathBuf>,
    /// All shards, headers included.
    pub(crate) bytes: u64,
    pub(crate) tensors: usize,
    /// It was there already, and whole.
    pub(crate) reused: bool,
}

/// Makes `.xtask/models/NAME`, or reuses it when it is there and whole.
pub(crate) fn ensure(kind: Kind) -> Result<Model> {
    let folder = repo::scratch("models")?.join(kind.folder());
    ensure_in(&folder, kind, &Dims::BIG, PAYLOAD_BYTES)
}

/// A model like [`Kind::Odd`], small enough for tests of other programs.
pub(crate) fn ensure_small() -> Result<Model> {
    let folder = repo::scratch("models")?.join("small");
    ensure_in(&folder, Kind::Odd, &Dims::SMALL, 96 << 20)
}

fn ensure_in(folder: &Path, kind: Kind, dims: &Dims, payload: u64) -> Result<Model> {
    let shards = shards(kind, dims, payload);
    let files: Vec<PathBuf> = shards
        .iter()
        .map(|shard| folder.join(&shard.name))
        .collect();
    let index = layout::index(&shards);
    let reused = is_whole(folder, &shards, &index);
    if !reused {
        write(folder, &shards, &index)
            .with_context(|| format!("cannot make the model in {}", repo::shown(folder)))?;
    }
    Ok(Model {
        folder: folder.to_path_buf(),
        files,
        bytes: shards.iter().map(Shard::len_bytes).sum(),
        tensors: shards.iter().map(|shard| shard.tensors.len()).sum(),
        reused,
    })
}

/// Lengths, headers and index are exactly right, and so are samples of the content.
fn is_whole(folder: &Path, shards: &[Shard], index: &str) -> bool {
    let same_index =
        std::fs::read_to_string(folder.join(layout::INDEX)).is_ok_and(|text| text == index);
    same_index
        && shards
            .iter()
            .all(|shard| shard_is_whole(folder, shard).unwrap_or(false))
}

fn shard_is_whole(folder: &Path, shard: &Shard) -> Result<bool> {
    let mut file = File::open(folder.join(&shard.name))?;
    if file.metadata()?.len() != shard.len_bytes() {
        return Ok(false);
    }
    let mut head = vec![0; shard.head.len()];
    file.read_exact(&mut head)?;
    if head != shard.head {
        return Ok(false);
    }
    const SAMPLES: u64 = 16;
    const SAMPLE_BYTES: u64 = 4096;
    for sample in 1..=SAMPLES {
        // The last sample ends where the file does.
        let past = shard.payload * sample / SAMPLES;
        let from = past.saturating_sub(SAMPLE_BYTES) & !7;
        let length = past - from;
        let mut seen = vec![0; usize::try_from(length)?];
        file.read_exact_at(&mut seen, shard.head_bytes() + from)?;
        let mut wanted = vec![0; seen.len()];
        fill::fill(shard, from, &mut wanted);
        if seen != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

fn write(folder: &Path, shards: &[Shard], index: &str) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let total: u64 = shards.iter().map(Shard::len_bytes).sum();
    let present: u64 = shards
        .iter()
        .filter_map(|shard| std::fs::metadata(folder.join(&shard.name)).ok())
        .map(|meta| meta.len())
        .sum();
    repo::require_free(folder, (total + (256 << 20)).saturating_sub(present))?;
    // The index goes first and comes back last: a killed run leaves no model that looks whole.
    let _ = std::fs::remove_file(folder.join(layout::INDEX));
    let style = ProgressStyle::with_template("  {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")?;
    let progress = ProgressBar::new(total).with_style(style);
    for shard in shards {
        write_shard(folder, shard, &progress)?;
    }
    std::fs::write(folder.join(layout::INDEX), index)?;
    progress.finish_and_clear();
    Ok(())
}

fn write_shard(folder: &Path, shard: &Shard, progress: &ProgressBar) -> Result<()> {
    let file = File::create(folder.join(&shard.name))?;
    file.write_all_at(&shard.head, 0)?;
    let next = AtomicU64::new(0);
    let work = || -> Result<()> {
        let mut buffer = vec![0; usize::try_from(PIECE_BYTES)?];
        loop {
            let from = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            if from >= shard.payload {
                return Ok(());
            }
            let length = PIECE_BYTES.min(shard.payload - from);
            let piece = &mut buffer[..usize::try_from(length)?];
            fill::fill(shard, from, piece);
            file.write_all_at(piece, shard.head_bytes() + from)?;
            progress.inc(length);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a writer thread died"),
            })
    })?;
    file.sync_data()?;
    ensure!(
        file.metadata()?.len() == shard.len_bytes(),
        "{} came out short",
        shard.name
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-model-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_model_is_made_reused_and_made_again_when_damaged() {
        let folder = temporary("reuse");
        let make = || ensure_in(&folder, Kind::Odd, &Dims::TINY, 9 << 20).unwrap();
        let first = make();
        assert!(!first.reused);
        assert_eq!(first.files.len(), 4);
        assert!(make().reused);

        let victim = File::options().write(true).open(&first.files[2]).unwrap();
        let end = victim.metadata().unwrap().len() - 1;
        let mut byte = [0];
        File::open(&first.files[2])
            .unwrap()
            .read_exact_at(&mut byte, end)
            .unwrap();
        victim.write_all_at(&[!byte[0]], end).unwrap();
        assert!(!make().reused, "a flipped last byte has to be noticed");

        std::fs::remove_file(folder.join(layout::INDEX)).unwrap();
        assert!(!make().reused);
        victim.set_len(end).unwrap();
        assert!(!make().reused);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn both_kinds_hold_the_same_payload_size() {
        for kind in [Kind::Odd, Kind::Aligned] {
            let payload: u64 = shards(kind, &Dims::TINY, 9 << 20)
                .iter()
                .map(|shard| shard.payload)
                .sum();
            assert_eq!(payload, 9 << 20);
        }
    }
}
