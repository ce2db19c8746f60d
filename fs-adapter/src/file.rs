//! Opening files so that nothing can change under a name: one read-only descriptor each, a
//! regular file or an error, never a hang. Knows no formats.

use crate::error::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// What makes a file the same file with the same content, as far as the file system tells.
///
/// Times prove nothing on their own (a defragmenter moves data and keeps them), but a
/// difference proves a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Device the file lives on (`st_dev`).
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last modification: seconds and nanoseconds since the epoch.
    pub modified: (i64, i64),
    /// Last status change: seconds and nanoseconds since the epoch.
    pub changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn difference(&self, now: &Self) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            Some("it was replaced by another file".to_owned())
        } else if self.size_bytes != now.size_bytes {
            Some(format!(
                "its size went from {} to {} bytes",
                self.size_bytes, now.size_bytes
            ))
        } else if self.modified != now.modified {
            Some("it was written to".to_owned())
        } else if self.changed != now.changed {
            Some("its status changed (content, links, owner or mode)".to_owned())
        } else {
            None
        }
    }
}

/// One open regular file of a model.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    absolute: PathBuf,
    file: File,
    identity: Identity,
    follow_links: bool,
}

impl ModelFile {
    /// The path as the caller or the index named it, links unresolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file name, for messages and raw tensors.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(
            || self.path.to_string_lossy().into_owned(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The open file: read-only, blocking, position unspecified.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Size when it was opened, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.identity.size_bytes
    }

    /// What the file was when it was opened.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Compares the file now with the file as it was opened, through the descriptor and by
    /// name.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] with the difference; [`ErrorKind::Io`] if it cannot be asked.
    pub fn check_unchanged(&self) -> Result<()> {
        const REMEDY: &str = "keep the file still while it is loaded, and load it again";
        let changed = |detail: String| {
            Err(Error::new(ErrorKind::Changed, detail, REMEDY).at_path(&self.path))
        };
        let through_fd = self
            .file
            .metadata()
            .map_err(|error| Error::io(&self.path, "ask the file", error))?;
        if let Some(difference) = self.identity.difference(&Identity::of(&through_fd)) {
            return changed(format!(
                "the file changed after it was opened: {difference}"
            ));
        }
        let by_name = if self.follow_links {
            std::fs::metadata(&self.absolute)
        } else {
            std::fs::symlink_metadata(&self.absolute)
        };
        match by_name {
            Ok(metadata) => match self.identity.difference(&Identity::of(&metadata)) {
                Some(difference) => changed(format!(
                    "the file changed after it was opened: {difference}"
                )),
                None => Ok(()),
            },
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                changed("the file was removed or renamed after it was opened".to_owned())
            }
            Err(error) => Err(Error::io(&self.path, "ask the file by name", error)),
        }
    }

    /// Refuses a file without bytes, and one that says so and yet has some.
    pub(crate) fn check_not_empty(&self) -> Result<()> {
        if self.len_bytes() > 0 {
            return Ok(());
        }
        if self.file.read_at(&mut [0], 0).is_ok_and(|read| read > 0) {
            return Err(made_on_reading(&self.path));
        }
        let remedy = "fetch it again: the download may have failed";
        Err(Error::new(ErrorKind::Empty, "the file is empty", remedy).at_path(&self.path))
    }

    /// Reads exactly the first `len` bytes.
    pub(crate) fn read_head(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(len)
            .map_err(|_refused| Error::out_of_memory(len).at_path(&self.path))?;
        bytes.resize(len, 0);
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                Error::new(
                    ErrorKind::Changed,
                    format!("the file became shorter than {} bytes", self.len_bytes()),
                    "keep the file still while it is loaded, and load it again",
                )
                .at_path(&self.path)
            } else {
                Error::io(&self.path, "read the header", error).at_offset(0)
            }
        })?;
        Ok(bytes)
    }
}

/// What a path named.
pub(crate) enum Opened {
    File(ModelFile),
    Folder(Folder),
}

/// An open folder; files are opened relative to it, whatever happens to its name.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    fd: OwnedFd,
    follow_links: bool,
}

