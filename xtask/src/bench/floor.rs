//! Floors: the least that filling memory of one's own takes on this machine, by programs that
//! do nothing else. Where a tool's limit leaves out work that a loader cannot (fresh memory has
//! to be faulted in), a floor is the other side.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::OFlags;

use super::contender::{open, say, size};

/// One direct read into a buffer, and one copy.
const DIRECT_BYTES: usize = 1 << 20;
/// One direct read in place: what fio is fastest with.
const IN_PLACE_BYTES: usize = 4 << 20;
/// Threads that read: so many reads of that size are what fio is fastest with, or nearly so.
const READERS: usize = 2;
/// Buffers between readers and the copying thread.
const BUFFERS: usize = 4;
/// One copy from the page cache.
const CACHED_BYTES: usize = 8 << 20;
/// `O_DIRECT` wants lengths and places in the file to be multiples of a logical block.
const BLOCK_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What fresh memory stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Base,
    Transparent,
    /// Reserved by whoever started the program.
    Reserved,
}

/// A stretch of a file and where it goes.
struct Piece<'a> {
    file: &'a File,
    offset: u64,
    len: usize,
    /// Whole blocks, so up to a block longer than `len`.
    to: &'a mut [u8],
}

/// Pages cached: fault all in on every core, then copy the files on every core.
pub(crate) fn cached(paths: &[PathBuf], pages: Pages) -> Result<()> {
    let started = Instant::now();
    let files = files(paths, open)?;
    let mut memory = memory(&files, pages)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Whole huge pages for each core.
    let share = memory
        .len()
        .div_ceil(cores)
        .next_multiple_of(HUGE_PAGE_BYTES);
    std::thread::scope(|scope| {
        for from in (0..memory.len()).step_by(share) {
            let (memory, length) = (&memory, share.min(memory.len() - from));
            scope.spawn(move || memory.advise_range(Advice::PopulateWrite, from, length));
        }
    });
    let todo = Mutex::new(pieces(&files, &mut memory, CACHED_BYTES).into_iter());
    std::thread::scope(|scope| {
        let copy = || -> Result<()> {
            while let Some(piece) = next(&todo) {
                let to = &mut piece.to[..piece.len];
                piece.file.read_exact_at(to, piece.offset)?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(copy)).collect();
        workers.into_iter().try_for_each(joined)
    })?;
    say(started, bytes(&files));
    Ok(())
}

/// Cold, through buffers: some threads read direct into a few buffers on huge pages, one
/// copies them to fresh memory, faulting it in on the way.
pub(crate) fn through_buffers(paths: &[PathBuf], pages: Pages) -> Result<()> {
    let started = Instant::now();
    let files = files(paths, open_direct)?;
    let mut memory = memory(&files, pages)?;
    let mut pool = anonymous(BUFFERS * DIRECT_BYTES, pages)?;
    let todo = Mutex::new(pieces(&files, &mut memory, DIRECT_BYTES).into_iter());
    let (free, taken) = channel();
    let (read, landed): (Sender<(&mut [u8], Piece<'_>)>, Receiver<_>) = channel();
    for buffer in pool.chunks_mut(DIRECT_BYTES) {
        free.send(buffer).map_err(|_| anyhow!("nobody reads"))?;
    }
    let taken = Mutex::new(taken);
    let reader = |read: Sender<_>| -> Result<()> {
        while let Some(piece) = next(&todo) {
            let buffer: &mut [u8] = taken.lock().map_err(|_| anyhow!("a reader died"))?.recv()?;
            read_direct(&piece, &mut buffer[..piece.to.len()])?;
            // The copying thread is gone only if it died, which its join tells.
            let _gone = read.send((buffer, piece));
        }
        Ok(())
    };
    let reader = &reader;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let read = read.clone();
                scope.spawn(move || reader(read))
            })
            .collect();
        drop(read);
        let copier = scope.spawn(move || -> Result<()> {
            for (buffer, piece) in landed {
                piece.to[..piece.len].copy_from_slice(&buffer[..piece.len]);
                // Nobody wants it once the readers are through.
                let _unwanted = free.send(buffer);
            }
            Ok(())
        });
        readers.into_iter().try_for_each(joined)?;
        joined(copier)
    })?;
    say(started, bytes(&files));
    Ok(())
}

