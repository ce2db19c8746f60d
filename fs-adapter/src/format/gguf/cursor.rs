//! Reads numbers and strings out of a file's first bytes. Knows how long the file is, so it
//! can tell "the file ends here" from "these bytes end here"; knows no structure.

use super::FETCH_AGAIN;
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_HEADER_BYTES;

/// Why parsing stopped.
pub(super) enum Stop {
    /// The given bytes end, the file does not.
    NeedMore,
    /// The file is wrong.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    file_len: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], file_len: u64) -> Self {
        let visible = usize::try_from(file_len)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        Self {
            bytes: &bytes[..visible],
            position: 0,
            file_len,
        }
    }

    /// A second cursor at the same place.
    pub(super) fn fork(&self) -> Self {
        Self { ..*self }
    }

    /// Bytes from the file's start.
    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    pub(super) fn file_len(&self) -> u64 {
        self.file_len
    }

    /// The next `len` bytes. Never looks past the file or the header limit.
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Stop> {
        let end = self
            .position()
            .checked_add(len)
            .filter(|&end| end <= self.file_len);
        let Some(end) = end else {
            return Err(Error::new(
                ErrorKind::Truncated,
                format!(
                    "{len} bytes of header are needed here, the file has {} left",
                    self.file_len - self.position()
                ),
                FETCH_AGAIN,
            )
            .at_offset(self.position())
            .into());
        };
        if end > MAX_HEADER_BYTES {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("the header is longer than {MAX_HEADER_BYTES} bytes"),
                "the file is damaged, or its metadata has to be cut down",
            )
            .at_offset(self.position())
            .into());
        }
        let end = usize::try_from(end).map_err(|_| Stop::NeedMore)?;
        let taken = self.bytes.get(self.position..end).ok_or(Stop::NeedMore)?;
        self.position = end;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Stop> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Stop> {
        let bytes = self.take(4)?.first_chunk().expect("four bytes were taken");
        Ok(u32::from_le_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Stop> {
        let bytes = self.take(8)?.first_chunk().expect("eight bytes were taken");
        Ok(u64::from_le_bytes(*bytes))
    }

    /// A length-prefixed UTF-8 string of at most `max_bytes`.
    pub(super) fn string(&mut self, what: &str, max_bytes: u64) -> Result<&'a str, Stop> {
        let start = self.position();
        let len = self.u64()?;
        if len > max_bytes {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("{what} claims {len} bytes, at most {max_bytes} are allowed"),
                FETCH_AGAIN,
            )
            .at_offset(start)
            .into());
        }
        std::str::from_utf8(self.take(len)?).map_err(|error| {
            Error::new(
                ErrorKind::Malformed,
                format!("{what} is not UTF-8"),
                FETCH_AGAIN,
            )
            .at_offset(start + 8 + error.valid_up_to() as u64)
            .caused_by(error)
            .into()
        })
    }

    /// Checks a count from the file against the bytes left (each item takes at least
    /// `min_bytes`) and against `limit`, before anything is done for it.
    pub(super) fn check_count(
        &self,
        what: &str,
        count: u64,
        min_bytes: u64,
        limit: usize,
    ) -> Result<usize, Stop> {
        let left = self.file_len.saturating_sub(self.position());
        let error = if count > left / min_bytes {
            Error::new(
                ErrorKind::Truncated,
                format!("the header claims {count} {what}, but {left} bytes are left"),
                FETCH_AGAIN,
            )
        } else if count > limit as u64 {
            Error::new(
                ErrorKind::TooLarge,
                format!("the header claims {count} {what}, at most {limit} are supported"),
                "split the model, if it is not damaged",
            )
        } else {
            return usize::try_from(count).map_err(|_| Stop::NeedMore);
        };
        Err(error.at_offset(self.position()).into())
    }
}
