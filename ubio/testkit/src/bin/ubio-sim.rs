//! `ubio-sim`: runs seeds of the simulator of ubio-core, in any number, and replays one. Knows
//! no rule of the machine.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ubio_testkit::sim::{Options, Tally, run_seed};

const USAGE: &str = "usage: ubio-sim [--seeds N] [--from S] [--replay SEED] [--verbose] [--threads T] [--plant BUG|all]

  --seeds N      how many seeds to run; default 10000
  --from S       the first of them; default 0
  --replay SEED  run one seed, with the machine's books checked after each event
  --verbose      with --replay: tell every event
  --threads T    how many threads; default 1
  --plant BUG    give the machine a bug (needs the feature `planted-bugs`); `all`: each in turn,
                 and fail when one is not found

The exit code is 1 when a seed failed (with --plant: when a bug was not found), else 0.";

/// Findings that are printed in full.
const MAX_PRINTED: usize = 20;

struct Arguments {
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
    let (tally, failures) = match arguments.replay {
        Some(seed) => sweep(seed, 1, 1, &Options::default().verbose(arguments.verbose)),
        None => sweep(
            arguments.from,
            arguments.seeds,
            arguments.threads,
            &Options::default(),
        ),
    };
    let seeds = if arguments.replay.is_some() {
        1
    } else {
        arguments.seeds
    };
    println!("{seeds} seeds, {failures} failures, {tally}");
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
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
            "--verbose" => arguments.verbose = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("{word} is not an option")),
        }
    }
    Ok(Some(arguments))
}

/// Runs seeds; prints each that fails. Their sum, and how many failed.
fn sweep(from: u64, seeds: u64, threads: usize, options: &Options) -> (Tally, u64) {
    let next = AtomicU64::new(0);
    let total = Mutex::new((Tally::default(), 0_u64));
    let work = || {
        let mut sum = Tally::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= seeds {
                break;
            }
            match run_seed(from.wrapping_add(index), options) {
                Ok(tally) => sum.add(&tally),
                Err(finding) => {
                    let mut total = total.lock().expect("no thread panics here");
                    total.1 += 1;
                    if total.1 <= MAX_PRINTED as u64 {
                        println!("seed {} fails: {}", finding.seed, finding.message);
                        println!("  replay: ubio-sim --replay {} --verbose", finding.seed);
                    }
                }
            }
        }
        total.lock().expect("no thread panics here").0.add(&sum);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    total.into_inner().expect("no thread panics here")
}

/// Gives the machine a bug, or each in turn, and says after how many seeds it is found.
#[cfg(feature = "planted-bugs")]
fn plant(name: &str, arguments: &Arguments) -> ExitCode {
    use ubio_core::PlantedBug;
    let bugs: Vec<PlantedBug> = PlantedBug::ALL
        .into_iter()
        .filter(|bug| name == "all" || format!("{bug:?}") == name)
        .collect();
    if bugs.is_empty() {
        eprintln!("ubio-sim: no bug {name}; there are {:?}", PlantedBug::ALL);
        return ExitCode::from(2);
    }
    let mut missed = 0;
    for bug in bugs {
        let options = Options {
            verbose: arguments.verbose,
            plant: Some(bug),
        };
        let seeds = match arguments.replay {
            Some(seed) => seed..seed.saturating_add(1),
            None => arguments.from..arguments.from.saturating_add(arguments.seeds),
        };
        let first = seeds.start;
        let found = seeds
            .into_iter()
            .find_map(|seed| run_seed(seed, &options).err());
        // What finds the bug must be content without it.
        let found = found.filter(|finding| run_seed(finding.seed, &Options::default()).is_ok());
        match found {
            Some(finding) => println!(
                "{bug:?}: found by seed {} (after {}): {}",
                finding.seed,
                finding.seed - first + 1,
                finding.message.lines().next().unwrap_or_default()
            ),
            None => {
                missed += 1;
                println!("{bug:?}: NOT FOUND");
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
