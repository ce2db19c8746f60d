//! An open engine, and starting loads on it. What is chosen here is chosen once, so the ring
//! thread never asks what hardware it runs on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::bounded;
use fs_adapter::Model;
use fs_adapter::placement::Placement;
use fs_adapter::plan::Plan;
use ubio_core::Landing;

use crate::destination;
use crate::driver::{Control, Driver, Ending, OpenStream, Origin};
use crate::error::{Error, ErrorKind, NOT_STRICT, Result};
use crate::inbox::{Closed, Outbox, inbox};
use crate::limits::CONTROL_QUEUE;
use crate::load::{Lending, Load, Shared};
use crate::open::{Builder, Explanation, open_parts};
use crate::plan::{RoutePolicy, Shape};
use crate::prepare::{
    direct_reasons, image_runs, item_bytes, lent_runs, load_reasons, objects, placed_runs,
    probe_files, stream_plan,
};
use crate::source::Waker;
use crate::stats::{Reason, Report};
use crate::sys::thread::{self, not_started};
use crate::tables;
use crate::trace::Trace;
use crate::traditional::Traditional;
use crate::vram::VramBuffer;
use crate::vram::host::allocate;

/// Which way a load's bytes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routes {
    /// Ranges in the page cache are copied from it, all others are read direct.
    #[default]
    Auto,
    /// Everything direct.
    Direct,
    /// Everything through the page cache.
    Cached,
    /// One thread, buffered reads, a copy: for comparison only.
    Traditional,
}

/// Where a load ends.
#[derive(Clone, Debug, Default)]
pub enum Destination {
    /// Fresh host memory, on huge pages where there are any.
    #[default]
    Host,
    /// Memory the caller made or handed over; at least as long as the placement, and for an
    /// in-place load aligned to 4 KiB with its length rounded up to it.
    Buffer(VramBuffer),
}

/// One load: what, in which order, to where.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The opened model.
    pub model: Arc<Model>,
    /// Which tensors, in the order compute wants them, and where each goes. An image placement
    /// (`placement.files` not empty) is read in place, without windows, unless
    /// `through_windows` is set; any other through windows.
    pub placement: Placement,
    /// The memory.
    pub destination: Destination,
    /// The way.
    pub routes: Routes,
    /// Whether an image placement goes through windows too: faster where the destination is on
    /// small pages, or where a virtual machine's host copies.
    pub through_windows: bool,
    /// Whether anything less than the best way is an error.
    pub strict: bool,
    /// How far reads may run ahead of [`Load::consumed`], bytes; `None`: no bound.
    pub lookahead_bytes: Option<u64>,
}

impl LoadRequest {
    /// All defaults: host memory, automatic routes.
    pub fn new(model: Arc<Model>, placement: Placement) -> Self {
        Self {
            model,
            placement,
            destination: Destination::default(),
            routes: Routes::default(),
            through_windows: false,
            strict: false,
            lookahead_bytes: None,
        }
    }
}

/// An open engine: a pool of windows and the thread that fills and flushes them. Loads may
/// be started from any thread; dropping it cancels what runs and waits for the devices.
#[derive(Debug)]
pub struct Engine {
    control: Outbox<Control>,
    /// Why the ring thread gave up, if it did.
    broken: Arc<OnceLock<Error>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    explanation: Explanation,
    window_bytes: u32,
    /// The process that opened it: rings and registered memory do not survive a fork.
    pid: u32,
    /// Loads on the traditional path under way.
    traditional: Mutex<Vec<(Arc<Shared>, JoinHandle<()>)>>,
    traditional_bytes: Arc<AtomicU64>,
    /// What calling threads copied from the page cache.
    cached_bytes: AtomicU64,
}

/// What the ring thread tells when it is up.
type Started = Result<(Waker, Explanation)>;

