//! `ubio-sim`: runs seeds of the simulators, in any number, and replays one: of ubio-core alone,
//! or over an emulated NVMe controller. Knows no rule of either.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ubio_testkit::sim::{self, Finding, Sum, nvme};

const USAGE: &str = "usage: ubio-sim [--nvme] [--seeds N] [--from S] [--replay SEED] [--verbose] [--threads T] [--plant BUG|all]

  --nvme         the machine over an emulated NVMe controller, not over a fake source
  --seeds N      how many seeds to run; default 10000
  --from S       the first of them; default 0
  --replay SEED  run one seed, with the machine's books checked after each event
  --verbose      with --replay: tell every event
  --threads T    how many threads; default 1
  --plant BUG    give somebody a bug (needs the feature `planted-bugs`); `all`: each in turn,
                 and fail when one is not found

The exit code is 1 when a seed failed (with --plant: when a bug was not found), else 0.";

/// Findings that are printed in full.
const MAX_PRINTED: usize = 20;

struct Arguments {
    nvme: bool,
    seeds: u64,
    from: u64,
    replay: Option<u64>,
    verbose: bool,
    threads: usize,
    plant: Option<String>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("ubio-sim: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A finding is a panic that is caught and printed as a line.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(bug) = &arguments.plant {
        return plant(bug, &arguments);
    }
    let verbose = arguments.verbose;
    if arguments.nvme {
        let options = nvme::Options::default().verbose(verbose);
        report(&arguments, |seed| nvme::run_seed(seed, &options))
    } else {
        let options = sim::Options::default().verbose(verbose);
        report(&arguments, |seed| sim::run_seed(seed, &options))
    }
}

/// Runs the seeds that were asked for, and tells what came of it.
fn report<T: Sum + Send>(
    arguments: &Arguments,
    run: impl Fn(u64) -> Result<T, Finding> + Sync,
) -> ExitCode {
    let (from, seeds) = match arguments.replay {
        Some(seed) => (seed, 1),
        None => (arguments.from, arguments.seeds),
    };
    let (tally, failures) = sweep(arguments, from..from.saturating_add(seeds), run);
    println!("{seeds} seeds, {failures} failures, {tally}");
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        nvme: false,
        seeds: 10_000,
        from: 0,
        replay: None,
        verbose: false,
        threads: 1,
        plant: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is not a number"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = number(value()?)?,
            "--from" => arguments.from = number(value()?)?,
            "--replay" => arguments.replay = Some(number(value()?)?),
            "--threads" => {
                let threads = usize::try_from(number(value()?)?).unwrap_or(usize::MAX);
                arguments.threads = threads.clamp(1, 256);
            }
            "--plant" => arguments.plant = Some(value()?),
            "--nvme" => arguments.nvme = true,
            "--verbose" => arguments.verbose = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("{word} is not an option")),
        }
    }
    Ok(Some(arguments))
}

/// Runs seeds; prints each that fails. Their sum, and how many failed.
fn sweep<T: Sum + Send>(
    arguments: &Arguments,
    seeds: Range<u64>,
    run: impl Fn(u64) -> Result<T, Finding> + Sync,
) -> (T, u64) {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new((T::default(), 0_u64));
    let nvme = if arguments.nvme { "--nvme " } else { "" };
    let work = || {
        let mut sum = T::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            match run(seed) {
                Ok(tally) => sum.add(&tally),
                Err(finding) => {
                    let mut total = total.lock().expect("no thread panics here");
                    total.1 += 1;
                    if total.1 <= MAX_PRINTED as u64 {
                        println!("seed {seed} fails: {}", finding.message);
                        println!("  replay: ubio-sim {nvme}--replay {seed} --verbose");
                    }
                }
            }
        }
        total.lock().expect("no thread panics here").0.add(&sum);
    };
    std::thread::scope(|scope| {
        for _ in 1..arguments.threads {
            scope.spawn(work);
        }
        work();
    });
    total.into_inner().expect("no thread panics here")
}

/// Gives somebody a bug, or each in turn, and says after how many seeds it is found.
#[cfg(feature = "planted-bugs")]
fn plant(name: &str, arguments: &Arguments) -> ExitCode {
    let verbose = arguments.verbose;
    if arguments.nvme {
        let all: Vec<_> = nvme::Plant::ALL.map(|bug| (bug.to_string(), bug)).into();
        find(name, arguments, &all, |seed, plant| {
            nvme::run_seed(seed, &nvme::Options { verbose, plant })
        })
    } else {
        let all: Vec<_> = ubio_core::PlantedBug::ALL
            .map(|bug| (format!("{bug:?}"), bug))
            .into();
        find(name, arguments, &all, |seed, plant| {
            sim::run_seed(seed, &sim::Options { verbose, plant })
        })
    }
}

#[cfg(feature = "planted-bugs")]
fn find<B: Copy, T>(
    name: &str,
    arguments: &Arguments,
    all: &[(String, B)],
    run: impl Fn(u64, Option<B>) -> Result<T, Finding>,
) -> ExitCode {
    let bugs = all
        .iter()
        .filter(|(known, _)| name == "all" || known == name);
    let mut bugs = bugs.peekable();
    if bugs.peek().is_none() {
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        eprintln!("ubio-sim: no bug {name}; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let mut missed = 0;
    for (name, bug) in bugs {
        let seeds = match arguments.replay {
            Some(seed) => seed..seed.saturating_add(1),
            None => arguments.from..arguments.from.saturating_add(arguments.seeds),
        };
        let first = seeds.start;
        let found = seeds
            .into_iter()
            .find_map(|seed| run(seed, Some(*bug)).err());
        // What finds the bug must be content without it.
        let found = found.filter(|finding| run(finding.seed, None).is_ok());
        match found {
            Some(finding) => println!(
                "{name}: found by seed {} (after {}): {}",
                finding.seed,
                finding.seed - first + 1,
                finding.message.lines().next().unwrap_or_default()
            ),
            None => {
                missed += 1;
                println!("{name}: NOT FOUND");
            }
        }
    }
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(not(feature = "planted-bugs"))]
fn plant(_: &str, _: &Arguments) -> ExitCode {
    eprintln!("ubio-sim: --plant needs a build with `--features planted-bugs`");
    ExitCode::from(2)
}
