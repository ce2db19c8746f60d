//! `xtask contender …`: the small processes of a comparison, each run as one of its own.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, MmapMut};

use crate::repo;

/// Options of `xtask contender`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Which {
    /// read(2) in 8 MiB pieces into fresh anonymous memory of the files' size
    BufferedRead {
        /// Files to read, one after the other
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// The floor for all that fill memory of their own: fault it in on every core, then copy
    /// the files from the page cache on every core, and nothing else
    Floor {
        /// Ask for transparent huge pages
        #[arg(long)]
        huge: bool,
        /// Files that are in the page cache
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Touch that much memory and give it back: every contender then finds the same state
    Primer {
        /// How much
        #[arg(long)]
        bytes: u64,
    },
}

/// One call of read(2).
const PIECE_BYTES: usize = 8 << 20;

const PAGE_BYTES: usize = 4096;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.which {
        Which::BufferedRead { files } => buffered_read(files)?,
        Which::Floor { huge, files } => floor(files, *huge)?,
        Which::Primer { bytes } => drop(touched(*bytes)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Fresh memory with one byte written in every page.
fn touched(bytes: u64) -> Result<Vec<u8>> {
    let mut memory = vec![0; usize::try_from(bytes).context("too large for this machine")?];
    touch(&mut memory);
    Ok(std::hint::black_box(memory))
}

/// Writes one byte of every page.
fn touch(memory: &mut [u8]) {
    for page in memory.chunks_mut(PAGE_BYTES) {
        page[0] = std::hint::black_box(1);
    }
}

fn buffered_read(files: &[PathBuf]) -> Result<()> {
    let started = Instant::now();
    let total: u64 = files.iter().map(size).sum::<Result<u64>>()?;
    // Untouched zero pages: the kernel gives them one fault at a time, as read(2) fills them.
    let mut memory = vec![0; usize::try_from(total)?];
    let mut rest = &mut memory[..];
    for path in files {
        let mut file = open(path)?;
        let (mine, others) = rest.split_at_mut(usize::try_from(size(path)?)?);
        for piece in mine.chunks_mut(PIECE_BYTES) {
            file.read_exact(piece)
                .with_context(|| format!("{} is shorter than it was", path.display()))?;
        }
        rest = others;
    }
    ensure!(rest.is_empty(), "a file is longer than it was");
    say(started, std::hint::black_box(memory).len());
    Ok(())
}

fn floor(files: &[PathBuf], huge: bool) -> Result<()> {
    let started = Instant::now();
    let total: u64 = files.iter().map(size).sum::<Result<u64>>()?;
    let mut memory = MmapMut::map_anon(usize::try_from(total)?)?;
    if huge {
        memory.advise(Advice::HugePage)?;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Whole huge pages for each core.
    let share = memory.len().div_ceil(cores).next_multiple_of(2 << 20);
    std::thread::scope(|scope| {
        for from in (0..memory.len()).step_by(share) {
            let (memory, length) = (&memory, share.min(memory.len() - from));
            scope.spawn(move || memory.advise_range(Advice::PopulateWrite, from, length));
        }
    });
    // Every piece of every file with its place; dealt out in turn.
    let mut shares: Vec<Vec<(File, u64, &mut [u8])>> = (0..cores).map(|_| Vec::new()).collect();
    let mut rest = &mut memory[..];
    for path in files {
        let file = open(path)?;
        let (mine, others) = rest.split_at_mut(usize::try_from(size(path)?)?);
        for (number, piece) in mine.chunks_mut(PIECE_BYTES).enumerate() {
            let offset = (number * PIECE_BYTES) as u64;
            shares[number % cores].push((file.try_clone()?, offset, piece));
        }
        rest = others;
    }
    std::thread::scope(|scope| {
        let copy = |pieces: Vec<(File, u64, &mut [u8])>| -> std::io::Result<()> {
            pieces
                .into_iter()
                .try_for_each(|(file, at, piece)| file.read_exact_at(piece, at))
        };
        let workers: Vec<_> = shares
            .into_iter()
            .map(|pieces| scope.spawn(move || copy(pieces)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(copied) => copied.context("a file is shorter than it was"),
                Err(_) => anyhow::bail!("a copying thread died"),
            })
    })?;
    say(started, std::hint::black_box(memory).len());
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn size(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    let meta = std::fs::metadata(path);
    Ok(meta
        .with_context(|| format!("cannot read {}", path.display()))?
        .len())
}

/// The line that the comparison reads, in the form all contenders share.
fn say(started: Instant, bytes: usize) {
    let cpu = own_cpu();
    let line = serde_json::json!({
        "seconds": started.elapsed().as_secs_f64(),
        "bytes": bytes,
        "cpu_user": cpu.map(|(user, _)| user),
        "cpu_sys": cpu.map(|(_, sys)| sys),
    });
    println!("{line}");
}

/// User and system seconds of this process so far, from `/proc/self/stat` (proc(5): fields 14, 15).
fn own_cpu() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace().skip(11);
    let ticks = repo::float(rustix::param::clock_ticks_per_second());
    let mut next = || {
        fields
            .next()?
            .parse::<u64>()
            .ok()
            .map(|t| repo::float(t) / ticks)
    };
    Some((next()?, next()?))
}
