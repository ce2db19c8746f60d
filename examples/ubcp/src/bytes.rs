//! Loads of bytes as they are: a range of an NVMe namespace, or a whole file into the memory of
//! a PCI function. There are no tensors here, and what asks for some is refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_adapter::{FileIndex, Format, Model, OpenOptions};
use ubio::range::Opened;
use ubio::source::nvme::{NvmeAddress, NvmeOptions};
use ubio::vram::VramBuffer;
use ubio::vram::bar::BarMemory;
use ubio::vram::host::allocate;
use ubio::vram::shared::NamedBuffer;
use ubio::{Engine, RawLoad, RawLoaded, RawRequest};

use crate::args::{Args, Order, Route, Via};
use crate::destination::Destination;
use crate::exit::Failure;
use crate::meter::Meter;
use crate::placed::builder;
use crate::progress::{Progress, drive};
use crate::report::{Outcome, Subject};
use crate::run::{drop_caches, repeat};
use crate::signals::Signals;
use crate::size;
use crate::source::{NamespaceSource, metadata_of};
use crate::trace_file::TraceFile;

mod verify;

/// The word for a drive that did not answer in time.
const TIMEOUT: &str = "timeout";
/// What is read in place begins at multiples of this, in the source and in memory.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a BAR or drive that are read and digested at once.
const PART_BYTES: usize = 1 << 20;

/// Where the bytes come from.
pub(crate) enum Origin<'a> {
    /// Blocks of a namespace.
    Namespace(&'a NamespaceSource),
    /// A file, opened.
    File(Box<Model>),
}

/// Loads as `args` ask.
pub(crate) fn run(
    args: &Args,
    signals: &Signals,
    origin: Origin<'_>,
    destination: Destination,
    begun: Instant,
) -> Result<(Subject, Vec<Outcome>), Failure> {
    refuse_what_needs_tensors(args, &origin)?;
    let sources = match &origin {
        Origin::Namespace(source) => source.files(),
        Origin::File(model) => metadata_of(model)?,
    };
    let trace = args.trace.as_ref();
    let trace = trace
        .map(|path| TraceFile::open(path, args, &sources, &destination))
        .transpose()?;
    let job = Job::new(args, signals, origin, destination)?;
    let outcomes = repeat(
        args,
        begun,
        || job.make_cold(),
        |meter, last| job.load(meter, last),
    );
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
fn refuse_what_needs_tensors(args: &Args, origin: &Origin<'_>) -> Result<(), Failure> {
    let blocks = matches!(origin, Origin::Namespace(_));
    let given = [
        (!args.tensors.is_empty(), "--tensors"),
        (args.order != Order::File, "--order"),
        (args.align.is_some(), "--align"),
        (args.via == Via::Map, "--via map"),
        (args.advanced.prefault, "--prefault"),
        (args.route == Route::Cached, "--route cached"),
        (args.route == Route::Traditional, "--route traditional"),
        (blocks && args.route != Route::Auto, "--route"),
        (blocks && args.no_follow, "--no-follow"),
        (blocks && args.cold, "--cold"),
        (blocks && args.advanced.no_uring, "--no-uring"),
    ];
    let kernels = matches!(origin, Origin::Namespace(source)
        if matches!(source.address, NvmeAddress::Passthrough(_)));
    if let Some(option) = args.nvme.of_own_queues().filter(|_| kernels) {
        return Err(Failure::usage(
            format!("{option} has no meaning for nvme:/dev/…, where the kernel has the queues"),
            "drop it, or read a drive that is bound to vfio-pci (vfio:)",
        ));
    }
    match given.iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, option)) if blocks => Err(Failure::usage(
            format!("{option} has no meaning for blocks of a namespace"),
            "drop it; SRC says by which route blocks are read",
        )),
        Some((_, option)) => Err(Failure::usage(
            format!("{option} has no meaning for a BAR, which takes a file as it is"),
            "drop it, or load into shm:NAME or host:",
        )),
    }
}

/// What is loaded, and how; the same for every repetition.
struct Job<'a> {
    args: &'a Args,
    signals: &'a Signals,
    destination: Destination,
    bar: Option<Arc<BarMemory>>,
    engine: Engine,
    address: Option<&'a NvmeAddress>,
    file: Option<Opened>,
    /// The file under an emulated controller, to see whether it changes.
    image: Option<Model>,
    offset: u64,
    len_bytes: u64,
    in_place: bool,
    reason: Option<&'static str>,
}

