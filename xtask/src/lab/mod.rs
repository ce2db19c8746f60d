//! `cargo xtask lab`: boots a real kernel on an emulated machine, and runs suites inside.
//!
//! This file is the order of things. What a kernel, an initrd, a machine, a session is, each of
//! the files beside it knows for itself; what the suites try, only the guest does.

mod actions;
mod archive;
mod console;
mod images;
mod initrd;
mod kernel;
mod machine;
mod qmp;
mod session;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use ubio_lab_spec::{Run, runs};

use self::console::Outcome;
use self::kernel::{Kernel, Store};
use crate::suite::Counts;
use crate::{apt, repo};

/// Programs of the lab, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 6] = [
    (machine::QEMU, "qemu-system-x86"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("fio", "fio"),
    ("setpriv", "util-linux"),
    ("mke2fs", "e2fsprogs"),
];

/// How often a run is booted where the emulator is to blame for its end.
const TRIES: u32 = 3;

/// Images, initrd and BAR of one run.
const NEEDED_BYTES: u64 = 2 << 30;

/// Options of `cargo xtask lab`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(
    after_help = "A guest boots in seconds under QEMU's own emulation (TCG): a real Linux kernel, \
    its NVMe driver, and QEMU's models of NVMe controllers, a PCIe switch, an IOMMU, and a BAR \
    whose memory the host can see. Missing programs are installed (as root); the kernel is \
    fetched by apt into .xtask/lab/kernels once a week. lab/README.md says how to add a suite.\n\n\
    Examples:\n  cargo xtask lab                      every run\n  \
    cargo xtask lab boot                 the runs of one suite\n  \
    cargo xtask lab boot-iommu --case pattern\n  \
    cargo xtask lab perf --full --keep"
)]
pub(crate) struct Args {
    /// Suites or single runs; all of them if none is named
    #[arg(value_name = "SUITE")]
    names: Vec<String>,

    /// Print the runs and end
    #[arg(long)]
    list: bool,

    /// Only cases whose name contains this
    #[arg(long, value_name = "NAME")]
    case: Option<String>,

    /// The whole matrix
    #[arg(long)]
    full: bool,

    /// Keep the drives' images and the BAR's file
    #[arg(long)]
    keep: bool,

