//! Suite `faults`: what the engine does when drives fail, stall, are reset or go away; over the
//! kernel's passthrough and over queues of our own.
//!
//! In every case: what is loaded is the drive's bytes (I1), and no end comes twice or of nothing
//! (I3). Each says what retries, aborts and resets it wants to see counted (I6). That no window
//! is used again before its command came back (I2), `late` and `reset` show. Knows windows only
//! by what the engine reports.

mod gone;
mod late;
mod quiesce;
mod refused;
mod reset;

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nvme::transport::Incidents;
use ubio::source::nvme::{NvmeAddress, NvmeOptions};
use ubio::stats::Report;
use ubio::{Engine, ErrorKind, RawLoad, RawLoaded, RawRequest};
use ubio_lab_spec::line::Action;
use ubio_lab_spec::{Machine, pattern};

use super::engines;
use crate::case::Case;
use crate::lab::Lab;

const MIB: u64 = 1 << 20;
const WINDOW_BYTES: u32 = 1 << 20;

/// How a drive is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Passthrough,
    Vfio,
}

const WAYS: [Way; 2] = [Way::Passthrough, Way::Vfio];

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Vfio => "vfio",
        }
    }

    /// The drive that is for this way; both have the same namespaces, faults and limits.
    fn drive(self) -> &'static str {
        match self {
            Self::Passthrough => "peer",
            Self::Vfio => "vfio",
        }
    }

    /// A namespace's address, with the drive given to the driver that this way needs.
    fn address(self, lab: &Lab, drive: &str, nsid: u32) -> Result<NvmeAddress> {
        match self {
            Self::Passthrough => engines::passthrough(lab, drive, nsid),
            Self::Vfio => engines::vfio(lab, drive, nsid),
        }
    }
}

pub(super) fn cases(_: &Machine, full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for way in WAYS {
        let mut add = |name: &str, body: fn(&mut Lab, Way) -> Result<()>| {
            let name = format!("{}/{name}", way.word());
            cases.push(Case::new(name, move |lab| body(lab, way)));
        };
        add("media-error", refused::media_error);
        add("metadata-refused", refused::metadata);
        add("beyond-the-end", refused::beyond_the_end);
        add("late/one-window", late::one_window);
        add("late/two-windows", late::two_windows);
        add("late/dropped", late::dropped);
        match way {
            Way::Passthrough => add("reset-under-load", reset::by_sysfs),
            Way::Vfio => {
                add("reset/by-deadline", reset::by_deadline);
                add("reset/each-ends-once", reset::each_ends_once);
                add("quiesce-under-a-read", quiesce::under_a_read);
            }
        }
    }
    let rounds = if full { 10 } else { 2 };
    for way in WAYS {
        let name = format!("{}/removed-under-load", way.word());
        cases.push(Case::new(name, move |lab| gone::removed(lab, way, rounds)));
    }
    cases
}

/// An engine over a drive of the lab.
struct Bench {
    engine: Engine,
    drive: &'static str,
    seed: pattern::Seed,
}

impl Bench {
    /// Namespace 1 of the drive that is for this way.
    fn open(lab: &Lab, way: Way, windows: u16, deadline: Duration) -> Result<Self> {
        Self::of(lab, (way, way.drive()), windows, deadline)
    }

