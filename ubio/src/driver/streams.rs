//! Streams on the ring thread: what belongs to one, how it begins, and how its end is told.

use std::sync::Arc;

use ubio_core::{FillErrorKind, Landing, ObjectId, Outcome, StreamId, StreamPlan};

use super::proving::Opening;
use super::{Driver, Ending, OpenStream, Origin};
use crate::error::{Error, ErrorKind, NOT_STRICT, READ_AGAIN, Result};
use crate::source::MemoryId;
use crate::source::nvme::failure::of_stream;
use crate::stats::Reason;
use crate::sys::claim::Claim;
use crate::vram::{BufferId, VramBuffer};

pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) plan: Arc<StreamPlan>,
    pub(super) objects: Vec<ObjectId>,
    pub(super) origin: Origin,
    /// The destination, as buffer the copy engine fills and, where a fill lands there without
    /// a window, as memory the source fills.
    pub(super) destination: Option<(BufferId, Option<MemoryId>)>,
    pub(super) item_bytes: Vec<u64>,
    /// Items shown to the consumer.
    pub(super) visible: u32,
    pub(super) consumed: u32,
    pub(super) strict: bool,
    pub(super) cancelled: bool,
    pub(super) claim: Option<Arc<Claim>>,
    pub(super) ending: Ending,
}

impl Stream {
    /// What the consumer is done with, of what it can have been.
    pub(super) fn consumed_by_now(&self) -> u32 {
        self.ending.0.consumed().min(self.visible)
    }

    /// Where windows are flushed to.
    pub(super) fn buffer(&self) -> BufferId {
        self.destination.expect("planned with a destination").0
    }

    /// Where fills land that need no window.
    pub(super) fn memory(&self) -> MemoryId {
        let (_buffer, memory) = self.destination.expect("planned with a destination");
        memory.expect("attached for such a plan")
    }

    /// Looks at what was read once more.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        self.origin.check_unchanged(&self.plan, self.objects.len())
    }
}

impl Driver {
    /// Gives up: every load under way, and every later one, fails with this.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for stream in &self.streams {
            stream.ending.0.finish(Err(error.clone()));
        }
        self.closing = true;
        self.parts.broken.get_or_init(|| error.clone());
    }

    /// Tells lending streams of their failure while their windows are still out.
    pub(super) fn tell_failures(&self) {
        for stream in self
            .streams
            .iter()
            .filter(|stream| stream.destination.is_none())
        {
            if !stream.ending.0.is_finished()
                && let Some(Outcome::Failed(failure)) = self.core.ending(stream.id)
            {
                stream.ending.0.finish(Err(failed(stream, &failure)));
            }
        }
    }

    pub(super) fn open(&mut self, open: OpenStream) {
        if let Some(error) = self.parts.broken.get() {
            open.ending.0.finish(Err(error.clone()));
            return;
        }
        if let Err((error, ending)) = self.try_open(open) {
            ending.0.finish(Err(error));
        }
    }

    pub(super) fn try_open(&mut self, open: OpenStream) -> Result<(), (Error, Ending)> {
        let mut objects = Vec::with_capacity(open.objects.len());
        for object in open.objects {
            match self.parts.source.add_object(object) {
                Ok(id) => objects.push(id),
                Err(error) => {
                    objects
                        .into_iter()
                        .for_each(|id| self.parts.source.remove_object(id));
                    return Err((error, open.ending));
                }
            }
        }
        let opening = Opening {
            plan: &open.plan,
            objects: &objects,
            origin: &open.origin,
            claimed: open.claim.as_ref().map_or((0, 0), |claim| claim.range()),
        };
        let proven = self.prove_windows(opening);
        let adopted = proven.and_then(|()| {
            let adopted = open.buffer.map(|buffer| self.adopt(buffer, opening));
            adopted.transpose()
        });
        let destination = match adopted {
            Ok(destination) => destination,
            Err(error) => {
                objects
                    .into_iter()
                    .for_each(|id| self.parts.source.remove_object(id));
                return Err((error, open.ending));
            }
        };
        for &reason in &open.reasons {
            *self.measured.reasons.entry(reason).or_default() += 1;
        }
        let now = self.now();
        let opened = self.core.open_stream(Arc::clone(&open.plan), now);
        let stream = |id| Stream {
            id,
            plan: open.plan,
            objects,
            origin: open.origin,
            destination,
            item_bytes: open.item_bytes,
            visible: 0,
            consumed: 0,
            strict: open.strict,
            cancelled: false,
            claim: open.claim,
            ending: open.ending,
        };
        match opened {
            Ok(id) => {
                self.streams.push(stream(id));
                Ok(())
            }
            Err(cause) => {
                let kind = if cause.is_busy() {
                    ErrorKind::Busy
                } else {
                    ErrorKind::InvalidInput
                };
                let stream = stream(StreamId(u32::MAX));
                self.let_go(&stream);
                let error = Error::new(kind, "the load cannot be started").because(cause);
                Err((error, stream.ending))
            }
        }
    }

    fn adopt(
        &mut self,
        buffer: VramBuffer,
        opening: Opening<'_>,
    ) -> Result<(BufferId, Option<MemoryId>)> {
        let id = self.parts.vram.adopt(buffer)?;
        let without_window = |landing| matches!(landing, Landing::Destination | Landing::Scatter);
        let mut fills = opening.plan.fills.iter();
        if !fills.any(|fill| fill.landings().any(without_window)) {
            return Ok((id, None));
        }
        let memory = match self.parts.vram.in_place(id) {
            // Not registered: pinning a whole destination at once would fault it in at once.
            Some(memory) => self.attach_proven(&memory, opening),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                "this destination cannot be filled by this source",
            )
            .remedy("load through windows")),
        };
        match memory {
            Ok(memory) => Ok((id, Some(memory))),
            Err(error) => {
                self.parts.vram.release(id);
                Err(error)
            }
        }
    }

    pub(super) fn let_go(&mut self, stream: &Stream) {
        for &object in &stream.objects {
            self.parts.source.remove_object(object);
        }
        if let Some((buffer, memory)) = stream.destination {
            if let Some(memory) = memory {
                self.parts.source.detach(memory);
            }
            self.parts.vram.release(buffer);
        }
    }

    pub(super) fn stream_mut(&mut self, id: StreamId) -> &mut Stream {
        self.streams
            .iter_mut()
            .find(|stream| stream.id == id)
            .expect("the core knows open streams only")
    }

    pub(super) fn stream(&self, id: StreamId) -> &Stream {
        self.streams
            .iter()
            .find(|stream| stream.id == id)
            .expect("the core knows open streams only")
    }

    pub(super) fn finish(&mut self, id: StreamId, outcome: Outcome, fallbacks: u32) {
        let index = self.streams.iter().position(|stream| stream.id == id);
        let mut stream = self
            .streams
            .swap_remove(index.expect("the core finishes open streams only"));
        self.let_go(&stream);
        // Before the holder hears of the end: the memory is free for its next load then.
        stream.claim = None;
        let outcome = match outcome {
            Outcome::Complete => {
                if stream.strict && fallbacks > 0 {
                    let what = Reason::PageCacheLost.explain();
                    Err(Error::new(ErrorKind::Fallback, what).remedy(NOT_STRICT))
                } else {
                    stream.check_unchanged()
                }
            }
            Outcome::Cancelled => Err(Error::new(ErrorKind::Cancelled, "the load was cancelled")),
            Outcome::Failed(failure) => Err(failed(&stream, &failure)),
        };
        stream.ending.0.finish(outcome);
    }
}

