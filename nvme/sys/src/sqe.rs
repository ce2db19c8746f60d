//! The submission queue entry: 64 bytes that ask for something.
//! Base 3.3.3.1 ("Submission Queue Entry").

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout;

/// A command. Which dwords mean what depends on the opcode.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SubmissionEntry {
    /// The opcode, see [`crate::opcode`].
    pub opcode: u8,
    /// [`FUSE_MASK`] and [`PSDT_MASK`].
    pub flags: u8,
    /// Command identifier: unique among the commands of a queue that are under way.
    pub command_id: U16,
    /// Namespace identifier; 0 where none is meant, [`ALL_NAMESPACES`] for all.
    pub namespace_id: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer: a bus address.
    pub metadata: U64,
    /// Data pointer, first half: PRP entry 1, or an SGL descriptor's address.
    pub data1: U64,
    /// Data pointer, second half: PRP entry 2, or an SGL descriptor's rest.
    pub data2: U64,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

layout!(
    SubmissionEntry, 64,
    opcode @ 0, flags @ 1, command_id @ 2, namespace_id @ 4, cdw2 @ 8, cdw3 @ 12, metadata @ 16,
    data1 @ 24, data2 @ 32, cdw10 @ 40, cdw11 @ 44, cdw12 @ 48, cdw13 @ 52, cdw14 @ 56, cdw15 @ 60,
);

/// Base-2 logarithm of the entry's size, for CC.IOSQES and queue creation.
pub const ENTRY_LOG2: u8 = 6;

/// Fused operation, bits 1:0 of `flags`.
pub const FUSE_MASK: u8 = 0b11;
/// "PRP or SGL for Data Transfer", bits 7:6 of `flags`: 0 for PRPs.
pub const PSDT_MASK: u8 = 0b11 << 6;
/// PSDT: SGLs, metadata pointer to a contiguous buffer.
pub const PSDT_SGL: u8 = 0b01 << 6;
/// PSDT: SGLs, metadata pointer to an SGL segment.
pub const PSDT_SGL_METADATA: u8 = 0b10 << 6;

/// Namespace identifier that stands for all of a controller's.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// NVM 3.2.4, 3.2.6: limited retry, bit 31 of dword 12 of reads and writes.
pub const CDW12_LIMITED_RETRY: u32 = 1 << 31;
/// NVM 3.2.4, 3.2.6: force unit access, bit 30 of dword 12 of reads and writes.
pub const CDW12_FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// NVM 3.2.8: deallocate, bit 25 of dword 12 of write zeroes.
pub const CDW12_DEALLOCATE: u32 = 1 << 25;
/// NVM 3.2.3: deallocate, bit 2 of dword 11 of dataset management.
pub const CDW11_DEALLOCATE: u32 = 1 << 2;
/// Base 5.4, 5.5: physically contiguous, bit 0 of dword 11 of queue creation.
pub const CDW11_CONTIGUOUS: u32 = 1;
/// Base 5.4: interrupts enabled, bit 1 of dword 11 of completion queue creation.
pub const CDW11_INTERRUPTS: u32 = 1 << 1;

/// One range of a dataset management command (NVM 3.2.3).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes.
    pub attributes: U32,
    /// Logical blocks; this count is not zero-based.
    pub blocks: U32,
    /// First logical block.
    pub start: U64,
}

layout!(DatasetRange, 16, attributes @ 0, blocks @ 4, start @ 8);

/// Most ranges of one dataset management command: their number is a zero-based byte.
pub const MAX_DATASET_RANGES: usize = 256;
