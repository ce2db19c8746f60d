//! Every bound of the machine. Checked once, when a machine is made.

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
    /// Largest command, bytes; a multiple of `alignment`.
    pub command_bytes: u32,
    /// What offsets and lengths of commands must be multiples of, bytes; a power of two.
    pub alignment: u32,
    /// Streams at once; 1..=[`MAX_STREAMS`].
    pub streams: u16,
}
