//! `ubio-lab RUN`: the program that a lab's guest runs, and what its suites stand on.
//!
//! It says lines (`ubio-lab-spec`) on standard output and hears the host's answers on standard
//! input; which serial port that is, the guest's init decides. It knows nothing of QEMU.

mod binding;
mod case;
mod devices;
mod lab;
mod memory;
mod pci;
mod scattered;
mod session;
mod status;
mod suites;
mod sys;
mod talk;
mod target;
mod user;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use ubio_lab_spec::{find, runs};

use self::lab::Lab;
use self::talk::Talk;

const USAGE: &str = "usage: ubio-lab RUN [--case NAME] [--full] [--list]

Runs the cases of a run inside the lab's guest, one plain line each.
  --case NAME  only cases whose name contains this
  --full       the whole matrix
  --list       print the names of the cases, run nothing

Examples:
  ubio-lab boot
  ubio-lab boot --case drives/cmb";

/// What the command line asks for.
#[derive(Debug, Default)]
struct Args {
    run: Option<String>,
    case: Option<String>,
    full: bool,
    list: bool,
}

impl Args {
    fn parse(words: impl Iterator<Item = String>) -> Result<Self> {
        let mut args = Self::default();
        let mut words = words;
        while let Some(word) = words.next() {
            match word.as_str() {
                "--case" => args.case = Some(words.next().context("--case wants a name")?),
                "--full" => args.full = true,
                "--list" => args.list = true,
                name if !name.starts_with('-') && args.run.is_none() => args.run = Some(word),
                other => bail!("`{other}` is not understood\n\n{USAGE}"),
            }
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let args = Args::parse(std::env::args().skip(1))?;
    let name = args.run.context(USAGE)?;
    let run = find(&name).with_context(|| {
        let names: Vec<&str> = runs().iter().map(|run| run.name).collect();
        format!("no run is called {name}; there are {}", names.join(", "))
    })?;
    let suite = suites::find(run.suite)
        .with_context(|| format!("run {name} wants suite {}, which is not here", run.suite))?;
    let mut cases = suite(&run.machine, args.full);
    if let Some(part) = &args.case {
        cases.retain(|case| case.name.contains(part.as_str()));
    }
    if args.list {
        cases
            .iter()
            .for_each(|case| println!("{name}/{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let talk = Talk::new(std::io::stdin(), std::io::stdout());
    let mut lab = Lab::start(run, talk)?;
    let tally = case::run_all(&mut lab, cases)?;
    Ok(if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_command_line() {
        let parse = |text: &str| Args::parse(text.split_whitespace().map(String::from));
        let args = parse("boot --case x --full").unwrap();
        assert_eq!(args.run.as_deref(), Some("boot"));
        assert_eq!(args.case.as_deref(), Some("x"));
        assert!(args.full && !args.list);
        assert!(parse("boot extra").is_err());
        assert!(parse("--case").is_err());
        assert!(parse("--speed").is_err());
    }

    #[test]
    fn every_run_has_its_suite_and_no_case_twice() {
        for run in runs() {
            let suite = suites::find(run.suite).expect(run.suite);
            for full in [false, true] {
                let cases = suite(&run.machine, full);
                assert!(!cases.is_empty(), "{}", run.name);
                let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
                assert_eq!(
                    names.len(),
                    cases.len(),
                    "{}: two cases share a name",
                    run.name
                );
                assert!(names.iter().all(|name| !name.contains(char::is_whitespace)));
            }
        }
    }
}