impl<'a> Job<'a> {
    fn new(
        args: &'a Args,
        signals: &'a Signals,
        origin: Origin<'a>,
        destination: Destination,
    ) -> Result<Self, Failure> {
        let mut builder = builder(args);
        let bar = match &destination {
            Destination::Bar(location) => {
                let memory = BarMemory::open(location, None);
                let memory = memory.map_err(|error| Failure::destination(&error))?;
                builder = builder.bar(Arc::clone(&memory));
                Some(memory)
            }
            _ => None,
        };
        let image = match &origin {
            Origin::Namespace(source) => image(&source.address)?,
            Origin::File(_) => None,
        };
        let (address, file, offset, len_bytes) = match origin {
            Origin::Namespace(source) => {
                builder = builder.nvme(source.address.clone(), options(args));
                (Some(&source.address), None, source.offset, source.len_bytes)
            }
            Origin::File(model) => {
                builder = builder.io_uring(!args.advanced.no_uring);
                let opened = Opened::new(Arc::new(*model));
                let opened = opened.map_err(|error| Failure::engine(&error))?;
                (None, Some(opened), 0, None)
            }
        };
        let engine = builder.open().map_err(|error| {
            let place = address.map(ToString::to_string).unwrap_or_default();
            match address {
                Some(_) => Failure::source(&error).or_at(place),
                None => Failure::engine(&error),
            }
        })?;
        let has = match (&file, engine.explain().namespace()) {
            (Some(opened), _) => opened.model().file(FileIndex(0)).len_bytes(),
            (None, info) => info.expect("opened for a namespace").len_bytes,
        };
        let left = has.saturating_sub(offset);
        let len_bytes = len_bytes.unwrap_or(left);
        // Before memory is taken for it.
        if len_bytes == 0 || len_bytes > left {
            let what = match len_bytes {
                0 => format!("no bytes are asked for: offset {offset} of {has}"),
                _ => format!("{len_bytes} bytes at offset {offset} are asked for, of {has}"),
            };
            return Err(Failure::usage(
                what,
                "ask for what there is (offset=, len=)",
            ));
        }
        let mut job = Self {
            args,
            signals,
            destination,
            bar,
            engine,
            address,
            file,
            image,
            offset,
            len_bytes,
            in_place: false,
            reason: None,
        };
        (job.in_place, job.reason) = job.way();
        Ok(job)
    }

    /// Whether the drive writes the destination itself, and why where nobody asked.
    fn way(&self) -> (bool, Option<&'static str>) {
        let own_queues = matches!(
            self.address,
            Some(NvmeAddress::Vfio { .. } | NvmeAddress::Emulated { .. })
        );
        let direct = self.file.as_ref().is_none_or(|opened| {
            let direct_io = opened.direct_io(FileIndex(0));
            matches!(direct_io, ubio::source::file::probe::DirectIo::Aligned(_))
        });
        // A BAR has no pages that the kernel could read into.
        let reachable =
            |memory: &Arc<BarMemory>| own_queues || memory.kind() != ubio::window::MemoryKind::Bar;
        match (self.args.via, &self.bar) {
            (Via::InPlace, _) => (true, None),
            (Via::Ub | Via::Map, _) => (false, None),
            (Via::Auto, None) => (false, Some("host memory is filled through windows")),
            (Via::Auto, Some(memory)) if !reachable(memory) => {
                (false, Some("only queues of our own (vfio:) reach a BAR"))
            }
            (Via::Auto, Some(_)) if !direct => {
                (false, Some("the page cache cannot be read into a device"))
            }
            (Via::Auto, Some(_)) if !self.offset.is_multiple_of(PAGE_BYTES) => {
                (false, Some("the range does not begin with a page"))
            }
            (Via::Auto, Some(_)) => (true, Some("the drive writes the function's memory itself")),
        }
    }

    fn make_cold(&self) -> Result<(), Failure> {
        match &self.file {
            Some(opened) if self.args.cold => drop_caches(opened.model()),
            _ => Ok(()),
        }
    }

