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
use crate::source::{FillCommand, MemoryId, Source, Target, Wait};
use crate::sys::memory::Region;
use crate::window::WindowMemory;

/// Bytes of each read.
const CANARY_BYTES: u32 = 4096;
/// What memory holds before each read. Where a byte of the data looks like the one, it does not
/// look like the other.
const PATTERNS: [u64; 2] = [0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa];
/// How long a read may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the bytes come from.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// What is read.
    pub object: ObjectId,
    /// By which route.
    pub route: Route,
    /// First byte; there are 4096 from there on.
    pub offset: u64,
}

/// Proves that reads of `subject` land in `memory`: at its start, in its middle and at its end.
/// What was there is there again afterwards.
///
/// # Errors
/// Unsupported: a read was refused, or reported success and did not land; the memory is of no
/// use to this source. Timeout: it did not come back. Others: host memory could not be had.
pub fn prove(
    source: &mut dyn Source,
    subject: Subject,
    memory: (MemoryId, &WindowMemory),
) -> Result<()> {
    let host = Arc::new(Region::anonymous(CANARY_BYTES.into(), false)?);
    let reference = source.attach(
        &WindowMemory::host(Arc::clone(&host), CANARY_BYTES.into()),
        false,
    )?;
    let wanted = read(source, subject, (reference, host.raw()), 0, PATTERNS[0]);
    source.detach(reference);
    let wanted = wanted.map_err(|error| match error {
        Missed::Failed(error) => error,
        Missed::Landing => unreachable!("nothing was compared"),
    })?;
    let (id, memory) = memory;
    let raw = memory.region().raw();
    for at in places(raw.len_bytes()) {
        let before = words(raw, at);
        let tried = PATTERNS
            .iter()
            .try_for_each(|&pattern| compare(source, subject, (id, raw), (at, pattern), &wanted));
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

/// The first, a middle and the last page: also beyond what a rounded address would find.
fn places(len_bytes: u64) -> impl Iterator<Item = u64> {
    let page = u64::from(CANARY_BYTES);
    let pages = len_bytes / page;
    let mut at = [0, (pages / 2) | 1, pages.saturating_sub(1)];
    at.sort_unstable();
    let mut last = None;
    at.into_iter()
        .filter(move |&at| at < pages && last.replace(at) != Some(at))
        .map(move |at| at * page)
}

fn words(raw: RawMemory, at: u64) -> Vec<u64> {
    let count = u64::from(CANARY_BYTES / 8);
    (0..count).map(|index| raw.read(at + index * 8)).collect()
}

fn compare(
    source: &mut dyn Source,
    subject: Subject,
    memory: (MemoryId, RawMemory),
    (at, pattern): (u64, u64),
    wanted: &[u64],
) -> Result<(), Missed> {
    let found = read(source, subject, memory, at, pattern)?;
    if found == wanted {
        Ok(())
    } else {
        Err(Missed::Landing)
    }
}

/// Reads over a pattern, and gives what is there then.
fn read(
    source: &mut dyn Source,
    subject: Subject,
    (memory, raw): (MemoryId, RawMemory),
    at: u64,
    pattern: u64,
) -> Result<Vec<u64>, Missed> {
    for index in 0..u64::from(CANARY_BYTES / 8) {
        raw.write(at + index * 8, pattern);
    }
    // A store to a device's memory is there when a load of it has come back.
    let _there: u64 = raw.read(at);
    let token = Token(u64::MAX);
    let command = FillCommand {
        token,
        object: subject.object,
        offset: subject.offset,
        len: CANARY_BYTES,
        route: subject.route,
        target: Target::Memory { memory, offset: at },
    };
    // SAFETY: nobody uses the memory yet, and it is looked at after the completion only.
    let busy = unsafe { source.submit(command) }.is_err();
    if busy {
        let what = "the source takes no command although it has none";
        return Err(Missed::Failed(Error::new(ErrorKind::Busy, what)));
    }
    let start = Instant::now();
    let mut completions = Vec::new();
    while source.in_flight() > 0 || completions.is_empty() {
        if start.elapsed() > PATIENCE {
            let what = "the drive did not answer the first read in 10 s";
            return Err(Missed::Failed(
                Error::new(ErrorKind::Timeout, what).remedy("check the drive (dmesg, smartctl)"),
            ));
        }
        let waker = source.waker();
        waker.about_to_sleep();
        let polled = source.poll(Wait::AtMost(Duration::from_millis(50)), &mut completions);
        waker.awake();
        polled.map_err(Missed::Failed)?;
    }
    match completions[0].result {
        Ok(CANARY_BYTES) => Ok(words(raw, at)),
        Ok(bytes) => {
            let what = format!("the first read brought {bytes} bytes of {CANARY_BYTES}");
            Err(Missed::Failed(Error::new(ErrorKind::Truncated, what)))
        }
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
    fn places_are_distinct_pages() {
        let of = |len| places(len).collect::<Vec<_>>();
        assert!(of(4095).is_empty());
        assert_eq!(of(4096), [0]);
        assert_eq!(of(8192), [0, 4096]);
        assert_eq!(of(3 * 4096 + 5), [0, 4096, 8192]);
        assert_eq!(of(1 << 20), [0, 129 * 4096, 255 * 4096]);
    }
}
