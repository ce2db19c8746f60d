//! Cases, and how they are run: one after the other, a panic ends one case and not the run.
//!
//! Knows nothing of what the cases do.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::Result;
use ubio_lab_spec::line::{Line, Verdict};

use crate::lab::Lab;

type Body = Box<dyn FnOnce(&mut Lab) -> Result<()>>;

/// One thing to try.
pub(crate) struct Case {
    /// Unique within its suite, without spaces.
    pub(crate) name: String,
    body: Body,
}

impl Case {
    /// A case that passes if `body` gives `Ok`, is skipped if it gives [`skip`]'s error, and fails
    /// otherwise.
    pub(crate) fn new(
        name: impl Into<String>,
        body: impl FnOnce(&mut Lab) -> Result<()> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            body: Box::new(body),
        }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// Ends a case as skipped.
#[derive(Debug)]
struct Skip(String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Says that a case cannot be tried here, and why.
pub(crate) fn skip(why: impl Into<String>) -> Result<()> {
    Err(anyhow::Error::new(Skip(why.into())))
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// Runs all of them, with a first line, a line for each and a last one.
pub(crate) fn run_all(lab: &mut Lab, cases: Vec<Case>) -> Result<Tally> {
    let hello = Line::Hello {
        kernel: lab.kernel().into(),
        run: lab.run().name.into(),
        cases: cases.len() as u64,
    };
    lab.talk().say(&hello)?;
    let mut tally = Tally::default();
    for Case { name, body } in cases {
        let name = format!("{}/{name}", lab.run().name);
        lab.talk().say(&Line::Start { name: name.clone() })?;
        let verdict = verdict_of(lab, body);
        match &verdict {
            Verdict::Passed { .. } => tally.passed += 1,
            Verdict::Failed { .. } => tally.failed += 1,
            Verdict::Skipped { .. } => tally.skipped += 1,
        }
        lab.talk().say(&Line::Case { name, verdict })?;
    }
    let Tally {
        passed,
        failed,
        skipped,
    } = tally;
    lab.talk().say(&Line::End {
        passed,
        failed,
        skipped,
    })?;
    Ok(tally)
}

fn verdict_of(lab: &mut Lab, body: Body) -> Verdict {
    let started = Instant::now();
    // A case that panicked may leave devices in any state, and the lab itself only holds names.
    let outcome = catch_unwind(AssertUnwindSafe(|| body(lab)));
    let millis = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    match outcome {
        Ok(Ok(())) => Verdict::Passed { millis },
        Ok(Err(error)) => match error.downcast_ref::<Skip>() {
            Some(Skip(why)) => Verdict::Skipped {
                reason: why.clone(),
            },
            None => Verdict::Failed {
                reason: format!("{error:#}"),
            },
        },
        Err(payload) => Verdict::Failed {
            reason: format!("panicked: {}", message(&*payload)),
        },
    }
}

/// What a panic says; where it happened is on standard error, which is the guest's console.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use ubio_lab_spec::{Machine, runs};

    use super::*;
    use crate::talk::Talk;
    use crate::talk::tests::Said;

    #[test]
    fn a_panic_ends_a_case_and_not_the_run() {
        let said = Said::default();
        let run = runs().into_iter().next().expect("there are runs");
        let mut lab = Lab::of(run, Talk::new(std::io::empty(), said.clone()));
        let cases = vec![
            Case::new("passes", |_| Ok(())),
            Case::new("fails", |_| bail!("left\nright")),
            Case::new("panics", |_| panic!("at {}", 7)),
            Case::new("skips", |_| skip("no drive")),
            Case::new("last", |_| Ok(())),
        ];
        let tally = run_all(&mut lab, cases).unwrap();
        assert_eq!(
            tally,
            Tally {
                passed: 2,
                failed: 2,
                skipped: 1
            }
        );
        let text = said.text();
        assert!(
            text.contains("case boot/fails FAILED: left / right\n"),
            "{text}"
        );
        assert!(
            text.contains("case boot/panics FAILED: panicked: at 7\n"),
            "{text}"
        );
        assert!(
            text.contains("case boot/skips skipped: no drive\n"),
            "{text}"
        );
        assert!(
            text.ends_with("end 2 passed, 2 failed, 1 skipped\n"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.parse::<Line>().is_ok()),
            "{text}"
        );
        assert!(lab.run().machine.drives.len() == Machine::standard().drives.len());
    }
}
