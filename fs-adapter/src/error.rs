//! One error type: a short kind for control flow, and for people what, where and the remedy.
//! Knows no format and prints nothing itself.

use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

const MORE_MEMORY: &str = "free memory, or raise the address-space limit (ulimit -v)";

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for control flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The named file or folder does not exist.
    NotFound,
    /// The file has no bytes.
    Empty,
    /// The folder holds no model, or the file is not of the format it was said to be.
    NotAModel,
    /// The path ends at something that is not a regular file (a device, a pipe, a folder).
    NotAFile,
    /// The file ends before what its header promises.
    Truncated,
    /// The bytes break a rule of their format.
    Malformed,
    /// A name occurs twice.
    Duplicate,
    /// An offset points outside the file.
    OutOfRange,
    /// Well-formed, but of a version, type or system feature that is not supported.
    Unsupported,
    /// A size or count exceeds a limit (see [`crate::limits`]) or overflows.
    TooLarge,
    /// A name in an index leaves the folder, or a link was met where links are refused.
    UnsafePath,
    /// Several models are meant by one name.
    Ambiguous,
    /// A part of the model is missing.
    Incomplete,
    /// Index and shards disagree on which tensor is where.
    IndexMismatch,
    /// A file changed, or was replaced, after it was opened.
    Changed,
    /// A tensor pattern matches nothing.
    NoMatch,
    /// An argument of the call is not allowed (alignment, pattern, format of the model).
    InvalidArgument,
    /// Memory cannot be had, for a header or the tables made of it.
    OutOfMemory,
    /// The operating system refused an operation.
    Io,
}

impl ErrorKind {
    /// A fixed lower-case word for logs and machine-readable output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::Empty => "empty",
            Self::NotAModel => "not-a-model",
            Self::NotAFile => "not-a-file",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::Duplicate => "duplicate",
            Self::OutOfRange => "out-of-range",
            Self::Unsupported => "unsupported",
            Self::TooLarge => "too-large",
            Self::UnsafePath => "unsafe-path",
            Self::Ambiguous => "ambiguous",
            Self::Incomplete => "incomplete",
            Self::IndexMismatch => "index-mismatch",
            Self::Changed => "changed",
            Self::NoMatch => "no-match",
            Self::InvalidArgument => "invalid-argument",
            Self::OutOfMemory => "out-of-memory",
            Self::Io => "io",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, where, and what to do about it.
///
/// `Display` is one line: `path: tensor "name", byte N: detail; remedy`. Text that came from a
/// file is escaped and shortened, so that a hostile name cannot move the terminal's cursor.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    path: Option<PathBuf>,
    tensor: Option<String>,
    offset: Option<u64>,
    detail: String,
    remedy: &'static str,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error without a place yet.
    #[must_use]
    pub fn new(kind: ErrorKind, detail: impl Into<String>, remedy: &'static str) -> Self {
        Self(Box::new(Inner {
            kind,
            path: None,
            tensor: None,
            offset: None,
            detail: detail.into(),
            remedy,
            source: None,
        }))
    }

    /// An operating system error on `path`; a missing file, or a name that none can have,
    /// becomes [`ErrorKind::NotFound`].
    #[must_use]
    pub fn io(path: &Path, doing: &str, source: std::io::Error) -> Self {
        let (kind, remedy) = match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => (ErrorKind::NotFound, "check the name"),
            Some(Errno::NOTDIR) => (
                ErrorKind::NotFound,
                "check the name: a part of it before the last '/' is a file",
            ),
            Some(Errno::NAMETOOLONG) => (
                ErrorKind::NotFound,
                "check the name: no file can have one this long",
            ),
            Some(Errno::ACCESS | Errno::PERM) => (
                ErrorKind::Io,
                "read permission on the file and its folders is needed",
            ),
            Some(Errno::MFILE) => (ErrorKind::Io, "raise the open-files limit (ulimit -n)"),
            Some(Errno::NFILE) => (
                ErrorKind::Io,
                "close files, or raise the system's limit (sysctl fs.file-max)",
            ),
            Some(Errno::NOMEM) => (ErrorKind::OutOfMemory, MORE_MEMORY),
            _ => (ErrorKind::Io, "check the file system and try again"),
        };
        Self::new(kind, format!("cannot {doing}: {source}"), remedy)
            .at_path(path)
            .caused_by(source)
    }

    /// `bytes` of memory that cannot be had.
    pub(crate) fn out_of_memory(bytes: usize) -> Self {
        let detail = format!("no memory for the header and its tables, about {bytes} bytes");
        Self::new(ErrorKind::OutOfMemory, detail, MORE_MEMORY)
    }

    /// Adds the file, unless one is known already.
    #[must_use]
    pub fn at_path(mut self, path: &Path) -> Self {
        self.0.path.get_or_insert_with(|| path.to_path_buf());
        self
    }

    /// Adds the tensor, unless one is known already.
    #[must_use]
    pub fn at_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Adds the offset from the file's start, in bytes, unless one is known already.
    #[must_use]
    pub fn at_offset(mut self, offset_bytes: u64) -> Self {
        self.0.offset.get_or_insert(offset_bytes);
        self
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What went wrong, for control flow.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file or folder, as the caller named it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The tensor, as the file names it.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The offset from the file's start, in bytes.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// What went wrong, without place and remedy.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        self.0.remedy
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(path) = &inner.path {
            write!(f, "{}: ", printable(&path.to_string_lossy()))?;
        }
        match (&inner.tensor, inner.offset) {
            (Some(tensor), Some(offset)) => write!(f, "tensor {}, byte {offset}: ", quoted(tensor)),
            (Some(tensor), None) => write!(f, "tensor {}: ", quoted(tensor)),
            (None, Some(offset)) => write!(f, "byte {offset}: "),
            (None, None) => Ok(()),
        }?;
        write!(f, "{}; {}", printable(&inner.detail), inner.remedy)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.0.source.as_deref()?;
        Some(source)
    }
}

/// A name from a file, quoted, escaped and shortened for one line of text.
pub(crate) fn quoted(name: &str) -> String {
    const MAX_CHARS: usize = 120;
    match name.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{:?}...", &name[..cut]),
        None => format!("{name:?}"),
    }
}

/// An error of the JSON in `text`, which begins at byte `start` of the file.
pub(crate) fn bad_json(
    text: &str,
    start: u64,
    what: &str,
    remedy: &'static str,
    error: serde_json::Error,
) -> Error {
    let before: usize = text
        .split_inclusive('\n')
        .take(error.line().max(1) - 1)
        .map(str::len)
        .sum();
    let offset = (before + error.column().max(1) - 1).min(text.len());
    // The offset says it better than the line and column that serde_json appends.
    let shown = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let shown = shown.strip_suffix(&place).unwrap_or(&shown);
    Error::new(
        ErrorKind::Malformed,
        format!("{what} is not valid: {shown}"),
        remedy,
    )
    .at_offset(start + offset as u64)
    .caused_by(error)
}

fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_default());
            let plain = escaped.is_none().then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}
