//! Block numbers and counts. The one place where a length in bytes becomes a number of blocks,
//! and where that becomes the zero-based field of a command.

use std::fmt;

use crate::planted::{self, PlantedBug};

/// A logical block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// Blocks of one command: 1 to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockCount(u32);

/// Most blocks of one command: the field is 16 bits, and zero-based.
pub const MAX_BLOCKS: u32 = 1 << 16;

impl BlockCount {
    /// `None` unless 1 to [`MAX_BLOCKS`].
    #[must_use]
    pub fn new(blocks: u32) -> Option<Self> {
        (1..=MAX_BLOCKS).contains(&blocks).then_some(Self(blocks))
    }

    /// The count.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// NLB: one less than the count.
    #[must_use]
    pub fn zero_based(self) -> u16 {
        let count = self.0 + u32::from(planted::is(PlantedBug::BlockTooMany));
        u16::try_from(count - 1).expect("at most 65,536")
    }
}

/// The size of a block, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize {
    shift: u8,
}

impl BlockSize {
    /// `None` unless the logarithm is of 512 bytes to 64 KiB, what drivers and file systems
    /// know.
    #[must_use]
    pub fn from_shift(shift: u8) -> Option<Self> {
        (9..=16).contains(&shift).then_some(Self { shift })
    }

    /// Bytes of a block.
    #[must_use]
    pub fn bytes(self) -> u32 {
        1 << self.shift
    }

    /// Bytes of so many blocks.
    #[must_use]
    pub fn len_bytes(self, blocks: BlockCount) -> u64 {
        u64::from(blocks.0) << self.shift
    }

    /// The block that begins at `offset_bytes`.
    ///
    /// # Errors
    /// If none begins there.
    pub fn lba(self, offset_bytes: u64) -> Result<Lba, NotBlocks> {
        self.whole(offset_bytes).map(Lba)
    }

    /// The blocks of one command that moves `len_bytes`.
    ///
    /// # Errors
    /// If that is no whole number of them, none, or more than a command can name.
    pub fn blocks(self, len_bytes: u64) -> Result<BlockCount, NotBlocks> {
        let blocks = u32::try_from(self.whole(len_bytes)?).ok();
        blocks.and_then(BlockCount::new).ok_or(NotBlocks {
            bytes: len_bytes,
            block_bytes: self.bytes(),
        })
    }

    fn whole(self, bytes: u64) -> Result<u64, NotBlocks> {
        if bytes.trailing_zeros() >= u32::from(self.shift) {
            Ok(bytes >> self.shift)
        } else {
            Err(NotBlocks {
                bytes,
                block_bytes: self.bytes(),
            })
        }
    }
}

/// Bytes that are not the blocks of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBlocks {
    /// The offset or length.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl fmt::Display for NotBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes are not 1 to {MAX_BLOCKS} blocks of {}",
            self.bytes, self.block_bytes
        )
    }
}

impl std::error::Error for NotBlocks {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_become_counts_and_counts_zero_based_fields() {
        for (shift, len_bytes, expected) in [
            (9, 512, Some(1)),
            (9, 0, None),
            (9, 511, None),
            (9, 513, None),
            (9, 512 * 65_536, Some(65_536)),
            (9, 512 * 65_537, None),
            (12, 512, None),
            (12, 4096, Some(1)),
            (12, 1 << 20, Some(256)),
            (12, u64::MAX, None),
        ] {
            let size = BlockSize::from_shift(shift).expect("a size");
            let blocks = size.blocks(len_bytes).ok().map(BlockCount::get);
            assert_eq!(blocks, expected, "{len_bytes} of {}", size.bytes());
            if let Ok(blocks) = size.blocks(len_bytes) {
                assert_eq!(u32::from(blocks.zero_based()) + 1, blocks.get());
                assert_eq!(size.len_bytes(blocks), len_bytes);
            }
        }
        assert!(BlockSize::from_shift(8).is_none() && BlockSize::from_shift(17).is_none());
    }
}
