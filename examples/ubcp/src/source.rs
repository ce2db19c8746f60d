//! SRC: what is to be loaded. Names only; opening is the adapter's work.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fs_adapter::{Model, OpenOptions};

use crate::exit::{Exit, Failure};

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

/// Of the model's files, as they are open.
pub(crate) fn metadata_of(model: &Model) -> Result<Vec<Metadata>, Failure> {
    let of = |file: &fs_adapter::ModelFile| {
        let fail = |cause| Failure::os(Exit::Io, file.path(), "ask the file", &cause);
        file.file().metadata().map_err(fail)
    };
    model.files().iter().map(of).collect()
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
