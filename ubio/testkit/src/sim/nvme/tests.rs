//! The simulation in the test run: some seeds pass, every fault strikes, and a seed is always
//! the same run.

use super::super::Sum;
use super::{Options, Tally, run_seed};

const SEEDS: u64 = 600;

#[test]
fn seeds_pass_and_every_fault_strikes() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        match run_seed(seed, &Options::default()) {
            Ok(tally) => sum.add(&tally),
            Err(finding) => panic!("seed {} fails: {}", finding.seed, finding.message),
        }
    }
    assert!(sum.completions > SEEDS && sum.writes > SEEDS, "{sum}");
    let counts = sum.outcomes.iter().chain(&sum.incidents);
    assert!(counts.min() > Some(&0), "{sum}");
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

/// Each within a few thousand seeds.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    for bug in super::Plant::ALL {
        let options = Options {
            plant: Some(bug),
            ..Options::default()
        };
        let found = (0..5 * SEEDS).find(|seed| run_seed(*seed, &options).is_err());
        assert!(found.is_some(), "{bug} is not found");
    }
}
