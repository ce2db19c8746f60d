//! Byte ranges as they are, into memory of any kind: of the namespace that an engine was opened
//! for, or of a file.
//!
//! unsafe: looks at memory that is final.
#![expect(unsafe_code, reason = "a finished load is no longer written")]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use fs_adapter::FileIndex;
use ubio_core::{Landing, StreamPlan};

use crate::driver::{Control, OpenStream, Origin};
use crate::engine::{Destination, Engine, Routes};
use crate::error::{Error, ErrorKind, Result};
use crate::load::{Shared, Watch};
use crate::plan::{ALIGNMENT, FileWay, RoutePolicy, Run, Shape, fills};
use crate::prepare::direct_reasons;
use crate::range::Opened;
use crate::source::Object;
use crate::source::file::probe::DirectIo;
use crate::source::file::residency::Residency;
use crate::stats::Reason;
use crate::sys::claim::Claim;
use crate::tables;
use crate::vram::VramBuffer;
use crate::vram::host::allocate;

/// What a load counts as one item, bytes: how finely its progress is told.
const ITEM_BYTES: u64 = 16 << 20;

/// A range, and where it goes.
#[derive(Clone, Debug, Default)]
pub struct RawRequest {
    /// First byte; anywhere, also inside of a block.
    pub offset: u64,
    /// Bytes; as many as one likes.
    pub len_bytes: u64,
    /// The memory; at least as long as the range.
    pub destination: Destination,
    /// Whether the device writes the destination itself instead of windows: `offset` and the
    /// destination's address are multiples of 4 KiB then, and the destination's length is
    /// that of the range rounded up to it. What follows the range in its last page is
    /// whatever the device's block has there.
    pub in_place: bool,
    /// Whether anything less than the best way is an error.
    pub strict: bool,
}

/// What is read, as the engine's tables know it.
struct Subject {
    object: Object,
    origin: Origin,
    way: FileWay,
    /// Bytes there are.
    len_bytes: u64,
    reasons: Vec<Reason>,
}

impl Engine {
    /// Starts reading a range of the namespace that the engine was opened for.
    ///
    /// # Errors
    /// InvalidInput (a range that is not there, memory that does not fit, an engine that
    /// reads files), NoSpace (no memory), Busy (the memory is in use), Fallback (strict). Read
    /// errors come through the handle.
    pub fn read_raw(&self, request: RawRequest) -> Result<RawLoad> {
        let Some(info) = self.explain().namespace() else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "this engine reads files, and no namespace",
            )
            .remedy("open one with Builder::nvme"));
        };
        let subject = Subject {
            object: Object::Namespace {
                offset: 0,
                len_bytes: info.len_bytes,
            },
            origin: Origin::Namespace {
                name: info.name.clone(),
                block_bytes: info.block_bytes,
            },
            way: FileWay::Namespace(info.route),
            len_bytes: info.len_bytes,
            reasons: Vec::new(),
        };
        self.start_raw(subject, request)
            .map_err(|error| error.or_at(&info.name))
    }

    /// Starts reading a range of a file, direct where it can be, into memory of any kind.
    ///
    /// # Errors
    /// As [`read_raw`](Self::read_raw).
    ///
    /// # Panics
    /// If `file` is of another model.
    pub fn read_raw_file(
        &self,
        opened: &Opened,
        file: FileIndex,
        request: RawRequest,
    ) -> Result<RawLoad> {
        let probed = opened.probed(file);
        let model = opened.model();
        let at = model.file(file);
        let subject = Subject {
            object: Object::File(probed.object.clone()),
            origin: Origin::Files {
                model: Arc::clone(model),
                first: file.0,
            },
            way: match probed.direct_io {
                DirectIo::Aligned(_) => FileWay::DirectOrWait,
                DirectIo::InMemory | DirectIo::Refused(_) => FileWay::Buffered,
            },
            len_bytes: at.len_bytes(),
            reasons: direct_reasons(std::slice::from_ref(probed), Routes::Direct),
        };
        self.start_raw(subject, request)
            .map_err(|error| error.or_at(at.path()))
    }

    fn start_raw(&self, subject: Subject, request: RawRequest) -> Result<RawLoad> {
        self.check_process()?;
        let (offset, len) = (request.offset, request.len_bytes);
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > subject.len_bytes) {
            let what = format!("{len} bytes at offset {offset} of {}", subject.len_bytes);
            return Err(Error::new(ErrorKind::InvalidInput, what)
                .remedy("ask for what there is (offset=, len=)"));
        }
        if request.strict {
            self.refuse_fallbacks(&subject.reasons)?;
        }
        let buffer = match request.destination {
            Destination::Host => VramBuffer::Host(allocate(len.max(1))?),
            Destination::Buffer(buffer) => buffer,
        };
        // A device writes whole pages: what follows in the last one is the load's too.
        let written = match request.in_place {
            true => len.next_multiple_of(ALIGNMENT),
            false => len,
        };
        check(&buffer, offset, written, request.in_place)?;
        let shared = Shared::new(self.waker().clone());
        let claim = Claim::take(buffer.region(), 0, written.max(1)).ok_or_else(|| {
            Error::new(ErrorKind::Busy, "the destination is in use by another load")
                .remedy("wait for it, or drop what was loaded there")
        })?;
        let claim = Arc::new(claim);
        let load = RawLoad {
            buffer: buffer.clone(),
            len_bytes: len,
            claim: Arc::clone(&claim),
            shared: Arc::clone(&shared),
            finished: false,
        };
        if len == 0 {
            shared.finish(Ok(()));
            return Ok(load);
        }
        let shape = Shape {
            window_bytes: self.window_bytes().into(),
            landing: match request.in_place {
                true => Landing::Destination,
                false => Landing::Window,
            },
            scatter: false,
            policy: RoutePolicy::Direct,
        };
        let way = (subject.way, subject.len_bytes);
        let (plan, item_bytes) = plan(offset, len, way, &shape)?;
        self.send(Control::Open(Box::new(OpenStream {
            plan: Arc::new(plan),
            objects: vec![subject.object],
            origin: subject.origin,
            buffer: Some(buffer),
            claim: Some(claim),
            item_bytes,
            strict: request.strict,
            reasons: subject.reasons,
            ending: self.ending(shared),
        })))?;
        Ok(load)
    }
}

