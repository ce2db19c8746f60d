//! Controllers that are reset under commands in flight: by us, because one takes too long, or by
//! somebody else through the kernel.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the case's own"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::vfio::{VfioContainer, VfioDevice};
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, TargetMemory};
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Direction, Io, IoError, MemoryId, Transport};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;
use ubio::ErrorKind;
use ubio_lab_spec::line::Action;
use ubio_lab_spec::pattern;

use super::{Bench, MIB, Way, fails};
use crate::binding;
use crate::lab::Lab;

/// For how long the drive would stall.
const STALL: Duration = Duration::from_secs(15);

/// The load's deadline passes, the abort is of no use, the controller is reset; only then the
/// window goes to the next load.
pub(super) fn by_deadline(lab: &mut Lab, way: Way) -> Result<()> {
    let deadline = Duration::from_secs(1);
    let bench = Bench::open(lab, way, 1, deadline)?;
    bench.stalled(lab, STALL, |bench, lab| {
        let late = bench.start(2 * MIB, MIB)?;
        fails(late, ErrorKind::Timeout, deadline)?;
        // What comes later does not stall; what is there does.
        bench.unstall(lab)?;
        let next = bench.start(20 * MIB, 3 * MIB)?;
        let watch = next.watch();
        let started = Instant::now();
        while watch.requested_bytes() == 0 {
            ensure!(started.elapsed() < STALL, "no reset");
            thread::sleep(Duration::from_millis(1));
        }
        // The abort is asked for at the deadline, the reset follows five seconds later.
        let waited = started.elapsed();
        ensure!(
            waited > Duration::from_secs(4),
            "a window again after {waited:?}"
        );
        bench.whole(20 * MIB, &next.wait()?)
    })?;
    bench.report().map(drop)
}

/// Commands in flight during a reset, each of which ends once.
pub(super) fn each_ends_once(lab: &mut Lab, _: Way) -> Result<()> {
    const COMMANDS: u64 = 16;
    const BLOCKS: u32 = 128;
    let (drive, seed) = ("vfio", lab.seed("vfio", 1)?);
    binding::give_to(lab.address(drive)?, "vfio-pci")?;
    let container = VfioContainer::new()?;
    let device = VfioDevice::open(&container, &lab.address(drive)?.to_string())?;
    let mut options = Options::new(Settings::new(NamespaceId(1)));
    options.abort_after = Duration::from_millis(300);
    options.reset_after = Duration::from_millis(300);
    let mut transport = UserTransport::open(Arc::new(device), options)?;
    let pages = Arc::new(Pages::new(COMMANDS * u64::from(BLOCKS) * 512)?);
    let memory = transport.attach(Arc::clone(&pages) as _, true)?;
    let read = |token| Io {
        token,
        direction: Direction::Read,
        lba: Lba(token * u64::from(BLOCKS)),
        blocks: BlockCount::new(BLOCKS).expect("a count"),
        memory,
        offset: token * u64::from(BLOCKS) * 512,
    };
    lab.ask(Action::Throttle {
        drive: drive.into(),
        bytes_per_s: 16_384,
    })?;
    let ends = rounds(&mut transport, (0..COMMANDS).map(read).collect());
    lab.ask(Action::Unthrottle {
        drive: drive.into(),
    })?;
    let ends = ends?;
    let aborted = ends.values().filter(|end| **end == Err(IoError::Aborted));
    ensure!(
        aborted.count() > 0,
        "no command was in flight at the reset: {ends:?}"
    );
    // What was given up is read again, and lands.
    let ends = rounds(&mut transport, (0..COMMANDS).map(read).collect())?;
    ensure!(ends.values().all(Result::is_ok), "{ends:?}");
    let incidents = transport.incidents();
    ensure!(incidents.strays == 0, "{incidents:?}");
    ensure!(
        incidents.aborts > 0 && incidents.resets == 1,
        "{incidents:?}"
    );
    let mut bytes = vec![0; usize::try_from(pages.raw().len_bytes())?];
    pages.raw().copy_to(0, &mut bytes);
    pattern::check(seed, 0, &bytes)?;
    detached(transport, memory);
    Ok(())
}

fn detached(mut transport: UserTransport, memory: MemoryId) {
    transport.detach(memory);
}

/// What commands may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Submits all of them, and gives how each of them ended.
fn rounds(
    transport: &mut UserTransport,
    ios: Vec<Io>,
) -> Result<BTreeMap<u64, Result<(), IoError>>> {
    let count = ios.len();
    let nobody = eventfd(0, EventfdFlags::CLOEXEC)?;
    let (started, mut done, mut ends) = (Instant::now(), Vec::new(), BTreeMap::new());
    for mut io in ios {
        // SAFETY: each has a part of the pages of its own, which nobody looks at before the end.
        while let Err(refused) = unsafe { transport.submit(io) } {
            // Nothing is taken while the controller is reset.
            ensure!(done.is_empty() && started.elapsed() < LIMIT, "no room");
            io = refused;
            transport.poll(&mut done)?;
            thread::sleep(Duration::from_millis(1));
        }
    }
    while transport.in_flight() > 0 {
        transport.poll(&mut done)?;
        for end in done.drain(..) {
            if let Some(before) = ends.insert(end.token, end.result) {
                bail!("command {} ended as {before:?} and once more", end.token);
            }
        }
        ensure!(started.elapsed() < LIMIT, "{ends:?} and no more");
        transport.wait(nobody.as_fd(), Some(Duration::from_millis(5)))?;
    }
    ensure!(ends.len() == count, "{} of {count} ended", ends.len());
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
    // QEMU lets commands end before it stops; where one is cut off, it is tried again.
    let retries = bench.report()?.retries;
    ensure!(retries <= 16 * u64::from(RESETS), "{retries} retries");
    Ok(())
}

fn resets(path: &Path, count: u32) -> Result<()> {
    for _ in 0..count {
        thread::sleep(Duration::from_millis(300));
        binding::write(path, "1")?;
    }
    Ok(())
}