/// Opens whatever `path` names. The path itself may go through links; with `follow_links`
/// false its last component may not be one, be it of a file or of a folder.
pub(crate) fn open(path: &Path, follow_links: bool) -> Result<Opened> {
    let file = open_at(rustix::fs::CWD, path, true).map_err(|errno| open_error(path, errno))?;
    let metadata = metadata_of(path, &file)?;
    if !follow_links && metadata.is_dir() {
        refuse_link(path, &metadata)?;
    }
    if metadata.is_dir() {
        return Ok(Opened::Folder(Folder {
            path: path.to_path_buf(),
            fd: file.into(),
            follow_links,
        }));
    }
    if follow_links {
        return ModelFile::new(path, file, &metadata, follow_links).map(Opened::File);
    }
    let Some(name) = path.file_name() else {
        return Err(open_error(path, Errno::ISDIR));
    };
    folder_of(path, follow_links)?
        .open_file(Path::new(name))
        .map(Opened::File)
}

/// Refuses a folder that is named by a link; `found` is what the name led to.
fn refuse_link(path: &Path, found: &Metadata) -> Result<()> {
    // Without the slash at its end, which would follow the link.
    let bare: PathBuf = path.components().collect();
    let named = std::fs::symlink_metadata(&bare)
        .map_err(|error| Error::io(path, "ask for the folder", error))?;
    if (named.dev(), named.ino()) == (found.dev(), found.ino()) {
        return Ok(());
    }
    Err(beneath_error(path, Errno::LOOP))
}

/// Opens the folder in which `path` lies.
pub(crate) fn folder_of(path: &Path, follow_links: bool) -> Result<Folder> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let fd = rustix::fs::openat(rustix::fs::CWD, parent, flags, Mode::empty())
        .map_err(|errno| open_error(parent, errno))?;
    let path = path.parent().unwrap_or(parent).to_path_buf();
    Ok(Folder {
        path,
        fd,
        follow_links,
    })
}

impl Folder {
    /// The folder as it was named.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the entries, sorted; only those that are UTF-8 (a model's names are).
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let fail = |errno: Errno| Error::io(&self.path, "list the folder", errno.into());
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(fail)? {
            if let Ok(name) = entry.map_err(fail)?.file_name().to_str() {
                names.push(name.to_owned());
            }
            if names.len() > crate::limits::MAX_FOLDER_ENTRIES {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("the folder has more than {} entries", names.len() - 1),
                    "name the model file itself",
                )
                .at_path(&self.path));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether `name` is there and a folder (links followed).
    pub(crate) fn is_folder(&self, name: &str) -> bool {
        rustix::fs::statat(&self.fd, name, rustix::fs::AtFlags::empty())
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// Opens a file by a relative path without `..`; ends at a regular file or fails.
    pub(crate) fn open_file(&self, name: &Path) -> Result<ModelFile> {
        let path = self.path.join(name);
        check_relative(name).map_err(|error| error.at_path(&self.path))?;
        let file = open_at(self.fd.as_fd(), name, self.follow_links).map_err(|errno| {
            if self.follow_links {
                open_error(&path, errno)
            } else {
                beneath_error(&path, errno)
            }
        })?;
        let metadata = metadata_of(&path, &file)?;
        ModelFile::new(&path, file, &metadata, self.follow_links)
    }
}

impl ModelFile {
    fn new(path: &Path, file: File, metadata: &Metadata, follow_links: bool) -> Result<Self> {
        let file_type = metadata.file_type();
        if !file_type.is_file() {
            let what = if file_type.is_dir() {
                "a folder"
            } else if file_type.is_fifo() {
                "a pipe"
            } else if file_type.is_socket() {
                "a socket"
            } else if file_type.is_block_device() {
                "a block device"
            } else {
                "a device"
            };
            return Err(not_a_file(path, what));
        }
        if is_made_by_the_kernel(&file) {
            return Err(made_on_reading(path));
        }
        // O_NONBLOCK only kept the open from hanging on a pipe; io_uring would take it as
        // "fail rather than wait" for every read.
        let flags = rustix::fs::fcntl_getfl(&file)
            .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK));
        flags.map_err(|errno| Error::io(path, "set file flags", errno.into()))?;
        let absolute = std::path::absolute(path)
            .map_err(|error| Error::io(path, "find the current folder", error))?;
        Ok(Self {
            path: path.to_path_buf(),
            absolute,
            file,
            identity: Identity::of(metadata),
            follow_links,
        })
    }
}

