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
use ubio_core::{FillError, FillErrorKind, ObjectId, Route, Token};

use crate::error::{Error, ErrorKind, Result};
use crate::source::nvme::failure;
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
/// Tries of a read that fails for reasons that pass.
const TRIES: u32 = 3;

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
    /// Reads made so far, ever: each has a token of its own, so that a late end is nobody's.
    pub reads: &'a mut u64,
    /// How long a read may take.
    pub patience: Duration,
}

/// Why memory is not to be used.
#[derive(Debug)]
pub struct Unproven {
    /// The words.
    pub error: Error,
    /// A read has not come back: it may still write the memory.
    pub in_flight: bool,
}

impl From<Error> for Unproven {
    fn from(error: Error) -> Self {
        Self {
            error,
            in_flight: false,
        }
    }
}

/// Proves that reads of `subject` land in `len_bytes` of memory from `offset` on, which nobody
/// uses: at the start, in the middle and at the end. What was there is there again afterwards.
///
/// # Errors
/// Unsupported: a read was refused, or reported success and did not land; the memory is of no
/// use to this source. Device: it cannot be read into host memory either. Timeout: it did not
/// come back. Others: host memory could not be had.
pub fn prove<S: Source + ?Sized>(
    prober: &mut Prober<'_, S>,
    subject: Subject,
    memory: (MemoryId, &WindowMemory),
    (offset, len_bytes): (u64, u64),
) -> Result<(), Unproven> {
    let most = prober.source.limits().command_bytes.min(MOST_BYTES);
    let fits = u32::try_from(len_bytes / PAGE * PAGE).unwrap_or(u32::MAX);
    let subject = Subject {
        len: subject.len.min(most).min(fits),
        ..subject
    };
    let len = u64::from(subject.len);
    if len == 0 {
        let what = "memory of less than a page cannot be proven";
        return Err(Error::new(ErrorKind::Unsupported, what)
            .remedy("take more of it")
            .into());
    }
    let wanted = prober.reference(subject)?;
    let (id, memory) = memory;
    let raw = memory.region().raw();
    for at in places(len_bytes, len).map(|place| offset + place) {
        let before = words(raw, at, len);
        let tried = PATTERNS.iter().try_for_each(|&pattern| {
            let found = prober.read(subject, (id, raw), at, pattern)?;
            match found.same_as(&wanted) {
                true => Ok(()),
                false => Err(Missed::Landing),
            }
        });
        if !matches!(&tried, Err(Missed::Lost(_))) {
            let words = before.iter().zip(0..);
            words.for_each(|(&word, index)| raw.write(at + index * 8, word));
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
    /// It was refused or failed, for this cause.
    Failed(i32),
    /// It did not fail, and its bytes are not there.
    Landing,
    /// It did not come back, or the source broke.
    Lost(Error),
    /// The source had no room for it in time.
    NotTaken(Error),
}

impl Missed {
    fn words(self, memory: &WindowMemory, at: u64) -> Unproven {
        let kind = memory.kind().name();
        match self {
            Self::Lost(error) => Unproven {
                error,
                in_flight: true,
            },
            Self::NotTaken(error) => error.into(),
            Self::Failed(code) => {
                let what = format!("the drive refused to read into {kind} memory");
                Error::new(ErrorKind::Unsupported, what)
                    .because(failure::cause(code))
                    .remedy("use windows in host memory for this drive")
                    .into()
            }
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
            )
            .into(),
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

impl<S: Source + ?Sized> Prober<'_, S> {
    /// What host memory gets.
    fn reference(&mut self, subject: Subject) -> Result<Found, Unproven> {
        let len = u64::from(subject.len);
        let host = Arc::new(Region::anonymous(len, false)?);
        let windows = WindowMemory::host(Arc::clone(&host), len);
        let id = self.source.attach(&windows, false)?;
        let found = self.read(subject, (id, host.raw()), 0, PATTERNS[0]);
        if !matches!(&found, Err(Missed::Lost(_))) {
            self.source.detach(id);
        }
        found.map_err(|missed| match missed {
            Missed::Failed(code) => {
                let what = "the bytes that were to prove the memory cannot be read";
                Error::new(ErrorKind::Device, what)
                    .because(failure::cause(code))
                    .remedy("check the drive (dmesg, smartctl); other blocks may be readable")
                    .into()
            }
            other => other.words(&windows, 0),
        })
    }

    /// Reads over a pattern, and gives what is there then.
    fn read(
        &mut self,
        subject: Subject,
        (memory, raw): (MemoryId, RawMemory),
        at: u64,
        pattern: u64,
    ) -> Result<Found, Missed> {
        let len = u64::from(subject.len);
        (0..len / 8).for_each(|index| raw.write(at + index * 8, pattern));
        // A store to a device's memory is there when a load of it has come back.
        let _there: u64 = raw.read(at);
        let mut tries = 0;
        loop {
            tries += 1;
            let target = Target::Memory { memory, offset: at };
            match self.command(subject, target)? {
                Ok(0) => return Err(Missed::Failed(libc::ENODATA)),
                Ok(bytes) => {
                    let words = words(raw, at, len);
                    return Ok(Found { words, bytes });
                }
                Err(FillError {
                    kind: FillErrorKind::Transient { delay },
                    ..
                }) if tries < TRIES => {
                    std::thread::sleep(Duration::from_nanos(delay.0).min(self.patience));
                }
                Err(error) => return Err(Missed::Failed(error.code)),
            }
        }
    }

    /// One command, to its end.
    fn command(
        &mut self,
        subject: Subject,
        target: Target,
    ) -> Result<std::result::Result<u32, FillError>, Missed> {
        *self.reads += 1;
        // The core gives such tokens to nobody.
        let token = Token(u64::MAX - *self.reads);
        let mut command = Some(FillCommand {
            token,
            object: subject.object,
            offset: subject.offset,
            len: subject.len,
            route: subject.route,
            target,
        });
        let start = Instant::now();
        loop {
            if let Some(full) = command.take() {
                // SAFETY: nobody uses the memory yet, and it is looked at after the completion
                // only.
                command = unsafe { self.source.submit(full) }.err();
            }
            let waker = self.source.waker();
            waker.about_to_sleep();
            let wait = Wait::AtMost(Duration::from_millis(50));
            let polled = self.source.poll(wait, self.others);
            waker.awake();
            polled.map_err(Missed::Lost)?;
            let ours = self.others.iter().position(|end| end.token == token);
            if let Some(ours) = ours {
                return Ok(self.others.remove(ours).result);
            }
            if start.elapsed() > self.patience {
                let what = "the drive did not answer the first read in time";
                let error = Error::new(ErrorKind::Timeout, what)
                    .remedy("check the drive (dmesg, smartctl)");
                return Err(match command {
                    Some(_) => Missed::NotTaken(error),
                    None => Missed::Lost(error),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ubio_core::Nanos;

    use super::*;
    use crate::source::{Object, SourceLimits, Waker};
    use crate::stats::Reason;

    /// A source that answers as it was told, and notes where it wrote.
    struct Answers {
        script: Vec<std::result::Result<(), FillError>>,
        /// Commands it refuses to take first.
        full: u32,
        targets: Vec<(u64, u32)>,
        memories: Vec<Option<Arc<Region>>>,
        ended: Vec<Completion>,
        waker: Waker,
    }

    impl Answers {
        fn new(script: Vec<std::result::Result<(), FillError>>) -> Self {
            Self {
                script,
                full: 0,
                targets: Vec::new(),
                memories: Vec::new(),
                ended: Vec::new(),
                waker: Waker::new().expect("an eventfd"),
            }
        }
    }

    impl Source for Answers {
        fn limits(&self) -> SourceLimits {
            SourceLimits {
                alignment: 4096,
                command_bytes: 8192,
                depth: 4,
            }
        }

        fn add_object(&mut self, _: Object) -> Result<ObjectId> {
            Ok(ObjectId(0))
        }

        fn remove_object(&mut self, _: ObjectId) {}

        fn drive(&self, _: ObjectId) -> u64 {
            0
        }

        fn attach(&mut self, memory: &WindowMemory, _: bool) -> Result<MemoryId> {
            self.memories.push(Some(Arc::clone(memory.region())));
            Ok(MemoryId(
                u32::try_from(self.memories.len() - 1).expect("few"),
            ))
        }

        fn detach(&mut self, memory: MemoryId) {
            self.memories[memory.0 as usize] = None;
        }

        unsafe fn submit(&mut self, command: FillCommand) -> Result<(), FillCommand> {
            if self.full > 0 {
                self.full -= 1;
                return Err(command);
            }
            let Target::Memory { memory, offset } = command.target else {
                unreachable!("canaries are single runs");
            };
            let result = self.script.pop().unwrap_or(Ok(()));
            if result.is_ok() {
                let region = self.memories[memory.0 as usize].as_ref().expect("attached");
                for index in 0..u64::from(command.len / 8) {
                    region.raw().write(offset + index * 8, index);
                }
            }
            self.targets.push((offset, command.len));
            self.ended.push(Completion {
                token: command.token,
                result: result.map(|()| command.len),
            });
            Ok(())
        }

        fn poll(&mut self, _: Wait, completions: &mut Vec<Completion>) -> Result<()> {
            completions.append(&mut self.ended);
            Ok(())
        }

        fn in_flight(&self) -> usize {
            self.ended.len()
        }

        fn device_in_flight(&self) -> usize {
            0
        }

        fn take_fallbacks(&mut self) -> Vec<Reason> {
            Vec::new()
        }

        fn waker(&self) -> Waker {
            self.waker.clone()
        }
    }

    const SUBJECT: Subject = Subject {
        object: ObjectId(0),
        route: Route::Direct,
        offset: 0,
        len: 1 << 20,
    };

    /// Proves a range of a megabyte that holds ones.
    fn proven(source: &mut Answers, range: (u64, u64)) -> Result<(), Unproven> {
        let region = Arc::new(Region::anonymous(1 << 20, false).expect("memory"));
        (0..1 << 17).for_each(|index| region.raw().write(index * 8, u64::MAX));
        let windows = WindowMemory::host(Arc::clone(&region), 4096);
        let id = source.attach(&windows, false).expect("room");
        let mut prober = Prober {
            source,
            others: &mut Vec::new(),
            reads: &mut 0,
            patience: Duration::from_millis(200),
        };
        let proven = prove(&mut prober, SUBJECT, (id, &windows), range);
        if !matches!(&proven, Err(unproven) if unproven.in_flight) {
            let all = words(region.raw(), 0, 1 << 20);
            assert!(all.iter().all(|&word| word == u64::MAX), "not as before");
        }
        proven
    }

    #[test]
    fn only_the_range_is_written_and_is_as_before() {
        let mut source = Answers::new(Vec::new());
        proven(&mut source, (64 << 10, 40 << 10)).expect("it lands");
        // The first is the host's.
        for &(offset, len) in &source.targets[1..] {
            let end = offset + u64::from(len);
            assert!(offset >= 64 << 10 && end <= 104 << 10, "{offset}+{len}");
        }
        assert_eq!(source.targets.len(), 7);
    }

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_told_apart() {
        let error = |kind, code| Err(FillError { kind, code });
        let busy = error(FillErrorKind::Transient { delay: Nanos(0) }, libc::EAGAIN);
        let bad = error(FillErrorKind::Device, -0x281);
        let mut source = Answers::new(vec![busy, busy]);
        source.full = 3;
        proven(&mut source, (0, 1 << 20)).expect("the third try");
        // Into host memory too: the drive's fault, not the memory's.
        let unproven = proven(&mut Answers::new(vec![bad]), (0, 1 << 20)).expect_err("bad");
        assert_eq!(unproven.error.kind(), ErrorKind::Device);
        let text = unproven.error.to_string();
        assert!(text.contains("Unrecovered Read Error"), "{text}");
        // Only into the memory in question.
        let unproven = proven(&mut Answers::new(vec![bad, Ok(())]), (0, 1 << 20));
        let unproven = unproven.expect_err("refused");
        assert_eq!(unproven.error.kind(), ErrorKind::Unsupported);
        assert!(!unproven.in_flight);
    }

    #[test]
    fn what_was_never_taken_is_not_in_flight() {
        let mut source = Answers::new(Vec::new());
        source.full = u32::MAX;
        let unproven = proven(&mut source, (0, 1 << 20)).expect_err("no room");
        assert_eq!(unproven.error.kind(), ErrorKind::Timeout);
        assert!(!unproven.in_flight);
        let attached = source.memories.iter().flatten().count();
        assert_eq!(attached, 1, "the reference is attached still");
    }

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
