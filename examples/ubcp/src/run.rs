//! A whole invocation, from arguments to the report. Order matters here: everything that can
//! be refused is refused before memory is taken, all memory is taken before the first read,
//! and a name is given after the last check.

use std::sync::Arc;
use std::time::Instant;

use fs_adapter::Model;
use fs_adapter::placement::Placement;
use fs_adapter::plan::{self, Plan, Selection};
use ubio::vram::shared::NamedBuffer;
use ubio::{Engine, LoadRequest, Loaded, Routes};

use crate::args::{Args, Order, Route};
use crate::destination::Destination;
use crate::exit::{Exit, Failure};
use crate::export::export;
use crate::list;
use crate::meter::Meter;
use crate::progress::{Progress, drive};
use crate::report::{self, Explain, Outcome, Subject};
use crate::signals::Signals;
use crate::source::Source;
use crate::verify::verify;
use crate::via::{self, Choice, Way};

/// Does what `args` ask.
pub(crate) fn run(args: &Args, signals: &Signals, begun: Instant) -> Result<(), Failure> {
    args.check()?;
    let source = Source::parse(args.src.as_deref().unwrap_or_default())?;
    if args.list {
        let model = source.open(!args.no_follow)?;
        let plan = plan_of(args, &model)?;
        return list::print(&model, &plan, args.json);
    }
    let destination = Destination::parse(args.dst.as_deref().unwrap_or_default())?;
    destination.check_with(&source)?;
    let model = source.open(!args.no_follow)?;
    if let Destination::File(to) = &destination {
        let (subject, outcome) = export(args, signals, &model, to, begun)?;
        return report::print(args, &subject, &[outcome]);
    }
    let plan = plan_of(args, &model)?;
    let choice = via::choose(args, &model, &destination)?;
    let placement = via::place(args, choice.via, &model, &plan, &destination)?;
    let job = Job {
        args,
        signals,
        model: Arc::new(model),
        plan,
        placement,
        choice,
        destination,
    };
    let (subject, outcomes) = job.run(begun)?;
    report::print(args, &subject, &outcomes)
}

fn plan_of(args: &Args, model: &Model) -> Result<Plan, Failure> {
    let order = match args.order {
        Order::File => plan::Order::File,
        Order::Layer => plan::Order::Layer,
    };
    Selection::new(&args.tensors)
        .and_then(|selection| Plan::new(model, &selection, order))
        .map_err(|error| Failure::model(&error))
}

/// What is to be loaded, and how; the same for every repetition.
#[derive(Debug)]
struct Job<'a> {
    args: &'a Args,
    signals: &'a Signals,
    model: Arc<Model>,
    plan: Plan,
    placement: Placement,
    choice: Choice,
    destination: Destination,
}

