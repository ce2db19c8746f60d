//! The ring thread: carries out what the core asks for and tells it what came of it. Decides
//! nothing itself but when to sleep.
//!
//! unsafe: submits commands and copies over raw memory.
#![expect(
    unsafe_code,
    reason = "submits operations on memory that the core leased exclusively"
)]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use ubio_core::{
    Action, Core, FillErrorKind, ItemIndex, Landing, Lease, Limits, Nanos, Setting, Stall,
    StreamPlan,
};

use crate::error::{Error, ErrorKind, Result};
use crate::inbox::Inbox;
use crate::load::{LentFill, Returns, Shared, engine_gone, lend_window};
use crate::pairing::Pair;
use crate::source::{Completion, FillCommand, MemoryId, Object, Source, Target, Wait, Waker};
use crate::stats::{Reason, Report, Stalls};
use crate::sys::claim::Claim;
use crate::tables;
use crate::trace::{Activity, Trace};
use crate::vram::{Vram, VramBuffer, VramDone, VramWork, WindowsId};
use crate::window::WindowMemory;
use crate::workers::Workers;

use self::measure::{Measured, Submitted, Timing, histogram};
pub(crate) use self::origin::Origin;
use self::proving::Proofs;
use self::streams::Stream;

mod deadline;
mod measure;
mod origin;
mod proving;
mod streams;

/// What handles ask of the ring thread.
pub(crate) enum Control {
    Open(Box<OpenStream>),
    Report(Sender<Report>),
    Trace(Sender<Trace>),
    Close,
}

/// A stream, ready to go.
pub(crate) struct OpenStream {
    pub(crate) plan: Arc<StreamPlan>,
    /// The plan's objects, by index.
    pub(crate) objects: Vec<Object>,
    /// What they are.
    pub(crate) origin: Origin,
    /// Where the bytes end; lent streams have none.
    pub(crate) buffer: Option<VramBuffer>,
    /// Keeps everyone else away from what is written of it.
    pub(crate) claim: Option<Arc<Claim>>,
    /// Bytes of each item, for the progress.
    pub(crate) item_bytes: Vec<u64>,
    pub(crate) strict: bool,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) ending: Ending,
}

/// Makes sure that a load ends for its holder, whatever becomes of the ring thread.
pub(crate) struct Ending(
    pub(crate) Arc<Shared>,
    /// Why the ring thread gave up, if it did.
    pub(crate) Arc<OnceLock<Error>>,
);

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.0.is_finished() {
            let why = self.1.get().cloned().unwrap_or_else(engine_gone);
            self.0.finish(Err(why));
        }
    }
}

/// The parts of an open engine, handed to its ring thread.
pub(crate) struct Parts {
    pub(crate) source: Box<dyn Source>,
    pub(crate) vram: Box<dyn Vram>,
    pub(crate) windows: WindowMemory,
    pub(crate) window_memory: MemoryId,
    pub(crate) vram_windows: WindowsId,
    pub(crate) workers: Arc<Workers>,
    pub(crate) limits: Limits,
    pub(crate) control: Inbox<Control>,
    /// Why nothing can be loaded any more, once that is so; for handles.
    pub(crate) broken: Arc<OnceLock<Error>>,
    pub(crate) traced: bool,
    pub(crate) reasons: Vec<Reason>,
    /// The memory of a function that is used, if there is any.
    pub(crate) pair: Option<Pair>,
    /// How long a load waits for one command.
    pub(crate) deadline: Option<Nanos>,
}

pub(crate) struct Driver {
    core: Core,
    parts: Parts,
    /// Where in devices' memory reads were seen to land; host memory needs no proof.
    proofs: Proofs,
    /// Reads made to prove memory.
    probes: u64,
    /// After the devices and workers: claims on memory end when nothing writes it any more.
    streams: Vec<Stream>,
    waker: Waker,
    returns: Arc<Returns>,
    timings: Vec<Timing>,
    measured: Measured,
    trace: Option<Trace>,
    start: Instant,
    /// Commands with the source.
    submitted: Vec<Submitted>,
    completions: Vec<Completion>,
    done: Vec<VramDone>,
    /// Operations of the copy engine under way.
    copies: usize,
    closing: bool,
}

fn id_of(lease: Lease) -> u64 {
    u64::from(lease.id.0) | u64::from(lease.generation.0) << 16
}

fn lease_of(id: u64) -> Lease {
    let window = u16::try_from(id & 0xffff).expect("masked");
    let generation = u32::try_from(id >> 16).expect("made by id_of");
    Lease {
        id: ubio_core::LeaseId(window),
        generation: ubio_core::Generation(generation),
    }
}

