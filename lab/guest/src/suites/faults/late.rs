//! Drives that take longer than a load may wait: the load fails in time, and its windows stay
//! out of use until their commands come back. Knows no resets.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nvme::transport::Incidents;
use ubio::stats::Report;
use ubio::{ErrorKind, RawLoad};

use super::{Bench, MIB, Way, asked, fails};
use crate::lab::Lab;
use crate::suites::refusal::says;

const DEADLINE: Duration = Duration::from_secs(1);
/// For how long drives stall: longer than everything that is to happen meanwhile, and shorter
/// than it takes until a controller is reset.
const STALL: Duration = Duration::from_secs(5);
/// What a stall may be shorter by: QEMU gives a tenth of a second away.
const EARLY: Duration = Duration::from_millis(500);
const ELSEWHERE: u64 = 20 * MIB;

/// A load whose windows are all in quarantine gets one when the drive has let go of it, and not
/// before (I2): `STALL` after `since`, though nothing that comes now would stall.
fn waits_for_a_window(
    bench: &Bench,
    lab: &mut Lab,
    next: RawLoad,
    len_bytes: u64,
    since: Instant,
) -> Result<()> {
    bench.unstall(lab)?;
    let after = asked(&next, 1)?.duration_since(since);
    ensure!(
        after >= STALL - EARLY,
        "a window that a drive may still write is used again after {after:?}"
    );
    let loaded = next.wait()?;
    ensure!(loaded.len_bytes() == len_bytes, "a short load");
    bench.whole(ELSEWHERE, &loaded)
}

/// Commands were late, and our own queues asked for their aborts; nothing was reset, and nothing
/// read twice. The next load waited for a window, and for so long.
fn only_late(report: &Report, way: Way, waited: Duration) -> Result<()> {
    let drive = report.drive;
    let as_wanted = match way {
        Way::Passthrough => drive == Incidents::default(),
        Way::Vfio => drive.overdue > 0 && drive.aborts > 0 && drive.resets == 0,
    };
    ensure!(as_wanted && report.retries == 0, "{report:?}");
    ensure!(report.stalls.window >= waited, "{report:?}");
    Ok(())
}

pub(super) fn one_window(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 1, DEADLINE)?;
    bench.stalled(lab, STALL, |bench, lab, since| {
        // A quarter: fewer commands than may be in flight, so that it is the window that lacks.
        let late = bench.start(2 * MIB, MIB / 4)?;
        bench.is_with_the_drive(&late)?;
        let watch = late.watch();
        let said = fails(late, ErrorKind::Timeout, DEADLINE - EARLY)?;
        says(&said, &["in time", "bytes at offset 2"])?;
        ensure!(watch.visible_bytes() == 0, "a failed load showed bytes");
        let next = bench.start(ELSEWHERE, 3 * MIB)?;
        waits_for_a_window(bench, lab, next, 3 * MIB, since)
    })?;
    only_late(&bench.report()?, way, STALL - DEADLINE - 2 * EARLY)?;
    bench.load(2 * MIB, MIB)?;
    bench.undisturbed(0).map(drop)
}

/// One window of two comes into quarantine; then the other.
pub(super) fn two_windows(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 2, DEADLINE)?;
    bench.stalled(lab, STALL, |bench, lab, since| {
        let first = bench.start(2 * MIB, MIB)?;
        bench.is_with_the_drive(&first)?;
        fails(first, ErrorKind::Timeout, DEADLINE - EARLY)?;
        let second = bench.start(8 * MIB, 4 * MIB)?;
        let watch = second.watch();
        fails(second, ErrorKind::Timeout, DEADLINE)?;
        let requested = watch.requested_bytes();
        ensure!(
            (1..=MIB).contains(&requested),
            "{requested} bytes asked into the one window that was left"
        );
        let third = bench.start(ELSEWHERE, 4 * MIB)?;
        waits_for_a_window(bench, lab, third, 4 * MIB, since)
    })?;
    only_late(&bench.report()?, way, STALL - 2 * DEADLINE - 2 * EARLY)?;
    bench.load(8 * MIB, 4 * MIB)?;
    bench.undisturbed(0).map(drop)
}

/// Whoever leaves takes no window along: it comes back with its command.
pub(super) fn dropped(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 1, 20 * DEADLINE)?;
    bench.stalled(lab, STALL, |bench, lab, since| {
        let left = bench.start(2 * MIB, MIB)?;
        bench.is_with_the_drive(&left)?;
        drop(left);
        let next = bench.start(ELSEWHERE, 2 * MIB)?;
        waits_for_a_window(bench, lab, next, 2 * MIB, since)
    })?;
    // Nothing was late for anybody who still waits.
    let report = bench.undisturbed(0)?;
    ensure!(report.stalls.window >= STALL - 2 * EARLY, "{report:?}");
    Ok(())
}
