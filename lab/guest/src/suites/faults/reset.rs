//! Controllers that are reset under commands in flight: by us, because one takes too long, or by
//! somebody else through the kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::vfio::{VfioContainer, VfioDevice};
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Direction, Incidents, IoError, MemoryId, Transport};
use std::sync::Arc;
use ubio::ErrorKind;
use ubio_lab_spec::line::Action;

use super::{Bench, MIB, Way, asked, fails};
use crate::binding;
use crate::lab::Lab;
use crate::session::Session;
use crate::target::Target;

/// For how long the drive would stall.
const STALL: Duration = Duration::from_secs(15);

/// The load's deadline passes, the abort is of no use, the controller is reset; only then the
/// window goes to the next load (I2).
pub(super) fn by_deadline(lab: &mut Lab, way: Way) -> Result<()> {
    let deadline = Duration::from_secs(1);
    let bench = Bench::open(lab, way, 1, deadline)?;
    bench.stalled(lab, STALL, |bench, lab, _| {
        let late = bench.start(2 * MIB, MIB)?;
        bench.is_with_the_drive(&late)?;
        fails(late, ErrorKind::Timeout, deadline / 2)?;
        // What comes later does not stall; what is there does.
        bench.unstall(lab)?;
        let next = bench.start(20 * MIB, 3 * MIB)?;
        let started = Instant::now();
        // The abort is asked for at the deadline, the reset follows five seconds later; the
        // drive would let go by itself after twelve or more.
        let waited = asked(&next, 1)?.duration_since(started);
        ensure!(
            (Duration::from_secs(4)..Duration::from_secs(8)).contains(&waited),
            "a window again after {waited:?}"
        );
        bench.whole(20 * MIB, &next.wait()?)
    })?;
    let report = bench.report()?;
    let (drive, retries) = (report.drive, report.retries);
    ensure!(drive.resets == 1 && drive.aborts > 0, "{drive:?}");
    ensure!(drive.overdue >= drive.aborts && retries == 0, "{report:?}");
    Ok(())
}

const COMMANDS: u64 = 16;
const SIZE: u64 = 64 << 10;
/// Slow enough that the reset comes while commands are in flight.
const BYTES_PER_S: u64 = 16_384;
/// How long the command stalls that is next when the limit is lifted, and a second.
const PAST_THE_STALL: Duration = Duration::from_secs(SIZE / BYTES_PER_S + 1);

/// Commands in flight during a reset, each of which ends once, and none of which writes
/// anything after it has ended.
pub(super) fn each_ends_once(lab: &mut Lab, _: Way) -> Result<()> {
    let (drive, seed) = ("vfio", lab.seed("vfio", 1)?);
    binding::give_to(lab.address(drive)?, "vfio-pci")?;
    let container = VfioContainer::new()?;
    let device = VfioDevice::open(&container, &lab.address(drive)?.to_string())?;
    let mut options = Options::new(Settings::new(NamespaceId(1)));
    options.abort_after = Duration::from_millis(300);
    options.reset_after = Duration::from_millis(300);
    let mut session = Session::new(UserTransport::open(Arc::new(device), options)?)?;
    let target = Target::host(COMMANDS * SIZE)?;
    let memory = session.attach(&target, true)?;
    lab.ask(Action::Throttle {
        drive: drive.into(),
        bytes_per_s: BYTES_PER_S,
    })?;
    let ends = round(&mut session, memory, 0);
    lab.ask(Action::Unthrottle {
        drive: drive.into(),
    })?;
    let ends = ends?;
    let aborted = ends.values().filter(|end| **end == Err(IoError::Aborted));
    ensure!(
        aborted.count() > 0,
        "no command was in flight at the reset: {ends:?}"
    );
    // Other blocks into the same places: what the first commands wrote now would be seen.
    let from = COMMANDS * SIZE;
    let ends = round(&mut session, memory, from)?;
    ensure!(ends.values().all(Result::is_ok), "{ends:?}");
    let incidents = session.transport.incidents();
    ensure!(incidents.strays == 0, "{incidents:?}");
    ensure!(
        incidents.aborts > 0 && incidents.resets == 1,
        "{incidents:?}"
    );
    target.check(seed, from, 0, COMMANDS * SIZE)?;
    session.stays_untouched(&target, PAST_THE_STALL)?;
    session.detach(memory);
    Ok(())
}

/// Reads blocks from `from` on, one command for each place, and gives how each of them ended.
fn round(
    session: &mut Session<UserTransport>,
    memory: MemoryId,
    from: u64,
) -> Result<BTreeMap<u64, Result<(), IoError>>> {
    let io = |place| session.io(Direction::Read, (from + place, SIZE), memory, place);
    let ios = (0..COMMANDS)
        .map(|place| io(place * SIZE))
        .collect::<Result<_>>()?;
    let mut ends = BTreeMap::new();
    for end in session.run(ios)? {
        if let Some(before) = ends.insert(end.token, end.result) {
            bail!("command {} ended as {before:?} and once more", end.token);
        }
    }
    Ok(ends)
}

/// Somebody resets the controller through sysfs, again and again, while it is read.
pub(super) fn by_sysfs(lab: &mut Lab, way: Way) -> Result<()> {
    const RESETS: u32 = 3;
    let bench = Bench::open(lab, way, 4, Duration::from_secs(30))?;
    bench.load(0, MIB)?;
    bench.report()?;
    lab.ask(Action::Throttle {
        drive: way.drive().into(),
        bytes_per_s: 16 * MIB,
    })?;
    let reset = lab.controller(way.drive())?.reset_path();
    let resetting = thread::spawn(move || resets(&reset, RESETS));
    let (mut loads, mut outcome) = (0, Ok(()));
    while outcome.is_ok() && (!resetting.is_finished() || loads == 0) {
        outcome = bench.load(8 * MIB * (loads % 4), 8 * MIB);
        loads += 1;
    }
    let drive = way.drive().into();
    lab.ask(Action::Unthrottle { drive })?;
    outcome?;
    match resetting.join() {
        Ok(reset) => reset?,
        Err(_) => bail!("the thread that resets panicked"),
    }
    bench.load(0, 16 * MIB)?;
    // QEMU lets commands end before it stops, so there may be none that is cut off and tried
    // again. Nothing was late, and we reset nothing.
    let report = bench.report()?;
    let (retries, drive) = (report.retries, report.drive);
    ensure!(retries <= 32 * u64::from(RESETS), "{retries} retries");
    ensure!(drive == Incidents::default(), "{drive:?}");
    // All of it came by commands that were counted once.
    let landed = report.route_bytes.values().sum::<u64>();
    let wanted = (8 * loads + 16) * MIB;
    ensure!(
        landed == wanted,
        "{landed} bytes landed, {wanted} were loaded"
    );
    Ok(())
}

/// Each returns when the reset is over, or fails where it does not succeed.
fn resets(path: &Path, count: u32) -> Result<()> {
    for _ in 0..count {
        thread::sleep(Duration::from_millis(300));
        binding::write(path, "1")?;
    }
    Ok(())
}