/// Cold, in place: one thread faults fresh memory in, some read direct into what is there.
pub(crate) fn in_place(paths: &[PathBuf], pages: Pages) -> Result<()> {
    let started = Instant::now();
    let files = files(paths, open_direct)?;
    let mut memory = memory(&files, pages)?;
    let todo = pieces(&files, &mut memory, IN_PLACE_BYTES);
    let (ready, faulted) = channel();
    let faulted = Mutex::new(faulted);
    std::thread::scope(|scope| {
        let reader = || -> Result<()> {
            loop {
                let piece: Option<Piece<'_>> = faulted
                    .lock()
                    .map_err(|_| anyhow!("a reader died"))?
                    .recv()
                    .ok();
                let Some(Piece {
                    file,
                    offset,
                    len,
                    to,
                }) = piece
                else {
                    return Ok(());
                };
                let read = read_at(file, to, offset)?;
                anyhow::ensure!(read >= len, "a file is shorter than it was");
            }
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        for piece in todo {
            // The first touch of each huge page that begins in it.
            for page in piece.to.chunks_mut(BLOCK_BYTES) {
                page[0] = std::hint::black_box(1);
            }
            ready.send(piece).map_err(|_| anyhow!("the readers died"))?;
        }
        drop(ready);
        readers.into_iter().try_for_each(joined)
    })?;
    say(started, bytes(&files));
    Ok(())
}

/// What one copy of the files' bytes costs, on this thread alone: from a few buffers over and
/// over, to memory that was faulted in before and does not count.
pub(crate) fn memcpy(paths: &[PathBuf]) -> Result<()> {
    let total = paths.iter().map(size).sum::<Result<u64>>()?;
    let total = usize::try_from(total)?;
    let mut to = anonymous(total, Pages::Transparent)?;
    to.advise(Advice::PopulateWrite)?;
    let mut from = anonymous(BUFFERS * DIRECT_BYTES, Pages::Transparent)?;
    from.fill(1);
    let (started, before) = (Instant::now(), thread_seconds()?);
    for (to, from) in to
        .chunks_mut(DIRECT_BYTES)
        .zip(from.chunks(DIRECT_BYTES).cycle())
    {
        to.copy_from_slice(&from[..to.len()]);
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu = thread_seconds()? - before;
    std::hint::black_box(to);
    println!(
        "{}",
        serde_json::json!({"seconds": seconds, "bytes": total, "cpu_user": cpu, "cpu_sys": 0.0})
    );
    Ok(())
}

/// Processor time of the main thread (`/proc/self/schedstat`, in ns).
fn thread_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let ns: u64 = text
        .split_whitespace()
        .next()
        .context("no times in /proc/self/schedstat")?
        .parse()?;
    Ok(std::time::Duration::from_nanos(ns).as_secs_f64())
}

fn read_direct(piece: &Piece<'_>, buffer: &mut [u8]) -> Result<()> {
    let read = read_at(piece.file, buffer, piece.offset)?;
    anyhow::ensure!(read >= piece.len, "a file is shorter than it was");
    Ok(())
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            // A count that is no multiple of a block is the end of the file.
            0 => break,
            read => done += read,
        }
        if !done.is_multiple_of(BLOCK_BYTES) {
            break;
        }
    }
    Ok(done)
}

fn next<'a>(todo: &Mutex<std::vec::IntoIter<Piece<'a>>>) -> Option<Piece<'a>> {
    todo.lock().ok()?.next()
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread
        .join()
        .map_err(|_panic| anyhow!("a thread died"))
        .and_then(|result| result)
}

fn files(paths: &[PathBuf], open: impl Fn(&Path) -> Result<File>) -> Result<Vec<(File, usize)>> {
    paths
        .iter()
        .map(|path| Ok((open(path)?, usize::try_from(size(path)?)?)))
        .collect()
}

fn open_direct(path: &Path) -> Result<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits())?;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .with_context(|| format!("cannot open {} for direct reads", path.display()))
}

/// Fresh memory for all files, each from a block's border on.
fn memory(files: &[(File, usize)], pages: Pages) -> Result<MmapMut> {
    let total = files
        .iter()
        .map(|(_, len)| len.next_multiple_of(BLOCK_BYTES))
        .sum();
    anonymous(total, pages)
}

/// Fresh memory.
pub(crate) fn anonymous(len: usize, pages: Pages) -> Result<MmapMut> {
    if pages == Pages::Reserved {
        const HUGE_PAGE_BITS: u8 = 21;
        let mut options = MmapOptions::new();
        let memory = options.len(len).huge(Some(HUGE_PAGE_BITS)).map_anon();
        return memory.context("no huge pages are reserved (vm.nr_hugepages)");
    }
    let memory = MmapMut::map_anon(len)?;
    memory.advise(match pages {
        Pages::Base => Advice::NoHugePage,
        _ => Advice::HugePage,
    })?;
    Ok(memory)
}

fn pieces<'a>(files: &'a [(File, usize)], memory: &'a mut [u8], most: usize) -> Vec<Piece<'a>> {
    let mut all = Vec::new();
    let mut rest = memory;
    for (file, len) in files {
        let (mine, others) = rest.split_at_mut(len.next_multiple_of(BLOCK_BYTES));
        for (number, to) in mine.chunks_mut(most).enumerate() {
            let at = number * most;
            all.push(Piece {
                file,
                offset: at as u64,
                len: to.len().min(len - at),
                to,
            });
        }
        rest = others;
    }
    all
}

fn bytes(files: &[(File, usize)]) -> usize {
    files.iter().map(|(_, len)| len).sum()
}
