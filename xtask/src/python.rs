//! Finds a Python, makes virtual environments under `.xtask/`, fills them with packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{apt, repo, run};

/// The first Python 3 on `PATH` that starts.
pub(crate) fn find() -> Option<PathBuf> {
    ["python3", "python"].iter().find_map(|name| {
        let path = run::which(name)?;
        let check = ["-c", "import sys; sys.exit(sys.version_info < (3, 9))"];
        let works = run::captured(Command::new(&path).args(check)).is_ok();
        works.then_some(path)
    })
}

/// A way to call pip: `python3 -m pip`, or a `pip` on `PATH`.
pub(crate) fn pip() -> Option<Vec<PathBuf>> {
    let through_python = find().map(|python| vec![python, "-m".into(), "pip".into()]);
    let alone = ["pip3", "pip"]
        .iter()
        .filter_map(|name| run::which(name))
        .map(|path| vec![path]);
    through_python.into_iter().chain(alone).find(|words| {
        run::captured(Command::new(&words[0]).args(&words[1..]).arg("--version")).is_ok()
    })
}

/// A virtual environment.
#[derive(Debug)]
pub(crate) struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// Opens or makes `.xtask/NAME`. Debian's Python may need its venv package for this.
    pub(crate) fn ensure(name: &str) -> Result<Self> {
        let folder = repo::root().join(".xtask").join(name);
        let venv = Self { folder };
        if run::captured(venv.python().args(["-m", "pip", "--version"])).is_ok() {
            return Ok(venv);
        }
        repo::scratch("")?;
        let python = match find() {
            Some(python) => python,
            None => {
                apt::install(&["python3", "python3-venv"])
                    .context("no Python 3.9 or newer on PATH")?;
                find().context("no Python 3.9 or newer on PATH")?
            }
        };
        let make = |python: &Path| {
            run::captured(
                Command::new(python)
                    .args(["-m", "venv", "--clear"])
                    .arg(&venv.folder),
            )
        };
        if let Err(first) = make(&python) {
            apt::install(&["python3-venv"])
                .with_context(|| format!("{first:#}"))
                .context("cannot make a virtual environment")?;
            make(&python).or_else(|_| make(Path::new("/usr/bin/python3")))?;
        }
        Ok(venv)
    }

    /// The path of the environment's Python.
    pub(crate) fn program(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// The environment's Python, to be given arguments.
    pub(crate) fn python(&self) -> Command {
        Command::new(self.program())
    }

    /// Where packages lie.
    pub(crate) fn site_packages(&self) -> Result<PathBuf> {
        let script = "import sysconfig; print(sysconfig.get_path('platlib'))";
        Ok(run::captured(self.python().args(["-c", script]))?
            .stdout
            .trim()
            .into())
    }

    /// Whether every module can be imported.
    pub(crate) fn has(&self, modules: &[&str]) -> bool {
        let script = format!("import {}", modules.join(", "));
        run::captured(self.python().args(["-c", &script])).is_ok()
    }

    /// Installs packages (names as pip takes them, options included).
    pub(crate) fn install(&self, packages: &[&str]) -> Result<()> {
        let mut command = self.python();
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        command.args(packages);
        let finished = run::measured(&mut command)?;
        if !finished.status.success() {
            bail!(
                "pip cannot install {}: {}; is there a network?",
                packages.join(" "),
                finished.tail()
            );
        }
        Ok(())
    }
}
