//! Drives that are removed while they are read: the load ends, the removal goes through, other
//! drives go on, and the drive that comes back is read anew. Knows no resets.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ubio::ErrorKind;
use ubio_lab_spec::line::Action;

use super::{Bench, MIB, Way, asked};
use crate::binding;
use crate::lab::Lab;
use crate::suites::refusal::says;

const DRIVE: &str = "outside";
const DEADLINE: Duration = Duration::from_secs(20);
/// How long a removal may take: the kernel's driver waits some seconds for what is in flight.
const REMOVAL: Duration = Duration::from_secs(25);
const RETURN: Duration = Duration::from_secs(20);

pub(super) fn removed(lab: &mut Lab, way: Way, rounds: u32) -> Result<()> {
    let other = Bench::open(lab, Way::Passthrough, 2, DEADLINE)?;
    for round in 0..rounds {
        once(lab, way, &other).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

fn once(lab: &mut Lab, way: Way, other: &Bench) -> Result<()> {
    let address = lab.address(DRIVE)?.clone();
    let bench = Bench::of(lab, (way, DRIVE), 4, DEADLINE)?;
    bench.load(0, MIB)?;
    // Slow enough to be in the middle of it, and fast enough to end what is in flight.
    lab.ask(Action::Throttle {
        drive: DRIVE.into(),
        bytes_per_s: 2 * MIB,
    })?;
    let load = bench.start(0, 48 * MIB)?;
    asked(&load, 2 * MIB)?;
    let started = Instant::now();
    let removal = thread::spawn({
        let address = address.clone();
        move || binding::remove(&address)
    });
    // Meanwhile the other drive is read.
    other.load(4 * MIB, 4 * MIB).context("another drive")?;
    let said = match load.wait() {
        Ok(_) => bail!("48 MiB came from a drive that was being removed"),
        Err(error) => {
            ensure!(
                error.kind() == ErrorKind::Device,
                "{:?}: {error}",
                error.kind()
            );
            ensure!(error.advice().is_some(), "no remedy: {error}");
            error.to_string()
        }
    };
    says(&said, &["removed"])?;
    ensure!(
        started.elapsed() < REMOVAL,
        "the load ended after {:?}",
        started.elapsed()
    );
    // Nothing is asked of it any more, and whoever asks is told the same.
    match bench.start(0, MIB)?.wait() {
        Ok(_) => bail!("a removed drive was read"),
        Err(error) => says(&error.to_string(), &["removed"])?,
    }
    // What is cut off by a removal is not tried again, and nothing is reset for it.
    bench.undisturbed(0)?;
    drop(bench);
    while !removal.is_finished() && started.elapsed() < REMOVAL {
        thread::sleep(Duration::from_millis(10));
    }
    ensure!(removal.is_finished(), "the removal hangs");
    match removal.join() {
        Ok(removed) => removed?,
        Err(_) => bail!("the removal panicked"),
    }
    ensure!(!address.is_there(), "{address} is still there");
    other
        .load(8 * MIB, 4 * MIB)
        .context("another drive, afterwards")?;
    comes_back(lab, way)
}

/// The same drive, found again, is opened and read as if nothing had been.
fn comes_back(lab: &mut Lab, way: Way) -> Result<()> {
    let drive = DRIVE.into();
    lab.ask(Action::Unthrottle { drive })?;
    binding::rescan()?;
    let started = Instant::now();
    let node = || lab.controller(DRIVE)?.namespace(1);
    while !node().is_ok_and(|found| found.passthrough_path().exists()) {
        ensure!(started.elapsed() < RETURN, "{DRIVE} does not come back");
        thread::sleep(Duration::from_millis(20));
    }
    let bench = Bench::of(lab, (way, DRIVE), 4, DEADLINE).context("back again")?;
    bench.load(0, 8 * MIB)
}
