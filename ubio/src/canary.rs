//! Proof that what a source says it brought has arrived. DMA between devices can report success
//! while no byte lands (an IOMMU or a switch in between, a wrong address): before a pair of
//! source and memory is used, a few pages are read through it, twice, over patterns of which at
//! most one can look like the data, and compared with what host memory gets. Nothing is ever
//! written to the source.
//!
//! unsafe: submits reads into memory that nobody uses yet.
#![expect(unsafe_code, reason = "submits reads into memory that nobody uses yet")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme::memory::{RawMemory, TargetMemory};
use ubio_core::{ObjectId, Route, Token};

use crate::error::{Error, ErrorKind, Result};
use crate::source::{Completion, FillCommand, MemoryId, Source, Target, Wait};
use crate::sys::memory::Region;
use crate::window::WindowMemory;

/// Most bytes of each read. A controller may take a page in memory that it refuses in longer
/// commands (its own memory buffer), so reads are as long as those to come, within reason.
const MOST_BYTES: u32 = 128 << 10;
const PAGE: u64 = crate::sys::memory::PAGE_BYTES;
/// What memory holds before each read. Where a byte of the data looks like the one, it does not
/// look like the other.
const PATTERNS: [u64; 2] = [0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa];
/// Of our commands; the core gives it to none.
const TOKEN: Token = Token(u64::MAX);
/// How long a read may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the bytes come from.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// What is read.
    pub object: ObjectId,
    /// By which route.
    pub route: Route,
    /// First byte.
    pub offset: u64,
    /// Bytes that are to be read from there on, whole pages.
    pub len: u32,
}

/// Who reads, and where completions go that are none of ours.
#[derive(Debug)]
pub struct Prober<'a, S: Source + ?Sized> {
    /// The source; others' commands may be in flight.
    pub source: &'a mut S,
    /// What else comes back meanwhile.
    pub others: &'a mut Vec<Completion>,
}

/// Proves that reads of `subject` land in `memory`: at its start, in its middle and at its end.
/// What was there is there again afterwards.
///
/// # Errors
/// Unsupported: a read was refused, or reported success and did not land; the memory is of no
/// use to this source. Timeout: it did not come back. Others: host memory could not be had.
pub fn prove<S: Source + ?Sized>(
    prober: &mut Prober<'_, S>,
    subject: Subject,
    memory: (MemoryId, &WindowMemory),
) -> Result<()> {
    let most = prober.source.limits().command_bytes.min(MOST_BYTES);
    let fits = u32::try_from(memory.1.region().len_bytes() / PAGE * PAGE).unwrap_or(u32::MAX);
    let subject = Subject {
        len: subject.len.min(most).min(fits),
        ..subject
    };
    let len = u64::from(subject.len);
    if len == 0 {
        let what = "memory of less than a page cannot be proven";
        return Err(Error::new(ErrorKind::Unsupported, what).remedy("take more of it"));
    }
    let host = Arc::new(Region::anonymous(len, false)?);
    let windows = WindowMemory::host(Arc::clone(&host), len);
    let reference = prober.source.attach(&windows, false)?;
    let wanted = read(prober, subject, (reference, host.raw()), 0, PATTERNS[0]);
    prober.source.detach(reference);
    let wanted = wanted.map_err(|error| match error {
        Missed::Failed(error) => error,
        Missed::Landing => unreachable!("nothing was compared"),
    })?;
    let (id, memory) = memory;
    let raw = memory.region().raw();
    for at in places(raw.len_bytes(), len) {
        let before = words(raw, at, len);
        let tried = PATTERNS
            .iter()
            .try_for_each(|&pattern| compare(prober, subject, (id, raw), (at, pattern), &wanted));
        if !matches!(&tried, Err(Missed::Failed(error)) if error.kind() == ErrorKind::Timeout) {
            before
                .iter()
                .zip(0..)
                .for_each(|(&word, index)| raw.write(at + index * 8, word));
        }
        tried.map_err(|missed| missed.words(memory, at))?;
    }
    Ok(())
}

/// What a read brought.
struct Found {
    words: Vec<u64>,
    /// Of the words, from the first on: fewer than were asked for where the object ends.
    bytes: u32,
}

impl Found {
    fn same_as(&self, other: &Self) -> bool {
        let bytes = |found: &Self| -> Vec<u8> {
            let all = found.words.iter().flat_map(|word| word.to_ne_bytes());
            all.take(found.bytes as usize).collect()
        };
        bytes(self) == bytes(other)
    }
}

