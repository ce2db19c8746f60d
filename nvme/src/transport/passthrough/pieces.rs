//! How memory is cut into registered buffers: the kernel takes 1 GiB in each, and a command's
//! data must lie in one. Pure arithmetic.

/// Most bytes the kernel takes in one registered buffer.
pub(super) const PIECE_BYTES: u64 = 1 << 30;
/// Pieces overlap by this, so that every command lies in one of them: none may be larger.
pub(super) const OVERLAP_BYTES: u32 = 128 << 20;
/// From a piece's start to the next one's. A multiple of huge pages.
const STEP_BYTES: u64 = PIECE_BYTES - OVERLAP_BYTES as u64;

/// The pieces of so many bytes: each one's start and length, in order.
pub(super) fn pieces(len_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let start = at?;
        let piece = (len_bytes - start).min(PIECE_BYTES);
        at = (start + piece < len_bytes).then_some(start + STEP_BYTES);
        Some((start, piece))
    })
}

/// Which of `count` pieces has what begins at `offset`.
pub(super) fn piece_at(offset: u64, count: usize) -> usize {
    let index = usize::try_from(offset / STEP_BYTES).unwrap_or(usize::MAX);
    // The last piece goes on where another one would begin.
    index.min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_memory_is_one_piece() {
        for (len_bytes, count) in [
            (1, 1),
            (PIECE_BYTES, 1),
            (PIECE_BYTES + 1, 2),
            (STEP_BYTES + PIECE_BYTES, 2),
            (STEP_BYTES + PIECE_BYTES + 4096, 3),
        ] {
            assert_eq!(pieces(len_bytes).count(), count, "{len_bytes}");
        }
        assert_eq!(piece_at(5, 0), 0);
        // The last one is longer than a step.
        assert_eq!(piece_at(STEP_BYTES - 1, 2), 0);
        assert_eq!(piece_at(STEP_BYTES, 2), 1);
        assert_eq!(piece_at(STEP_BYTES + PIECE_BYTES - 1, 2), 1);
    }

    proptest! {
        #[test]
        fn every_command_lies_in_its_piece(
            len_bytes in 1_u64..20 << 30,
            at in any::<u64>(),
            wanted in 1_u64..=OVERLAP_BYTES.into(),
        ) {
            let offset = at % len_bytes;
            let end = (offset + wanted).min(len_bytes);
            let pieces: Vec<_> = pieces(len_bytes).collect();
            let (start, piece) = pieces[piece_at(offset, pieces.len())];
            prop_assert!(piece <= PIECE_BYTES);
            prop_assert!(start <= offset && end <= start + piece, "{pieces:?}");
        }
    }
}
