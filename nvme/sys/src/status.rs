//! The status field of a completion, 15 bits: Base 3.3.3.2.1.
//!
//! | bits | field |
//! |---|---|
//! | 7:0 | SC, status code |
//! | 10:8 | SCT, status code type |
//! | 12:11 | CRD, command retry delay |
//! | 13 | M, more in the error log |
//! | 14 | DNR, do not retry |

/// Status code.
pub const SC_MASK: u16 = 0xff;
/// Shift of the status code type.
pub const SCT_SHIFT: u16 = 8;
/// Status code type, after the shift.
pub const SCT_MASK: u16 = 0b111;
/// Shift of the command retry delay.
pub const CRD_SHIFT: u16 = 11;
/// Command retry delay, after the shift; 0 for none, else an index into CRDT1 to CRDT3.
pub const CRD_MASK: u16 = 0b11;
/// More is in the error log.
pub const MORE: u16 = 1 << 13;
/// The same command will fail again.
pub const DO_NOT_RETRY: u16 = 1 << 14;

/// Status code types.
pub mod sct {
    /// Generic command status.
    pub const GENERIC: u8 = 0;
    /// Command specific status.
    pub const COMMAND: u8 = 1;
    /// Media and data integrity errors.
    pub const MEDIA: u8 = 2;
    /// Path related status.
    pub const PATH: u8 = 3;
    /// Vendor specific.
    pub const VENDOR: u8 = 7;
}
