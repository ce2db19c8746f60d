//! Suite `perf`: small reads and large ones over our transports and with fio, in the same guest,
//! round by round in random order.
//!
//! Figures of a software-emulated machine mean something only as ratios within one run. Speed
//! fails nothing here: what a case wants is a figure that can be true. Knows no windows.

mod fio;
mod instructions;
mod reader;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ubio_lab_spec::Machine;

use self::reader::{Measured, Reader};
use crate::binding;
use crate::case::Case;
use crate::lab::Lab;

/// The drive that the kernel's driver keeps, and the one that it does not: the same model, both
/// on the root bus.
const KERNELS: &str = "kernel";
const OURS: &str = "vfio";

/// One way to read.
#[derive(Clone, Copy, Debug)]
struct Job {
    name: &'static str,
    random: bool,
    block_bytes: u32,
    depth: u16,
    /// Wanted of passthrough and of VFIO, each against fio.
    goals: (f64, f64),
}

const JOBS: [Job; 2] = [
    Job {
        name: "4k",
        random: true,
        block_bytes: 4 << 10,
        depth: 32,
        goals: (1.0, 1.2),
    },
    Job {
        name: "128k",
        random: false,
        block_bytes: 128 << 10,
        depth: 8,
        goals: (1.0, 0.95),
    },
];

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contender {
    Fio,
    /// With registered buffers and files, as our passthrough has them.
    FioFixed,
    Passthrough,
    VfioPolled,
    VfioInterrupts,
}

const CONTENDERS: [Contender; 5] = [
    Contender::Fio,
    Contender::FioFixed,
    Contender::Passthrough,
    Contender::VfioPolled,
    Contender::VfioInterrupts,
];

impl Contender {
    fn word(self) -> &'static str {
        match self {
            Self::Fio => "fio",
            Self::FioFixed => "fio-fixedbufs",
            Self::Passthrough => "passthrough",
            Self::VfioPolled => "vfio-polled",
            Self::VfioInterrupts => "vfio-msix",
        }
    }

    fn measure(self, lab: &Lab, job: Job, millis: u64) -> Result<Measured> {
        match self {
            Self::Fio | Self::FioFixed => fio::measure(lab, job, self == Self::FioFixed, millis),
            Self::Passthrough => Reader::passthrough(lab, job)?.for_millis(millis),
            Self::VfioPolled => Reader::vfio(lab, job, false)?.for_millis(millis),
            Self::VfioInterrupts => Reader::vfio(lab, job, true)?.for_millis(millis),
        }
    }
}

pub(super) fn cases(machine: &Machine, full: bool) -> Vec<Case> {
    if machine.counts_instructions {
        return instructions::cases();
    }
    let (rounds, millis) = rounds(full);
    let case = |job: Job| Case::new(job.name, move |lab| compare(lab, job, rounds, millis));
    JOBS.map(case).into()
}

/// How many rounds, and for how long each contender reads in one.
fn rounds(full: bool) -> (usize, u64) {
    // An odd number, so that a median is one of them.
    if full { (15, 2000) } else { (5, 700) }
}

fn compare(lab: &mut Lab, job: Job, rounds: usize, millis: u64) -> Result<()> {
    binding::give_to(lab.address(OURS)?, "vfio-pci")?;
    let mut figures: BTreeMap<Contender, Vec<Measured>> = BTreeMap::new();
    let mut dice = reader::Dice::new(u64::from(job.block_bytes));
    for round in 0..rounds {
        let mut order = CONTENDERS;
        dice.shuffle(&mut order);
        for contender in order {
            let at = || format!("round {round}: {}", contender.word());
            let measured = contender.measure(lab, job, millis).with_context(at)?;
            // Between one command a second and what no emulator reaches.
            let per_s = measured.per_s();
            ensure!((1.0..1e7).contains(&per_s), "{}: {per_s} a second", at());
            figures.entry(contender).or_default().push(measured);
        }
        lab.progress(format!("{}: round {} of {rounds}", job.name, round + 1))?;
    }
    tell(lab, job, &figures)
}

fn tell(lab: &mut Lab, job: Job, figures: &BTreeMap<Contender, Vec<Measured>>) -> Result<()> {
    let rates = |contender: Contender| -> Vec<f64> {
        figures[&contender].iter().map(Measured::per_s).collect()
    };
    for contender in CONTENDERS {
        let name = format!("{}-{}", contender.word(), job.name);
        lab.figure(&name, median(rates(contender)).round(), "IOPS")?;
        let cpu = figures[&contender].iter().filter_map(Measured::cpu_micros);
        let cpu: Vec<f64> = cpu.collect();
        if !cpu.is_empty() {
            let name = format!("cpu-{name}");
            lab.figure(&name, rounded(median(cpu)), "us/IO")?;
        }
    }
    let ours = [
        (Contender::Passthrough, job.goals.0),
        (Contender::VfioPolled, job.goals.1),
        (Contender::VfioInterrupts, job.goals.1),
    ];
    for (contender, goal) in ours {
        for fio in [Contender::Fio, Contender::FioFixed] {
            let pairs = rates(contender).into_iter().zip(rates(fio));
            let ratio = median(pairs.map(|(ours, fio)| ours / fio).collect());
            let name = format!("ratio-{}/{}-{}", contender.word(), fio.word(), job.name);
            lab.figure_with_goal(&name, rounded(ratio), "ratio", Some(goal))?;
            ensure!((0.01..100.0).contains(&ratio), "{name} cannot be: {ratio}");
        }
    }
    Ok(())
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use ubio_lab_spec::runs;

    use super::*;

    /// What a busy host adds to each measurement: a controller is opened, or fio started.
    const OPENING_MILLIS: u64 = 3000;

    #[test]
    fn the_rounds_fit_into_the_runs_limits() {
        let timed =
            |run: &ubio_lab_spec::Run| run.suite == "perf" && !run.machine.counts_instructions;
        let runs: Vec<_> = runs().into_iter().filter(timed).collect();
        assert!(!runs.is_empty());
        for (run, full) in runs.iter().flat_map(|run| [(run, false), (run, true)]) {
            let (rounds, millis) = rounds(full);
            let round = CONTENDERS.len() as u64 * (millis + OPENING_MILLIS);
            let all = (JOBS.len() * rounds) as u64 * round;
            assert!(
                2 * round < run.silence_s * 1000,
                "{round} ms without a line"
            );
            assert!(all < run.limit_s(full) * 1000, "{}: {all} ms", run.name);
            assert_eq!(rounds % 2, 1);
        }
    }

    #[test]
    fn the_middle_one_of_an_odd_number() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
    }
}
