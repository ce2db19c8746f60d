//! SGL descriptors. Base 4.1.2.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout;

/// A descriptor of one stretch of memory, or of the segment that goes on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// A bus address.
    pub address: U64,
    /// Bytes.
    pub len_bytes: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Type in bits 7:4, subtype in bits 3:0.
    pub kind: u8,
}

layout!(SglDescriptor, 16, address @ 0, len_bytes @ 8, reserved @ 12, kind @ 15);

/// Data block: a stretch of memory.
pub const DATA_BLOCK: u8 = 0x0 << 4;
/// Segment: more descriptors, the last of which leads on.
pub const SEGMENT: u8 = 0x2 << 4;
/// Last segment: the rest of the descriptors.
pub const LAST_SEGMENT: u8 = 0x3 << 4;
