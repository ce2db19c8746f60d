//! The simulator in the test run: some seeds pass, a seed is always the same run, and every
//! bug planted is found.

use super::{Options, Sum, Tally, run_seed};

const SEEDS: u64 = 300;

fn sum(seeds: std::ops::Range<u64>) -> Tally {
    let mut sum = Tally::default();
    for seed in seeds {
        match run_seed(seed, &Options::default()) {
            Ok(tally) => sum.add(&tally),
            Err(finding) => panic!("seed {} fails: {}", finding.seed, finding.message),
        }
    }
    sum
}

#[test]
fn seeds_pass_and_every_fault_strikes() {
    let sum = sum(0..SEEDS);
    assert!(sum.completions > SEEDS, "{sum}");
    assert!(sum.outcomes.iter().all(|count| *count > 0), "{sum}");
    let quiet: Vec<&str> = sum
        .faults()
        .filter(|(_, count)| *count == 0)
        .map(|(name, _)| name)
        .collect();
    assert!(quiet.is_empty(), "faults that never struck: {quiet:?}");
}

#[test]
fn a_seed_is_a_run() {
    let of = |seed| {
        run_seed(seed, &Options::default())
            .map(|tally| tally.digest)
            .ok()
    };
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

/// Each within as many seeds as pass without it.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    for bug in ubio_core::PlantedBug::ALL {
        let options = Options {
            plant: Some(bug),
            ..Options::default()
        };
        let found = (0..SEEDS).find(|seed| run_seed(*seed, &options).is_err());
        assert!(found.is_some(), "{bug:?} is not found");
    }
}