pub(super) fn failed(stream: &Stream, failure: &ubio_core::action::Failure) -> Error {
    let place = format!("{} bytes at offset {}", failure.len, failure.offset);
    let cause = || std::io::Error::from_raw_os_error(failure.error.code);
    if let Origin::Namespace { block_bytes, .. } = stream.origin {
        let error = match failure.error.kind {
            FillErrorKind::Overdue => overdue(failure),
            _ => of_stream(failure, block_bytes),
        };
        return stream.origin.at(failure.object.0, error);
    }
    let error = match failure.error.kind {
        FillErrorKind::Truncated => Error::new(
            ErrorKind::Truncated,
            format!("the file ended while it was read ({place})"),
        )
        .remedy("load it again when nobody writes it"),
        FillErrorKind::Device => {
            let tries = failure.tries;
            Error::new(
                ErrorKind::Device,
                format!("the device failed to read {place} ({tries} tries)"),
            )
            .because(cause())
            .remedy("check the drive (dmesg, smartctl) and copy the file anew")
        }
        FillErrorKind::Destination => Error::new(
            ErrorKind::Copy,
            format!("the destination cannot take {place}"),
        )
        .because(cause())
        .remedy("free memory or load less"),
        FillErrorKind::Overdue => overdue(failure),
        FillErrorKind::NotResident => Error::new(
            ErrorKind::Fallback,
            format!("{place} are not in the page cache"),
        )
        .remedy(NOT_STRICT),
        // Direct I/O was offered for the file, and then not given for these bytes.
        _ if failure.error.code == libc::EINVAL
            && stream.plan.fills[failure.fill as usize].route == ubio_core::Route::Direct =>
        {
            Error::os(format!("reading {place} was refused"), cause())
                .remedy("read the file through the page cache (the cached route)")
        }
        _ => Error::os(format!("reading {place} failed"), cause()).remedy(READ_AGAIN),
    };
    stream.origin.at(failure.object.0, error)
}

fn overdue(failure: &ubio_core::action::Failure) -> Error {
    let (len, offset) = (failure.len, failure.offset);
    Error::new(
        ErrorKind::Timeout,
        format!("the device did not answer in time ({len} bytes at offset {offset})"),
    )
    .remedy("check the drive (dmesg, smartctl); its memory stays in use until it answers")
}
