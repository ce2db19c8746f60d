//! What can go wrong, in one shape: a short kind for control flow, the place, the cause and
//! the remedy. "Busy, try again" is a kind of its own, never a kind of "broken".

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do where a strict load ends.
pub(crate) const NOT_STRICT: &str = "remove that cause, or load without strict";

/// What to do where a read failed for no reason that is known better.
pub(crate) const READ_AGAIN: &str =
    "check the file system and its drive (dmesg), and load it again";

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// For control flow. The words for people are in [`Error`]'s `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A queue, pool or table is full now; the same call may succeed later.
    Busy,
    /// The caller left, or the engine was closed under the operation.
    Cancelled,
    /// An argument is outside what its documentation allows.
    InvalidInput,
    /// This machine, kernel or file system cannot do it.
    Unsupported,
    /// There is no such device, namespace or function.
    NotFound,
    /// The kernel refused for want of a right or a resource limit.
    Permission,
    /// Memory cannot be had (for the destination, the windows, a load's tables), or space.
    NoSpace,
    /// The source ended before the bytes it promised.
    Truncated,
    /// The source changed while it was read.
    Changed,
    /// The storage device or its driver reported an error.
    Device,
    /// The storage device did not answer in the time the load may wait.
    Timeout,
    /// The copy to the destination failed.
    Copy,
    /// The model file is not what it should be; the cause is an `fs_adapter::Error`.
    Model,
    /// A strict load would have had to take another way than the best.
    Fallback,
    /// Any other error of the operating system.
    Io,
}

impl ErrorKind {
    /// A fixed lower-case word for logs and machine-readable output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
            Self::InvalidInput => "invalid-input",
            Self::Unsupported => "unsupported",
            Self::NotFound => "not-found",
            Self::Permission => "permission",
            Self::NoSpace => "no-space",
            Self::Truncated => "truncated",
            Self::Changed => "changed",
            Self::Device => "device",
            Self::Timeout => "timeout",
            Self::Copy => "copy",
            Self::Model => "model",
            Self::Fallback => "fallback",
            Self::Io => "io",
        }
    }
}

/// An error with its place and remedy. Cheap to clone: a failed load tells everyone who
/// holds a handle of it.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    what: String,
    path: Option<PathBuf>,
    remedy: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `what` says what failed, in one line without a full stop.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            what: what.into(),
            path: None,
            remedy: None,
            source: None,
        }))
    }

    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// Names the file.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.inner().path = Some(path.as_ref().to_owned());
        self
    }

    /// Names the file, unless one is named already.
    #[must_use]
    pub(crate) fn or_at(mut self, path: impl AsRef<Path>) -> Self {
        let inner = self.inner();
        inner.path.get_or_insert_with(|| path.as_ref().to_owned());
        self
    }

    /// Says what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.inner().remedy = Some(remedy.into());
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.inner().source = Some(Arc::from(source.into()));
        self
    }

    /// An operating-system error; its kind follows from the errno.
    pub fn os(what: impl Into<String>, errno: impl Into<std::io::Error>) -> Self {
        let cause: std::io::Error = errno.into();
        let kind = match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EROFS) => ErrorKind::Permission,
            Some(libc::ENOENT | libc::ENXIO) => ErrorKind::NotFound,
            Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT | libc::EFBIG) => ErrorKind::NoSpace,
            Some(libc::EAGAIN | libc::EBUSY) => ErrorKind::Busy,
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Self::new(kind, what).because(cause)
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What failed, without place, cause and remedy.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// What the user can do about it, where that is known.
    pub fn advice(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }

    /// The file, where there is one.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.0.what)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        if let Some(remedy) = &self.0.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<fs_adapter::error::Error> for Error {
    fn from(error: fs_adapter::error::Error) -> Self {
        let kind = match error.kind() {
            fs_adapter::ErrorKind::Changed => ErrorKind::Changed,
            fs_adapter::ErrorKind::Io => ErrorKind::Io,
            fs_adapter::ErrorKind::OutOfMemory => ErrorKind::NoSpace,
            _ => ErrorKind::Model,
        };
        Self::new(kind, "model").because(error)
    }
}
