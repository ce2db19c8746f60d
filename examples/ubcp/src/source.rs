//! SRC: what is to be loaded. Names only; opening is the adapter's work.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fs_adapter::{Model, OpenOptions};

use ubio::source::nvme::NvmeAddress;

use crate::bytes;
use crate::exit::{Exit, Failure};

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file or folder.
    Path(PathBuf),
    /// A named result of an earlier run.
    Shm(PathBuf),
    /// Blocks of an NVMe namespace.
    Namespace(NamespaceSource),
}

/// A byte range of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceSource {
    pub(crate) address: NvmeAddress,
    pub(crate) offset: u64,
    /// `None`: up to the end.
    pub(crate) len_bytes: Option<u64>,
}

impl NamespaceSource {
    /// The file that holds the blocks, where there is one.
    pub(crate) fn files(&self) -> Vec<Metadata> {
        let path = match &self.address {
            NvmeAddress::Emulated { file, .. } => file,
            NvmeAddress::Passthrough(path) => path,
            _ => return Vec::new(),
        };
        path.metadata().into_iter().collect()
    }

    fn parse(text: &OsStr) -> Result<Self, Failure> {
        let text = text.to_str().ok_or_else(|| {
            Failure::usage(
                format!("{} is not UTF-8", text.display()),
                "name the device by a path that is",
            )
        })?;
        let (address, rest) = NvmeAddress::parse(text).map_err(|error| Failure::engine(&error))?;
        let mut source = Self {
            address,
            offset: 0,
            len_bytes: None,
        };
        for (key, value) in &rest {
            let bytes = bytes::bytes_of(key, value);
            match key.as_str() {
                "offset" => source.offset = bytes?,
                "len" => source.len_bytes = Some(bytes?),
                _ => {
                    return Err(Failure::usage(
                        format!("{key} is not known in {text}"),
                        "write ?offset=…&len=…, and file= and block= for nvme:emulated",
                    ));
                }
            }
        }
        Ok(source)
    }
}

impl Source {
    pub(crate) fn parse(text: &OsStr) -> Result<Self, Failure> {
        if let Some(name) = after(text, "shm:") {
            return shm_path(name).map(Self::Shm);
        }
        if after(text, "nvme:").is_some() || after(text, "vfio:").is_some() {
            return NamespaceSource::parse(text).map(Self::Namespace);
        }
        if text.is_empty() {
            return Err(Failure::usage("SRC is empty", "name a file or a folder"));
        }
        if text == "-" || text == "host:" || after(text, "bar:").is_some() {
            return Err(Failure::usage(
                format!("{} cannot be a source", text.display()),
                "name a file, a folder or shm:NAME",
            ));
        }
        Ok(Self::Path(PathBuf::from(text)))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Path(path) | Self::Shm(path) => path,
            Self::Namespace(_) => unreachable!("blocks are no model"),
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
