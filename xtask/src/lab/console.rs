//! Reads what a guest says, keeps the count, and knows when it has hung. Time is handed in.
//!
//! Knows nothing of sockets and processes, so every way a guest can go wrong is a unit test.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ubio_lab_spec::Run;
use ubio_lab_spec::line::{Action, Line, Verdict};

use crate::suite::Counts;

/// How much of the console is kept for a failure's message.
const KEPT_LINES: usize = 60;

/// What the kernel says when it is done for.
const FATAL: [&str; 4] = [
    "Kernel panic - not syncing",
    "BUG: ",
    "Oops: ",
    "general protection fault",
];

/// Whether the kernel warns that it found itself in a state that should not be (`WARN_ON`): the
/// word, and which processor, in two orders, of Linux before and since 6.19.
fn is_warning(line: &str) -> bool {
    let at = line.find("WARNING: ").and_then(|at| line.get(at..));
    at.is_some_and(|warning| warning.contains("CPU: ") || warning.contains("CPU#"))
}

/// What a line from the guest wants of its reader.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// Nothing.
    Noted,
    /// To be shown: a case that ended, or a figure.
    Shown(String),
    /// To be done, and answered.
    Asked(Action),
    /// To be checked on the BAR's file: an `expect` or an `ignore`.
    Bar(Line),
}

/// What it says of a stale translation that QEMU before 8.1 may keep (`machine.rs`): no real
/// kernel meets a breakpoint of nobody's.
const EMULATORS_FAULT: &str = "Oops: int3";

/// One guest, from its first line to its last.
#[derive(Debug)]
pub(super) struct Watch {
    run: &'static str,
    silence: Duration,
    limit: Duration,
    started: Instant,
    heard_at: Instant,
    /// Cases promised by the first line.
    promised: Option<u64>,
    running: Option<String>,
    ended: bool,
    counts: Counts,
    fatal: Option<String>,
    warning: Option<String>,
    console: VecDeque<String>,
    failures: Vec<String>,
    kernel: String,
}

/// How a guest's run went.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) counts: Counts,
    /// One line each.
    pub(super) failures: Vec<String>,
    /// The console's last lines.
    pub(super) console: Vec<String>,
    /// The guest's kernel, if it came so far.
    pub(super) kernel: Option<String>,
    /// Whether the emulator is to blame, so that another try is fair.
    pub(super) emulators_fault: bool,
}

impl Outcome {
    /// One more failure, which no case of the guest's accounts for.
    pub(super) fn fail(&mut self, reason: String) {
        self.counts.failed += 1;
        self.failures.push(reason);
    }
}

impl Watch {
    /// The flag asks for the whole matrix.
    pub(super) fn new(run: &Run, full: bool, now: Instant) -> Self {
        Self {
            run: run.name,
            silence: Duration::from_secs(run.silence_s),
            limit: Duration::from_secs(run.limit_s(full)),
            started: now,
            heard_at: now,
            promised: None,
            running: None,
            ended: false,
            counts: Counts::default(),
            fatal: None,
            warning: None,
            console: VecDeque::new(),
            failures: Vec::new(),
            kernel: String::new(),
        }
    }

    /// A line of the report. What is no line of the lab is noted with the console's.
    pub(super) fn report(&mut self, text: &str, now: Instant) -> Heard {
        self.heard_at = now;
        let Ok(line) = text.parse::<Line>() else {
            self.keep(format!("(not a line of the lab) {text}"));
            return Heard::Noted;
        };
        match line {
            Line::Hello { kernel, cases, .. } => {
                self.promised = Some(cases);
                self.kernel = kernel;
                Heard::Noted
            }
            Line::Start { name } => {
                self.running = Some(name);
                Heard::Noted
            }
            Line::Case { name, verdict } => self.case(name, verdict),
            // It keeps the watchdog quiet, and the log has it.
            Line::Progress { .. } => Heard::Noted,
            Line::Figure {
                name,
                value,
                unit,
                goal,
            } => {
                let goal = goal.map_or_else(String::new, |goal| format!(" (goal {goal})"));
                Heard::Shown(format!("figure {}/{name} {value} {unit}{goal}", self.run))
            }
            Line::Host(action) => Heard::Asked(action),
            line @ (Line::Expect { .. } | Line::Ignore { .. }) => Heard::Bar(line),
            Line::End {
                passed,
                failed,
                skipped,
            } => {
                self.ended = true;
                let said = Counts {
                    passed,
                    failed,
                    skipped,
                };
                if said != self.counts {
                    let heard = self.counts;
                    self.fail(format!(
                        "the guest counts {said}, and its lines say {heard}"
                    ));
                }
                Heard::Noted
            }
        }
    }

