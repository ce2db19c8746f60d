//! From shared memory to a file: written without a name, made durable, then put in place of
//! whatever had the name, in one step. A full disk leaves nothing, nor does a killed run, but
//! for two cases: on a file system without nameless files, and between the last two steps, it
//! leaves a hidden `.NAME.ubcp.*` beside DST.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fs_adapter::Model;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use ubio::limits::{DEFAULT_WINDOW_BYTES, DEFAULT_WINDOWS};
use ubio::sys::rights::restrict;

use crate::args::{Args, Order, Route, Via};
use crate::destination::links;
use crate::exit::{Exit, Failure};
use crate::meter::Meter;
use crate::progress::Progress;
use crate::report::{Explain, Outcome, Subject};
use crate::signals::Signals;
use crate::source::metadata_of;

/// Bytes copied at once.
const PART_BYTES: usize = 4 << 20;

/// Writes the one file of `model` to `to`.
pub(crate) fn export(
    args: &Args,
    signals: &Signals,
    model: &Model,
    to: &Path,
    begun: Instant,
) -> Result<(Subject, Outcome), Failure> {
    refuse_options(args)?;
    let [from] = model.files() else {
        return Err(Failure::usage(
            "a name in shared memory is one file",
            "name one that ubcp made (ls /dev/shm/ubio.*)",
        ));
    };
    let meter = Meter::from_start(begun);
    let mut progress = Progress::new(args, from.len_bytes());
    let held = signals.hold();
    let limits = metadata_of(model)?;
    let mode = limits
        .iter()
        .fold(0o666, |all, limit| all & (limit.mode() | 0o600));
    let unfinished = Unfinished::create(to, from.len_bytes(), mode)?;
    for limit in &limits {
        unfinished.restrict(limit)?;
    }
    copy(from, &unfinished, signals, &mut progress)?;
    model
        .check_unchanged()
        .map_err(|error| Failure::model(&error))?;
    unfinished.sync()?;
    progress.finish();
    let measured = meter.stop();
    if args.verify {
        compare(from, &unfinished, signals)?;
    }
    let digest = args
        .digest
        .map(|algorithm| digest_of(algorithm, model, &unfinished))
        .transpose()?;
    signals.check()?;
    unfinished.publish(|| signals.published())?;
    drop(held);
    let subject = Subject {
        source: args.src.clone().unwrap_or_default(),
        destination: args.dst.clone().unwrap_or_default(),
        result: Some(to.to_owned()),
        bytes: from.len_bytes(),
        tensors: model.tensors().len(),
        files: 1,
        format: model.format(),
        via: "copy",
        via_reason: None,
        layout: "image",
        explain: Explain::default(),
    };
    let outcome = Outcome {
        measured,
        report: ubio::stats::Report::default(),
        digest,
        verified: args.verify,
    };
    Ok((subject, outcome))
}

/// A file is written as it is: what shapes a load has no meaning here.
fn refuse_options(args: &Args) -> Result<(), Failure> {
    let advanced = &args.advanced;
    let given = [
        (!args.tensors.is_empty(), "--tensors"),
        (args.order != Order::File, "--order layer"),
        (args.align.is_some(), "--align"),
        (args.via != Via::Auto, "--via"),
        (args.repeat.is_some(), "--repeat"),
        (args.trace.is_some(), "--trace"),
        (args.cold, "--cold"),
        (args.strict, "--strict"),
        (args.route != Route::Auto, "--route"),
        (advanced.windows != DEFAULT_WINDOWS, "--windows"),
        (
            advanced.window_size != DEFAULT_WINDOW_BYTES,
            "--window-size",
        ),
        (advanced.command_size.is_some(), "--command-size"),
        (advanced.depth.is_some(), "--depth"),
        (advanced.no_tune, "--no-tune"),
        (advanced.workers.is_some(), "--workers"),
        (advanced.no_huge, "--no-huge"),
        (advanced.prefault, "--prefault"),
        (advanced.no_uring, "--no-uring"),
    ];
    match given
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    {
        None => Ok(()),
        Some(name) => Err(Failure::usage(
            format!("{name} has no meaning when shared memory is written to a file as it is"),
            format!("drop {name}, or select while loading into shm:NAME"),
        )),
    }
}

fn copy(
    from: &fs_adapter::ModelFile,
    to: &Unfinished,
    signals: &Signals,
    progress: &mut Progress,
) -> Result<(), Failure> {
    parts(from.len_bytes(), |at, part| {
        signals.check()?;
        read(from, at, part)?;
        to.file
            .write_all_at(part, at)
            .map_err(|cause| to.fail("write the file", &cause))?;
        progress.show(at + part.len() as u64);
        Ok(())
    })
}