    fn of(
        lab: &Lab,
        (way, drive): (Way, &'static str),
        windows: u16,
        deadline: Duration,
    ) -> Result<Self> {
        let address = way.address(lab, drive, 1)?;
        Ok(Self {
            engine: open(address, windows, deadline)?,
            drive,
            seed: lab.seed(drive, 1)?,
        })
    }

    fn start(&self, offset: u64, len_bytes: u64) -> Result<RawLoad> {
        let request = RawRequest {
            offset,
            len_bytes,
            ..RawRequest::default()
        };
        Ok(self.engine.read_raw(request)?)
    }

    /// The load ended well, and has the drive's bytes (I1).
    fn whole(&self, offset: u64, loaded: &RawLoaded) -> Result<()> {
        let bytes = loaded.bytes().context("the load is not in host memory")?;
        ensure!(bytes.len() as u64 == loaded.len_bytes(), "a short load");
        pattern::check(self.seed, offset, bytes)
            .with_context(|| format!("{} from byte {offset}", self.drive))
    }

    fn load(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let loaded = self.start(offset, len_bytes)?.wait()?;
        self.whole(offset, &loaded)
    }

    /// What was done since the last one; no end was of nothing in flight, or came twice (I3).
    fn report(&self) -> Result<Report> {
        let report = self.engine.take_report()?;
        let (stale, strays) = (report.stale_completions, report.drive.strays);
        ensure!(
            stale == 0 && strays == 0,
            "{stale} and {strays} completions of nothing in flight"
        );
        Ok(report)
    }

    /// The same, and so many commands were tried again; nothing was aborted or reset, and nothing
    /// took too long.
    fn undisturbed(&self, retries: u64) -> Result<Report> {
        let report = self.report()?;
        let (again, drive) = (report.retries, report.drive);
        ensure!(again == retries, "{again} retries and not {retries}");
        ensure!(drive == Incidents::default(), "{drive:?}");
        Ok(report)
    }

    /// While the drive takes no more bytes, does `body`; then lifts the limit, however that went:
    /// the next case is to begin with a drive that answers. `body` may lift it, too. It is told
    /// since when: what waits already goes on `span` after that (less a tenth of a second, which
    /// QEMU gives away), and no sooner, since QEMU looks at a new limit only then.
    fn stalled(
        &self,
        lab: &mut Lab,
        span: Duration,
        body: impl FnOnce(&Self, &mut Lab, Instant) -> Result<()>,
    ) -> Result<()> {
        const FIRST_BYTES: u64 = 64 << 10;
        lab.ask(Action::Throttle {
            drive: self.drive.into(),
            bytes_per_s: FIRST_BYTES / span.as_secs(),
        })?;
        let since = Instant::now();
        // The first command passes, and uses up what the limit allows for the time.
        let first = self.load(0, FIRST_BYTES);
        let first = first.and_then(|()| self.undisturbed(0));
        let outcome = first.and_then(|_report| body(self, lab, since));
        self.unstall(lab).and(outcome)
    }

    /// Waits until one of a load's commands is with the drive, which stalls: nothing has ended
    /// since the last report, and the engine's thread has slept meanwhile, which it does not
    /// before it has sent what it has.
    fn is_with_the_drive(&self, load: &RawLoad) -> Result<()> {
        asked(load, 1)?;
        sleep(Duration::from_millis(100));
        let report = self.report()?;
        let landed = report.route_bytes.values().sum::<u64>();
        ensure!(
            report.in_flight.max > 0 && landed == 0 && !load.is_finished(),
            "no command is with the drive: {report:?}"
        );
        Ok(())
    }

    fn unstall(&self, lab: &mut Lab) -> Result<()> {
        let drive = self.drive.into();
        lab.ask(Action::Unthrottle { drive })
    }
}

fn open(address: NvmeAddress, windows: u16, deadline: Duration) -> ubio::Result<Engine> {
    let options = NvmeOptions {
        deadline,
        ..NvmeOptions::default()
    };
    let builder = Engine::builder()
        .windows(windows)
        .window_bytes(WINDOW_BYTES)
        // More commands than one window has: what one load leaves with the drive must not keep
        // the next one from sending its own.
        .depth(32)
        .workers(1)
        .adaptive(false);
    builder.nvme(address, options).open()
}

/// How long anything may take that is to happen without being waited for by a deadline.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until a load has asked for so many bytes, and gives when: it has a window then.
fn asked(load: &RawLoad, bytes: u64) -> Result<Instant> {
    let (watch, started) = (load.watch(), Instant::now());
    while watch.requested_bytes() < bytes {
        ensure!(started.elapsed() < LIMIT, "nothing is asked of the drive");
        sleep(Duration::from_millis(1));
    }
    Ok(Instant::now())
}

/// The load fails with that kind, not before `from` and soon after; gives what it says.
fn fails(load: RawLoad, kind: ErrorKind, from: Duration) -> Result<String> {
    /// What a busy host may take to run a guest's thread.
    const SLACK: Duration = Duration::from_secs(3);
    let started = Instant::now();
    match load.wait() {
        Ok(_) => bail!("the load succeeded"),
        Err(error) => {
            let took = started.elapsed();
            ensure!(error.kind() == kind, "{:?}: {error}", error.kind());
            // Clocks of two threads, read one after the other.
            let early = took + Duration::from_millis(50) < from;
            ensure!(!early && took < from + SLACK, "after {took:?}: {error}");
            ensure!(error.advice().is_some(), "no remedy: {error}");
            Ok(error.to_string())
        }
    }
}
