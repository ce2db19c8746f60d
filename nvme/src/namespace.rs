//! A namespace's geometry, and how a stretch of its bytes becomes legal commands. Knows no
//! queues.

use nvme_sys::identify::IdentifyNamespace;

use crate::command::NamespaceId;
use crate::error::{Error, ErrorKind, Result};
use crate::lba::{BlockCount, BlockSize, Lba, MAX_BLOCKS};

/// What is known of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier.
    pub id: NamespaceId,
    /// Bytes of a block.
    pub block: BlockSize,
    /// Blocks.
    pub blocks: u64,
    /// NGUID, where the namespace has one.
    pub guid: Option<[u8; 16]>,
    /// EUI64, where the namespace has one.
    pub eui64: Option<[u8; 8]>,
}

impl Namespace {
    /// From its identify data.
    ///
    /// # Errors
    /// NotFound: there is no such namespace. Unsupported: its blocks carry metadata or
    /// protection information, or have a size that nobody knows.
    pub fn new(id: NamespaceId, data: &IdentifyNamespace) -> Result<Self> {
        let blocks = data.size.get();
        if blocks == 0 {
            let what = format!("there is no namespace {}", id.0);
            return Err(
                Error::new(ErrorKind::NotFound, what).remedy("nvme list shows what there is")
            );
        }
        let format = data.lba_format();
        let metadata = format.metadata_bytes.get();
        let protection = data.protection & 0b111;
        if metadata != 0 || protection != 0 {
            let what = format!(
                "blocks of namespace {} carry {metadata} bytes of metadata (protection type \
                 {protection})",
                id.0
            );
            return Err(Error::new(ErrorKind::Unsupported, what).remedy(
                "read it through the file system or block device, or format it without metadata",
            ));
        }
        let unknown = || {
            let what = format!("blocks of 2^{} bytes", format.block_shift);
            Error::new(ErrorKind::Unsupported, what).remedy("format it with blocks of 512 or 4096")
        };
        Ok(Self {
            id,
            block: BlockSize::from_shift(format.block_shift).ok_or_else(unknown)?,
            blocks,
            guid: Some(data.guid).filter(|guid| *guid != [0; 16]),
            eui64: Some(data.eui64).filter(|eui64| *eui64 != [0; 8]),
        })
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block.bytes().into())
    }

    /// The largest command, bytes: what the controller moves at once (MDTS) and what NLB can
    /// say, in whole blocks.
    #[must_use]
    pub fn transfer_bytes(&self, mdts_bytes: Option<u64>) -> u32 {
        let block = u64::from(self.block.bytes());
        let nameable = u64::from(MAX_BLOCKS) * block;
        let most = mdts_bytes.map_or(nameable, |mdts| mdts.min(nameable));
        // At least a block, however small the controller says it is.
        let most = most.min(1 << 31) / block * block;
        u32::try_from(most.max(block)).expect("at most 2 GiB")
    }

    /// Whether blocks are all there.
    #[must_use]
    pub fn contains(&self, lba: Lba, blocks: BlockCount) -> bool {
        let end = lba.0.checked_add(blocks.get().into());
        end.is_some_and(|end| end <= self.blocks)
    }

    /// Cuts `len_bytes` from `offset_bytes` on into commands of at most `most_bytes`, cut at
    /// multiples of that in the namespace.
    ///
    /// # Errors
    /// InvalidInput: these are not whole blocks, or not all there.
    ///
    /// # Panics
    /// If `most_bytes` is not a positive number of blocks.
    pub fn commands(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        most_bytes: u32,
    ) -> Result<impl Iterator<Item = (Lba, BlockCount)> + use<>> {
        let block = self.block;
        let most = block.blocks(most_bytes.into()).expect("whole blocks");
        let refuse = |why: String| Error::new(ErrorKind::InvalidInput, why);
        let whole = |bytes| block.lba(bytes).map_err(|error| refuse(error.to_string()));
        let end = offset_bytes
            .checked_add(len_bytes)
            .filter(|&end| end <= self.len_bytes());
        let end = end.ok_or_else(|| {
            refuse(format!(
                "bytes {offset_bytes}+{len_bytes} of a namespace of {}",
                self.len_bytes()
            ))
        })?;
        let (mut at, end) = (whole(offset_bytes)?.0, whole(end)?.0);
        Ok(std::iter::from_fn(move || {
            let step = u64::from(most.get());
            let to = (at / step + 1).saturating_mul(step).min(end);
            let count = u32::try_from(to.checked_sub(at)?).ok()?;
            let command = (Lba(at), BlockCount::new(count)?);
            at = to;
            Some(command)
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    use super::*;

    fn namespace(shift: u8, blocks: u64) -> Namespace {
        let mut data = IdentifyNamespace::new_zeroed();
        data.size = blocks.into();
        data.lba_formats[0].block_shift = shift;
        Namespace::new(NamespaceId(1), &data).expect("legal")
    }

    #[test]
    fn what_cannot_be_read_whole_is_refused() {
        let mut data = IdentifyNamespace::new_zeroed();
        let kind = |data: &_| Namespace::new(NamespaceId(3), data).map_err(|error| error.kind());
        assert_eq!(kind(&data), Err(ErrorKind::NotFound));
        data.size = 8.into();
        assert_eq!(kind(&data), Err(ErrorKind::Unsupported));
        data.lba_formats[2].block_shift = 12;
        data.format = 2;
        let known = kind(&data).expect("legal");
        assert_eq!(
            (known.len_bytes(), known.guid, known.eui64),
            (32768, None, None)
        );
        data.protection = 1;
        assert_eq!(kind(&data), Err(ErrorKind::Unsupported));
        data.protection = 0;
        data.lba_formats[2].metadata_bytes = 8.into();
        assert_eq!(kind(&data), Err(ErrorKind::Unsupported));
    }

    #[test]
    fn the_largest_command_is_in_whole_blocks() {
        let large = namespace(12, 1 << 30);
        assert_eq!(large.transfer_bytes(None), 1 << 28);
        assert_eq!(large.transfer_bytes(Some(128 << 10)), 128 << 10);
        assert_eq!(large.transfer_bytes(Some(1)), 4096);
        assert_eq!(namespace(16, 1 << 30).transfer_bytes(None), 1 << 31);
        assert_eq!(namespace(9, 1).transfer_bytes(Some(4096 + 511)), 4096);
    }

    proptest! {
        #[test]
        fn commands_cover_a_run_once_in_order(
            shift in 9u8..14,
            start in 0u64..3000,
            blocks in 0u64..3000,
            most in 1u32..600,
        ) {
            let known = namespace(shift, 6000);
            let bytes = u64::from(known.block.bytes());
            let most_bytes = most * known.block.bytes();
            let commands = known.commands(start * bytes, blocks * bytes, most_bytes);
            let mut at = start;
            for (lba, count) in commands.expect("inside") {
                prop_assert_eq!(lba.0, at);
                prop_assert!(count.get() <= most && known.contains(lba, count));
                at += u64::from(count.get());
                prop_assert!(at == start + blocks || at.is_multiple_of(most.into()));
            }
            prop_assert_eq!(at, start + blocks);
        }
    }

    #[test]
    fn runs_that_are_not_there_are_refused() {
        let known = namespace(9, 10);
        for (offset, len) in [(0, 5121), (512, 5120), (1, 512), (0, 100), (u64::MAX, 512)] {
            assert!(known.commands(offset, len, 4096).is_err(), "{offset} {len}");
        }
        assert_eq!(known.commands(5120, 0, 4096).expect("nothing").count(), 0);
    }
}