    /// Look for a newer kernel now
    #[arg(long)]
    refresh: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let chosen = choose(runs(), &args.names)?;
    if args.list {
        for run in &chosen {
            println!("{:12} {:10} {}", run.name, run.suite, run.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let counts = boot_all(args, &mut |line| println!("{line}"))?;
    let Counts {
        passed,
        failed,
        skipped,
    } = counts;
    println!("{:.0} s in all", started.elapsed().as_secs_f64());
    println!("{passed} cases passed, {failed} failed, {skipped} skipped");
    Ok(if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// For `cargo xtask test`: all runs, in one call. `say` hears every line.
pub(crate) fn all(full: bool, say: &mut dyn FnMut(&str)) -> Result<Counts> {
    boot_all(
        &Args {
            full,
            ..Args::default()
        },
        say,
    )
}

/// What keeps this machine from having a lab, if anything does; installs what can be installed.
pub(crate) fn ensure_possible() -> Result<()> {
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "the lab's guest is built for x86-64 Linux, and only there"
    );
    apt::ensure(&PROGRAMS).map(drop)
}

/// The runs that are meant: a name is a run's or a suite's.
fn choose(all: Vec<Run>, names: &[String]) -> Result<Vec<Run>> {
    for name in names {
        if !all.iter().any(|run| run.name == name || run.suite == name) {
            let known: Vec<&str> = all.iter().map(|run| run.name).collect();
            bail!(
                "no suite or run is called {name}; there are {}",
                known.join(", ")
            );
        }
    }
    let meant = |run: &Run| {
        let mut named = names.iter();
        names.is_empty() || named.any(|name| name == run.name || name == run.suite)
    };
    Ok(all.into_iter().filter(meant).collect())
}

/// A folder for this process's runs, removed with it.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn boot_all(args: &Args, say: &mut dyn FnMut(&str)) -> Result<Counts> {
    ensure_possible()?;
    let folder = repo::scratch("lab")?;
    repo::require_free(&folder, NEEDED_BYTES)?;
    let mut store = Store::open(folder.join("kernels"))?;
    let (mut kernel, why) = store.choose(args.refresh)?;
    say(&format!("kernel {} ({why})", kernel.version));
    let programs = initrd::build_programs(&folder)?;
    let scratch = Scratch {
        path: machine::make_folder(&folder, &format!("run-{}", std::process::id()))?,
        keep: args.keep,
    };
    let mut total = Counts::default();
    for run in choose(runs(), &args.names)? {
        let boot = Boot {
            args,
            run: &run,
            programs: &programs,
            folder: &scratch.path,
        };
        let mut outcome = boot.with(&kernel, say)?;
        if outcome.kernel.is_some() {
            store.proved(&kernel)?;
        } else if let Some(older) = store.fall_back(&kernel)? {
            say(&format!(
                "kernel {} does not boot, {} did: back to it",
                kernel.version, older.version
            ));
            kernel = older;
            outcome = boot.with(&kernel, say)?;
        }
        total += outcome.counts;
    }
    if scratch.keep {
        say(&format!("kept: {}", repo::shown(&scratch.path)));
    }
    Ok(total)
}

/// One run and what all of them share.
#[derive(Debug)]
struct Boot<'a> {
    args: &'a Args,
    run: &'a Run,
    programs: &'a Path,
    folder: &'a Path,
}

impl Boot<'_> {
    /// Boots it with that kernel; again where the emulator is to blame.
    fn with(&self, kernel: &Kernel, say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        for _ in 1..TRIES {
            let outcome = self.once(kernel, say)?;
            if !outcome.emulators_fault {
                return Ok(outcome);
            }
            say(&format!("{}: that was QEMU's fault: again", self.run.name));
        }
        self.once(kernel, say)
    }

    /// Boots it once and says how it went.
    fn once(&self, kernel: &Kernel, say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let Self {
            args,
            run,
            programs,
            folder,
        } = self;
        let started = Instant::now();
        let folder = machine::make_folder(folder, run.name)?;
        let files = machine::Files {
            vmlinuz: kernel.vmlinuz.clone(),
            initrd: folder.join("initrd"),
            folder,
        };
        initrd::write(kernel, programs, run.fio, &files.initrd)?;
        let log = repo::scratch("logs")?.join(format!("lab-{}.log", run.name));
        let mut words = vec![format!("lab.run={}", run.name)];
        words.extend(args.case.as_ref().map(|case| format!("lab.case={case}")));
        if run.machine.has_model() {
            words.push(images::model_word()?);
        }
        words.extend(args.full.then(|| "lab.full=1".into()));
        let outcome = session::boot(run, args.full, &files, &words, &log, say)
            .with_context(|| format!("run {}", run.name))?;
        if !outcome.failures.is_empty() {
            say(&format!(
                "--- {}: the console's last lines ({})",
                run.name,
                repo::shown(&log)
            ));
            outcome.console.iter().for_each(|line| say(line));
            say("---");
            outcome.failures.iter().for_each(|failure| say(failure));
        }
        if !args.keep {
            std::fs::remove_dir_all(&files.folder)?;
        }
        let word = if outcome.counts.failed == 0 {
            "ok"
        } else {
            "FAILED"
        };
        let seconds = started.elapsed().as_secs_f64();
        say(&format!(
            "{word:7} {:12} {seconds:5.1} s  {}",
            run.name, outcome.counts
        ));
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &[&str]) -> Vec<&'static str> {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).into()).collect();
        choose(runs(), &wanted)
            .unwrap()
            .into_iter()
            .map(|run| run.name)
            .collect()
    }

    #[test]
    fn runs_are_chosen_by_suite_and_by_name() {
        assert_eq!(names(&["boot"]), ["boot", "boot-iommu"]);
        assert_eq!(names(&["boot-iommu"]), ["boot-iommu"]);
        assert_eq!(names(&[]).len(), runs().len());
        assert!(choose(runs(), &["bot".into()]).is_err());
    }
}