/// Refuses names that could leave the folder: absolute ones, `..`, `.`, and empty ones.
pub(crate) fn check_relative(name: &Path) -> Result<()> {
    let plain = name
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let text = name.as_os_str().as_encoded_bytes();
    if text.is_empty() || !plain || text.contains(&0) || text.ends_with(b"/") {
        return Err(Error::new(
            ErrorKind::UnsafePath,
            format!(
                "the name {:?} is no plain path inside the model's folder",
                name
            ),
            "a shard is named by a relative path without '.', '..' or a slash at its end",
        ));
    }
    Ok(())
}

fn open_at(folder: BorrowedFd<'_>, name: &Path, follow_links: bool) -> Result<File, Errno> {
    // NONBLOCK: opening a pipe without a writer must not hang. NOCTTY: nor take a terminal.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if follow_links {
        rustix::fs::openat(folder, name, flags, Mode::empty()).map(File::from)
    } else {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve).map(File::from)
    }
}

fn metadata_of(path: &Path, file: &File) -> Result<Metadata> {
    file.metadata()
        .map_err(|error| Error::io(path, "ask the file", error))
}

/// Whether it lies where the kernel makes files up: sizes mean nothing there, and to read one
/// may wait or take something away. Others give such files no size, and are found out by that.
fn is_made_by_the_kernel(file: &File) -> bool {
    // linux/magic.h: proc, sysfs, debugfs, tracefs.
    const MAGICS: [u32; 4] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163];
    rustix::fs::fstatfs(file)
        .is_ok_and(|found| u32::try_from(found.f_type).is_ok_and(|magic| MAGICS.contains(&magic)))
}

fn made_on_reading(path: &Path) -> Error {
    let detail = "this file is made up when it is read, so its length is not known";
    let remedy = "copy it to a disk first, and name the copy";
    Error::new(ErrorKind::NotAFile, detail, remedy).at_path(path)
}

fn not_a_file(path: &Path, what: &str) -> Error {
    Error::new(
        ErrorKind::NotAFile,
        format!("this is {what}"),
        "name a regular file",
    )
    .at_path(path)
}

fn open_error(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::NXIO => not_a_file(path, "a socket or a device that is not there"),
        Errno::ISDIR => not_a_file(path, "a folder"),
        Errno::LOOP => Error::new(
            ErrorKind::NotFound,
            "the link leads to itself",
            "repair the link, or fetch the model again",
        )
        .at_path(path),
        Errno::NOENT if path.is_symlink() => Error::new(
            ErrorKind::NotFound,
            "the link leads to a file that does not exist",
            "fetch the model again: its cache is incomplete",
        )
        .at_path(path),
        other => Error::io(path, "open", other.into()),
    }
}

fn beneath_error(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::LOOP => Error::new(
            ErrorKind::UnsafePath,
            "the name goes through a symbolic link, and links are not followed",
            "allow links if you trust the folder, or name what the link leads to",
        )
        .at_path(path),
        Errno::XDEV => Error::new(
            ErrorKind::UnsafePath,
            "the name leaves the model's folder",
            "a shard is named by a relative path without '..'",
        )
        .at_path(path),
        Errno::NOSYS | Errno::INVAL | Errno::PERM => Error::new(
            ErrorKind::Unsupported,
            "links cannot be refused here: openat2 is missing (Linux 5.6) or forbidden",
            "use a newer kernel or sandbox, or allow links if you trust the folder",
        )
        .at_path(path)
        .caused_by(std::io::Error::from(errno)),
        other => open_error(path, other),
    }
}
