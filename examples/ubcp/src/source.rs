//! SRC: what is to be loaded. Names only; opening is the adapter's work.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fs_adapter::{Model, OpenOptions};

use crate::exit::Failure;

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file or folder.
    Path(PathBuf),
    /// A named result of an earlier run.
    Shm(PathBuf),
}

impl Source {
    pub(crate) fn parse(text: &OsStr) -> Result<Self, Failure> {
        if let Some(name) = after(text, "shm:") {
            return shm_path(name).map(Self::Shm);
        }
        if text.is_empty() {
            return Err(Failure::usage("SRC is empty", "name a file or a folder"));
        }
        if text == "-" || text == "host:" {
            return Err(Failure::usage(
                format!("{} cannot be a source", text.display()),
                "name a file, a folder or shm:NAME",
            ));
        }
        Ok(Self::Path(PathBuf::from(text)))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Path(path) | Self::Shm(path) => path,
        }
    }

    /// Opens and validates all of it.
    pub(crate) fn open(&self, follow_links: bool) -> Result<Model, Failure> {
        let options = OpenOptions::default().follow_links(follow_links);
        Model::open(self.path(), &options).map_err(|error| {
            let failure = Failure::model(&error);
            match self {
                Self::Shm(_) if failure.kind == "not-found" => {
                    failure.remedy("see ls /dev/shm/ubio.* for the names there are")
                }
                _ => failure,
            }
        })
    }
}

/// The permissions that all of the model's files give.
pub(crate) fn mode_of(model: &Model) -> u32 {
    let given = |file: &fs_adapter::ModelFile| file.file().metadata().map_or(0, |of| of.mode());
    model
        .files()
        .iter()
        .map(given)
        .fold(0o777, |all, mode| all & mode)
}

/// What follows `prefix` in `text`.
pub(crate) fn after<'a>(text: &'a OsStr, prefix: &str) -> Option<&'a OsStr> {
    text.as_bytes()
        .strip_prefix(prefix.as_bytes())
        .map(OsStr::from_bytes)
}

/// The file of a name in shared memory.
pub(crate) fn shm_path(name: &OsStr) -> Result<PathBuf, Failure> {
    ubio::vram::shared::path_of(&name.to_string_lossy()).map_err(|error| Failure::engine(&error))
}
