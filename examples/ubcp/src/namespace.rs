//! Loads of byte ranges of an NVMe namespace: what of the command line has a meaning there, and
//! the load itself. Blocks have no tensors, so the range is taken as bytes.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use fs_adapter::Format;
use ubio::source::nvme::{NvmeAddress, NvmeOptions};
use ubio::vram::VramBuffer;
use ubio::vram::host::allocate;
use ubio::vram::shared::NamedBuffer;
use ubio::{Engine, RawLoaded, RawRequest};

use crate::args::{Args, Order, Route, Via};
use crate::destination::Destination;
use crate::exit::Failure;
use crate::meter::Meter;
use crate::placed::builder;
use crate::progress::{Progress, drive};
use crate::report::{Outcome, Subject};
use crate::run::repeat;
use crate::signals::Signals;
use crate::size;
use crate::source::NamespaceSource;
use crate::trace_file::TraceFile;

mod verify;

/// The word for a drive that did not answer in time.
const TIMEOUT: &str = "timeout";

/// Loads as `args` ask.
pub(crate) fn run(
    args: &Args,
    signals: &Signals,
    source: &NamespaceSource,
    begun: Instant,
) -> Result<(Subject, Vec<Outcome>), Failure> {
    refuse_what_needs_files(args)?;
    let destination = Destination::parse(args.dst.as_deref().unwrap_or_default())?;
    if let Destination::File(path) = &destination {
        return Err(Failure::usage(
            format!("{} is a file", path.display()),
            "load into shm:NAME, host: or bar:FUNCTION/BAR; dd copies blocks to files",
        ));
    }
    let trace = args.trace.as_ref();
    let trace = trace
        .map(|path| TraceFile::open(path, args, &source.files(), &destination))
        .transpose()?;
    let engine = open(args, &source.address)?;
    let job = Job::new(args, signals, source, destination, engine)?;
    let outcomes = repeat(args, begun, || Ok(()), |meter, last| job.load(meter, last));
    let outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(failure) => {
            if failure.kind == TIMEOUT {
                // The drive keeps a command: whoever waits for the engine waits for that. The
                // kernel holds the memory until it comes back.
                job.engine.abandon();
            }
            return Err(failure);
        }
    };
    if let Some(file) = trace {
        let taken = job.engine.take_trace();
        let taken = taken.map_err(|error| Failure::engine(&error))?;
        file.write(&taken)
            .map_err(|error| signals.too_late(error))?;
    }
    Ok((job.subject(), outcomes))
}

/// What has a meaning for files or tensors only.
fn refuse_what_needs_files(args: &Args) -> Result<(), Failure> {
    let given = [
        (args.list, "--list"),
        (!args.tensors.is_empty(), "--tensors"),
        (args.order != Order::File, "--order"),
        (args.align.is_some(), "--align"),
        (args.no_follow, "--no-follow"),
        (args.cold, "--cold"),
        (args.route != Route::Auto, "--route"),
        (args.via == Via::Map, "--via map"),
        (args.advanced.no_uring, "--no-uring"),
        (args.advanced.prefault, "--prefault"),
    ];
    match given.iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, option)) => Err(Failure::usage(
            format!("{option} has no meaning for blocks of a namespace"),
            "drop it; SRC says by which route blocks are read",
        )),
    }
}

fn open(args: &Args, address: &NvmeAddress) -> Result<Engine, Failure> {
    let nvme = &args.nvme;
    let options = NvmeOptions {
        polled: nvme.poll,
        queues: nvme.queues,
        prp_only: nvme.prp,
        deadline: Duration::from_secs(nvme.timeout.into()),
    };
    builder(args)
        .nvme(address.clone(), options)
        .open()
        .map_err(|error| Failure::engine(&error).or_at(address.to_string()))
}

/// What is loaded, and how; the same for every repetition.
struct Job<'a> {
    args: &'a Args,
    signals: &'a Signals,
    address: &'a NvmeAddress,
    destination: Destination,
    engine: Engine,
    offset: u64,
    len_bytes: u64,
    in_place: bool,
    reason: Option<&'static str>,
}