impl Drop for Driver {
    /// However the thread ends: holders are told before the devices are waited for.
    fn drop(&mut self) {
        for stream in &self.streams {
            if !stream.ending.0.is_finished() {
                stream.ending.0.finish(Err(engine_gone()));
            }
        }
    }
}

impl Driver {
    /// # Errors
    /// InvalidInput: the limits are not the core's. NoSpace: no memory for its tables.
    pub(crate) fn new(parts: Parts, first: [Setting; 2], tuned: bool) -> Result<Self> {
        let leases = usize::from(parts.limits.windows) + usize::from(parts.limits.tickets);
        tables::check_engine(leases)?;
        let mut core = Core::new(parts.limits).map_err(|cause| {
            Error::new(ErrorKind::InvalidInput, "engine settings").because(cause)
        })?;
        let [windows, in_place] = first;
        core.set_command_bytes(windows.command_bytes);
        core.set_depth(windows.depth);
        core.set_in_place(in_place);
        core.tune(tuned);
        let stats = *core.stats();
        let mut reasons = std::collections::BTreeMap::new();
        for &reason in &parts.reasons {
            *reasons.entry(reason).or_default() += 1;
        }
        let windows = parts.limits.windows;
        Ok(Self {
            core,
            probes: 0,
            proofs: Proofs::default(),
            waker: parts.source.waker(),
            returns: Arc::new(Returns::new(windows.into())),
            streams: Vec::new(),
            timings: vec![Timing::default(); leases],
            measured: Measured {
                fills: histogram(),
                flushes: histogram(),
                stalls: Stalls::default(),
                reasons,
                core: stats,
                drive: parts.source.incidents(),
            },
            trace: parts.traced.then(|| Trace {
                spans: Vec::new(),
                windows,
            }),
            start: Instant::now(),
            submitted: Vec::with_capacity(parts.limits.depth.into()),
            completions: Vec::new(),
            done: Vec::new(),
            copies: 0,
            closing: false,
            parts,
        })
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs until closed and nothing is under way any more.
    pub(crate) fn run(mut self) {
        self.run_to_the_end();
        // Who asked meanwhile is told why there is no more; what comes later is dropped.
        while let Some(message) = self.parts.control.take() {
            self.control(message);
        }
    }

    fn run_to_the_end(&mut self) {
        loop {
            let moved = self.step();
            if self.closing && self.parts.source.in_flight() == 0 && self.copies == 0 {
                return;
            }
            if moved || self.help() {
                continue;
            }
            if let Err(error) = self.sleep() {
                // The source is broken: nobody gets another byte. Its drop waits for, or
                // gives up, what is in flight.
                self.fail_all(&error);
                return;
            }
        }
    }

    /// Does what can be done now; `false` if there was nothing.
    fn step(&mut self) -> bool {
        let mut moved = false;
        while let Some(message) = self.parts.control.take() {
            moved = true;
            self.control(message);
        }
        while let Some(lease) = self.returns.pop() {
            moved = true;
            let now = self.now();
            self.span(
                Activity::Lent,
                Some(lease),
                self.timing(lease).landed,
                now,
                0,
            );
            self.core.on_returned(lease, now);
        }
        self.hear_consumers();
        moved |= self.collect();
        let mut now = self.now();
        let mut acted = 0u32;
        while let Some(action) = self.core.next_action(now) {
            self.carry_out(action, now);
            acted += 1;
            if acted.is_multiple_of(64) {
                now = self.now();
            }
        }
        self.check_deadlines(now);
        if moved {
            self.tell_failures();
        }
        moved || acted > 0
    }

    /// Takes a waiting copy over when the devices have less to do than they could: then
    /// copies are what holds them up, and a completion that waits for the length of one
    /// copy costs less than the copy gains.
    fn help(&self) -> bool {
        let underfed =
            2 * self.parts.source.device_in_flight() <= usize::from(self.core.setting().depth);
        underfed && self.parts.workers.help()
    }

    fn sleep(&mut self) -> Result<()> {
        self.waker.about_to_sleep();
        if self.something_came() {
            self.waker.awake();
            return Ok(());
        }
        let before = self.now();
        let next = [self.core.next_wakeup(), self.next_deadline()];
        let wait = match next.into_iter().flatten().min() {
            Some(at) => Wait::AtMost(Duration::from_nanos(
                at.0.saturating_sub(before.0).max(1000),
            )),
            None => Wait::Forever,
        };
        let stall = self.core.stall();
        let polled = self.parts.source.poll(wait, &mut self.completions);
        self.waker.awake();
        let after = self.now();
        self.measured
            .stalls
            .add(stall, Duration::from_nanos(after.0 - before.0));
        let activity = match stall {
            Stall::Source => Some(Activity::StallSource),
            Stall::Window => Some(Activity::StallWindow),
            Stall::Copy => Some(Activity::StallCopy),
            Stall::Compute => Some(Activity::StallCompute),
            Stall::Idle => None,
        };
        if let Some(activity) = activity {
            self.span(activity, None, before, after, 0);
        }
        polled
    }

    fn something_came(&self) -> bool {
        !self.parts.control.is_empty()
            || !self.returns.is_empty()
            || self.parts.vram.is_ready()
            || self.streams.iter().any(|stream| {
                (!stream.cancelled && stream.ending.0.is_cancelled())
                    || stream.consumed_by_now() != stream.consumed
            })
    }

    fn hear_consumers(&mut self) {
        for index in 0..self.streams.len() {
            let now = self.now();
            let stream = &mut self.streams[index];
            let consumed = stream.consumed_by_now();
            if consumed != stream.consumed {
                stream.consumed = consumed;
                self.core.consumed(stream.id, ItemIndex(consumed), now);
            }
            if !stream.cancelled && (self.closing || stream.ending.0.is_cancelled()) {
                stream.cancelled = true;
                self.core.cancel(stream.id, now);
            }
        }
    }

    fn control(&mut self, message: Control) {
        match message {
            Control::Open(open) => self.open(*open),
            Control::Report(reply) => {
                let report = self.report();
                // Whoever asked may have left.
                let _gone = reply.send(report);
            }
            Control::Trace(reply) => {
                let empty = Trace {
                    spans: Vec::new(),
                    windows: self.parts.limits.windows,
                };
                let trace = self
                    .trace
                    .as_mut()
                    .map(|trace| std::mem::replace(trace, empty));
                let _gone = reply.send(trace.unwrap_or_default());
            }
            Control::Close => self.closing = true,
        }
    }

    /// Takes in what sources and copy engine have finished.
    fn collect(&mut self) -> bool {
        if self.completions.is_empty()
            && let Err(error) = self.parts.source.poll(Wait::No, &mut self.completions)
        {
            self.fail_all(&error);
        }
        self.parts.vram.poll(&mut self.done);
        let moved = !self.completions.is_empty() || !self.done.is_empty();
        let now = self.now();
        for index in 0..self.completions.len() {
            let Completion { token, result } = self.completions[index];
            self.completed(token, result, now);
            self.core.on_fill(token, result, now);
        }
        self.completions.clear();
        for index in 0..self.done.len() {
            let VramDone { id, result } = self.done[index];
            self.copies -= 1;
            self.finished_copy(id, result, now);
        }
        self.done.clear();
        moved
    }

    fn finished_copy(&mut self, id: u64, result: Result<(), ubio_core::FillError>, now: Nanos) {
        let lease = lease_of(id >> 2);
        let timing = self.timing(lease);
        match id & 3 {
            FLUSH => {
                let span = now.0.saturating_sub(timing.landed.0) / 1000;
                self.measured.flushes.saturating_record(span.max(1));
                self.span(Activity::Flush, Some(lease), timing.landed, now, 0);
                self.core.on_flushed(lease, result, now);
            }
            PREPARE => {
                self.span(Activity::Prepare, Some(lease), timing.leased, now, 0);
                self.core.on_prepared(lease, result, now);
            }
            _ => {
                self.span(Activity::Scrub, Some(lease), timing.landed, now, 0);
                match result {
                    Ok(()) => self.core.on_scrubbed(lease, now),
                    // A window that cannot be zeroed must not go to anybody again.
                    Err(_failed) => self.fail_all(&Error::new(
                        ErrorKind::Copy,
                        "a window could not be zeroed: the engine gives up",
                    )),
                }
            }
        }
    }

    fn window_offset(&self, lease: Lease) -> u64 {
        u64::from(lease.id.0) * self.parts.windows.window_bytes()
    }

    fn carry_out(&mut self, action: Action, now: Nanos) {
        match action {
            Action::Prepare {
                lease,
                stream,
                fill,
            } => {
                self.leased(lease, now);
                let stream = self.stream(stream);
                let buffer = stream.buffer();
                let fill = &stream.plan.fills[fill as usize];
                let first = stream.plan.pieces[fill.pieces.start as usize];
                let work = VramWork::Prepare {
                    buffer,
                    offset: first.destination,
                    len_bytes: fill.expected.into(),
                };
                self.copy(lease, PREPARE, work);
            }
            Action::Fill { .. } => self.fill(action, now),
            Action::Flush {
                lease,
                stream,
                fill,
            } => {
                let stream = self.stream(stream);
                let buffer = stream.buffer();
                let plan = Arc::clone(&stream.plan);
                let bytes = plan.fills[fill as usize].expected.into();
                self.landed(lease, bytes, now);
                let work = VramWork::Flush {
                    windows: self.parts.vram_windows,
                    window_offset: self.window_offset(lease),
                    buffer,
                    plan,
                    fill,
                };
                self.copy(lease, FLUSH, work);
            }
            Action::Lend {
                lease,
                stream,
                fill,
            } => self.lend(lease, stream, fill, now),
            Action::Scrub { lease } => {
                let work = VramWork::Scrub {
                    windows: self.parts.vram_windows,
                    offset: self.window_offset(lease),
                    len_bytes: self.parts.windows.window_bytes(),
                };
                self.timings[usize::from(lease.id.0)].landed = now;
                self.copy(lease, SCRUB, work);
            }
            Action::Visible { stream, from, to } => {
                let stream = self.stream_mut(stream);
                stream.visible = to.0;
                let bytes = stream.item_bytes[from.0 as usize..to.0 as usize]
                    .iter()
                    .sum();
                stream.ending.0.show(to.0, bytes);
            }
            Action::Finished {
                stream,
                outcome,
                fallbacks,
            } => self.finish(stream, outcome, fallbacks),
        }
    }

    fn lend(&mut self, lease: Lease, stream: ubio_core::StreamId, fill: u32, now: Nanos) {
        let plan = Arc::clone(&self.stream(stream).plan);
        let bytes = plan.fills[fill as usize].expected.into();
        self.landed(lease, bytes, now);
        let range = (self.window_offset(lease), bytes);
        let region = self.parts.windows.region();
        // SAFETY: the core gave the window to the caller until it is returned.
        let window = unsafe { lend_window(region, range, lease, &self.returns, &self.waker) };
        let last = fill as usize + 1 == plan.fills.len();
        let stream = self.stream(stream);
        stream.ending.0.lend(LentFill { window, plan, fill });
        if last {
            // Lent in order: the caller has all of it, however long it is held.
            stream.ending.0.finish(stream.check_unchanged());
        }
    }

    fn copy(&mut self, lease: Lease, kind: u64, work: VramWork) {
        self.copies += 1;
        // SAFETY: the lease makes the window, and the plan the destination range, this
        // operation's alone until the core hears of its end.
        unsafe { self.parts.vram.submit(id_of(lease) << 2 | kind, work) };
    }

    fn fill(&mut self, action: Action, now: Nanos) {
        let Action::Fill {
            token,
            lease,
            stream,
            fill,
            object,
            offset,
            lease_offset,
            len,
            route,
            landing,
        } = action
        else {
            return;
        };
        self.leased(lease, now);
        let stream = self.stream(stream);
        stream.ending.0.requested(len.into());
        let plan_fill = &stream.plan.fills[fill as usize];
        let target = match landing {
            Landing::Window | Landing::Lent => Target::Memory {
                memory: self.parts.window_memory,
                offset: self.window_offset(lease) + u64::from(lease_offset),
            },
            Landing::Destination => {
                let first = stream.plan.pieces[plan_fill.pieces.start as usize];
                Target::Memory {
                    memory: stream.memory(),
                    offset: first.destination + u64::from(lease_offset),
                }
            }
            Landing::Scatter => Target::Scatter {
                memory: stream.memory(),
                plan: Arc::clone(&stream.plan),
                fill,
            },
        };
        let object = stream.objects[object.0 as usize];
        self.submitted.push(Submitted {
            token,
            lease,
            at: now,
            overdue: false,
        });
        let command = FillCommand {
            token,
            object,
            offset,
            len,
            route,
            target,
        };
        // SAFETY: the lease makes the target this command's alone until the core hears of
        // its completion.
        if unsafe { self.parts.source.submit(command) }.is_err() {
            // Only if the core's depth exceeds the source's, which open rules out.
            let busy = ubio_core::FillError {
                kind: FillErrorKind::Transient {
                    delay: Nanos(100_000),
                },
                code: libc::EAGAIN,
            };
            self.completions.push(Completion {
                token,
                result: Err(busy),
            });
        }
    }
}

const FLUSH: u64 = 0;
const PREPARE: u64 = 1;
const SCRUB: u64 = 2;
