//! What guest and host say to each other, one plain line at a time.
//!
//! The guest writes lines on its standard output, the host answers an [`Action`] with one line.
//! Written and read here only, so the two sides cannot drift apart. Knows no serial ports.

use std::fmt;
use std::str::FromStr;

/// The word of the kernel's command line that tells of the model file: `lab.model=LEN,SHA256`.
pub const MODEL_WORD: &str = "lab.model";

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed, after so many milliseconds.
    Passed {
        /// How long it took.
        millis: u64,
    },
    /// It failed.
    Failed {
        /// What was wrong, on one line.
        reason: String,
    },
    /// It could not be tried on this machine.
    Skipped {
        /// Why not, on one line.
        reason: String,
    },
}

/// A line from the guest. `Display` writes what `from_str` reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The first line: the guest is up, and so many cases will follow.
    Hello {
        /// The guest's kernel, as `uname -r` has it.
        kernel: String,
        /// The run's name.
        run: String,
        /// How many cases it has.
        cases: u64,
    },
    /// A case begins; if nothing else comes, it hangs.
    Start {
        /// `RUN/CASE`.
        name: String,
    },
    /// A case ended.
    Case {
        /// `RUN/CASE`.
        name: String,
        /// How.
        verdict: Verdict,
    },
    /// A case goes on: for whoever waits, and for the watchdog.
    Progress {
        /// How far it is, on one line.
        text: String,
    },
    /// Something was measured.
    Figure {
        /// What, in one word.
        name: String,
        /// How much.
        value: f64,
        /// Of what, in one word.
        unit: String,
        /// How much is wanted, where something is.
        goal: Option<f64>,
    },
    /// The host is asked for something, and the guest waits for an [`Answer`].
    Host(Action),
    /// These bytes of the BAR are the drive's.
    Expect {
        /// Where in the BAR.
        offset: u64,
        /// How many.
        len_bytes: u64,
        /// Which drive.
        drive: String,
        /// Which of its namespaces.
        namespace: u32,
        /// Where on it.
        drive_offset: u64,
    },
    /// These bytes of the BAR may be anything.
    Ignore {
        /// Where in the BAR.
        offset: u64,
        /// How many.
        len_bytes: u64,
    },
    /// The last line.
    End {
        /// How many cases passed.
        passed: u64,
        /// How many failed.
        failed: u64,
        /// How many were skipped.
        skipped: u64,
    },
}

/// What the guest can ask of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Limit a throttled drive's transfers, while they are in flight.
    Throttle {
        /// Which drive.
        drive: String,
        /// Reads and writes together.
        bytes_per_s: u64,
    },
    /// Lift that limit.
    Unthrottle {
        /// Which drive.
        drive: String,
    },
    /// Unplug a drive that sits in a port, and wait until the guest has let it go.
    Remove {
        /// Which drive.
        drive: String,
    },
    /// Stop the whole machine and let it go on.
    Pause {
        /// For how long, by the host's clock.
        millis: u64,
    },
    /// Compare the BAR's file with all expectations, and all else in it with the poison; then
    /// poison all of it again and forget the expectations.
    CheckBar,
}

/// The host's answer to an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// It was not, and why.
    Failed(String),
}

/// A line that is none of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage;

impl fmt::Display for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a line of the lab")
    }
}

impl std::error::Error for Garbage {}