impl Engine {
    /// The settings to start from.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn open(builder: &Builder) -> Result<Self> {
        let (control, messages) = inbox(CONTROL_QUEUE);
        let broken = Arc::default();
        let (started, starts) = bounded::<Started>(1);
        let settings = builder.clone();
        let gives_up = Arc::clone(&broken);
        let thread = thread::start("ubio-ring", move || {
            match open_parts(&settings, messages, gives_up) {
                Ok((parts, explanation)) => {
                    let waker = parts.source.waker();
                    match Driver::new(parts, settings.first_settings(), settings.adaptive) {
                        Ok(driver) => {
                            // The opener waits for exactly this.
                            let _gone = started.send(Ok((waker, explanation)));
                            driver.run();
                        }
                        Err(error) => drop(started.send(Err(error))),
                    }
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })
        .map_err(|cause| not_started("the ring thread", cause))?;
        let gone = || Error::new(ErrorKind::Io, "the ring thread ended while it started");
        match starts.recv().map_err(|_disconnected| gone()).flatten() {
            Ok((waker, explanation)) => Ok(Self {
                control,
                broken,
                waker,
                thread: Some(thread),
                explanation,
                window_bytes: builder.window_bytes,
                pid: std::process::id(),
                traditional: Mutex::default(),
                traditional_bytes: Arc::default(),
                cached_bytes: AtomicU64::new(0),
            }),
            Err(error) => {
                // It has said why it ended.
                let _ended = thread.join();
                Err(error)
            }
        }
    }

    /// What was chosen at open, and why not better.
    pub fn explain(&self) -> &Explanation {
        &self.explanation
    }

    /// Counts bytes that the calling thread copied from the page cache.
    pub(crate) fn count_cached(&self, bytes: u64) {
        self.cached_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    /// Rings and threads do not survive a fork.
    pub(crate) fn check_process(&self) -> Result<()> {
        if std::process::id() != self.pid {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the engine was opened before a fork",
            )
            .remedy("open an engine in the child process"));
        }
        Ok(())
    }

    pub(crate) fn send(&self, message: Control) -> Result<()> {
        self.check_process()?;
        self.control.send(message).map_err(|Closed| self.ended())?;
        self.waker.wake();
        Ok(())
    }

    /// Sees to it that a load ends.
    pub(crate) fn ending(&self, shared: Arc<Shared>) -> Ending {
        Ending(shared, Arc::clone(&self.broken))
    }

    /// The words for an engine whose ring thread has ended.
    fn ended(&self) -> Error {
        self.broken.get().cloned().unwrap_or_else(|| {
            Error::new(ErrorKind::Cancelled, "the engine has ended").remedy("open another one")
        })
    }

    /// Starts a load into one destination. The returned handle gives tensors as they become
    /// visible.
    ///
    /// # Errors
    /// NoSpace (no memory), InvalidInput (a placement that is not the model's, a destination
    /// that does not fit it), Unsupported (a destination in a device), Busy (the destination is in use by another load or its tensors),
    /// Fallback (strict, and the best way is not to be had). Read errors come through the
    /// handle.
    pub fn load(&self, request: LoadRequest) -> Result<Load> {
        self.check_process()?;
        let image = !request.placement.files.is_empty();
        let in_place = image && !request.through_windows;
        tables::check_tensors(request.placement.tensors.len())?;
        let covered = destination::check(&request.model, &request.placement)?;
        let (buffer, used) = match request.destination {
            Destination::Host => (
                VramBuffer::Host(allocate(request.placement.len_bytes)?),
                false,
            ),
            Destination::Buffer(buffer) => (buffer, true),
        };
        let region = buffer.host_region()?;
        let claim = destination::claim(region, &request.placement)?;
        if used || request.placement.header.is_some() {
            destination::clear(region, &request.placement, &covered);
        }
        let shared = Shared::new(self.waker.clone());
        let placed = request.placement.tensors.clone();
        let load = Load::new(
            Arc::clone(&request.model),
            placed,
            (buffer.clone(), request.placement.len_bytes),
            Arc::clone(&claim),
            Arc::clone(&shared),
        );
        let runs = if image {
            image_runs(&request.model, &request.placement)?
        } else {
            placed_runs(&request.model, &request.placement)
        };
        let item_bytes = item_bytes(&request.placement, &runs);
        let items = count(item_bytes.len())?;
        let probed = probe_files(&request.model, &runs)?;
        if request.routes == Routes::Traditional {
            self.start_traditional(Traditional {
                runs,
                items,
                model: request.model,
                to: Arc::clone(region),
                _claim: claim,
                shared,
            })?;
            return Ok(load);
        }
        let reasons = load_reasons(&probed, region, in_place, request.routes);
        if request.strict {
            self.refuse_fallbacks(&reasons)?;
        }
        let shape = Shape {
            window_bytes: self.window_bytes.into(),
            landing: if in_place {
                Landing::Destination
            } else {
                Landing::Window
            },
            scatter: true,
            policy: policy(request.routes),
        };
        let mut plan = stream_plan(request.model.files(), &runs, items, &probed, &shape)?;
        plan.lookahead_bytes = request.lookahead_bytes;
        self.send(Control::Open(Box::new(OpenStream {
            plan: Arc::new(plan),
            objects: objects(&probed),
            origin: Origin::Files {
                model: request.model,
                first: 0,
            },
            buffer: Some(buffer),
            claim: Some(claim),
            item_bytes,
            strict: request.strict,
            reasons,
            ending: self.ending(shared),
        })))?;
        Ok(load)
    }

