//! `xtask contender …`: the small processes of a comparison, each run as one of its own.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::floor::{self, Pages};
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
    /// The floor for reads through buffers: read direct into a few buffers, copy them to fresh
    /// memory on huge pages, and nothing else
    FloorBuffers {
        /// On reserved huge pages
        #[arg(long)]
        reserved: bool,
        /// Files to read
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// The floor for reads in place: fault fresh memory in on huge pages, read direct into it,
    /// and nothing else
    FloorInPlace {
        /// On reserved huge pages
        #[arg(long)]
        reserved: bool,
        /// Files to read
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// One copy of the files' bytes and nothing else: from a few buffers over and over, to
    /// memory that was faulted in before; what comes before the copying does not count
    Memcpy {
        /// Files that are as long
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Touch that much memory and give it back, on base pages, then on huge pages: every
    /// contender then finds the same state, whichever it takes
    Primer {
        /// How much
        #[arg(long)]
        bytes: u64,

        /// Reserved huge pages only
        #[arg(long)]
        reserved: bool,
    },
}

/// One call of read(2).
const PIECE_BYTES: usize = 8 << 20;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.which {
        Which::BufferedRead { files } => buffered_read(files)?,
        Which::Floor { huge, files } => {
            let pages = if *huge {
                Pages::Transparent
            } else {
                Pages::Base
            };
            floor::cached(files, pages)?;
        }
        Which::FloorBuffers { reserved, files } => floor::through_buffers(files, huge(*reserved))?,
        Which::FloorInPlace { reserved, files } => floor::in_place(files, huge(*reserved))?,
        Which::Memcpy { files } => floor::memcpy(files)?,
        Which::Primer { bytes, reserved } => {
            let bytes = usize::try_from(*bytes).context("too large for this machine")?;
            // Quickly, and huge pages last: what lies free for a second or so a virtual
            // machine may hand back to its host, which then has to be asked for it again.
            let sweeps: &[Pages] = if *reserved {
                &[Pages::Reserved]
            } else {
                &[Pages::Base, Pages::Transparent]
            };
            for &pages in sweeps {
                floor::anonymous(bytes, pages)?.advise(memmap2::Advice::PopulateWrite)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn huge(reserved: bool) -> Pages {
    if reserved {
        Pages::Reserved
    } else {
        Pages::Transparent
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

pub(crate) fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

pub(crate) fn size(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    let meta = std::fs::metadata(path);
    Ok(meta
        .with_context(|| format!("cannot read {}", path.display()))?
        .len())
}

/// The line that the comparison reads, in the form all contenders share.
pub(crate) fn say(started: Instant, bytes: usize) {
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