    /// One load into fresh memory, published if it is the last.
    fn load(&self, meter: Meter, last: bool) -> Result<Outcome, Failure> {
        let failed = |error: ubio::Error| Failure::destination(&error);
        let room = match self.in_place {
            true => self.len_bytes.next_multiple_of(PAGE_BYTES),
            false => self.len_bytes,
        };
        let named = match &self.destination {
            Destination::Shm { name, .. } => {
                let made = NamedBuffer::create(name, self.len_bytes).map_err(failed)?;
                self.restrict(&made).map_err(failed)?;
                Some(made)
            }
            _ => None,
        };
        let buffer = match (&named, &self.bar) {
            (Some(named), _) => named.buffer(),
            (None, Some(memory)) => VramBuffer::Bar(memory.allocate(room).map_err(failed)?),
            (None, None) => VramBuffer::Host(allocate(room.max(1)).map_err(failed)?),
        };
        let loaded = self.run(buffer);
        // Also where it failed: that may be why.
        if let Some(image) = &self.image {
            let unchanged = image.check_unchanged();
            unchanged.map_err(|error| Failure::model(&error))?;
        }
        let loaded = loaded?;
        let measured = meter.stop();
        let report = self.engine.take_report();
        let report = report.map_err(|error| Failure::engine(&error))?;
        if self.args.verify {
            verify::compare(self.offset, &loaded, |request| self.start(request))?;
        }
        let digest = self.args.digest.map(|algorithm| {
            let mut digest = algorithm.begin();
            each_part(&loaded, |_, part| {
                digest.add(part);
                Ok(())
            })
            .map(|()| format!("{}:{}", algorithm.name(), digest.end()))
        });
        let digest = digest.transpose()?;
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
            Some(NvmeAddress::Emulated { file, .. }) => match std::fs::metadata(file) {
                Ok(limit) => made.restrict(&limit),
                Err(_gone) => made.restrict_to_owner(),
            },
            _ => made.restrict_to_owner(),
        }
    }

    fn start(&self, request: RawRequest) -> ubio::Result<RawLoad> {
        match &self.file {
            Some(opened) => self.engine.read_raw_file(opened, FileIndex(0), request),
            None => self.engine.read_raw(request),
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
        let load = self.start(request);
        let load = load.map_err(|error| Failure::engine(&error))?;
        let watch = load.watch();
        drive(load, &watch, self.signals, &mut progress)
    }

    fn subject(&self) -> Subject {
        let result = match &self.destination {
            Destination::Shm { path, .. } => Some(path.clone()),
            _ => None,
        };
        Subject {
            source: self.args.src.clone().unwrap_or_default(),
            destination: self.args.dst.clone().unwrap_or_default(),
            result,
            bytes: self.len_bytes,
            tensors: 0,
            files: usize::from(self.file.is_some()),
            format: Format::Raw,
            via: if self.in_place { "in-place" } else { "ub" },
            via_reason: self.reason,
            layout: "image",
            explain: self.engine.explain().into(),
        }
    }
}

/// Hands out what was loaded, part by part with its place; a device's memory is copied out.
fn each_part(
    loaded: &RawLoaded,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let step = PART_BYTES as u64;
    if let Some(bytes) = loaded.bytes() {
        let parts = (0..).zip(bytes.chunks(PART_BYTES));
        return parts
            .into_iter()
            .try_for_each(|(index, part)| each(index * step, part));
    }
    let mut buffer = vec![0; PART_BYTES];
    let mut at = 0;
    while at < loaded.len_bytes() {
        let len = step.min(loaded.len_bytes() - at);
        let part = &mut buffer[..usize::try_from(len).expect("small")];
        loaded.copy_to(at, part);
        each(at, part)?;
        at += len;
    }
    Ok(())
}

/// The file under an emulated controller; a block device is as silent as a drive.
fn image(address: &NvmeAddress) -> Result<Option<Model>, Failure> {
    match address {
        NvmeAddress::Emulated { file, .. }
            if file.metadata().is_ok_and(|is| is.len() > 0 && is.is_file()) =>
        {
            let options = OpenOptions::default().format(Format::Raw);
            let image = Model::open(file, &options);
            image.map(Some).map_err(|error| Failure::model(&error))
        }
        _ => Ok(None),
    }
}

fn options(args: &Args) -> NvmeOptions {
    let nvme = &args.nvme;
    let usual = NvmeOptions::default();
    NvmeOptions {
        polled: nvme.poll,
        queues: nvme.queues.unwrap_or(usual.queues),
        prp_only: nvme.prp,
        deadline: nvme.timeout.map_or(usual.deadline, |seconds| {
            Duration::from_secs(seconds.into())
        }),
    }
}

/// `offset=` and `len=` of an address.
pub(crate) fn bytes_of(key: &str, value: &str) -> Result<u64, Failure> {
    let sizes = "write a number of bytes with an optional unit: ?offset=4096&len=1GiB";
    size::parse(value).map_err(|why| Failure::usage(format!("{key}={value}: {why}"), sizes))
}