    /// Starts a load whose windows are lent to the caller one after the other, without a
    /// copy and without a destination.
    ///
    /// # Errors
    /// As for [`load`](Self::load); InvalidInput also for a plan of another model.
    pub fn lend(&self, model: &Arc<Model>, plan: &Plan, routes: Routes) -> Result<Lending> {
        if routes == Routes::Traditional {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the traditional path has no windows to lend",
            ));
        }
        if self.explanation.window_kind.is_device() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "windows in a device's memory cannot be lent: nobody may look at them as bytes",
            )
            .remedy("keep windows in host memory to lend them"));
        }
        let known = model.tensors().as_slice().len();
        tables::check_tensors(known)?;
        if let Some(unknown) = plan.order.iter().find(|index| index.0 as usize >= known) {
            let what = format!("the plan names tensor {}, of {known}", unknown.0);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let shared = Shared::new(self.waker.clone());
        let runs = lent_runs(model, plan);
        let probed = probe_files(model, &runs)?;
        let shape = Shape {
            window_bytes: self.window_bytes.into(),
            landing: Landing::Lent,
            scatter: false,
            policy: policy(routes),
        };
        let items = count(plan.order.len())?;
        let stream_plan = stream_plan(model.files(), &runs, items, &probed, &shape)?;
        let item_bytes = plan
            .order
            .iter()
            .map(|&index| model.tensors()[index].len)
            .collect();
        self.send(Control::Open(Box::new(OpenStream {
            plan: Arc::new(stream_plan),
            objects: objects(&probed),
            origin: Origin::Files {
                model: Arc::clone(model),
                first: 0,
            },
            buffer: None,
            claim: None,
            item_bytes,
            strict: false,
            reasons: direct_reasons(&probed, routes),
            ending: self.ending(Arc::clone(&shared)),
        })))?;
        Ok(Lending::new(plan.order.clone(), shared))
    }

    pub(crate) fn refuse_fallbacks(&self, reasons: &[Reason]) -> Result<()> {
        match self.explanation.reasons.iter().chain(reasons).next() {
            None => Ok(()),
            Some(reason) => Err(Error::new(
                ErrorKind::Fallback,
                format!("strict: {}: {}", reason.code(), reason.explain()),
            )
            .remedy(NOT_STRICT)),
        }
    }

    fn start_traditional(&self, load: Traditional) -> Result<()> {
        let shared = Arc::clone(&load.shared);
        let ending = self.ending(Arc::clone(&shared));
        let moved = Arc::clone(&self.traditional_bytes);
        let thread = thread::start("ubio-traditional", move || {
            let outcome = load.run().map(|bytes| {
                moved.fetch_add(bytes, Ordering::Relaxed);
            });
            // Its claim with it, before the holder hears of the end.
            drop(load);
            ending.0.finish(outcome);
        })
        .map_err(|cause| not_started("a thread", cause))?;
        let mut threads = self
            .traditional
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        threads.retain(|(_, thread)| !thread.is_finished());
        threads.push((shared, thread));
        Ok(())
    }

    /// Leaves the engine to end by itself, for a program that is about to exit while a device
    /// keeps a command: dropping the engine would wait for it.
    pub fn abandon(mut self) {
        let _ended = self.send(Control::Close);
        self.thread = None;
    }

    /// What was done since the engine was opened or this was last called.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn take_report(&self) -> Result<Report> {
        let (reply, answer) = bounded(1);
        self.send(Control::Report(reply))?;
        let mut report = answer.recv().map_err(|_disconnected| self.ended())?;
        let moved = self.traditional_bytes.swap(0, Ordering::Relaxed);
        *report.route_bytes.entry("traditional").or_default() += moved;
        let cached = self.cached_bytes.swap(0, Ordering::Relaxed);
        let name = ubio_core::Route::Cached.name();
        *report.route_bytes.entry(name).or_default() += cached;
        Ok(report)
    }

    /// The spans since the engine was opened or this was last called; empty unless it was
    /// opened [`traced`](Builder::traced).
    ///
    /// # Errors
    /// The engine has ended.
    pub fn take_trace(&self) -> Result<Trace> {
        let (reply, answer) = bounded(1);
        self.send(Control::Trace(reply))?;
        answer.recv().map_err(|_disconnected| self.ended())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // The thread exists in the parent only.
            return;
        }
        let threads = self
            .traditional
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for (shared, thread) in threads.drain(..) {
            shared.cancel();
            let _panicked = thread.join();
        }
        // An engine that has ended needs no telling.
        let _ended = self.send(Control::Close);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

pub(crate) fn policy(routes: Routes) -> RoutePolicy {
    match routes {
        Routes::Auto | Routes::Traditional => RoutePolicy::Auto,
        Routes::Direct => RoutePolicy::Direct,
        Routes::Cached => RoutePolicy::Cached,
    }
}

fn count(items: usize) -> Result<u32> {
    u32::try_from(items)
        .map_err(|_many| Error::new(ErrorKind::InvalidInput, "more than 2^32 tensors"))
}
