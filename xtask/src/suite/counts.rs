//! How many checks passed, read from what test runners print.

use std::ops::AddAssign;

/// Checks that passed, failed, were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// One check.
    pub(crate) fn one(passed: bool) -> Self {
        Self {
            passed: u64::from(passed),
            failed: u64::from(!passed),
            skipped: 0,
        }
    }

    /// From the output of `cargo nextest run` or `cargo test`. A runner that failed has at
    /// least one failure, whatever it printed (it may not even have been built).
    pub(crate) fn of_tests(text: &str, success: bool) -> Self {
        let mut counts = Self::default();
        for line in text.lines().map(str::trim) {
            let nextest = line.starts_with("Summary [");
            if nextest || line.starts_with("test result:") {
                for (number, word) in pairs(line) {
                    match word {
                        "passed" => counts.passed += number,
                        "failed" | "timed" => counts.failed += number,
                        "skipped" | "ignored" => counts.skipped += number,
                        _ => {}
                    }
                }
            }
        }
        if !success {
            counts.failed = counts.failed.max(1);
        }
        counts
    }
}

/// Every number with the word that follows it.
fn pairs(line: &str) -> impl Iterator<Item = (u64, &str)> {
    let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric()).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let numbered: Vec<(u64, &str)> = words
        .windows(2)
        .filter_map(|pair| pair[0].parse().ok().map(|number| (number, pair[1])))
        .collect();
    numbered.into_iter()
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed")?;
        if *failed > 0 {
            write!(f, ", {failed} failed")?;
        }
        if *skipped > 0 {
            write!(f, ", {skipped} skipped")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_nextest() {
        let text = "     Summary [   2.520s] 44 tests run: 41 passed (1 slow), 2 failed, 1 timed out, 3 skipped";
        let counts = Counts::of_tests(text, false);
        assert_eq!(
            counts,
            Counts {
                passed: 41,
                failed: 3,
                skipped: 3
            }
        );
    }

    #[test]
    fn adds_up_cargo_test() {
        let text = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                    test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured";
        let counts = Counts::of_tests(text, false);
        assert_eq!(
            counts,
            Counts {
                passed: 7,
                failed: 1,
                skipped: 1
            }
        );
    }

    #[test]
    fn a_failure_without_a_summary_still_counts() {
        assert_eq!(
            Counts::of_tests("error: could not compile", false).failed,
            1
        );
    }
}
