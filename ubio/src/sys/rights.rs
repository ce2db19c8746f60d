//! Permission bits of files we make from others.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, fchmod, fstat};
use rustix::io::Errno;

/// Takes from group and others what the file of `limit` does not give them; the owner's rights
/// stay. Where its group is another one, a group gets no more than others do. A file system
/// that keeps no rights is left as it is.
///
/// # Errors
/// The kernel's reason.
pub fn restrict(file: impl AsFd, limit: &Metadata) -> io::Result<()> {
    let own = fstat(&file)?;
    keep(file, allowed(limit.mode(), limit.gid() == own.st_gid))
}

/// Takes all rights from group and others.
///
/// # Errors
/// The kernel's reason.
pub fn restrict_to_owner(file: impl AsFd) -> io::Result<()> {
    keep(file, 0o700)
}

/// Takes the rights that are not among `bits`.
fn keep(file: impl AsFd, bits: u32) -> io::Result<()> {
    let now = fstat(&file)?.st_mode & 0o777;
    let within = now & bits;
    if within == now {
        return Ok(());
    }
    match fchmod(&file, Mode::from_raw_mode(within)) {
        // As when it was made: there is nobody to give rights to, or to take them from.
        Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The bits that may stay.
fn allowed(limit: u32, same_group: bool) -> u32 {
    let others = limit & 0o007;
    let group = limit & 0o070;
    let group = if same_group {
        group
    } else {
        group & others << 3
    };
    0o700 | group | others
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn another_group_gets_no_more_than_others() {
        for (limit, same, other) in [
            (0o644, 0o744, 0o744),
            (0o640, 0o740, 0o700),
            (0o600, 0o700, 0o700),
            (0o604, 0o704, 0o704),
            (0o664, 0o764, 0o744),
            (0o444, 0o744, 0o744),
        ] {
            assert_eq!(allowed(limit, true), same, "{limit:o}");
            assert_eq!(allowed(limit, false), other, "{limit:o}");
        }
    }
}