impl Job<'_> {
    fn run(&self, begun: Instant) -> Result<(Subject, Vec<Outcome>), Failure> {
        let engine = self.engine()?;
        let repeats = self.args.repeat.unwrap_or(1);
        let mut outcomes = Vec::new();
        for repeat in 1..=repeats {
            let meter = match repeat {
                1 => Meter::from_start(begun),
                _ => Meter::from_now(),
            };
            outcomes.push(self.once(&engine, meter, repeat == repeats)?);
        }
        if let Some(path) = &self.args.trace {
            write_trace(&engine, path)?;
        }
        Ok((self.subject(engine.explain().into()), outcomes))
    }

    fn engine(&self) -> Result<Engine, Failure> {
        let advanced = &self.args.advanced;
        let mut builder = Engine::builder()
            .windows(advanced.windows)
            .window_bytes(advanced.window_size)
            .commands(
                advanced.command_size.min(advanced.window_size),
                advanced.depth,
            )
            .huge_pages(!advanced.no_huge)
            .io_uring(!advanced.no_uring)
            .traced(self.args.trace.is_some());
        if let Some(workers) = advanced.workers {
            builder = builder.workers(workers.into());
        }
        builder.open().map_err(|error| Failure::engine(&error))
    }

    /// One load into fresh memory.
    fn once(&self, engine: &Engine, mut meter: Meter, last: bool) -> Result<Outcome, Failure> {
        if self.args.cold {
            meter.except(|| drop_caches(&self.model))?;
        }
        let named = match &self.destination {
            Destination::Shm { name, .. } => {
                let made = NamedBuffer::create(name, self.placement.len_bytes);
                Some(made.map_err(|error| Failure::destination(&error))?)
            }
            _ => None,
        };
        let loaded = self.load(engine, named.as_ref())?;
        let measured = meter.stop();
        let report = engine
            .take_report()
            .map_err(|error| Failure::engine(&error))?;
        if self.args.verify {
            verify(&self.model, &self.placement, loaded.bytes())?;
        }
        let digest = self.args.digest.map(|algorithm| {
            let hex = algorithm.of(in_file_order(&loaded));
            format!("{}:{hex}", algorithm.name())
        });
        if let Some(named) = named
            && last
        {
            let _held = self.signals.hold();
            self.signals.check()?;
            named
                .publish()
                .map_err(|error| Failure::destination(&error))?;
            self.signals.published();
        }
        Ok(Outcome {
            measured,
            report,
            digest,
            verified: self.args.verify,
        })
    }

    fn load(&self, engine: &Engine, named: Option<&NamedBuffer>) -> Result<Loaded, Failure> {
        let mut request = LoadRequest::new(
            Arc::clone(&self.model),
            self.plan.clone(),
            self.placement.clone(),
        );
        request.strict = self.args.strict;
        request.routes = match self.args.route {
            Route::Auto => Routes::Auto,
            Route::Direct => Routes::Direct,
            Route::Cached => Routes::Cached,
            Route::Traditional => Routes::Traditional,
        };
        if let Some(named) = named {
            request.destination = ubio::Destination::Buffer(named.buffer());
        }
        let mut progress = Progress::new(self.args, self.moved_bytes());
        let _held = self.signals.hold();
        let load = engine
            .load(request)
            .map_err(|error| Failure::engine(&error))?;
        drive(load, self.signals, &mut progress)
    }

    /// Bytes that come from the source: of whole files in place, else of tensors.
    fn moved_bytes(&self) -> u64 {
        match self.choice.via {
            Way::InPlace => self.placement.files.iter().map(|file| file.len).sum(),
            Way::Ub => self.plan.payload_bytes,
        }
    }

    fn subject(&self, explain: Explain) -> Subject {
        Subject {
            source: self.args.src.clone().unwrap_or_default(),
            destination: self.args.dst.clone().unwrap_or_default(),
            result: match &self.destination {
                Destination::Shm { path, .. } => Some(path.clone()),
                _ => None,
            },
            bytes: self.moved_bytes(),
            tensors: self.plan.order.len(),
            files: self.model.files().len(),
            format: self.model.format(),
            via: self.choice.via.name(),
            via_reason: self.choice.reason,
            explain,
        }
    }
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

/// Asks the kernel to forget the files' cached pages. Pages that others have mapped stay.
fn drop_caches(model: &Model) -> Result<(), Failure> {
    for file in model.files() {
        let fail = |cause: std::io::Error| {
            Failure::os(
                Exit::Io,
                file.path(),
                "drop the file from the page cache",
                &cause,
            )
            .remedy("load it without --cold")
        };
        // Dirty pages would stay.
        file.file().sync_data().map_err(fail)?;
        rustix::fs::fadvise(file.file(), 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|errno| fail(errno.into()))?;
    }
    Ok(())
}

fn write_trace(engine: &Engine, path: &std::path::Path) -> Result<(), Failure> {
    let trace = engine
        .take_trace()
        .map_err(|error| Failure::engine(&error))?;
    let write = || {
        let mut out = std::io::BufWriter::new(std::fs::File::create(path)?);
        trace.write(&mut out)?;
        std::io::Write::flush(&mut out)
    };
    write().map_err(|cause| {
        Failure::os(Exit::Io, path, "write the trace", &cause)
            .remedy("name a file in a writable folder with space (--trace)")
    })
}