/// How a read went wrong.
enum Missed {
    /// It failed.
    Failed(Error),
    /// It did not, and its bytes are not there.
    Landing,
}

impl Missed {
    fn words(self, memory: &WindowMemory, at: u64) -> Error {
        let kind = memory.kind().name();
        match self {
            Self::Failed(error) => error,
            Self::Landing => Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the drive reported success, and its bytes did not arrive at offset {at} of \
                     {kind} memory"
                ),
            )
            .remedy(
                "put drive and memory behind one PCIe switch with ACS redirection off, or turn \
                 the IOMMU off or to passthrough; until then use windows in host memory",
            ),
        }
    }
}

/// The start, a page in the middle and the end: also where a rounded address would not lead.
fn places(has: u64, len: u64) -> impl Iterator<Item = u64> {
    let last = (has - len) / PAGE;
    let mut at = [0, ((last / 2) | 1).min(last), last];
    at.sort_unstable();
    let mut before = None;
    at.into_iter()
        .filter(move |&at| before.replace(at) != Some(at))
        .map(|at| at * PAGE)
}

fn words(raw: RawMemory, at: u64, len: u64) -> Vec<u64> {
    (0..len / 8).map(|index| raw.read(at + index * 8)).collect()
}

fn compare<S: Source + ?Sized>(
    prober: &mut Prober<'_, S>,
    subject: Subject,
    memory: (MemoryId, RawMemory),
    (at, pattern): (u64, u64),
    wanted: &Found,
) -> Result<(), Missed> {
    let found = read(prober, subject, memory, at, pattern)?;
    if found.same_as(wanted) {
        Ok(())
    } else {
        Err(Missed::Landing)
    }
}

/// Reads over a pattern, and gives what is there then.
fn read<S: Source + ?Sized>(
    prober: &mut Prober<'_, S>,
    subject: Subject,
    (memory, raw): (MemoryId, RawMemory),
    at: u64,
    pattern: u64,
) -> Result<Found, Missed> {
    let len = u64::from(subject.len);
    (0..len / 8).for_each(|index| raw.write(at + index * 8, pattern));
    // A store to a device's memory is there when a load of it has come back.
    let _there: u64 = raw.read(at);
    let command = FillCommand {
        token: TOKEN,
        object: subject.object,
        offset: subject.offset,
        len: subject.len,
        route: subject.route,
        target: Target::Memory { memory, offset: at },
    };
    // SAFETY: nobody uses the memory yet, and it is looked at after the completion only.
    let busy = unsafe { prober.source.submit(command) }.is_err();
    if busy {
        let what = "the source is full";
        return Err(Missed::Failed(Error::new(ErrorKind::Busy, what)));
    }
    let start = Instant::now();
    let ended = loop {
        let waker = prober.source.waker();
        waker.about_to_sleep();
        let wait = Wait::AtMost(Duration::from_millis(50));
        let polled = prober.source.poll(wait, prober.others);
        waker.awake();
        polled.map_err(Missed::Failed)?;
        let ours = prober.others.iter().position(|end| end.token == TOKEN);
        if let Some(ours) = ours {
            break prober.others.remove(ours);
        }
        if start.elapsed() > PATIENCE {
            let what = "the drive did not answer the first read in 10 s";
            return Err(Missed::Failed(
                Error::new(ErrorKind::Timeout, what).remedy("check the drive (dmesg, smartctl)"),
            ));
        }
    };
    match ended.result {
        Ok(0) => {
            let what = "the first read brought nothing";
            Err(Missed::Failed(Error::new(ErrorKind::Truncated, what)))
        }
        Ok(bytes) => Ok(Found {
            words: words(raw, at, len),
            bytes,
        }),
        Err(error) => {
            let what = "the drive refused to read into this memory";
            Err(Missed::Failed(
                Error::new(ErrorKind::Unsupported, what)
                    .because(crate::source::nvme::failure::cause(error.code))
                    .remedy("use windows in host memory for this drive"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_distinct_pages_inside() {
        let of = |has, len| places(has, len).collect::<Vec<_>>();
        assert_eq!(of(4096, 4096), [0]);
        assert_eq!(of(8192, 8192), [0]);
        assert_eq!(of(8192, 4096), [0, 4096]);
        assert_eq!(of(3 * 4096 + 5, 4096), [0, 4096, 8192]);
        assert_eq!(of(1 << 20, 4096), [0, 127 * 4096, 255 * 4096]);
        assert_eq!(of(1 << 20, 128 << 10), [0, 113 * 4096, 224 * 4096]);
    }
}
