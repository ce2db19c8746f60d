//! How large a passthrough command may be. The kernel does not split one that is too large: it
//! refuses it, or, where only its segments are too many, moves it by a copy that nobody asked
//! for. Pure arithmetic on what the controller and the block queue say; knows no devices.

use crate::memory::PAGE_BYTES;
use crate::namespace::Namespace;

/// NVMe's own: a PRP entry's offset and a data pointer's address count in dwords.
const DWORD_BYTES: u32 = 4;

/// What the caller promises of the memory that it attaches. The more it promises, the larger
/// commands can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShape {
    /// Memory and offsets in it are multiples of this, bytes; a power of two.
    pub alignment: u32,
    /// Memory is physically contiguous in aligned pieces of this, bytes; a power of two. Base
    /// pages are 4096; huge pages of 2 MiB make commands of more than the queue's segments
    /// possible.
    pub contiguous_bytes: u64,
}

impl Default for MemoryShape {
    /// Any dword in base pages.
    fn default() -> Self {
        Self {
            alignment: DWORD_BYTES,
            contiguous_bytes: PAGE_BYTES,
        }
    }
}

/// What the block queue of a namespace takes in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueLimits {
    /// `max_hw_sectors_kb`, bytes.
    pub(super) transfer_bytes: u64,
    /// `max_segments`.
    pub(super) segments: u32,
    /// `max_segment_size`, bytes.
    pub(super) segment_bytes: u64,
    /// `dma_alignment` + 1, bytes.
    pub(super) alignment: u32,
    /// `nr_requests`.
    pub(super) requests: u32,
    /// `io_poll`: there are queues to poll.
    pub(super) polls: bool,
}

impl QueueLimits {
    /// What memory and offsets must be multiples of, bytes. The kernel takes what is not, by a
    /// copy that nobody asked for.
    pub(super) fn alignment(&self, shape: MemoryShape) -> u32 {
        self.alignment.max(DWORD_BYTES).max(shape.alignment)
    }

    /// The largest command, bytes, wherever in memory of that shape it lies.
    pub(super) fn command_bytes(
        &self,
        namespace: &Namespace,
        mdts_bytes: Option<u64>,
        shape: MemoryShape,
    ) -> u32 {
        let piece = shape.contiguous_bytes.min(self.segment_bytes).max(1);
        // A command that begins at the last aligned place of a piece gets no more of it.
        let first = u64::from(self.alignment(shape)).min(piece);
        let whole = u64::from(self.segments.max(1) - 1).saturating_mul(piece);
        let most = first.saturating_add(whole).min(self.transfer_bytes);
        namespace.transfer_bytes(Some(mdts_bytes.map_or(most, |mdts| mdts.min(most))))
    }
}

/// MDTS in bytes: it counts in the controller's smallest pages, which user space cannot ask
/// for; they are 4096 bytes or larger, and the queue's own limit has their true size.
pub(super) fn mdts_bytes(mdts: u8) -> Option<u64> {
    (mdts != 0).then(|| PAGE_BYTES.checked_shl(mdts.into()).filter(|&b| b != 0))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::NamespaceId;
    use crate::lba::BlockSize;

    fn namespace(shift: u8) -> Namespace {
        Namespace {
            id: NamespaceId(1),
            block: BlockSize::from_shift(shift).expect("a size"),
            blocks: 1 << 30,
            guid: None,
            eui64: None,
        }
    }

    const QUEUE: QueueLimits = QueueLimits {
        transfer_bytes: 1 << 20,
        segments: 128,
        segment_bytes: u32::MAX as u64,
        alignment: 4,
        requests: 1023,
        polls: false,
    };

    const PAGES: MemoryShape = MemoryShape {
        alignment: 4096,
        contiguous_bytes: 4096,
    };

    #[test]
    fn the_smallest_limit_counts() {
        let of = |queue: QueueLimits, mdts, shape| queue.command_bytes(&namespace(9), mdts, shape);
        // Whole pages: one segment each.
        assert_eq!(of(QUEUE, None, PAGES), 128 * 4096);
        // Anywhere: the first page may hold one dword only, and blocks are whole.
        assert_eq!(of(QUEUE, None, MemoryShape::default()), 127 * 4096);
        let blocks = MemoryShape {
            alignment: 512,
            ..PAGES
        };
        assert_eq!(of(QUEUE, None, blocks), 127 * 4096 + 512);
        // Huge pages: no longer the segments, but the queue, then the controller.
        let huge = MemoryShape {
            contiguous_bytes: 2 << 20,
            ..PAGES
        };
        assert_eq!(of(QUEUE, None, huge), 1 << 20);
        assert_eq!(of(QUEUE, Some(128 << 10), huge), 128 << 10);
        // Segments that may not be as long as huge pages are.
        let short = QueueLimits {
            segment_bytes: 4096,
            ..QUEUE
        };
        assert_eq!(of(short, None, huge), 128 * 4096);
        // NLB: 65,536 blocks.
        let endless = QueueLimits {
            transfer_bytes: u64::MAX,
            segments: u32::MAX,
            ..QUEUE
        };
        assert_eq!(of(endless, None, PAGES), 512 << 16);
        assert_eq!(endless.command_bytes(&namespace(12), None, PAGES), 1 << 28);
    }

    /// A command of the limit, at every place where it may begin, needs no more segments than
    /// there are; and one block more would need too many somewhere.
    #[test]
    fn the_segments_of_the_largest_command_fit_wherever_it_begins() {
        let block = 512;
        for segments in [2_u32, 3, 127, 128] {
            for alignment in [4_u64, 512, 4096, 8192] {
                for piece in [4096_u64, 16_384] {
                    let queue = QueueLimits {
                        transfer_bytes: u64::MAX,
                        segments,
                        ..QUEUE
                    };
                    let shape = MemoryShape {
                        alignment: u32::try_from(alignment).expect("small"),
                        contiguous_bytes: piece,
                    };
                    let len = u64::from(queue.command_bytes(&namespace(9), None, shape));
                    let needed = |len: u64| {
                        (0..piece.max(alignment))
                            .step_by(usize::try_from(alignment).expect("small"))
                            .map(|at| (at + len - 1) / piece - at / piece + 1)
                            .max()
                    };
                    let needs = (needed(len), needed(len + block));
                    let most = Some(u64::from(segments));
                    assert!(needs.0 <= most, "{segments} {alignment} {piece}: {len}");
                    assert!(needs.1 > most, "{segments} {alignment} {piece}: {len}");
                }
            }
        }
    }

    #[test]
    fn alignment_is_the_strictest() {
        let of = |alignment, shape| QueueLimits { alignment, ..QUEUE }.alignment(shape);
        assert_eq!(of(1, MemoryShape::default()), 4);
        assert_eq!(of(512, MemoryShape::default()), 512);
        assert_eq!(of(4, PAGES), 4096);
    }

    #[test]
    fn mdts_counts_in_pages() {
        assert_eq!(mdts_bytes(0), None);
        assert_eq!(mdts_bytes(5), Some(128 << 10));
        assert_eq!(mdts_bytes(7), Some(512 << 10));
        assert_eq!(mdts_bytes(51), Some(1 << 63));
        assert_eq!(mdts_bytes(52), None);
        assert_eq!(mdts_bytes(255), None);
    }
}
