//! Byte ranges of files that are opened and probed once: what stays per range is a plan of
//! one run and the way to the ring thread and back. For callers that read many small parts
//! (restored caches, single tensors) into memory they have.
//!
//! unsafe: copies small resident ranges into raw memory.
#![expect(
    unsafe_code,
    reason = "writes a target that the caller keeps everyone else away from"
)]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use fs_adapter::{FileIndex, Model};
use ubio_core::Landing;

use crate::driver::{Control, OpenStream, Origin};
use crate::engine::{Engine, Routes, policy};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::CALLER_COPY_BYTES;
use crate::load::Shared;
use crate::plan::{ALIGNMENT, RoutePolicy, Run, Shape};
use crate::prepare::{direct_reasons, stream_plan};
use crate::source::Object;
use crate::source::file::probe::{DirectIo, Probed, probe};
use crate::source::file::residency::{Residency, residency};
use crate::sys::claim::Claim;
use crate::sys::memory::MemoryKind;
use crate::vram::VramBuffer;

/// The files of a model, opened for reading and probed. Cheap to clone; the descriptors
/// close with the last clone.
#[derive(Clone, Debug)]
pub struct Opened {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: Arc<Model>,
    probed: Vec<Probed>,
}

impl Opened {
    /// Opens and probes every file of `model`.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(model: Arc<Model>) -> Result<Self> {
        let probed = model
            .files()
            .iter()
            .map(|file| probe(file.file()).map_err(|error| error.at(file.path())))
            .collect::<Result<_>>()?;
        Ok(Self {
            inner: Arc::new(Inner { model, probed }),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.inner.model
    }

    pub(crate) fn probed(&self, file: FileIndex) -> &Probed {
        &self.inner.probed[file.as_usize()]
    }

    /// Whether a file can be read direct, or why not.
    ///
    /// # Panics
    /// If `file` is of another model.
    pub fn direct_io(&self, file: FileIndex) -> &DirectIo {
        &self.inner.probed[file.as_usize()].direct_io
    }
}

/// One range, and where it goes.
#[derive(Clone, Debug)]
pub struct RangeRequest {
    /// Which file.
    pub file: FileIndex,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// The memory.
    pub to: VramBuffer,
    /// First byte in the memory.
    pub at: u64,
    /// The way. [`Routes::Traditional`] is for whole loads only.
    pub routes: Routes,
    /// Whether cold bytes are read straight to their place instead of through windows:
    /// `offset`, `len_bytes`, `at` and the memory's address are multiples of 4 KiB then.
    pub in_place: bool,
}

impl Engine {
    /// Starts reading one range. The target is the range's alone until it is over, also after
    /// its handle was dropped: then the devices may still write it for a while.
    ///
    /// A range of up to [`CALLER_COPY_BYTES`] that is in the page cache is copied by the
    /// calling thread, and over when this returns.
    ///
    /// # Errors
    /// InvalidInput: no such file, a range outside the file or the memory, or unaligned in place. Busy: part
    /// of the target is in use. Read errors, and Busy when too many loads are open at once,
    /// come through the handle.
    pub fn read_range(&self, opened: &Opened, request: RangeRequest) -> Result<Transfer> {
        let model = opened.model();
        let index = request.file.as_usize();
        let (Some(file), Some(probed)) = (model.files().get(index), opened.inner.probed.get(index))
        else {
            let what = format!("file {index} of {}", model.files().len());
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        check(&request, file.len_bytes()).map_err(|error| error.at(file.path()))?;
        let shared = Shared::new(self.waker().clone());
        let transfer = Transfer {
            shared: Arc::clone(&shared),
            finished: false,
        };
        if request.len_bytes == 0 {
            shared.finish(Ok(()));
            return Ok(transfer);
        }
        let region = request.to.region();
        let claim = Claim::take(region, request.at, request.len_bytes).ok_or_else(|| {
            Error::new(
                ErrorKind::Busy,
                "part of the target is in use by another load or range",
            )
            .remedy("wait for it, or drop what was loaded there")
        })?;
        if copy_resident(probed, &request) {
            self.count_cached(request.len_bytes);
            drop(claim);
            shared.finish(file.check_unchanged().map_err(Error::from));
            return Ok(transfer);
        }
        let run = Run {
            file: 0,
            offset: request.offset,
            len: request.len_bytes,
            destination: request.at,
            item: 0,
        };
        let shape = Shape {
            window_bytes: self.window_bytes().into(),
            landing: if request.in_place {
                Landing::Destination
            } else {
                Landing::Window
            },
            // Scattered copies come from the page cache, which no device memory takes.
            scatter: !request.to.region().kind().is_device(),
            // The page cache cannot be read into a device's memory.
            policy: match request.in_place && request.to.region().kind().is_device() {
                true => RoutePolicy::Direct,
                false => policy(request.routes),
            },
        };
        let files = std::slice::from_ref(file);
        let probed = std::slice::from_ref(probed);
        let plan = stream_plan(files, &[run], 1, probed, &shape)?;
        self.send(Control::Open(Box::new(OpenStream {
            plan: Arc::new(plan),
            objects: vec![Object::File(probed[0].object.clone())],
            origin: Origin::Files {
                model: Arc::clone(model),
                first: request.file.0,
            },
            buffer: Some(request.to),
            claim: Some(Arc::new(claim)),
            item_bytes: vec![request.len_bytes],
            strict: false,
            reasons: direct_reasons(probed, request.routes),
            ending: self.ending(shared),
        })))?;
        Ok(transfer)
    }
}

/// Copies a small range that is in the page cache; `false` if it is neither.
fn copy_resident(probed: &Probed, request: &RangeRequest) -> bool {
    let may = matches!(request.routes, Routes::Auto | Routes::Cached);
    if !may || request.len_bytes > CALLER_COPY_BYTES {
        return false;
    }
    let region = request.to.region();
    if region.kind() != MemoryKind::Host {
        return false;
    }
    let range = (request.at, request.len_bytes);
    // What lives in memory is resident, and some such file systems know no NOWAIT.
    let nowait = probed.direct_io != DirectIo::InMemory;
    let buffered = &probed.object.buffered;
    // Asked first: to find out by reading makes the kernel read ahead what it has not got.
    if nowait && residency(buffered, request.offset, request.len_bytes) != Residency::Hot {
        return false;
    }
    // SAFETY: the caller of this holds the target's claim.
    let read = unsafe { region.read_file(&[range], buffered, request.offset, nowait) };
    read.is_ok_and(|bytes| bytes == request.len_bytes)
}

fn check(request: &RangeRequest, file_bytes: u64) -> Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
    let fits = |start: u64, bytes: u64| {
        start
            .checked_add(request.len_bytes)
            .is_some_and(|end| end <= bytes)
    };
    let (len, offset, at) = (request.len_bytes, request.offset, request.at);
    if !fits(offset, file_bytes) {
        return invalid(format!("{len} bytes at offset {offset} of {file_bytes}"));
    }
    if !fits(at, request.to.len_bytes()) {
        let has = request.to.len_bytes();
        return invalid(format!("{len} bytes to offset {at} of a buffer of {has}"));
    }
    if request.routes == Routes::Traditional {
        return invalid("single ranges have no traditional path".to_owned());
    }
    let region = request.to.region();
    let parts = [offset, len, region.address(at, 0) as u64];
    if request.in_place && parts.iter().any(|part| !part.is_multiple_of(ALIGNMENT)) {
        let what = format!("in place every place and length is a multiple of {ALIGNMENT} bytes");
        return invalid(what);
    }
    Ok(())
}

/// One range on its way. Dropping it cancels it; the memory stays until no device writes it.
#[derive(Debug)]
pub struct Transfer {
    shared: Arc<Shared>,
    finished: bool,
}

impl Transfer {
    /// Whether it is over, well or not.
    pub fn is_finished(&self) -> bool {
        self.shared.is_finished()
    }

    /// Waits for it.
    ///
    /// # Errors
    /// It failed, or the file is not any more what it was when the model was opened: the
    /// target holds nothing to be used.
    pub fn wait(mut self) -> Result<()> {
        let outcome = self.shared.wait_finished();
        self.finished = true;
        outcome
    }
}

impl IntoFuture for Transfer {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut transfer = self;
            let outcome = transfer.shared.wait_finished_async().await;
            transfer.finished = true;
            outcome
        })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.cancel();
        }
    }
}