impl<'a> Job<'a> {
    fn new(
        args: &'a Args,
        signals: &'a Signals,
        source: &'a NamespaceSource,
        destination: Destination,
        engine: Engine,
    ) -> Result<Self, Failure> {
        let info = engine.explain().namespace();
        let has = info.expect("opened for a namespace").len_bytes;
        let offset = source.offset;
        let len_bytes = match source.len_bytes {
            Some(len) => len,
            None => has.checked_sub(offset).ok_or_else(|| {
                Failure::usage(
                    format!("offset {offset} lies beyond the {has} bytes of the namespace"),
                    "ask for what it has (offset=, len=)",
                )
                .at(source.address.to_string())
            })?,
        };
        let (in_place, reason) = match args.via {
            Via::InPlace => (true, None),
            Via::Auto => (false, Some("host memory is filled through windows")),
            _ => (false, None),
        };
        Ok(Self {
            args,
            signals,
            address: &source.address,
            destination,
            engine,
            offset,
            len_bytes,
            in_place,
            reason,
        })
    }

    /// One load into fresh memory, published if it is the last.
    fn load(&self, meter: Meter, last: bool) -> Result<Outcome, Failure> {
        let room = match self.in_place {
            true => self.len_bytes.next_multiple_of(4096),
            false => self.len_bytes,
        };
        let failed = |error: ubio::Error| Failure::destination(&error);
        let named = match &self.destination {
            Destination::Shm { name, .. } => {
                let made = NamedBuffer::create(name, self.len_bytes).map_err(failed)?;
                self.restrict(&made).map_err(failed)?;
                Some(made)
            }
            _ => None,
        };
        let buffer = match &named {
            Some(named) => named.buffer(),
            None => VramBuffer::Host(allocate(room.max(1)).map_err(failed)?),
        };
        let loaded = self.run(buffer)?;
        let measured = meter.stop();
        let report = self.engine.take_report();
        let report = report.map_err(|error| Failure::engine(&error))?;
        if self.args.verify {
            verify::compare(&self.engine, self.offset, &loaded)?;
        }
        let digest = self.args.digest.map(|algorithm| {
            let digest = algorithm.of(loaded.bytes().into_iter());
            format!("{}:{digest}", algorithm.name())
        });
        if let Some(named) = named
            && last
        {
            let _held = self.signals.hold();
            self.signals.check()?;
            named.publish().map_err(failed)?;
            self.signals.published();
        }
        Ok(Outcome {
            measured,
            report,
            digest,
            verified: self.args.verify,
        })
    }

    /// What a raw drive holds is its owner's alone; of a file it is whose the file is.
    fn restrict(&self, made: &NamedBuffer) -> ubio::Result<()> {
        match self.address {
            NvmeAddress::Emulated { file, .. } => match std::fs::metadata(file) {
                Ok(limit) => made.restrict(&limit),
                Err(_gone) => made.restrict_to_owner(),
            },
            _ => made.restrict_to_owner(),
        }
    }

    fn run(&self, buffer: VramBuffer) -> Result<RawLoaded, Failure> {
        let request = RawRequest {
            offset: self.offset,
            len_bytes: self.len_bytes,
            destination: ubio::Destination::Buffer(buffer),
            in_place: self.in_place,
            strict: self.args.strict,
        };
        let mut progress = Progress::new(self.args, self.len_bytes);
        let _held = self.signals.hold();
        let load = self.engine.read_raw(request);
        let load = load.map_err(|error| Failure::engine(&error))?;
        let watch = load.watch();
        drive(load, &watch, self.signals, &mut progress)
    }

    fn subject(&self) -> Subject {
        let word = |word: &Option<OsString>| word.clone().unwrap_or_default();
        Subject {
            source: word(&self.args.src),
            destination: word(&self.args.dst),
            result: match &self.destination {
                Destination::Shm { path, .. } => Some(path.clone()),
                _ => None,
            },
            bytes: self.len_bytes,
            tensors: 0,
            files: 0,
            format: Format::Raw,
            via: if self.in_place { "in-place" } else { "ub" },
            via_reason: self.reason,
            layout: "image",
            explain: self.engine.explain().into(),
        }
    }
}

/// `offset=` and `len=` of an address.
pub(crate) fn bytes_of(key: &str, value: &str) -> Result<u64, Failure> {
    size::parse(value).map_err(|why| Failure::usage(format!("{key}={value}: {why}"), SIZES))
}

const SIZES: &str = "write a number of bytes with an optional unit: ?offset=4096&len=1GiB";