/// Several lines as one, without control characters: a reason must not look like a line.
#[must_use]
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join(" / ");
    joined.chars().filter(|c| !c.is_control()).collect()
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { kernel, run, cases } => write!(f, "hello {kernel} {run} {cases}"),
            Self::Start { name } => write!(f, "start {name}"),
            Self::Case { name, verdict } => write!(f, "case {name} {verdict}"),
            Self::Progress { text } => write!(f, "progress {}", one_line(text)),
            Self::Figure {
                name,
                value,
                unit,
                goal: None,
            } => write!(f, "figure {name} {value} {unit}"),
            Self::Figure {
                name,
                value,
                unit,
                goal: Some(goal),
            } => write!(f, "figure {name} {value} {unit} goal {goal}"),
            Self::Host(action) => write!(f, "host: {action}"),
            Self::Expect {
                offset,
                len_bytes,
                drive,
                namespace,
                drive_offset,
            } => {
                write!(
                    f,
                    "expect bar {offset} {len_bytes} {drive}/{namespace} {drive_offset}"
                )
            }
            Self::Ignore { offset, len_bytes } => write!(f, "ignore bar {offset} {len_bytes}"),
            Self::End {
                passed,
                failed,
                skipped,
            } => {
                write!(f, "end {passed} passed, {failed} failed, {skipped} skipped")
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed { millis } => write!(f, "ok {millis} ms"),
            Self::Failed { reason } => write!(f, "FAILED: {}", one_line(reason)),
            Self::Skipped { reason } => write!(f, "skipped: {}", one_line(reason)),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttle { drive, bytes_per_s } => write!(f, "throttle {drive} {bytes_per_s}"),
            Self::Unthrottle { drive } => write!(f, "unthrottle {drive}"),
            Self::Remove { drive } => write!(f, "remove {drive}"),
            Self::Pause { millis } => write!(f, "pause {millis}"),
            Self::CheckBar => f.write_str("check-bar"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Failed(why) => write!(f, "failed {}", one_line(why)),
        }
    }
}

impl FromStr for Answer {
    type Err = Garbage;

    fn from_str(text: &str) -> Result<Self, Garbage> {
        match text.trim_end() {
            "done" => Ok(Self::Done),
            other => {
                let why = other.strip_prefix("failed ").ok_or(Garbage)?;
                Ok(Self::Failed(why.into()))
            }
        }
    }
}

impl FromStr for Action {
    type Err = Garbage;

    fn from_str(text: &str) -> Result<Self, Garbage> {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["throttle", drive, rate] => Self::Throttle {
                drive: drive.into(),
                bytes_per_s: number(rate)?,
            },
            ["unthrottle", drive] => Self::Unthrottle {
                drive: drive.into(),
            },
            ["remove", drive] => Self::Remove {
                drive: drive.into(),
            },
            ["pause", millis] => Self::Pause {
                millis: number(millis)?,
            },
            ["check-bar"] => Self::CheckBar,
            _ => return Err(Garbage),
        })
    }
}

impl FromStr for Line {
    type Err = Garbage;

    fn from_str(text: &str) -> Result<Self, Garbage> {
        let text = text.trim_end();
        if let Some(action) = text.strip_prefix("host: ") {
            return Ok(Self::Host(action.parse()?));
        }
        if let Some(text) = text.strip_prefix("progress ") {
            return Ok(Self::Progress { text: text.into() });
        }
        if let Some(rest) = text.strip_prefix("case ") {
            let (name, verdict) = rest.split_once(' ').ok_or(Garbage)?;
            let verdict = verdict.parse()?;
            return Ok(Self::Case {
                name: case_name(name)?,
                verdict,
            });
        }
        let words: Vec<&str> = text.split(' ').collect();
        Ok(match words[..] {
            ["hello", kernel, run, cases] => Self::Hello {
                kernel: kernel.into(),
                run: run.into(),
                cases: number(cases)?,
            },
            ["start", name] => Self::Start {
                name: case_name(name)?,
            },
            ["figure", name, value, unit] => Self::Figure {
                name: name.into(),
                value: value.parse().map_err(|_| Garbage)?,
                unit: unit.into(),
                goal: None,
            },
            ["figure", name, value, unit, "goal", goal] => Self::Figure {
                name: name.into(),
                value: value.parse().map_err(|_| Garbage)?,
                unit: unit.into(),
                goal: Some(goal.parse().map_err(|_| Garbage)?),
            },
            ["expect", "bar", offset, len, drive, drive_offset] => {
                let (drive, namespace) = drive.split_once('/').ok_or(Garbage)?;
                Self::Expect {
                    offset: number(offset)?,
                    len_bytes: number(len)?,
                    drive: drive.into(),
                    namespace: namespace.parse().map_err(|_| Garbage)?,
                    drive_offset: number(drive_offset)?,
                }
            }
            ["ignore", "bar", offset, len] => Self::Ignore {
                offset: number(offset)?,
                len_bytes: number(len)?,
            },
            [
                "end",
                passed,
                "passed,",
                failed,
                "failed,",
                skipped,
                "skipped",
            ] => Self::End {
                passed: number(passed)?,
                failed: number(failed)?,
                skipped: number(skipped)?,
            },
            _ => return Err(Garbage),
        })
    }
}

impl FromStr for Verdict {
    type Err = Garbage;

