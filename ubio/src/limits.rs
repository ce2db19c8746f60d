//! Every bound and default of the engine that is not the core's, in one place.

/// Most windows of a pool.
pub const MAX_WINDOWS: u16 = ubio_core::limits::MAX_WINDOWS;
/// Windows of the default pool.
pub const DEFAULT_WINDOWS: u16 = 8;
/// Bytes of a default window. The default pool stays within a processor's last-level cache:
/// what was just read is then copied from there, and reads do not wait for memory.
pub const DEFAULT_WINDOW_BYTES: u32 = 1 << 20;
/// Default alignment of placed tensors, bytes.
pub const DEFAULT_ALIGN_BYTES: u64 = 256;
/// Fills under way that land at their destination (in place, or copied from the page cache).
pub const TICKETS: u16 = 32;
/// Most direct reads in flight.
pub const DIRECT_DEPTH: u16 = 128;
/// Largest direct read, bytes.
pub const MAX_COMMAND_BYTES: u32 = 4 << 20;
/// Largest fill that lands at its destination, bytes: no window bounds it, and each read has
/// a price.
pub const IN_PLACE_BYTES: u32 = MAX_COMMAND_BYTES;
/// Direct reads into windows are cut to this at first, bytes.
pub const FIRST_COMMAND_BYTES: u32 = 1 << 20;
/// Direct reads into windows in flight at first: few, so that what lands is still in the cache
/// when it is copied.
pub const FIRST_DEPTH: u16 = 3;
/// Direct reads in place are cut to this at first, bytes.
pub const FIRST_IN_PLACE_COMMAND_BYTES: u32 = MAX_COMMAND_BYTES;
/// Direct reads in place in flight at first: no copy waits for them, and the more there are
/// the more of them one wake-up finds done.
pub const FIRST_IN_PLACE_DEPTH: u16 = 6;
/// Memory that is asked for before the tables of a load are made, per tensor, bytes: about
/// twice what runs, fills and pieces were seen to take.
pub const TABLE_BYTES_PER_TENSOR: usize = 512;
/// Threads that read where there is no io_uring.
pub const READ_THREADS: usize = 8;
/// Most registered files.
pub const MAX_REGISTERED_FILES: u32 = 1024;
/// Most registered buffers.
pub const MAX_REGISTERED_BUFFERS: u16 = 4096;
/// Streams at once in one engine.
pub const STREAMS: u16 = 256;
/// Bytes between two wanted ranges that are read along rather than skipped.
pub const MAX_GAP_BYTES: u64 = 128 << 10;
/// Copies up to this run where they are asked for instead of with a worker: handing one over
/// costs as much, bytes.
pub const INLINE_COPY_BYTES: u32 = 64 << 10;
/// Ranges up to this that are in the page cache are copied by the thread that asks for them,
/// bytes: to hand them over and hear of it takes about as long as the copy.
pub const CALLER_COPY_BYTES: u64 = 1 << 20;
/// Control messages waiting for the ring thread.
pub const CONTROL_QUEUE: usize = 256;
