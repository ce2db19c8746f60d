//! What of a file is in the page cache: asked of the kernel, or where it does not say, found
//! out from samples.
//!
//! unsafe: calls `cachestat`, which rustix does not wrap.
#![expect(unsafe_code, reason = "a raw system call that has no safe wrapper")]

use std::cell::{Cell, OnceCell};
use std::hash::{BuildHasher, RandomState};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::ReadWriteFlags;

use crate::sys::memory::PAGE_BYTES;

/// How many bytes of a range are in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// None.
    Cold,
    /// All, or more than all (a rounded range).
    Hot,
    /// Some.
    Mixed,
    /// The kernel does not say (not one's own file, an old kernel, overlay).
    Unknown,
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// `cachestat` (Linux 6.5), the same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;
const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// Asks the page cache about `len_bytes` from `offset`.
pub fn residency(file: &impl AsFd, offset: u64, len_bytes: u64) -> Residency {
    if len_bytes == 0 {
        return Residency::Hot;
    }
    let first = offset / PAGE_BYTES;
    let last = (offset + len_bytes - 1) / PAGE_BYTES;
    let pages = last - first + 1;
    let mut range = CachestatRange {
        offset: first * PAGE_BYTES,
        len: pages * PAGE_BYTES,
    };
    let mut stat = Cachestat::default();
    // SAFETY: both structs are the kernel's (include/uapi/linux/mman.h) and outlive the call.
    let answer = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            &raw mut range,
            &raw mut stat,
            0,
        )
    };
    if answer != 0 {
        return Residency::Unknown;
    }
    match stat.cached {
        // Overlay has no pages of its own: its zero says nothing of the layer below.
        0 if on_overlay(file) => Residency::Unknown,
        0 => Residency::Cold,
        cached if cached >= pages => Residency::Hot,
        _ => Residency::Mixed,
    }
}

fn on_overlay(file: &impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type == OVERLAYFS_MAGIC)
}

/// Most bytes that the kernel is asked about at once, ahead of what is needed.
const AHEAD_BYTES: u64 = 64 << 20;

/// What is known of one file's pages while a plan is made: asked for long stretches, which
/// mostly are all hot or all cold.
#[derive(Debug)]
pub(crate) struct Known {
    /// One past the last byte that will be asked about.
    end: u64,
    /// The stretch asked about last.
    ahead: Cell<(u64, u64, Residency)>,
    samples: Samples,
}

impl Known {
    /// Of a file whose bytes before `end` will be asked about.
    pub(crate) fn new(end: u64) -> Self {
        Self {
            end,
            ahead: Cell::new((0, 0, Residency::Unknown)),
            samples: Samples::default(),
        }
    }

    /// What of a range is in the page cache; a guess where the kernel does not say and
    /// `guess` allows it. Asked in the order in which the ranges are read.
    pub(crate) fn residency(&self, file: &impl AsFd, range: Range<u64>, guess: bool) -> Residency {
        match self.told(range.clone(), |asked| {
            residency(file, asked.start, asked.end - asked.start)
        }) {
            Residency::Unknown if guess => {
                self.samples
                    .residency(file, range.start, range.end - range.start)
            }
            told => told,
        }
    }

    /// What `ask` tells of a range, or told of one around it.
    fn told(&self, range: Range<u64>, ask: impl Fn(Range<u64>) -> Residency) -> Residency {
        let (from, to, _) = self.ahead.get();
        if range.start < from || range.end > to {
            // Those who jump will hardly need what lies behind the range.
            let goes_on = range.start == to || to == 0;
            let most = if goes_on { AHEAD_BYTES } else { 0 };
            let to = self.end.min(range.start + most).max(range.end);
            self.ahead.set((range.start, to, ask(range.start..to)));
        }
        let (from, to, told) = self.ahead.get();
        if told == Residency::Mixed && (from, to) != (range.start, range.end) {
            ask(range)
        } else {
            told
        }
    }
}

/// Pages looked at in a range.
const RANGE_SAMPLES: u64 = 4;
/// After so many cold ranges in a row only every so manieth is looked at: a look at a page that
/// is not there reads it.
const PATIENCE: u32 = 16;
const SELDOM: u32 = 16;

/// One file of which the kernel does not say what is in the page cache, and a guess from
/// pages drawn at random. To look is to read what is there already; a page that is not gets
/// read alone.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// The file opened anew: its readahead is turned off, which others should not feel. `None`
    /// if it cannot be looked at.
    file: OnceCell<Option<OwnedFd>>,
    /// Cold ranges in a row.
    cold: Cell<u32>,
}