    fn case(&mut self, name: String, verdict: Verdict) -> Heard {
        if self.running.take().as_ref() != Some(&name) {
            self.fail(format!("case {name} ended and had not started"));
        }
        match verdict {
            Verdict::Passed { .. } => self.counts.passed += 1,
            Verdict::Skipped { .. } => self.counts.skipped += 1,
            Verdict::Failed { ref reason } => {
                self.counts.failed += 1;
                self.failures.push(format!("case {name} FAILED: {reason}"));
            }
        }
        Heard::Shown(Line::Case { name, verdict }.to_string())
    }

    /// A line of the console: kernel messages, and whatever else the guest prints.
    pub(super) fn console(&mut self, text: &str, now: Instant) {
        self.heard_at = now;
        let fatal = FATAL.iter().any(|words| text.contains(words));
        if fatal && self.fatal.is_none() {
            self.fatal = Some(text.trim().into());
        }
        if is_warning(text) && self.warning.is_none() {
            self.warning = Some(text.trim().into());
        }
        self.keep(text.into());
    }

    /// Time that the guest is not to blame for, such as a host action's.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Why the guest is to be killed, if it is.
    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let (silent, running) = (now - self.heard_at, now - self.started);
        if silent >= self.silence {
            return Some(format!("hung: no line for {} s", silent.as_secs()));
        }
        (running >= self.limit).then(|| format!("hung: not done after {} s", running.as_secs()))
    }

    /// The guest is gone: by itself, or killed for a reason.
    pub(super) fn finish(mut self, killed: Option<String>) -> Outcome {
        let why = match (&self.fatal, killed) {
            (Some(fatal), None) => Some(fatal.clone()),
            (Some(fatal), Some(killed)) => Some(format!("{killed}, after `{fatal}`")),
            (None, killed) => killed,
        };
        let emulators_fault = self
            .fatal
            .as_ref()
            .is_some_and(|fatal| fatal.contains(EMULATORS_FAULT));
        let gone = why
            .clone()
            .unwrap_or_else(|| "the guest ended without a closing line".into());
        let promised = self.promised.unwrap_or(0);
        let done = self.counts.passed + self.counts.failed + self.counts.skipped;
        if let Some(name) = self.running.take() {
            self.fail(format!("case {name} FAILED: {gone}"));
            let left = promised.saturating_sub(done + 1);
            if left > 0 {
                self.failures
                    .push(format!("{}: {left} more cases did not run", self.run));
            }
        } else if self.promised.is_none() {
            self.fail(format!("{}: the guest did not come up: {gone}", self.run));
        } else if !self.ended {
            self.fail(format!("{}: {gone}", self.run));
        } else if let Some(why) = why {
            self.fail(format!("{}: {why}, after the last case", self.run));
        } else if promised != done {
            self.fail(format!(
                "{}: {promised} cases were promised, {done} ended",
                self.run
            ));
        }
        if let Some(warning) = self.warning.take() {
            self.fail(format!("{}: the kernel warns: {warning}", self.run));
        }
        Outcome {
            counts: self.counts,
            failures: self.failures,
            console: self.console.into(),
            kernel: (!self.kernel.is_empty()).then_some(self.kernel),
            emulators_fault,
        }
    }

    fn fail(&mut self, reason: String) {
        self.counts.failed += 1;
        self.failures.push(reason);
    }

    fn keep(&mut self, line: String) {
        if self.console.len() == KEPT_LINES {
            self.console.pop_front();
        }
        self.console.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use ubio_lab_spec::runs;

    use super::*;

    fn watch() -> (Watch, Instant) {
        let now = Instant::now();
        (Watch::new(&runs()[0], false, now), now)
    }

    fn outcome_of(lines: &[&str], killed: Option<&str>) -> Outcome {
        let (mut watch, now) = watch();
        for line in lines {
            match line.strip_prefix("tty: ") {
                Some(console) => watch.console(console, now),
                None => drop(watch.report(line, now)),
            }
        }
        watch.finish(killed.map(String::from))
    }

    const HELLO: &str = "hello 7.2.13 boot 2";

    #[test]
    fn a_good_run() {
        let lines = [
            HELLO,
            "start boot/a",
            "case boot/a ok 3 ms",
            "start boot/b",
            "case boot/b skipped: no drive",
            "end 1 passed, 0 failed, 1 skipped",
        ];
        let outcome = outcome_of(&lines, None);
        assert_eq!(
            outcome.counts,
            Counts {
                passed: 1,
                failed: 0,
                skipped: 1
            }
        );
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.kernel.as_deref(), Some("7.2.13"));
    }

    #[test]
    fn a_failed_case() {
        let lines = [
            "hello 7.2.13 boot 1",
            "start boot/a",
            "case boot/a FAILED: left / right",
            "end 0 passed, 1 failed, 0 skipped",
        ];
        let outcome = outcome_of(&lines, None);
        assert_eq!(outcome.counts.failed, 1);
        assert_eq!(outcome.failures, ["case boot/a FAILED: left / right"]);
    }

    #[test]
    fn a_guest_that_never_comes_up() {
        let outcome = outcome_of(&["tty: Kernel panic - not syncing: No working init"], None);
        assert_eq!(outcome.counts.failed, 1);
        assert!(outcome.failures[0].contains("did not come up: Kernel panic"));
        assert!(outcome.kernel.is_none());
        assert_eq!(outcome.console.len(), 1);
    }

    #[test]
    fn a_case_that_hangs_is_named_and_the_rest_counted() {
        let lines = [
            "hello 7.2.13 boot 3",
            "start boot/a",
            "case boot/a ok 1 ms",
            "start boot/b",
        ];
        let outcome = outcome_of(&lines, Some("hung: no line for 60 s"));
        assert_eq!(
            outcome.counts,
            Counts {
                passed: 1,
                failed: 1,
                skipped: 0
            }
        );
        assert_eq!(
            outcome.failures[0],
            "case boot/b FAILED: hung: no line for 60 s"
        );
        assert_eq!(outcome.failures[1], "boot: 1 more cases did not run");
    }

    #[test]
    fn a_panic_in_the_middle() {
        let lines = [
            HELLO,
            "start boot/a",
            "tty: [ 5.1] BUG: unable to handle page fault",
        ];
        let outcome = outcome_of(&lines, None);
        assert!(outcome.failures[0].contains("boot/a FAILED: [ 5.1] BUG: unable"));
    }

    #[test]
    fn a_kernels_warning_fails_the_run_and_ends_nothing() {
        for warning in [
            "tty: [    3.1] WARNING: CPU: 0 PID: 61 at block/blk-mq.c:1 blk_x+0x1/0x2",
            "tty: [    3.1] WARNING: block/blk-mq.c:1 at blk_x+0x1/0x2, CPU#0: ubio-lab/61",
        ] {
            let lines = [
                "hello 7.2.13 boot 1",
                "start boot/a",
                warning,
                "case boot/a ok 1 ms",
                "end 1 passed, 0 failed, 0 skipped",
            ];
            let outcome = outcome_of(&lines, None);
            assert_eq!((outcome.counts.passed, outcome.counts.failed), (1, 1));
            assert!(outcome.failures[0].contains("the kernel warns: ["));
        }
        let harmless = "tty: [    0.1] WARNING: using memory that is slow";
        let good = [
            harmless,
            "hello 7.2.13 boot 0",
            "end 0 passed, 0 failed, 0 skipped",
        ];
        assert!(outcome_of(&good, None).failures.is_empty());
    }

    #[test]
    fn only_a_stale_translation_is_the_emulators_fault() {
        let int3 = [
            "tty: [ 1.9] Oops: int3: 0000 [#1]",
            "tty: Kernel panic - not syncing: Fatal",
        ];
        let outcome = outcome_of(&int3, None);
        assert!(outcome.emulators_fault && outcome.counts.failed == 1);
        let other = ["tty: Oops: 0002 [#1]", "tty: [ 1.9] Oops: int3: 0000 [#2]"];
        assert!(!outcome_of(&other, None).emulators_fault);
        assert!(!outcome_of(&[HELLO], None).emulators_fault);
    }

    #[test]
    fn a_panic_after_the_last_case_is_a_failure_still() {
        let lines = [
            "hello 7.2.13 boot 0",
            "end 0 passed, 0 failed, 0 skipped",
            "tty: Oops: general protection fault",
        ];
        assert_eq!(outcome_of(&lines, None).counts.failed, 1);
    }

    #[test]
    fn counts_that_do_not_agree() {
        let ends_early = [HELLO, "start boot/a", "case boot/a ok 1 ms"];
        let outcome = outcome_of(&ends_early, None);
        assert!(outcome.failures[0].contains("without a closing line"));
        let miscounts = [&ends_early[..], &["end 2 passed, 0 failed, 0 skipped"]].concat();
        let outcome = outcome_of(&miscounts, None);
        assert!(outcome.failures[0].contains("the guest counts 2 passed"));
        let too_few = [&ends_early[..], &["end 1 passed, 0 failed, 0 skipped"]].concat();
        let outcome = outcome_of(&too_few, None);
        assert!(outcome.failures[0].contains("2 cases were promised, 1 ended"));
        let unstarted = ["hello 7.2.13 boot 1", "case boot/a ok 1 ms"];
        assert!(outcome_of(&unstarted, None).failures[0].contains("had not started"));
    }

    #[test]
    fn garbage_is_kept_for_the_reader_and_counts_for_nothing() {
        let (mut watch, now) = watch();
        for text in [
            "",
            "\u{1b}[2J",
            "case",
            "case boot/x maybe",
            "hello",
            "{\"x\":1}",
        ] {
            assert_eq!(watch.report(text, now), Heard::Noted);
        }
        for _ in 0..1000 {
            watch.console("noise", now);
        }
        let outcome = watch.finish(None);
        assert_eq!(
            outcome.counts,
            Counts {
                passed: 0,
                failed: 1,
                skipped: 0
            }
        );
        assert_eq!(outcome.console.len(), KEPT_LINES);
    }

    #[test]
    fn what_a_line_wants() {
        let (mut watch, now) = watch();
        let asked = Heard::Asked(Action::Pause { millis: 5 });
        assert_eq!(watch.report("host: pause 5\r", now), asked);
        let heard = watch.report("expect bar 0 512 peer/1 0", now);
        assert!(matches!(heard, Heard::Bar(Line::Expect { .. })));
        let heard = watch.report("figure fio 3.5 IOPS", now);
        assert_eq!(heard, Heard::Shown("figure boot/fio 3.5 IOPS".into()));
        let heard = watch.report("figure fio 0.5 ratio goal 1.2", now);
        let shown = "figure boot/fio 0.5 ratio (goal 1.2)";
        assert_eq!(heard, Heard::Shown(shown.into()));
    }

    #[test]
    fn silence_is_a_hang_and_so_is_talking_for_ever() {
        let (mut watch, start) = watch();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.overdue(after(59)), None);
        assert!(
            watch
                .overdue(after(60))
                .unwrap()
                .contains("no line for 60 s")
        );
        watch.console("a line", after(59));
        assert_eq!(watch.overdue(after(60)), None);
        watch.excuse(after(110));
        assert_eq!(watch.overdue(after(169)), None);
        assert_eq!(
            watch.report("progress 4k: round 1 of 5", after(160)),
            Heard::Noted
        );
        assert_eq!(watch.overdue(after(219)), None);
        for second in 220..300 {
            watch.console("a line", after(second));
        }
        assert!(
            watch
                .overdue(after(300))
                .unwrap()
                .contains("not done after 300 s")
        );
    }

    #[test]
    fn the_whole_matrix_may_take_longer() {
        let now = Instant::now();
        let run = runs().into_iter().find(|run| run.name == "perf").unwrap();
        let after = |seconds| now + Duration::from_secs(seconds);
        let overdue = |full, seconds| {
            let mut watch = Watch::new(&run, full, now);
            watch.console("a line", after(seconds));
            watch.overdue(after(seconds)).is_some()
        };
        assert!(overdue(false, run.limit_s) && !overdue(true, run.limit_s));
        assert!(overdue(true, run.full_limit_s));
    }
}
