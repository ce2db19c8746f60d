//! Loads through the engine: into placed tensors through windows, or into an image of the
//! files.

use std::path::PathBuf;
use std::sync::Arc;

use fs_adapter::placement::Placement;
use ubio::vram::VramBuffer;
use ubio::vram::host::allocate;
use ubio::vram::shared::NamedBuffer;
use ubio::{Builder, Engine, LoadRequest, Loaded, Routes};

use crate::args::{Advanced, Args, Route};
use crate::destination::Destination;
use crate::exit::Failure;
use crate::meter::Meter;
use crate::progress::{Progress, drive};
use crate::report::Outcome;
use crate::run::{Done, Job};
use crate::source::metadata_of;
use crate::trace_file::TraceFile;
use crate::verify;
use crate::via::{self, Way};

/// An open engine, and where everything goes.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    job: &'a Job<'a>,
    placement: Placement,
    engine: Engine,
    /// Made before anything is loaded, so that a wrong name costs nothing.
    trace: Option<TraceFile>,
}

impl<'a> Placed<'a> {
    pub(crate) fn new(job: &'a Job<'a>) -> Result<Self, Failure> {
        let args = job.args;
        let placement = via::place(args, job.choice, &job.model, &job.plan, &job.destination)?;
        let sources = metadata_of(&job.model)?;
        let open = |path: &PathBuf| TraceFile::open(path, args, &sources, &job.destination);
        let trace = args.trace.as_ref().map(open).transpose()?;
        Ok(Self {
            job,
            placement,
            engine: open_engine(args)?,
            trace,
        })
    }

    /// One load into fresh memory, published if it is the last.
    pub(crate) fn load(&self, mut meter: Meter, last: bool) -> Result<Done, Failure> {
        let job = self.job;
        let named = match &job.destination {
            Destination::Shm { name, .. } => {
                let made = NamedBuffer::create(name, self.placement.len_bytes)
                    .map_err(|error| Failure::destination(&error))?;
                for limit in metadata_of(&job.model)? {
                    made.restrict(&limit)
                        .map_err(|error| Failure::destination(&error))?;
                }
                Some(made)
            }
            _ => None,
        };
        let buffer = match &named {
            Some(named) => Some(named.buffer()),
            None if job.args.advanced.prefault => Some(meter.except(|| self.faulted_in())?),
            None => None,
        };
        let loaded = self.run(buffer)?;
        let measured = meter.stop();
        let report = self
            .engine
            .take_report()
            .map_err(|error| Failure::engine(&error))?;
        if job.args.verify {
            verify::placed(&job.model, &self.placement, loaded.bytes())?;
        }
        let digest = job.digest(in_file_order(&loaded));
        if let Some(named) = named
            && last
        {
            self.publish(named)?;
        }
        Ok(Done {
            outcome: Outcome {
                measured,
                report,
                digest,
                verified: job.args.verify,
            },
            bytes: self.bytes(),
            explain: self.engine.explain().into(),
        })
    }

    fn faulted_in(&self) -> Result<VramBuffer, Failure> {
        let made = allocate(self.placement.len_bytes).map(VramBuffer::Host);
        made.and_then(|buffer| buffer.fault_in().map(|()| buffer))
            .map_err(|error| Failure::destination(&error))
    }

    fn run(&self, buffer: Option<VramBuffer>) -> Result<Loaded, Failure> {
        let job = self.job;
        let mut request = LoadRequest::new(Arc::clone(&job.model), self.placement.clone());
        request.strict = job.args.strict;
        request.through_windows = job.choice.via == Way::Ub;
        request.routes = match job.args.route {
            Route::Auto => Routes::Auto,
            Route::Direct => Routes::Direct,
            Route::Cached => Routes::Cached,
            Route::Traditional => Routes::Traditional,
        };
        if let Some(buffer) = buffer {
            request.destination = ubio::Destination::Buffer(buffer);
        }
        let mut progress = Progress::new(job.args, self.bytes());
        let _held = job.signals.hold();
        let load = self
            .engine
            .load(request)
            .map_err(|error| Failure::engine(&error))?;
        let watch = load.watch();
        drive(load, &watch, job.signals, &mut progress)
    }

    fn publish(&self, named: NamedBuffer) -> Result<(), Failure> {
        let signals = self.job.signals;
        let _held = signals.hold();
        signals.check()?;
        named
            .publish()
            .map_err(|error| Failure::destination(&error))?;
        signals.published();
        Ok(())
    }

    fn bytes(&self) -> u64 {
        match self.placement.files.as_slice() {
            [] => self.job.plan.payload_bytes,
            files => files.iter().map(|file| file.len).sum(),
        }
    }

    /// Writes the trace of all loads, if one was asked for.
    pub(crate) fn write_trace(self) -> Result<(), Failure> {
        let Some(file) = self.trace else {
            return Ok(());
        };
        let trace = self
            .engine
            .take_trace()
            .map_err(|error| Failure::engine(&error))?;
        file.write(&trace)
    }
}

fn open_engine(args: &Args) -> Result<Engine, Failure> {
    let opened = builder(args).io_uring(!args.advanced.no_uring).open();
    opened.map_err(|error| Failure::engine(&error))
}

/// The engine's settings, but for those of a source.
pub(crate) fn builder(args: &Args) -> Builder {
    let advanced: &Advanced = &args.advanced;
    let mut builder = Engine::builder()
        .windows(advanced.windows)
        .window_bytes(advanced.window_size)
        .adaptive(!advanced.no_tune)
        .huge_pages(!advanced.no_huge)
        .traced(args.trace.is_some());
    if let Some(bytes) = advanced.command_size {
        builder = builder.command_bytes(bytes);
    }
    if let Some(depth) = advanced.depth {
        builder = builder.depth(depth);
    }
    if let Some(workers) = advanced.workers {
        builder = builder.workers(workers.into());
    }
    builder
}

/// The loaded tensors' bytes in the table's order.
fn in_file_order(loaded: &Loaded) -> impl Iterator<Item = &[u8]> {
    let mut placed = loaded.placed().to_vec();
    placed.sort_by_key(|placed| placed.tensor);
    placed.into_iter().map(|placed| {
        let start = usize::try_from(placed.offset).expect("the destination is in memory");
        let len = usize::try_from(placed.len).expect("the destination is in memory");
        &loaded.bytes()[start..start + len]
    })
}
