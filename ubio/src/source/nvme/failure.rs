//! What a failed command means to the retry rules, and its words. NVMe statuses and errnos
//! share one number in [`FillError::code`]: a status is negative there.

use std::time::Duration;

use nvme::status::Status;
use nvme::transport::IoError;
use ubio_core::action::Failure;
use ubio_core::{FillError, FillErrorKind, Nanos};

use crate::error::{Error, ErrorKind};

/// Sorts an error of a command by what may help. `delay` is what the controller asks to wait.
pub(crate) fn of_command(error: IoError, delay: Duration) -> FillError {
    let transient = |delay: Duration| FillErrorKind::Transient {
        delay: Nanos(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)),
    };
    let (kind, code) = match error {
        IoError::Status(status) => {
            let kind = if !status.is_retryable() {
                FillErrorKind::Fatal
            } else if status.is_transient() && delay <= MOST_DELAY {
                transient(delay.max(LEAST_DELAY))
            } else if status.is_transient() {
                FillErrorKind::Fatal
            } else {
                FillErrorKind::Device
            };
            (kind, -i32::from(status.field()))
        }
        IoError::Aborted => (transient(Duration::ZERO), libc::EINTR),
        IoError::Gone => (FillErrorKind::Fatal, libc::ENODEV),
        IoError::Os(errno) => {
            let kind = match errno {
                libc::EAGAIN | libc::EINTR | libc::EBUSY | libc::ENOMEM => transient(LEAST_DELAY),
                libc::EIO | libc::ETIMEDOUT => FillErrorKind::Device,
                _ => FillErrorKind::Fatal,
            };
            (kind, errno)
        }
    };
    FillError { kind, code }
}

/// Between two tries where the controller names no delay.
const LEAST_DELAY: Duration = Duration::from_millis(1);

/// A controller may name delays of up to 109 minutes (Base 2.0, CRDT). Nobody waits for so long
/// without a word: what is to come back later than this fails now.
const MOST_DELAY: Duration = Duration::from_secs(30);

/// The cause behind a code, in words.
pub(crate) fn cause(code: i32) -> Box<dyn std::error::Error + Send + Sync> {
    match u16::try_from(-i64::from(code)).map(Status::check) {
        Ok(Err(status)) => Box::new(status),
        _ => Box::new(std::io::Error::from_raw_os_error(code)),
    }
}

/// A command that failed for good, in the engine's terms.
pub(crate) fn of_stream(failure: &Failure, block_bytes: u32) -> Error {
    let (first, blocks) = (
        failure.offset / u64::from(block_bytes),
        failure.len.div_ceil(block_bytes),
    );
    let place = match blocks {
        0 | 1 => format!("LBA {first}"),
        _ => format!("LBA {first} to {}", first + u64::from(blocks) - 1),
    };
    let (len, offset) = (failure.len, failure.offset);
    let place = format!("{len} bytes at offset {offset} ({place})");
    let tries = match failure.tries {
        0 | 1 => String::new(),
        tries => format!(" ({tries} tries)"),
    };
    let (kind, remedy) = match failure.error.kind {
        FillErrorKind::Truncated => (
            ErrorKind::Truncated,
            "ask for what the namespace has (offset=, len=)",
        ),
        FillErrorKind::Destination => (ErrorKind::Copy, "free memory or load less"),
        _ if failure.error.code == libc::ENODEV => (
            ErrorKind::Device,
            "look whether the drive was removed, and open it anew",
        ),
        FillErrorKind::Fatal if failure.error.code > 0 => (
            ErrorKind::Unsupported,
            "read it through its block device, or through windows",
        ),
        _ => (
            ErrorKind::Device,
            "check the drive (dmesg, smartctl); other blocks may be readable",
        ),
    };
    Error::new(kind, format!("reading {place} failed{tries}"))
        .because(cause(failure.error.code))
        .remedy(remedy)
}

/// An error of a transport, in the engine's terms.
pub(crate) fn of_transport(error: &nvme::Error) -> Error {
    use nvme::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::InvalidInput => ErrorKind::InvalidInput,
        Kind::NotFound => ErrorKind::NotFound,
        Kind::Unsupported => ErrorKind::Unsupported,
        Kind::Permission => ErrorKind::Permission,
        Kind::NoSpace => ErrorKind::NoSpace,
        Kind::Busy => ErrorKind::Busy,
        Kind::Timeout | Kind::Device | Kind::Gone => ErrorKind::Device,
        _ => ErrorKind::Io,
    };
    let whole = Error::new(kind, error.what());
    let errno = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.and_then(std::io::Error::raw_os_error)
    };
    let whole = match std::error::Error::source(error) {
        Some(cause) => match errno(cause) {
            Some(errno) => whole.because(std::io::Error::from_raw_os_error(errno)),
            None => whole.because(cause.to_string()),
        },
        None => whole,
    };
    match error.advice() {
        Some(remedy) => whole.remedy(remedy),
        None => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(field: u16) -> FillErrorKind {
        let status = Status::check(field).expect_err("an error");
        of_command(IoError::Status(status), Duration::ZERO).kind
    }

    #[test]
    fn statuses_are_sorted_by_what_may_help() {
        let least = FillErrorKind::Transient {
            delay: Nanos(1_000_000),
        };
        for (field, expected) in [
            // Unrecovered read error, and again with "do not retry".
            (0x281, FillErrorKind::Device),
            (0x4281, FillErrorKind::Fatal),
            // LBA out of range, invalid use of a CMB.
            (0x4080, FillErrorKind::Fatal),
            (0x4012, FillErrorKind::Fatal),
            // Namespace not ready, format in progress, a path that is lost for now.
            (0x082, least),
            (0x084, least),
            (0x370, least),
            // Data transfer error.
            (0x004, FillErrorKind::Device),
        ] {
            assert_eq!(kind(field), expected, "{field:#x}");
        }
    }

    #[test]
    fn nobody_waits_longer_than_the_longest_delay() {
        // Namespace not ready.
        let status = Status::check(0x082).expect_err("an error");
        let kind = |delay| of_command(IoError::Status(status), delay).kind;
        let longest = FillErrorKind::Transient {
            delay: Nanos(30_000_000_000),
        };
        assert_eq!(kind(MOST_DELAY), longest);
        assert_eq!(
            kind(MOST_DELAY + Duration::from_millis(100)),
            FillErrorKind::Fatal
        );
    }

    #[test]
    fn a_code_is_a_status_or_an_errno() {
        assert_eq!(cause(-0x281).to_string(), "Unrecovered Read Error (0x281)");
        assert!(cause(libc::ENODEV).to_string().contains("No such device"));
    }
}
