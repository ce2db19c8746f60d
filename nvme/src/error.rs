//! The errors of this crate but for failed commands, which have a [`Status`](crate::status).
//! Knows no devices.

use std::fmt;
use std::sync::Arc;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// For control flow. The words for people are in [`Error`]'s `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is outside what its documentation allows.
    InvalidInput,
    /// The controller, the namespace or the kernel cannot do it.
    Unsupported,
    /// The kernel refused for want of a right or a resource limit.
    Permission,
    /// No memory, bus addresses, queues or interrupts left.
    NoSpace,
    /// There is no such device or namespace.
    NotFound,
    /// Somebody else has the device.
    Busy,
    /// The controller did not answer in its time.
    Timeout,
    /// The controller failed a command that is needed to go on, or reported a fatal error.
    Device,
    /// The controller does not answer at all any more: removed, or dead.
    Gone,
    /// Any other error of the operating system.
    Io,
}

/// An error with its cause and remedy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    what: String,
    remedy: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `what` says what failed, in one line without a full stop.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            what: what.into(),
            remedy: None,
            source: None,
        }))
    }

    /// An operating-system error; its kind follows from the errno.
    pub fn os(what: impl Into<String>, errno: impl Into<std::io::Error>) -> Self {
        let cause: std::io::Error = errno.into();
        let kind = match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::EROFS) => ErrorKind::Permission,
            Some(libc::ENOENT) => ErrorKind::NotFound,
            Some(libc::ENOMEM | libc::ENOSPC | libc::EMFILE | libc::ENFILE) => ErrorKind::NoSpace,
            Some(libc::EAGAIN | libc::EBUSY) => ErrorKind::Busy,
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => ErrorKind::Unsupported,
            Some(libc::ENODEV | libc::ENXIO) => ErrorKind::Gone,
            _ => ErrorKind::Io,
        };
        Self::new(kind, what).because(cause)
    }

    /// Says what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).remedy = Some(remedy.into());
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::from(source.into()));
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What failed, without cause and remedy.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// What the user can do about it, where that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