impl Samples {
    /// Hot or cold, of a range of `file`. Asked in the order in which the ranges are read.
    pub(crate) fn residency(&self, file: &impl AsFd, offset: u64, len_bytes: u64) -> Residency {
        let cold = self.cold.get();
        let look = cold < PATIENCE || cold.is_multiple_of(SELDOM);
        let file = self.file.get_or_init(|| without_readahead(file));
        let all_there = look
            && file.as_ref().is_some_and(|file| {
                (0..RANGE_SAMPLES).all(|draw| is_there(file, draw, offset, len_bytes))
            });
        if all_there {
            self.cold.set(0);
            return Residency::Hot;
        }
        self.cold.set(cold.saturating_add(1));
        Residency::Cold
    }
}

fn without_readahead(file: &impl AsFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let own = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    rustix::fs::fadvise(&own, 0, None, Advice::Random).ok()?;
    Some(own)
}

/// Whether one page of a range, drawn at random, is in the page cache. Drawn anew by every
/// process: pages that a look brought in must not be the next one's.
fn is_there(file: &OwnedFd, draw: u64, offset: u64, len_bytes: u64) -> bool {
    let place = offset + RandomState::new().hash_one(draw) % len_bytes.max(1);
    let mut byte = [0];
    let read = rustix::io::preadv2(
        file,
        &mut [IoSliceMut::new(&mut byte)],
        place,
        ReadWriteFlags::NOWAIT,
    );
    read == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system with a page cache of its own and direct I/O (not tmpfs).
    fn file() -> Option<tempfile::NamedTempFile> {
        let bytes = 8 << 20;
        let file = tempfile::NamedTempFile::new_in("/var/tmp").ok()?;
        std::fs::write(file.path(), vec![7; bytes]).ok()?;
        file.as_file().sync_all().ok()?;
        Some(file)
    }

    /// What ranges of a file of 200 MiB, hot from 100 MiB on, are said to be, and which ranges
    /// were asked about; start and end in MiB.
    fn told(ranges: &[(u64, u64)]) -> (Vec<Residency>, Vec<(u64, u64)>) {
        let asked = std::cell::RefCell::new(Vec::new());
        let known = Known::new(200 << 20);
        let ask = |range: Range<u64>| {
            let (start, end) = (range.start >> 20, range.end >> 20);
            asked.borrow_mut().push((start, end));
            match (start >= 100, end > 100) {
                (true, _) => Residency::Hot,
                (false, true) => Residency::Mixed,
                (false, false) => Residency::Cold,
            }
        };
        let told = ranges
            .iter()
            .map(|(start, end)| known.told(start << 20..end << 20, ask))
            .collect();
        (told, asked.into_inner())
    }

    #[test]
    fn long_stretches_are_asked_about_once() {
        use Residency::{Cold, Hot};
        let windows: Vec<_> = (0..64).map(|start| (start, start + 1)).collect();
        assert_eq!(told(&windows), (vec![Cold; 64], vec![(0, 64)]));
        // The second stretch is mixed: each part of it is asked about.
        let (are, asked) = told(&[
            (0, 1),
            (64, 65),
            (99, 100),
            (100, 101),
            (128, 129),
            (199, 200),
        ]);
        assert_eq!(are, [Cold, Cold, Cold, Hot, Hot, Hot]);
        let parts = [
            (0, 64),
            (64, 128),
            (64, 65),
            (99, 100),
            (100, 101),
            (128, 192),
            (199, 200),
        ];
        assert_eq!(asked, parts);
        // Nothing beyond the last range is asked about, and nothing behind a jump.
        assert_eq!(told(&[(150, 151)]).1, [(150, 200)]);
        let (are, asked) = told(&[(0, 1), (150, 151), (70, 71), (71, 72)]);
        assert_eq!(are, [Cold, Hot, Cold, Cold]);
        let parts = [(0, 64), (150, 151), (70, 71), (71, 135), (71, 72)];
        assert_eq!(asked, parts);
    }

    #[test]
    fn samples_tell_hot_from_cold() {
        let Some(file) = file() else {
            println!("skipped: /var/tmp cannot be written");
            return;
        };
        let look = || Samples::default().residency(file.as_file(), 1 << 20, 1 << 20);
        // As the kernel sees it, where it says: some file systems keep what they are told to drop.
        let told = || residency(file.as_file(), 1 << 20, 1 << 20);
        if told() == Residency::Unknown {
            println!("skipped: the kernel does not say what of /var/tmp is in the page cache");
            return;
        }
        if told() == Residency::Hot {
            assert_eq!(look(), Residency::Hot);
        }
        rustix::fs::fadvise(file.as_file(), 0, None, Advice::DontNeed).expect("fadvise");
        if told() == Residency::Cold {
            assert_eq!(look(), Residency::Cold);
            let mostly = |residency| matches!(residency, Residency::Cold | Residency::Mixed);
            assert!(mostly(told()), "looking brought the range in");
        }
    }
}
