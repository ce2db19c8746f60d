//! DST: where the bytes end, and what a name in shared memory takes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ubio::vram::bar::BarLocation;

use crate::exit::Failure;
use crate::source::{Source, after, shm_path};

/// Where the bytes end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Anonymous memory, gone at exit.
    Host,
    /// Shared memory that gets this name.
    Shm {
        /// The name the user gave.
        name: String,
        /// Where it will be.
        path: PathBuf,
    },
    /// Memory of a PCI function.
    Bar(BarLocation),
    /// A file on a disk.
    File(PathBuf),
}

impl Destination {
    pub(crate) fn parse(text: &OsStr) -> Result<Self, Failure> {
        if text == "host:" {
            return Ok(Self::Host);
        }
        if let Some(name) = after(text, "shm:") {
            let path = shm_path(name)?;
            return Ok(Self::Shm {
                name: name.to_string_lossy().into_owned(),
                path,
            });
        }
        if after(text, "bar:").is_some() {
            let location = text.to_string_lossy().parse();
            return location
                .map(Self::Bar)
                .map_err(|error: ubio::Error| Failure::engine(&error));
        }
        if after(text, "host:").is_some() {
            return Err(Failure::usage(
                format!("{:?}: host: takes no name", text.display().to_string()),
                "write host: for memory that is gone at exit, shm:NAME for memory that stays",
            ));
        }
        if text.is_empty() || text == "-" {
            return Err(Failure::usage(
                "DST cannot be standard output or empty",
                "write shm:NAME, host:, or a file when SRC is shm:NAME",
            ));
        }
        Ok(Self::File(PathBuf::from(text)))
    }

    /// Refuses pairs that another tool is for.
    pub(crate) fn check_with(&self, source: &Source) -> Result<(), Failure> {
        match (source, self) {
            (Source::Path(from), Self::File(to)) => Err(Failure::usage(
                format!("both {} and {} are files", from.display(), to.display()),
                "use cp for that, or load into memory with DST shm:NAME or host:",
            )),
            (Source::Namespace(_), Self::File(to)) => Err(Failure::usage(
                format!("{} is a file", to.display()),
                "load into shm:NAME, host: or bar:FUNCTION/BAR; dd copies blocks to files",
            )),
            (Source::Shm(_), Self::Bar(_)) => Err(Failure::usage(
                "a BAR is filled from a drive",
                "name a file, nvme: or vfio:",
            )),
            _ => Ok(()),
        }
    }
}

/// Where a link leads, step by step, whether or not there is anything; as many steps as the
/// kernel goes.
pub(crate) fn links(path: &Path) -> impl Iterator<Item = PathBuf> {
    const MOST_LINKS: usize = 40;
    let next = |path: &PathBuf| {
        let target = std::fs::read_link(path).ok()?;
        Some(path.parent().unwrap_or(Path::new("")).join(target))
    };
    std::iter::successors(Some(path.to_owned()), next)
        .take(1 + MOST_LINKS)
        .skip(1)
}