fn check(buffer: &VramBuffer, offset: u64, needed: u64, in_place: bool) -> Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
    let has = buffer.len_bytes();
    if has < needed {
        return invalid(format!("{needed} bytes do not fit into {has}"));
    }
    let address = buffer.region().address(0, 0) as u64;
    if in_place && !(offset | address).is_multiple_of(ALIGNMENT) {
        let what = format!("in place, offset and destination are multiples of {ALIGNMENT} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, what)
            .remedy("begin with such a byte, or go through windows"));
    }
    Ok(())
}

/// The fills of a range, and the bytes of its items.
fn plan(
    offset: u64,
    len: u64,
    way: (FileWay, u64),
    shape: &Shape,
) -> Result<(StreamPlan, Vec<u64>)> {
    let items = len.div_ceil(ITEM_BYTES);
    let count = u32::try_from(items)
        .map_err(|_many| Error::new(ErrorKind::InvalidInput, "more than 2^56 bytes"))?;
    let starts = (0..items).map(|item| item * ITEM_BYTES);
    let runs: Vec<Run> = (0..count)
        .zip(starts)
        .map(|(item, start)| Run {
            file: 0,
            offset: offset + start,
            len: ITEM_BYTES.min(len - start),
            destination: start,
            item,
        })
        .collect();
    tables::check_plan(&runs, shape)?;
    let item_bytes = runs.iter().map(|run| run.len).collect();
    let plan = fills(&runs, count, &[way], shape, &|_, _, _| Residency::Cold);
    Ok((plan, item_bytes))
}

/// A range on its way. Dropping it cancels it; the memory stays until no device writes it.
#[derive(Debug)]
pub struct RawLoad {
    buffer: VramBuffer,
    len_bytes: u64,
    claim: Arc<Claim>,
    shared: Arc<Shared>,
    finished: bool,
}

impl RawLoad {
    /// Whether it is over, well or not.
    pub fn is_finished(&self) -> bool {
        self.shared.is_finished()
    }

    /// How far it is, to be asked from anywhere.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.shared)
    }

    /// Waits for all of it.
    ///
    /// # Errors
    /// It failed: the memory holds nothing to be used.
    pub fn wait(mut self) -> Result<RawLoaded> {
        let outcome = self.shared.wait_finished();
        self.over(outcome)
    }

    fn over(&mut self, outcome: Result<()>) -> Result<RawLoaded> {
        self.finished = true;
        outcome.map(|()| RawLoaded {
            buffer: self.buffer.clone(),
            len_bytes: self.len_bytes,
            _claim: Arc::clone(&self.claim),
        })
    }
}

impl IntoFuture for RawLoad {
    type Output = Result<RawLoaded>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut load = self;
            let outcome = load.shared.wait_finished_async().await;
            load.over(outcome)
        })
    }
}

impl Drop for RawLoad {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.cancel();
        }
    }
}

/// A range that is all there.
#[derive(Debug)]
pub struct RawLoaded {
    buffer: VramBuffer,
    len_bytes: u64,
    /// As long as the bytes can be looked at nobody writes them.
    _claim: Arc<Claim>,
}

impl RawLoaded {
    /// The memory.
    pub fn buffer(&self) -> &VramBuffer {
        &self.buffer
    }

    /// Bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Copies bytes from `offset` on out of the memory, whatever it is: a device's is slow to
    /// read.
    ///
    /// # Panics
    /// If they are not all of what was loaded.
    pub fn copy_to(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.len_bytes),
            "bytes that were not loaded"
        );
        // SAFETY: the load is over: all of it has landed, and nothing writes it any more.
        unsafe { self.buffer.region().copy_out(offset, bytes) }
    }

    /// The bytes, where they are in host memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        let region = self.buffer.host_region().ok()?;
        // SAFETY: the load is over: all of it has landed, and nothing writes it any more.
        Some(unsafe { region.bytes(0, self.len_bytes) })
    }
}