fn compare(
    from: &fs_adapter::ModelFile,
    to: &Unfinished,
    signals: &Signals,
) -> Result<(), Failure> {
    let mut written = vec![0; PART_BYTES];
    parts(from.len_bytes(), |at, part| {
        signals.check()?;
        read(from, at, part)?;
        let written = &mut written[..part.len()];
        to.file
            .read_exact_at(written, at)
            .map_err(|cause| to.fail("reread the file", &cause))?;
        match part
            .iter()
            .zip(&*written)
            .position(|(one, other)| one != other)
        {
            None => Ok(()),
            Some(first) => {
                let message = format!(
                    "what was written differs from {} first at byte {}",
                    from.path().display(),
                    at + first as u64
                );
                Err(Failure::new(Exit::Mismatch, "mismatch", message)
                    .at(&to.path)
                    .remedy("nothing was published; check the disk and write it again"))
            }
        }
    })
}

fn digest_of(
    algorithm: crate::digest::Algorithm,
    model: &Model,
    to: &Unfinished,
) -> Result<String, Failure> {
    let mut digest = algorithm.begin();
    for tensor in model.tensors().as_slice() {
        parts(tensor.len, |at, part| {
            to.file
                .read_exact_at(part, tensor.offset + at)
                .map_err(|cause| to.fail("reread the file", &cause))?;
            digest.add(part);
            Ok(())
        })?;
    }
    Ok(format!("{}:{}", algorithm.name(), digest.end()))
}

/// Goes through `len` bytes part by part: offset and a buffer of that part's length.
fn parts(
    len: u64,
    mut with: impl FnMut(u64, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; PART_BYTES];
    let mut at = 0;
    while at < len {
        let want = usize::try_from(len - at).map_or(PART_BYTES, |left| left.min(PART_BYTES));
        with(at, &mut buffer[..want])?;
        at += want as u64;
    }
    Ok(())
}

fn read(from: &fs_adapter::ModelFile, at: u64, part: &mut [u8]) -> Result<(), Failure> {
    from.file().read_exact_at(part, at).map_err(|cause| {
        let exit = match cause.kind() {
            io::ErrorKind::UnexpectedEof => Exit::Changed,
            _ => Exit::Io,
        };
        Failure::os(exit, from.path(), "read the shared memory", &cause)
            .remedy("keep it still while it is written, and try again")
    })
}

/// A file that has no name yet, or where the file system cannot do that, a hidden one that is
/// removed unless it gets its name.
#[derive(Debug)]
struct Unfinished {
    file: File,
    path: PathBuf,
    /// The name it has meanwhile.
    hidden: Option<PathBuf>,
    /// Where its name will be; `None` if that may not be read.
    folder: Option<File>,
}

