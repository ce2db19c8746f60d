//! Every bound of the machine. Checked once, when a machine is made.

use core::fmt;

/// Most windows a pool may have.
pub const MAX_WINDOWS: u16 = 4096;
/// Smallest window, bytes.
pub const MIN_WINDOW_BYTES: u32 = 4 << 10;
/// Largest window, bytes.
pub const MAX_WINDOW_BYTES: u32 = 128 << 20;
/// Most in-place tickets.
pub const MAX_TICKETS: u16 = 4096;
/// Most commands in flight.
pub const MAX_DEPTH: u16 = 4096;
/// Most streams at once.
pub const MAX_STREAMS: u16 = 1024;
/// Most fills of a plan.
pub const MAX_FILLS: usize = 1 << 24;
/// Most pieces of a plan.
pub const MAX_PIECES: usize = 1 << 26;
/// Most items of a plan.
pub const MAX_ITEMS: u32 = 1 << 24;
/// Tries of one command on transient errors, the first included.
pub const MAX_TRIES_TRANSIENT: u8 = 4;
/// Tries of one command on device errors, the first included.
pub const MAX_TRIES_DEVICE: u8 = 2;

/// The shape of one machine: how much of everything it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Windows in the pool; 1..=[`MAX_WINDOWS`].
    pub windows: u16,
    /// Bytes of each window; a power of two times 4 KiB is usual, a multiple of `alignment`
    /// is required; [`MIN_WINDOW_BYTES`]..=[`MAX_WINDOW_BYTES`].
    pub window_bytes: u32,
    /// In-place tickets; 1..=[`MAX_TICKETS`].
    pub tickets: u16,
    /// Commands in flight at once; 1..=[`MAX_DEPTH`].
    pub depth: u16,
    /// Largest command, bytes; a multiple of `alignment`, at most [`MAX_WINDOW_BYTES`].
    pub command_bytes: u32,
    /// What offsets and lengths of commands must be multiples of, bytes; a power of two, at
    /// most [`MIN_WINDOW_BYTES`].
    pub alignment: u32,
    /// Streams at once; 1..=[`MAX_STREAMS`].
    pub streams: u16,
}

/// Why a machine of this shape was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitsError {
    /// Not 1..=[`MAX_WINDOWS`] windows.
    Windows,
    /// Windows not of [`MIN_WINDOW_BYTES`]..=[`MAX_WINDOW_BYTES`] bytes.
    WindowBytes,
    /// Windows not of a multiple of the alignment.
    WindowBytesUnaligned,
    /// Not 1..=[`MAX_TICKETS`] tickets.
    Tickets,
    /// Not 1..=[`MAX_DEPTH`] commands in flight.
    Depth,
    /// Commands of 0 or more than [`MAX_WINDOW_BYTES`] bytes.
    CommandBytes,
    /// Commands not of a multiple of the alignment.
    CommandBytesUnaligned,
    /// The alignment is no power of two, or more than [`MIN_WINDOW_BYTES`].
    Alignment,
    /// Not 1..=[`MAX_STREAMS`] streams.
    Streams,
}

impl Limits {
    /// Checks every bound.
    pub fn check(&self) -> Result<(), LimitsError> {
        let aligned = |bytes: u32| bytes & (self.alignment - 1) == 0;
        let check = |holds: bool, error| if holds { Ok(()) } else { Err(error) };
        check(
            self.alignment.is_power_of_two() && self.alignment <= MIN_WINDOW_BYTES,
            LimitsError::Alignment,
        )?;
        check(
            (1..=MAX_WINDOWS).contains(&self.windows),
            LimitsError::Windows,
        )?;
        check(
            (MIN_WINDOW_BYTES..=MAX_WINDOW_BYTES).contains(&self.window_bytes),
            LimitsError::WindowBytes,
        )?;
        check(
            aligned(self.window_bytes),
            LimitsError::WindowBytesUnaligned,
        )?;
        check(
            (1..=MAX_TICKETS).contains(&self.tickets),
            LimitsError::Tickets,
        )?;
        check((1..=MAX_DEPTH).contains(&self.depth), LimitsError::Depth)?;
        check(
            (1..=MAX_WINDOW_BYTES).contains(&self.command_bytes),
            LimitsError::CommandBytes,
        )?;
        check(
            aligned(self.command_bytes),
            LimitsError::CommandBytesUnaligned,
        )?;
        check(
            (1..=MAX_STREAMS).contains(&self.streams),
            LimitsError::Streams,
        )
    }
}

impl fmt::Display for LimitsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Windows => write!(out, "windows must be 1 to {MAX_WINDOWS}"),
            LimitsError::WindowBytes => {
                write!(
                    out,
                    "a window must have {MIN_WINDOW_BYTES} to {MAX_WINDOW_BYTES} bytes"
                )
            }
            LimitsError::WindowBytesUnaligned => {
                out.write_str("a window must be a multiple of the alignment")
            }
            LimitsError::Tickets => write!(out, "tickets must be 1 to {MAX_TICKETS}"),
            LimitsError::Depth => write!(out, "the depth must be 1 to {MAX_DEPTH}"),
            LimitsError::CommandBytes => {
                write!(out, "a command must have 1 to {MAX_WINDOW_BYTES} bytes")
            }
            LimitsError::CommandBytesUnaligned => {
                out.write_str("a command must be a multiple of the alignment")
            }
            LimitsError::Alignment => {
                write!(
                    out,
                    "the alignment must be a power of two, at most {MIN_WINDOW_BYTES}"
                )
            }
            LimitsError::Streams => write!(out, "streams must be 1 to {MAX_STREAMS}"),
        }
    }
}

impl core::error::Error for LimitsError {}
