//! Loads through the engine: into placed tensors through windows, or into an image of the
//! files.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use fs_adapter::placement::Placement;
use ubio::vram::VramBuffer;
use ubio::vram::host::allocate;
use ubio::vram::shared::NamedBuffer;
use ubio::{Engine, LoadRequest, Loaded, Routes};

use crate::args::{Advanced, Args, Route};
use crate::destination::Destination;
use crate::exit::{Exit, Failure};
use crate::meter::Meter;
use crate::progress::{Progress, drive};
use crate::report::Outcome;
use crate::run::{Done, Job};
use crate::verify;
use crate::via::{self, Way};

/// An open engine, and where everything goes.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    job: &'a Job<'a>,
    placement: Placement,
    engine: Engine,
    /// Made before anything is loaded, so that a wrong name costs nothing.
    trace: Option<(PathBuf, File)>,
}

impl<'a> Placed<'a> {
    pub(crate) fn new(job: &'a Job<'a>) -> Result<Self, Failure> {
        let args = job.args;
        let placement = via::place(args, job.choice, &job.model, &job.plan, &job.destination)?;
        if let Some(path) = &args.trace {
            refuse_source(path, &job.model, args.src.as_deref())?;
        }
        let open_trace = |path: &PathBuf| match open_for_trace(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(cause) => Err(trace_failure(path, &cause)),
        };
        let trace = args.trace.as_ref().map(open_trace).transpose()?;
        Ok(Self {
            job,
            placement,
            engine: open(args)?,
            trace,
        })
    }

    /// One load into fresh memory, published if it is the last.
    pub(crate) fn load(&self, mut meter: Meter, last: bool) -> Result<Done, Failure> {
        let job = self.job;
        let named = match &job.destination {
            Destination::Shm { name, .. } => {
                let made = NamedBuffer::create(name, self.placement.len_bytes);
                Some(made.map_err(|error| Failure::destination(&error))?)
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
        drive(load, job.signals, &mut progress)
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
        let Some((path, file)) = self.trace else {
            return Ok(());
        };
        let trace = self
            .engine
            .take_trace()
            .map_err(|error| Failure::engine(&error))?;
        if file.metadata().is_ok_and(|found| found.is_file()) {
            file.set_len(0)
                .map_err(|cause| trace_failure(&path, &cause))?;
        }
        let mut out = std::io::BufWriter::new(file);
        trace
            .write(&mut out)
            .and_then(|()| std::io::Write::flush(&mut out))
            .map_err(|cause| trace_failure(&path, &cause))
    }
}

fn open(args: &Args) -> Result<Engine, Failure> {
    let advanced: &Advanced = &args.advanced;
    let mut builder = Engine::builder()
        .windows(advanced.windows)
        .window_bytes(advanced.window_size)
        .adaptive(!advanced.no_tune)
        .huge_pages(!advanced.no_huge)
        .io_uring(!advanced.no_uring)
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
    builder.open().map_err(|error| Failure::engine(&error))
}

/// What an older trace holds stays until there is a new one. A pipe must have a reader.
fn open_for_trace(path: &std::path::Path) -> std::io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(i32::try_from(nonblocking.bits()).unwrap_or(0))
        .open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - nonblocking)?;
    Ok(file)
}

/// Writing a trace over the source would lose it: its files, and its index.
fn refuse_source(
    trace: &std::path::Path,
    model: &fs_adapter::Model,
    source: Option<&std::ffi::OsStr>,
) -> Result<(), Failure> {
    let Ok(found) = std::fs::metadata(trace) else {
        return Ok(());
    };
    let same = |other: &std::path::Path| {
        std::fs::metadata(other)
            .is_ok_and(|other| other.ino() == found.ino() && other.dev() == found.dev())
    };
    let is_source = |file: &fs_adapter::ModelFile| {
        file.identity().inode == found.ino() && file.identity().device == found.dev()
    };
    let source = std::path::Path::new(source.unwrap_or_default());
    let is_index = same(source)
        || std::fs::read_dir(source).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| {
                    let name = entry.file_name();
                    name.to_string_lossy().ends_with(".index.json") && same(&entry.path())
                })
            })
        });
    let is_source = is_index || model.files().iter().any(is_source);
    if is_source || !(found.is_file() || is_stream(&found)) {
        return Err(Failure::usage(
            format!("{} is no place for the trace", trace.display()),
            "name a file of its own (--trace)",
        ));
    }
    Ok(())
}

/// Whether writing to it replaces nothing: a pipe, a terminal, `/dev/null`.
fn is_stream(found: &std::fs::Metadata) -> bool {
    found.file_type().is_fifo() || found.file_type().is_char_device()
}

fn trace_failure(path: &std::path::Path, cause: &std::io::Error) -> Failure {
    Failure::os(Exit::Io, path, "write the trace", cause)
        .remedy("name a file in a writable folder with space (--trace)")
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
