//! How the program ends: exit codes, and every error in one shape (what, where, remedy).
//! The only place that maps the engine's and the adapter's errors to codes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fs_adapter::error::{Error as ModelError, ErrorKind as ModelKind};
use rustix::io::Errno;
use ubio::{Error as EngineError, ErrorKind as EngineKind};

/// The table of codes, for `--help` and the man page.
pub(crate) const CODES_HELP: &str = "\
Exit codes:
  0    done
  1    I/O or device error, or too few open files or threads are allowed; also when only the
       report could not be printed
  2    wrong usage
  3    the source is missing, not readable for you (or another driver's), damaged or not a model
  4    the destination cannot take it (space, permission), or memory is missing
  5    --strict, and less than the best way was to be had
  6    --verify found a difference; nothing was published
  7    the source changed or was cut while it was read; nothing was published
  130  interrupted (SIGINT), 143 terminated (SIGTERM); nothing was published";

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Io = 1,
    Usage = 2,
    Input = 3,
    Destination = 4,
    Fallback = 5,
    Mismatch = 6,
    Changed = 7,
    Interrupted = 130,
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What went wrong, where, and what to do about it; one line for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// A fixed lower-case word.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) path: Option<PathBuf>,
    pub(crate) remedy: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            exit,
            kind,
            message: message.into(),
            path: None,
            remedy: None,
        }
    }

    /// The command line asks for something that does not exist or does not go together.
    pub(crate) fn usage(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message).remedy(remedy)
    }

    /// An operating-system error while `doing` something to `path`, with a remedy where the
    /// error alone tells it.
    pub(crate) fn os(exit: Exit, path: &Path, doing: &str, cause: &std::io::Error) -> Self {
        if let Some(remedy) = no_descriptor(cause) {
            return Self::new(Exit::Io, "io", format!("cannot {doing}: {cause}"))
                .at(path)
                .remedy(remedy);
        }
        if cause.kind() == std::io::ErrorKind::FileTooLarge {
            return Self::new(exit, "no-space", format!("cannot {doing}: {cause}"))
                .at(path)
                .remedy("raise the file-size limit (ulimit -f), or name a file on another disk");
        }
        let kind = match cause.kind() {
            std::io::ErrorKind::NotFound => "not-found",
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                "permission"
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "no-space",
            _ => "io",
        };
        Self::new(exit, kind, format!("cannot {doing}: {cause}")).at(path)
    }

    pub(crate) fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_owned());
        self
    }

    /// Names the place, unless one is named already.
    pub(crate) fn or_at(mut self, path: impl AsRef<Path>) -> Self {
        self.path.get_or_insert_with(|| path.as_ref().to_owned());
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Says what to do, unless that is said already.
    pub(crate) fn or_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy.get_or_insert_with(|| remedy.into());
        self
    }

    /// An error of the adapter: while opening (before any byte moved), or a change found
    /// later.
    pub(crate) fn model(error: &ModelError) -> Self {
        let denied = std::error::Error::source(error)
            .and_then(<dyn std::error::Error>::downcast_ref::<std::io::Error>)
            .is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied);
        let exit = match error.kind() {
            ModelKind::Io if denied => Exit::Input,
            ModelKind::Io => Exit::Io,
            ModelKind::OutOfMemory => Exit::Destination,
            ModelKind::Changed => Exit::Changed,
            ModelKind::InvalidArgument | ModelKind::NoMatch => Exit::Usage,
            _ => Exit::Input,
        };
        let place = match (error.tensor(), error.offset()) {
            (Some(tensor), Some(offset)) => {
                format!("tensor {}, byte {offset}: ", shortened(tensor))
            }
            (Some(tensor), None) => format!("tensor {}: ", shortened(tensor)),
            (None, Some(offset)) => format!("byte {offset}: "),
            (None, None) => String::new(),
        };
        Self {
            exit,
            kind: error.kind().as_str(),
            message: format!("{place}{}", error.detail()),
            path: error.path().map(Path::to_owned),
            remedy: Some(error.remedy().to_owned()),
        }
    }

    /// An error of the engine, at open or during a load.
    pub(crate) fn engine(error: &EngineError) -> Self {
        let source = std::error::Error::source(error);
        if let Some(model) = source.and_then(<dyn std::error::Error>::downcast_ref::<ModelError>) {
            return Self::model(model);
        }
        let exit = match error.kind() {
            EngineKind::InvalidInput => Exit::Usage,
            EngineKind::NoSpace => Exit::Destination,
            EngineKind::Truncated | EngineKind::Changed => Exit::Changed,
            EngineKind::Model | EngineKind::NotFound => Exit::Input,
            EngineKind::Fallback => Exit::Fallback,
            _ => Exit::Io,
        };
        let cause = source.map_or_else(String::new, |source| format!(": {source}"));
        let failure = Self {
            exit,
            kind: error.kind().as_str(),
            message: format!("{}{cause}", error.what()),
            path: error.path().map(Path::to_owned),
            remedy: error.advice().map(str::to_owned),
        };
        match io_cause(error).and_then(no_descriptor) {
            Some(remedy) => Self {
                exit: Exit::Io,
                ..failure.remedy(remedy)
            },
            None => failure,
        }
    }

    /// An error of the engine's while the source was opened.
    pub(crate) fn source(error: &EngineError) -> Self {
        let failure = Self::engine(error);
        let errno = io_cause(error).and_then(Errno::from_io_error);
        let is_name = matches!(
            errno,
            Some(Errno::LOOP | Errno::NAMETOOLONG | Errno::NOTDIR)
        );
        let is_input = match error.kind() {
            EngineKind::Permission | EngineKind::Unsupported | EngineKind::Busy => true,
            // Of the source, and not of a setting.
            EngineKind::InvalidInput => error.path().is_some(),
            _ => is_name,
        };
        match is_input {
            true => Self {
                exit: Exit::Input,
                ..failure
            },
            false => failure,
        }
    }

    /// An error of the engine's while the destination was made or published.
    pub(crate) fn destination(error: &EngineError) -> Self {
        let mut failure = Self::engine(error);
        // Where descriptors run out is a matter of chance.
        let none_left = io_cause(error).and_then(no_descriptor).is_some();
        if failure.exit != Exit::Usage && !none_left {
            failure.exit = Exit::Destination;
        }
        failure
    }

    /// A signal ended the work.
    pub(crate) fn signal(signal: i32) -> Self {
        let (exit, name) = if signal == signal_hook::consts::SIGTERM {
            (Exit::Terminated, "terminated by SIGTERM")
        } else {
            (Exit::Interrupted, "interrupted by SIGINT")
        };
        Self::new(exit, "interrupted", name).remedy("nothing was published; run it again")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

fn io_cause(error: &EngineError) -> Option<&std::io::Error> {
    let source = std::error::Error::source(error);
    source.and_then(<dyn std::error::Error>::downcast_ref::<std::io::Error>)
}

/// What to do where the program, or the machine, may open no more files.
fn no_descriptor(cause: &std::io::Error) -> Option<&'static str> {
    match Errno::from_io_error(cause)? {
        Errno::MFILE => Some("raise the open-files limit (ulimit -n)"),
        Errno::NFILE => Some("close files, or raise the system's limit (sysctl fs.file-max)"),
        _ => None,
    }
}

/// A tensor's name for one line: quoted, escaped, of bounded length.
pub(crate) fn shortened(name: &str) -> String {
    const MAX_CHARS: usize = 120;
    match name.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{:?}...", &name[..cut]),
        None => format!("{name:?}"),
    }
}

/// Text that came from outside, on one line, without power over the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
