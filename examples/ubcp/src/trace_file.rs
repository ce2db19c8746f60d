//! The file of `--trace`: opened before anything is loaded, written after everything is. It
//! must not be the source, nor the result, nor where the report goes.

use std::fs::{File, Metadata};
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ubio::trace::Trace;

use crate::args::Args;
use crate::destination::{Destination, links};
use crate::exit::{Exit, Failure};

/// Where the trace goes.
#[derive(Debug)]
pub(crate) struct TraceFile {
    path: PathBuf,
    file: File,
    /// It was not there before, and has nothing yet.
    new: bool,
}

impl TraceFile {
    pub(crate) fn open(
        path: &Path,
        args: &Args,
        sources: &[Metadata],
        destination: &Destination,
    ) -> Result<Self, Failure> {
        if path == "-" {
            return Err(refused(path, "is no file"));
        }
        let source = Path::new(args.src.as_deref().unwrap_or_default());
        if is_result(path, destination) {
            return Err(refused(path, "would be the result"));
        }
        if let Ok(found) = std::fs::metadata(path) {
            if !found.is_file() && !is_stream(&found) {
                return Err(refused(path, "is a folder or a device"));
            }
            if is_source(&found, sources, source) {
                return Err(refused(path, "is the source"));
            }
            if found.is_file() && found.len() > 0 && !holds_a_trace(path) {
                return Err(refused(path, "holds something other than a trace")
                    .remedy("name another file (--trace), or remove it first"));
            }
            if (args.json || !args.quiet) && is_stdout(&found) {
                return Err(refused(path, "is where the report goes")
                    .remedy("name a file of its own (--trace), or print no report (--quiet)"));
            }
        }
        let (file, new) = match File::options().write(true).create_new(true).open(path) {
            Ok(file) => (Ok(file), true),
            Err(_) => (open_without_waiting(path), false),
        };
        let file = file.map_err(|cause| failure(path, &cause))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            new,
        })
    }

    /// Writes it, in place of what the file holds.
    pub(crate) fn write(mut self, trace: &Trace) -> Result<(), Failure> {
        self.new = false;
        let write = || {
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            let mut out = std::io::BufWriter::new(&self.file);
            trace.write(&mut out)?;
            std::io::Write::flush(&mut out)
        };
        write().map_err(|cause| failure(&self.path, &cause))
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let is_ours = || {
            let (own, named) = (
                self.file.metadata()?,
                std::fs::symlink_metadata(&self.path)?,
            );
            std::io::Result::Ok(is_same(&own, &named) && own.len() == 0)
        };
        if self.new && is_ours().unwrap_or(false) {
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether it begins like what [`TraceFile::write`] writes.
fn holds_a_trace(path: &Path) -> bool {
    const BEGIN: &[u8] = b"{\"displayTimeUnit\"";
    let mut begin = [0; BEGIN.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == BEGIN
}

/// What an older trace holds stays until there is a new one. A pipe must have a reader.
fn open_without_waiting(path: &Path) -> std::io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(i32::try_from(nonblocking.bits()).unwrap_or(0))
        .open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - nonblocking)?;
    Ok(file)
}

/// Writing a trace over the source would lose it: its files, and its index.
fn is_source(found: &Metadata, sources: &[Metadata], source: &Path) -> bool {
    let same = |path: &Path| std::fs::metadata(path).is_ok_and(|other| is_same(found, &other));
    let is_index = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().ends_with(".index.json") && same(&entry.path())
    };
    let entries = || std::fs::read_dir(source).into_iter().flatten().flatten();
    sources.iter().any(|file| is_same(found, file)) || same(source) || entries().any(is_index)
}

/// Whether it is what has the result's name, or would get that name itself: also by a link,
/// to a name that there is not yet too.
fn is_result(path: &Path, destination: &Destination) -> bool {
    let Destination::Shm { path: result, .. } = destination else {
        return false;
    };
    let same = |one: &Metadata, path: &Path| {
        std::fs::metadata(path).is_ok_and(|other| is_same(one, &other))
    };
    if std::fs::metadata(path).is_ok_and(|found| same(&found, result)) {
        return true;
    }
    // Where a link ends that leads to nothing.
    let path = links(path).last().unwrap_or_else(|| path.to_owned());
    let folder = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::metadata(folder),
        _ => std::fs::metadata("."),
    };
    let same_folder = match (folder(&path), folder(result)) {
        (Ok(one), Ok(other)) => is_same(&one, &other),
        _ => false,
    };
    same_folder && path.file_name() == result.file_name()
}

/// Whether the report would go into the same file. In a device other than a terminal nothing
/// gets mixed up.
fn is_stdout(found: &Metadata) -> bool {
    if found.file_type().is_char_device() && !std::io::stdout().is_terminal() {
        return false;
    }
    let stdout = std::io::stdout().as_fd().try_clone_to_owned();
    stdout
        .and_then(|stdout| File::from(stdout).metadata())
        .is_ok_and(|stdout| is_same(found, &stdout))
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.ino(), one.dev()) == (other.ino(), other.dev())
}

/// Whether writing to it replaces nothing: a pipe, a terminal, `/dev/null`.
fn is_stream(found: &Metadata) -> bool {
    found.file_type().is_fifo() || found.file_type().is_char_device()
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::usage(
        format!("the trace cannot go to {}: it {what}", path.display()),
        "name a file of its own (--trace)",
    )
}

fn failure(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::os(Exit::Io, path, "write the trace", cause)
        .or_remedy("name a file in a writable folder with space (--trace)")
}
