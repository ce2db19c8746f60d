//! A whole invocation, from arguments to the report. Order matters here: everything that can
//! be refused is refused before memory is taken, all memory is taken before the first read,
//! and a name is given after the last check.

use std::sync::Arc;
use std::time::Instant;

use fs_adapter::Model;
use fs_adapter::plan::{self, Plan, Selection};

use crate::args::{Args, Order};
use crate::bytes::{self, Origin};
use crate::destination::Destination;
use crate::exit::{Exit, Failure};
use crate::export::export;
use crate::list;
use crate::mapped;
use crate::meter::Meter;
use crate::placed::Placed;
use crate::report::{self, Explain, Outcome, Subject};
use crate::signals::Signals;
use crate::source::Source;
use crate::via::{self, Choice, Way};

/// Does what `args` ask.
pub(crate) fn run(args: &Args, signals: &Signals, begun: Instant) -> Result<(), Failure> {
    args.check()?;
    let source = Source::parse(args.src.as_deref().unwrap_or_default())?;
    let namespace = matches!(source, Source::Namespace(_));
    if let Some(option) = args.nvme.any().filter(|_| !namespace) {
        return Err(Failure::usage(
            format!("{option} has a meaning for blocks of a namespace only"),
            "drop it, or name nvme: or vfio: as SRC",
        ));
    }
    if args.list {
        if namespace {
            return Err(Failure::usage(
                "--list has no meaning for blocks of a namespace",
                "load them into shm:NAME, and list /dev/shm/ubio.NAME",
            ));
        }
        let model = source.open(!args.no_follow)?;
        let plan = plan_of(args, &model)?;
        signals.answering();
        return list::print(&model, &plan, args.json);
    }
    let destination = Destination::parse(args.dst.as_deref().unwrap_or_default())?;
    destination.check_with(&source)?;
    let origin = match &source {
        Source::Namespace(source) => Some(Origin::Namespace(source)),
        _ if matches!(destination, Destination::Bar(_)) => Some(Origin::File(Box::new(one_file(
            source.open(!args.no_follow)?,
        )?))),
        _ => None,
    };
    if let Some(origin) = origin {
        let (subject, outcomes) = bytes::run(args, signals, origin, destination, begun)?;
        signals.answering();
        return report::print(args, &subject, &outcomes).map_err(|error| signals.too_late(error));
    }
    let model = source.open(!args.no_follow)?;
    if let Destination::File(to) = &destination {
        let exported = export(args, signals, &model, to, begun);
        let (subject, outcome) = exported.map_err(|error| signals.too_late(error))?;
        signals.answering();
        return report::print(args, &subject, &[outcome]).map_err(|error| signals.too_late(error));
    }
    let plan = plan_of(args, &model)?;
    let choice = via::choose(args, &model, &destination)?;
    let job = Job {
        args,
        signals,
        model: Arc::new(model),
        plan,
        choice,
        destination,
    };
    let (subject, outcomes) = match choice.via {
        Way::Map => job.repeat(begun, |meter, _last| mapped::load(&job, meter))?,
        Way::Ub | Way::InPlace => {
            let placed = Placed::new(&job)?;
            let done = job.repeat(begun, |meter, last| placed.load(meter, last))?;
            let traced = placed.write_trace();
            traced.map_err(|error| signals.too_late(error))?;
            done
        }
    };
    signals.answering();
    report::print(args, &subject, &outcomes).map_err(|error| signals.too_late(error))
}

/// A BAR takes a file as it is, so there has to be one.
fn one_file(model: Model) -> Result<Model, Failure> {
    match model.files().len() {
        1 => Ok(model),
        files => Err(Failure::usage(
            format!("a BAR takes one file, and SRC has {files}"),
            "name one of them, or load all into shm:NAME first",
        )),
    }
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
pub(crate) struct Job<'a> {
    pub(crate) args: &'a Args,
    pub(crate) signals: &'a Signals,
    pub(crate) model: Arc<Model>,
    pub(crate) plan: Plan,
    pub(crate) choice: Choice,
    pub(crate) destination: Destination,
}

/// One load, and what of it is the same for every repetition.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    /// Bytes that come from the source: of whole files where the result has their layout,
    /// else of tensors.
    pub(crate) bytes: u64,
    pub(crate) explain: Explain,
}

impl Job<'_> {
    /// Loads as often as asked; `once` gets to know which load is the last.
    fn repeat(
        &self,
        begun: Instant,
        once: impl FnMut(Meter, bool) -> Result<Done, Failure>,
    ) -> Result<(Subject, Vec<Outcome>), Failure> {
        let before = || match self.args.cold {
            true => drop_caches(&self.model),
            false => Ok(()),
        };
        let mut done = repeat(self.args, begun, before, once)?;
        let last = done
            .last_mut()
            .map(|done| (done.bytes, std::mem::take(&mut done.explain)));
        let (bytes, explain) = last.unwrap_or_default();
        let outcomes = done.into_iter().map(|done| done.outcome).collect();
        Ok((self.subject(bytes, explain), outcomes))
    }

    /// What was asked to be found out about what was loaded, after the clock has stopped.
    /// `tensors` are the loaded tensors' bytes in file order.
    pub(crate) fn digest<'b>(&self, tensors: impl Iterator<Item = &'b [u8]>) -> Option<String> {
        self.args
            .digest
            .map(|algorithm| format!("{}:{}", algorithm.name(), algorithm.of(tensors)))
    }

    fn subject(&self, bytes: u64, explain: Explain) -> Subject {
        Subject {
            source: self.args.src.clone().unwrap_or_default(),
            destination: self.args.dst.clone().unwrap_or_default(),
            result: match &self.destination {
                Destination::Shm { path, .. } => Some(path.clone()),
                _ => None,
            },
            bytes,
            tensors: self.plan.order.len(),
            files: self.model.files().len(),
            format: self.model.format(),
            via: self.choice.via.name(),
            via_reason: self.choice.reason,
            layout: self.choice.layout(),
            explain,
        }
    }
}

/// Does `once` as often as asked, telling it which time is the last; `before` each time, off the
/// clock.
pub(crate) fn repeat<T>(
    args: &Args,
    begun: Instant,
    mut before: impl FnMut() -> Result<(), Failure>,
    mut once: impl FnMut(Meter, bool) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let repeats = args.repeat.unwrap_or(1);
    let mut done = Vec::new();
    let mut meter = Meter::from_start(begun);
    for time in 1..=repeats {
        meter.except(&mut before)?;
        done.push(once(meter, time == repeats)?);
        if time < repeats {
            meter = Meter::from_now();
        }
    }
    Ok(done)
}

/// Asks the kernel to forget the files' cached pages. Pages that others have mapped stay.
pub(crate) fn drop_caches(model: &Model) -> Result<(), Failure> {
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
