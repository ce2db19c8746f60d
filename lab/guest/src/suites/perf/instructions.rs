//! Instructions for each command, on a machine whose clock counts them: QEMU's `-icount` lets a
//! nanosecond pass with each instruction, so a span of time is a number of instructions.
//!
//! Knows no speeds: on such a machine they mean nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::reader::{End, Measured, Reader, Step};
use super::{JOBS, Job, OURS};
use crate::binding;
use crate::case::Case;
use crate::lab::Lab;

const COMMANDS: u64 = 4000;
/// More would be a loop that is none of ours.
const MOST: f64 = 1e6;

pub(super) fn cases() -> Vec<Case> {
    let job = JOBS[0];
    vec![
        Case::new("clock", |_| clock()),
        Case::new("vfio-polled", move |lab| {
            binding::give_to(lab.address(OURS)?, "vfio-pci")?;
            let reader = Reader::vfio(lab, job, false)?;
            count(lab, "vfio-polled", reader)
        }),
        Case::new("vfio-msix", move |lab| {
            binding::give_to(lab.address(OURS)?, "vfio-pci")?;
            let reader = Reader::vfio(lab, job, true)?;
            count(lab, "vfio-msix", reader)
        }),
        Case::new("passthrough", move |lab| {
            let reader = Reader::passthrough(lab, job)?;
            count(lab, "passthrough", reader)
        }),
        Case::new("fio", move |lab| fio(lab, job)),
    ]
}

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::MonotonicRaw);
    let span = Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?);
    Ok(u64::try_from(span.as_nanos())?)
}

/// A loop whose length is known takes as long as it has instructions.
fn clock() -> Result<()> {
    const TURNS: u64 = 1_000_000;
    let before = now()?;
    let mut sum = 0_u64;
    for turn in 0..TURNS {
        sum = std::hint::black_box(sum ^ turn);
    }
    let span = now()? - before;
    std::hint::black_box(sum);
    // A few instructions each, and interrupts between them.
    let fits = (TURNS..20 * TURNS).contains(&span);
    ensure!(
        fits,
        "{TURNS} turns take {span} ns: no clock that counts instructions"
    );
    Ok(())
}

/// Instructions of submitting and completing alone, and all that the thread used.
fn count(lab: &mut Lab, name: &str, reader: Reader) -> Result<()> {
    let (mut ours, mut since, mut looks) = (0, 0, 0);
    let measured = reader.run(End::After(COMMANDS), |step| {
        let now = now().unwrap_or(0);
        match step {
            Step::Poll | Step::Submit => since = now,
            // A poll that finds nothing is waiting.
            Step::Polled(0) => {}
            Step::Polled(_) | Step::Submitted => {
                ours += now.saturating_sub(since);
                looks += 1;
            }
        }
    })?;
    // Looking at the clock is no part of it.
    let (before, after) = (now()?, now()?);
    let ours = Measured {
        seconds: 0.0,
        cpu_seconds: Some(span(ours.saturating_sub(looks * (after - before)))),
        ..measured
    };
    tell(lab, &format!("submit-and-complete-{name}"), ours)?;
    tell(lab, &format!("thread-{name}"), measured)
}

fn span(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

fn fio(lab: &mut Lab, job: Job) -> Result<()> {
    let measured = super::fio::measure(lab, job, true, 200)?;
    tell(lab, "thread-fio", measured)
}

/// Where a nanosecond is an instruction, a microsecond is a thousand.
fn tell(lab: &mut Lab, name: &str, measured: Measured) -> Result<()> {
    let each = measured.cpu_micros().unwrap_or(0.0) * 1e3;
    ensure!((1.0..MOST).contains(&each), "{name}: {each} instructions");
    lab.figure(&format!("{name}-4k"), each.round(), "instructions/IO")
}
