//! The completion queue entry: 16 bytes that say how a command ended.
//! Base 3.3.3.2 ("Common Completion Queue Entry").

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout;

/// A completion.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CompletionEntry {
    /// Dword 0: the command's result.
    pub result: U32,
    /// Dword 1.
    pub dw1: U32,
    /// Where the controller's head of the submission queue was.
    pub sq_head: U16,
    /// The submission queue that the command came from.
    pub sq_id: U16,
    /// The command's identifier.
    pub command_id: U16,
    /// Phase tag in bit 0, status in bits 15:1.
    pub status_phase: U16,
}

layout!(
    CompletionEntry, 16,
    result @ 0, dw1 @ 4, sq_head @ 8, sq_id @ 10, command_id @ 12, status_phase @ 14,
);

/// Base-2 logarithm of the entry's size, for CC.IOCQES.
pub const ENTRY_LOG2: u8 = 4;

impl CompletionEntry {
    /// The phase tag: it changes each time the controller goes through the queue.
    #[must_use]
    pub fn phase(&self) -> bool {
        self.status_phase.get() & 1 != 0
    }

    /// The status field, 15 bits, see [`crate::status`].
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status_phase.get() >> 1
    }
}
