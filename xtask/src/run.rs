//! Runs other programs: quietly, visibly, or measured. Nothing here ever reads standard input.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

/// What a finished program printed and used.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// From just before exec to the exit.
    pub(crate) wall: Duration,
    pub(crate) cpu_user_s: f64,
    pub(crate) cpu_sys_s: f64,
    pub(crate) peak_rss_bytes: u64,
}

impl Finished {
    /// The last lines of standard error (or output), for a one-line reason.
    pub(crate) fn tail(&self) -> String {
        let text = if self.stderr.trim().is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }
}

/// The program's path, if it is on `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// The command as one would type it.
pub(crate) fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program());
    std::iter::once(program.file_name().unwrap_or(command.get_program()))
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs to the end with output captured, whatever the exit status.
pub(crate) fn measured(command: &mut Command) -> Result<Finished> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{}`", typed(command)))?;
    let mut stdout = child.stdout.take().context("no pipe for standard output")?;
    let mut stderr = child.stderr.take().context("no pipe for standard error")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let mut out = Vec::new();
    stdout
        .read_to_end(&mut out)
        .context("cannot read the program's output")?;
    let used = child.wait4().context("cannot wait for the program")?;
    let wall = started.elapsed();
    let err = reader
        .join()
        .ok()
        .context("the reader of standard error died")??;
    Ok(Finished {
        status: used.status,
        stdout: String::from_utf8_lossy(&out).into_owned(),
        stderr: String::from_utf8_lossy(&err).into_owned(),
        wall,
        cpu_user_s: used.rusage.utime.as_secs_f64(),
        cpu_sys_s: used.rusage.stime.as_secs_f64(),
        peak_rss_bytes: used.rusage.maxrss,
    })
}

/// Runs with output captured; an exit status other than 0 is an error that quotes the program.
pub(crate) fn captured(command: &mut Command) -> Result<Finished> {
    let finished = measured(command)?;
    if !finished.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            typed(command),
            finished.status,
            finished.tail()
        );
    }
    Ok(finished)
}

/// Runs with output going where ours goes; an exit status other than 0 is an error.
pub(crate) fn visible(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{}`", typed(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", typed(command));
    }
    Ok(())
}

/// `cargo` as it was called to run us, in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut command =
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsStr::new("cargo").into()));
    command.current_dir(crate::repo::root());
    // Set for us by `cargo run`; a child cargo of another package must not inherit them.
    for name in [
        "CARGO_MANIFEST_DIR",
        "CARGO_PKG_NAME",
        "CARGO_MANIFEST_PATH",
    ] {
        command.env_remove(name);
    }
    command
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this is a CI run, where nothing that can be installed may be skipped.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}
