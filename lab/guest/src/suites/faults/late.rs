//! Drives that take longer than a load may wait: the load fails in time, and its windows stay
//! out of use until their commands come back. Knows no resets.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use ubio::{ErrorKind, RawLoad};

use super::{Bench, MIB, Way, fails, says};
use crate::lab::Lab;

const DEADLINE: Duration = Duration::from_secs(1);
/// For how long drives stall: longer than everything that is to happen meanwhile.
const STALL: Duration = Duration::from_secs(5);
/// How long nothing may happen.
const MEANWHILE: Duration = Duration::from_millis(800);
const ELSEWHERE: u64 = 20 * MIB;

/// A load whose windows are all in quarantine gets none for `MEANWHILE` (I2).
fn waits_for_a_window(load: &RawLoad) -> Result<()> {
    sleep(MEANWHILE);
    let requested = load.watch().requested_bytes();
    ensure!(
        requested == 0,
        "{requested} bytes asked into a window that a drive may still write"
    );
    ensure!(!load.is_finished(), "a load without a window is over");
    Ok(())
}

pub(super) fn one_window(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 1, DEADLINE)?;
    bench.stalled(lab, STALL, |bench, lab| {
        bench.report()?;
        // A quarter: fewer commands than may be in flight, so that it is the window that lacks.
        let late = bench.start(2 * MIB, MIB / 4)?;
        let watch = late.watch();
        let said = fails(late, ErrorKind::Timeout, DEADLINE)?;
        says(&said, &["in time", "bytes at offset 2"])?;
        ensure!(watch.visible_bytes() == 0, "a failed load showed bytes");
        let next = bench.start(ELSEWHERE, 3 * MIB)?;
        waits_for_a_window(&next)?;
        bench.unstall(lab)?;
        bench.whole(ELSEWHERE, &next.wait()?)
    })?;
    let report = bench.report()?;
    ensure!(report.windows.peak_in_use == 1, "{report:?}");
    ensure!(report.retries == 0, "{report:?}");
    ensure!(report.stalls.window >= MEANWHILE / 2, "{report:?}");
    bench.load(2 * MIB, MIB)
}

/// One window of two comes into quarantine; then the other.
pub(super) fn two_windows(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 2, DEADLINE)?;
    bench.stalled(lab, STALL, |bench, lab| {
        let first = bench.start(2 * MIB, MIB)?;
        fails(first, ErrorKind::Timeout, DEADLINE)?;
        let second = bench.start(8 * MIB, 4 * MIB)?;
        let watch = second.watch();
        fails(second, ErrorKind::Timeout, DEADLINE)?;
        let requested = watch.requested_bytes();
        ensure!(
            (1..=MIB).contains(&requested),
            "{requested} bytes asked into the one window that was left"
        );
        let third = bench.start(ELSEWHERE, 4 * MIB)?;
        waits_for_a_window(&third)?;
        bench.unstall(lab)?;
        bench.whole(ELSEWHERE, &third.wait()?)
    })?;
    bench.load(8 * MIB, 4 * MIB)?;
    let report = bench.report()?;
    ensure!(report.windows.peak_in_use == 2, "{report:?}");
    ensure!(report.retries == 0, "{report:?}");
    Ok(())
}

/// Whoever leaves takes no window along: it comes back with its command.
pub(super) fn dropped(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 1, 20 * DEADLINE)?;
    bench.stalled(lab, STALL, |bench, lab| {
        let left = bench.start(2 * MIB, MIB)?;
        let watch = left.watch();
        while watch.requested_bytes() == 0 {
            sleep(Duration::from_millis(1));
        }
        drop(left);
        let next = bench.start(ELSEWHERE, 2 * MIB)?;
        waits_for_a_window(&next)?;
        bench.unstall(lab)?;
        bench.whole(ELSEWHERE, &next.wait()?)
    })?;
    bench.report().map(drop)
}