impl Unfinished {
    /// With at most the rights of `mode`.
    fn create(path: &Path, len_bytes: u64, mode: u32) -> Result<Self, Failure> {
        let fail = |doing: &str, errno: Errno| destination_failure(path, doing, &errno.into());
        let named_as_folder = path.as_os_str().as_bytes().ends_with(b"/");
        if path.file_name().is_none() || named_as_folder || path.is_dir() {
            return Err(
                Failure::new(Exit::Destination, "not-a-file", "this names a folder")
                    .at(path)
                    .remedy("name the file to write in it"),
            );
        }
        // A link is replaced by the file, as mv does; what is no file at all is not, nor a link
        // to that.
        let found = std::fs::symlink_metadata(path);
        if let Err(cause) = &found
            && cause.kind() != io::ErrorKind::NotFound
        {
            return Err(destination_failure(path, "create the file", cause));
        }
        let is_special = |found: &std::fs::Metadata| !found.is_file() && !found.is_symlink();
        let leads_to = std::fs::metadata(path);
        if found.is_ok_and(|found| is_special(&found))
            || leads_to.is_ok_and(|found| is_special(&found))
            || leads_into_proc(path)
        {
            return Err(Failure::new(
                Exit::Destination,
                "not-a-file",
                "this is a device, a pipe, a socket, or a link to one",
            )
            .at(path)
            .remedy("name a regular file, or one that does not exist yet"));
        }
        // Before anything is written: once the file has its name nothing should fail.
        let folder = match File::open(folder_of(path)) {
            Ok(folder) => Some(folder),
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => None,
            Err(cause) => return Err(destination_failure(path, "open its folder", &cause)),
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let open = |mode| rustix::fs::open(folder_of(path), flags, Mode::from_raw_mode(mode));
        let unfinished = match open(mode) {
            Ok(file) => Self {
                file: file.into(),
                path: path.to_owned(),
                hidden: None,
                folder,
            },
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                Self::create_hidden(path, folder, mode)?
            }
            Err(errno) => return Err(fail("create the file", errno)),
        };
        let reserved = rustix::fs::fallocate(
            &unfinished.file,
            FallocateFlags::empty(),
            0,
            len_bytes.max(1),
        );
        match reserved {
            // Where space cannot be reserved, writing finds out.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(errno) => {
                return Err(fail(&format!("reserve {len_bytes} bytes"), errno));
            }
        }
        rustix::fs::ftruncate(&unfinished.file, len_bytes)
            .map_err(|errno| fail("size the file", errno))?;
        if let Ok(replaced) = std::fs::symlink_metadata(path)
            && replaced.is_file()
        {
            unfinished.restrict(&replaced)?;
        }
        Ok(unfinished)
    }

    fn create_hidden(path: &Path, folder: Option<File>, mode: u32) -> Result<Self, Failure> {
        let hidden = hidden_name(path);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&hidden)
            .map_err(|cause| destination_failure(path, "create the file", &cause))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            hidden: Some(hidden),
            folder,
        })
    }

    /// Takes the rights away that the file of `limit` does not give.
    fn restrict(&self, limit: &std::fs::Metadata) -> Result<(), Failure> {
        restrict(&self.file, limit).map_err(|cause| self.fail("set the mode of the file", &cause))
    }

    fn fail(&self, doing: &str, cause: &io::Error) -> Failure {
        destination_failure(&self.path, doing, cause)
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file
            .sync_data()
            .map_err(|cause| self.fail("make the file durable", &cause))
    }

    /// Gives it its name, in place of what had it, says so, and makes that durable.
    fn publish(mut self, published: impl FnOnce()) -> Result<(), Failure> {
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => {
                let hidden = hidden_name(&self.path);
                let source = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
                rustix::fs::linkat(CWD, source, CWD, &hidden, AtFlags::SYMLINK_FOLLOW)
                    .map_err(|errno| self.fail("name the file", &errno.into()))?;
                hidden
            }
        };
        std::fs::rename(&hidden, &self.path).map_err(|cause| {
            let _gone = std::fs::remove_file(&hidden);
            self.fail("name the file", &cause)
        })?;
        published();
        let synced = match &self.folder {
            Some(folder) => folder.sync_all(),
            None => rustix::fs::syncfs(&self.file).map_err(io::Error::from),
        };
        synced.map_err(|cause| self.fail("make the file's name durable", &cause))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _gone = std::fs::remove_file(hidden);
        }
    }
}

/// Whether it is, or leads to, a link such as `/dev/stdout`, which stands for an open file.
fn leads_into_proc(path: &Path) -> bool {
    links(path).any(|on_the_way| on_the_way.starts_with("/proc"))
}

fn destination_failure(path: &Path, doing: &str, cause: &io::Error) -> Failure {
    let failure = Failure::os(Exit::Destination, path, doing, cause);
    let remedy = match failure.kind {
        _ if cause.kind() == io::ErrorKind::InvalidFilename => "take a shorter name",
        _ if cause.kind() == io::ErrorKind::NotADirectory => {
            "check the name: a part of it before the last '/' is a file"
        }
        "no-space" => "free space there, or name a file on another disk",
        "permission" => "name a file that you may replace, in a folder you may write to",
        "not-found" if folder_of(path).is_dir() => "name a file on a disk",
        "not-found" => "make the folder first",
        _ => "name a file on another disk",
    };
    failure.or_remedy(remedy)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Beside the file, and nobody else's: process ids alone repeat among the containers and
/// machines that share a folder.
fn hidden_name(path: &Path) -> PathBuf {
    use std::hash::{BuildHasher, RandomState};
    /// Names end at 255 bytes, and the rest takes 23.
    const MOST_BYTES: usize = 230;
    let mut name = std::ffi::OsString::from(".");
    let whole = path.file_name().unwrap_or_default().as_bytes();
    let text = String::from_utf8_lossy(whole);
    let cut = (0..=MOST_BYTES.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at));
    name.push(&text[..cut.unwrap_or(0)]);
    let number = RandomState::new().hash_one(std::process::id());
    name.push(format!(".ubcp.{number:016x}"));
    path.with_file_name(name)
}
