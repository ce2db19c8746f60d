//! Where things are: the repository's root, and the folder for all that is fetched or made.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The repository's root, as an absolute path.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// `.xtask/NAME`, created with its parents.
pub(crate) fn scratch(name: &str) -> Result<PathBuf> {
    let path = root().join(".xtask").join(name);
    std::fs::create_dir_all(&path)
        .with_context(|| format!("cannot create {}; is the folder writable?", path.display()))?;
    Ok(path)
}

/// The path as a person reads it: relative to the root where it lies below it.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Fails when the file system of `path` has less than `needed` bytes free.
pub(crate) fn require_free(path: &Path, needed: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(path)
        .with_context(|| format!("cannot ask for the free space of {}", path.display()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    anyhow::ensure!(
        free >= needed,
        "{} has {} free and {} are needed; free some space, or move .xtask elsewhere and link it",
        shown(path),
        mib(free),
        mib(needed),
    );
    Ok(())
}

/// Bytes as whole MiB, for messages.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// A count or a size as a float, for rates; exact up to 2^53, which is all that is shown.
#[expect(clippy::cast_precision_loss, reason = "shown with four digits at most")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// GiB per second.
pub(crate) fn rate_gib(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        float(bytes) / float(1 << 30) / seconds
    } else {
        0.0
    }
}
