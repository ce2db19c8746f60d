//! `cargo xtask test`: everything a change must pass, one plain line per step, one closing line.

mod counts;
mod interop;
mod steps;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use self::counts::Counts;
use crate::{repo, run};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What is missing is installed: Debian packages as root, Python packages \
    into .xtask/venv, cargo-deny into .xtask/tools. Where that cannot be done a step is skipped \
    and says why; with CI=true it fails instead.\n\n\
    Examples:\n  cargo xtask test\n  cargo xtask test --full\n  cargo xtask test --only interop"
)]
pub(crate) struct Args {
    /// Also a million seeds of each simulator, the lab's whole matrix, and every fuzz target for five minutes
    #[arg(long)]
    full: bool,

    /// Run only the steps whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// How a step ended.
#[derive(Debug)]
enum Outcome {
    Done(Counts),
    Skipped(String),
}

/// Runs steps and adds up what they did.
#[derive(Debug)]
struct Suite {
    only: Option<String>,
    total: Counts,
    logs: PathBuf,
}

impl Suite {
    /// Runs one step, unless `--only` excludes it; an error counts as one failure.
    fn step(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<Outcome>) {
        if self
            .only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            return;
        }
        let spinner = spinner(name);
        let started = Instant::now();
        let outcome = work(self);
        let seconds = started.elapsed().as_secs_f64();
        spinner.finish_and_clear();
        match outcome {
            Ok(Outcome::Done(counts)) => {
                let word = if counts.failed == 0 { "ok" } else { "FAILED" };
                println!("{word:7} {name:28} {seconds:7.1} s  {counts}");
                self.total += counts;
            }
            Ok(Outcome::Skipped(why)) if !run::is_ci() => {
                println!("skipped {name:28} {seconds:7.1} s  skipped: {why}");
                self.total.skipped += 1;
            }
            Ok(Outcome::Skipped(why)) => {
                println!("FAILED  {name:28} {seconds:7.1} s  in CI nothing may be skipped: {why}");
                self.total.failed += 1;
            }
            Err(error) => {
                println!("FAILED  {name:28} {seconds:7.1} s  {error:#}");
                self.total.failed += 1;
            }
        }
    }

    /// Runs a command with its output in a log; a failure shows the log's end.
    fn logged(&self, log: &str, command: &mut Command) -> Result<Logged> {
        let path = self.logs.join(format!("{log}.log"));
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let status = command
            .env("CARGO_TERM_COLOR", "never")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .with_context(|| format!("cannot start `{}`", run::typed(command)))?;
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        if !status.success() {
            const SHOWN_LINES: usize = 120;
            let lines: Vec<&str> = text.lines().collect();
            println!(
                "--- `{}`, its last lines ({}):",
                run::typed(command),
                repo::shown(&path)
            );
            println!(
                "{}",
                lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
            );
            println!("---");
        }
        Ok(Logged {
            success: status.success(),
            text,
        })
    }

    /// Like `logged`, where the command's success is all there is to know.
    fn passes(&self, log: &str, command: &mut Command) -> Result<Outcome> {
        let success = self.logged(log, command)?.success;
        Ok(Outcome::Done(Counts::one(success)))
    }
}

/// A finished command's output.
#[derive(Debug)]
struct Logged {
    success: bool,
    text: String,
}

/// Shows the running step and its time, on a terminal only.
fn spinner(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner()
        .with_style(style)
        .with_message(name.to_string());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let started = Instant::now();
    let mut suite = Suite {
        only: args.only.clone(),
        total: Counts::default(),
        logs: repo::scratch("logs")?,
    };
    println!("logs: {}", repo::shown(&suite.logs));
    steps::all(&mut suite, args.full);
    println!("{:.0} s in all", started.elapsed().as_secs_f64());
    let Counts {
        passed,
        failed,
        skipped,
    } = suite.total;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