    fn from_str(text: &str) -> Result<Self, Garbage> {
        let words: Vec<&str> = text.split(' ').collect();
        if let ["ok", millis, "ms"] = words[..] {
            let millis = number(millis)?;
            return Ok(Self::Passed { millis });
        }
        let reason = |prefix| text.strip_prefix(prefix).map(String::from);
        if let Some(reason) = reason("FAILED: ") {
            return Ok(Self::Failed { reason });
        }
        let reason = reason("skipped: ").ok_or(Garbage)?;
        Ok(Self::Skipped { reason })
    }
}

fn number(text: &str) -> Result<u64, Garbage> {
    text.parse().map_err(|_| Garbage)
}

fn case_name(text: &str) -> Result<String, Garbage> {
    let (run, case) = text.split_once('/').ok_or(Garbage)?;
    if run.is_empty() || case.is_empty() {
        return Err(Garbage);
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let name = String::from("boot/drives");
        let verdicts = [
            Verdict::Passed { millis: 12 },
            Verdict::Failed {
                reason: "left 3, right 4".into(),
            },
            Verdict::Skipped {
                reason: "no such drive".into(),
            },
        ];
        let actions = [
            Action::Throttle {
                drive: "vfio".into(),
                bytes_per_s: 4096,
            },
            Action::Unthrottle {
                drive: "vfio".into(),
            },
            Action::Remove {
                drive: "cmb".into(),
            },
            Action::Pause { millis: 5 },
            Action::CheckBar,
        ];
        let mut lines = vec![
            Line::Hello {
                kernel: "7.2.13+deb14-amd64".into(),
                run: "boot".into(),
                cases: 9,
            },
            Line::Start { name: name.clone() },
            Line::Progress {
                text: "round 3 of 15".into(),
            },
            Line::Figure {
                name: "read-4k".into(),
                value: 19_000.25,
                unit: "IOPS".into(),
                goal: None,
            },
            Line::Figure {
                name: "read-4k".into(),
                value: 0.9,
                unit: "ratio".into(),
                goal: Some(1.2),
            },
            Line::Expect {
                offset: 4096,
                len_bytes: 512,
                drive: "vfio".into(),
                namespace: 2,
                drive_offset: 1024,
            },
            Line::Ignore {
                offset: 0,
                len_bytes: 4096,
            },
            Line::End {
                passed: 1,
                failed: 2,
                skipped: 3,
            },
        ];
        lines.extend(verdicts.map(|verdict| Line::Case {
            name: name.clone(),
            verdict,
        }));
        lines.extend(actions.map(Line::Host));
        for line in lines {
            let written = line.to_string();
            assert_eq!(written.parse(), Ok(line), "{written}");
            assert_eq!(written.lines().count(), 1);
        }
        for answer in [Answer::Done, Answer::Failed("no such drive".into())] {
            assert_eq!(answer.to_string().parse(), Ok(answer));
        }
    }

    #[test]
    fn the_lines_are_as_documented() {
        let name = String::from("boot/drives");
        let verdict = Verdict::Failed {
            reason: "one\n\n  two\r\n".into(),
        };
        let line = Line::Case { name, verdict };
        assert_eq!(line.to_string(), "case boot/drives FAILED: one / two");
        let line = "expect bar 0 512 vfio/1 4096".parse::<Line>();
        assert!(matches!(
            line,
            Ok(Line::Expect {
                namespace: 1,
                drive_offset: 4096,
                ..
            })
        ));
    }

    #[test]
    fn everything_else_is_garbage() {
        let lines = [
            "",
            "case",
            "case boot/x",
            "case boot ok 1 ms",
            "case /x ok 1 ms",
            "case boot/x ok ms",
            "case boot/x ok -1 ms",
            "case boot/x maybe",
            "hello 7.2 boot many",
            "host: make tea",
            "host: throttle vfio fast",
            "expect bar 0 512 vfio 0",
            "expect bar 0 512 vfio/x 0",
            "end 1 passed",
            "[    1.5] case boot/x ok 1 ms",
            "figure x y z",
            "figure x 1 z goal",
            "figure x 1 z goal y",
            "progress",
        ];
        for line in lines {
            assert_eq!(line.parse::<Line>(), Err(Garbage), "{line}");
        }
        assert_eq!("".parse::<Answer>(), Err(Garbage));
    }
}
