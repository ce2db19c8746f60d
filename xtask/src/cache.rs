//! Puts the page cache into a known state before a run: cold, or warm.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// How files are made cold here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cooling {
    /// The whole page cache is dropped (root only): the honest way.
    DropCaches,
    /// `posix_fadvise(DONTNEED)` per file: pages that others map or write may stay.
    Fadvise,
}

impl std::fmt::Display for Cooling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::DropCaches => "the whole page cache dropped through /proc/sys/vm/drop_caches",
            Self::Fadvise => "posix_fadvise(DONTNEED) on each file (not root: no drop_caches)",
        })
    }
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// The best way this process may use.
pub(crate) fn cooling() -> Cooling {
    let writable = std::fs::OpenOptions::new()
        .write(true)
        .open(DROP_CACHES)
        .is_ok();
    if writable {
        Cooling::DropCaches
    } else {
        Cooling::Fadvise
    }
}

/// Makes the files cold. Dirty pages are written back first, since they cannot be dropped.
pub(crate) fn cool(files: &[PathBuf], how: Cooling) -> Result<()> {
    match how {
        Cooling::DropCaches => {
            rustix::fs::sync();
            std::fs::write(DROP_CACHES, "3").context("cannot drop the page cache")
        }
        Cooling::Fadvise => files.iter().try_for_each(|path| {
            let file =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            file.sync_data()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(())
        }),
    }
}

/// Makes the files warm by reading each into a small buffer.
pub(crate) fn warm(files: &[PathBuf]) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let mut file =
            File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}
