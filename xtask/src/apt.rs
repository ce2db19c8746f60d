//! Debian packages that the suite uses: installed where that is possible, named where it is not.

use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// A program that the suite uses, and the Debian package that has it.
pub(crate) const PROGRAMS: [(&str, &str); 6] = [
    ("cc", "gcc"),
    ("fio", "fio"),
    ("mksquashfs", "squashfs-tools"),
    ("fusermount3", "fuse3"),
    ("bindfs", "bindfs"),
    ("valgrind", "valgrind"),
];

/// Installs the packages of those programs that are missing. Nothing missing: does nothing.
pub(crate) fn ensure(programs: &[(&str, &'static str)]) -> Result<String> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| run::which(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok("all there".into());
    }
    install(&missing)?;
    Ok(format!("installed {}", missing.join(" ")))
}

/// Installs packages; an error says what a person has to do instead.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let by_hand = format!("install by hand: apt-get install {}", packages.join(" "));
    anyhow::ensure!(
        run::which("apt-get").is_some(),
        "no apt-get here; {by_hand}"
    );
    anyhow::ensure!(run::is_root(), "not root; {by_hand}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-qq", "-y", "-o", "DPkg::Lock::Timeout=120"])
            .args(arguments);
        run::captured(&mut command).map(|_| ())
    };
    let mut arguments = vec!["install", "--no-install-recommends"];
    arguments.extend(packages);
    // Without an update first: package lists that are recent enough save half a minute.
    if apt(&arguments).is_ok() {
        return Ok(());
    }
    apt(&["update"])
        .and_then(|()| apt(&arguments))
        .with_context(|| by_hand)
}
