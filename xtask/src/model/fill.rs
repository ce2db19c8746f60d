//! The content: a hash of (shard, position) for every 8 bytes, with booleans kept to 0 and 1.

use super::layout::{Dtype, Shard};

/// Fills `out` with the payload's bytes from `from`, which is a multiple of 8.
pub(super) fn fill(shard: &Shard, from: u64, out: &mut [u8]) {
    debug_assert!(from.is_multiple_of(8));
    let mut word = from / 8;
    let mut chunks = out.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&mixed(shard.seed, word).to_le_bytes());
        word += 1;
    }
    let rest = chunks.into_remainder();
    let last = mixed(shard.seed, word).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);

    let end = from + out.len() as u64;
    let booleans = shard
        .tensors
        .iter()
        .filter(|tensor| tensor.dtype == Dtype::Bool);
    for tensor in booleans {
        let (first, past) = (tensor.begin.max(from), tensor.end.min(end));
        for position in first..past {
            if let Ok(index) = usize::try_from(position - from) {
                out[index] &= 1;
            }
        }
    }
}

/// splitmix64 (Steele, Lea, Flood 2014) as a random-access function of the word's number.
fn mixed(seed: u64, word: u64) -> u64 {
    let mut z = seed.wrapping_add(word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Dims, Kind, shards};
    use super::*;

    #[test]
    fn first_value_is_splitmix64s() {
        // The published first output for seed 1234567.
        assert_eq!(mixed(1_234_567, 0), 6_457_827_717_110_365_317);
    }

    #[test]
    fn a_range_equals_the_same_range_of_the_whole() {
        let shard = &shards(Kind::Odd, &Dims::TINY, 9 << 20)[1];
        let mut whole = vec![0; 100_003];
        fill(shard, 0, &mut whole);
        let mut part = vec![0; 4_099];
        fill(shard, 8_000, &mut part);
        assert_eq!(part, whole[8_000..12_099]);
    }

    #[test]
    fn booleans_are_zero_or_one() {
        let shard = &shards(Kind::Odd, &Dims::TINY, 9 << 20)[0];
        let mut whole = vec![0; usize::try_from(shard.payload).unwrap()];
        fill(shard, 0, &mut whole);
        let mut seen = 0;
        for tensor in shard
            .tensors
            .iter()
            .filter(|tensor| tensor.dtype == Dtype::Bool)
        {
            let range =
                usize::try_from(tensor.begin).unwrap()..usize::try_from(tensor.end).unwrap();
            seen += range.len();
            assert!(whole[range].iter().all(|byte| *byte <= 1));
        }
        assert!(seen > 0);
    }
}
