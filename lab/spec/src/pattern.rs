//! The known pattern: every aligned 8-byte word of a drive tells whose it is and from where.
//!
//! A word is its seed and its index, mixed by a bijection, so a word found in the wrong place
//! can be asked where it belongs. Knows no drives, files or devices.

use std::fmt;

/// Whose words they are: a namespace, or the poison of untouched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u16);

/// What the host fills the BAR with before a run: bytes nobody may have written.
pub const POISON: Seed = Seed(u16::MAX);

const WORD_BYTES: usize = 8;
const INDEX_BITS: u32 = 48;

/// The finalizer of splitmix64: a bijection on 64-bit words.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The inverse of [`mix`].
const fn unmix(word: u64) -> u64 {
    let word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ (word >> 30) ^ (word >> 60)
}

/// Where in its word an offset lies.
#[expect(clippy::cast_possible_truncation, reason = "less than 8")]
const fn within_word(offset: u64) -> usize {
    (offset % WORD_BYTES as u64) as usize
}

/// The word at an offset, which is rounded down to the word's start.
///
/// # Panics
/// At offsets of 2 PiB and more: no drive here is as large.
#[must_use]
pub const fn word(seed: Seed, offset: u64) -> u64 {
    let index = offset / WORD_BYTES as u64;
    assert!(index >> INDEX_BITS == 0, "an offset past the pattern's end");
    mix((seed.0 as u64) << INDEX_BITS | index)
}

/// Where a word comes from, as the pattern has it: any word has an answer, so it only means
/// something where the seed is one that is in use.
#[must_use]
pub const fn origin(word: u64) -> (Seed, u64) {
    let plain = unmix(word);
    let index = plain & ((1 << INDEX_BITS) - 1);
    (
        Seed((plain >> INDEX_BITS) as u16),
        index * WORD_BYTES as u64,
    )
}

/// Fills `out` with the pattern's bytes from `offset` on, which need not be aligned.
pub fn fill(seed: Seed, mut offset: u64, mut out: &mut [u8]) {
    let within = within_word(offset);
    if within > 0 {
        let (head, rest) = out.split_at_mut(out.len().min(WORD_BYTES - within));
        let bytes = word(seed, offset).to_le_bytes();
        head.copy_from_slice(&bytes[within..within + head.len()]);
        offset += head.len() as u64;
        out = rest;
    }
    for chunk in out.chunks_mut(WORD_BYTES) {
        chunk.copy_from_slice(&word(seed, offset).to_le_bytes()[..chunk.len()]);
        offset += WORD_BYTES as u64;
    }
}

/// Compares `found` with the pattern's bytes from `offset` on.
///
/// # Errors
/// The first byte that differs.
pub fn check(seed: Seed, offset: u64, found: &[u8]) -> Result<(), Mismatch> {
    let mut expected = [0; 4096];
    let mut done = 0;
    for chunk in found.chunks(expected.len()) {
        let at = offset + done as u64;
        let expected = &mut expected[..chunk.len()];
        fill(seed, at, expected);
        if expected != chunk {
            let differs = |(one, other): (&u8, &u8)| one != other;
            let index = expected.iter().zip(chunk).position(differs).unwrap_or(0);
            return Err(Mismatch::new(seed, offset, done + index, found));
        }
        done += chunk.len();
    }
    Ok(())
}

/// The first byte that is not the pattern's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Its place in what was compared.
    pub index: usize,
    /// Its place in the pattern.
    pub offset: u64,
    /// Whose bytes were expected.
    pub expected: Seed,
    /// The whole word around it, where the compared bytes have it.
    pub found_word: Option<u64>,
}

impl Mismatch {
    fn new(expected: Seed, start: u64, index: usize, found: &[u8]) -> Self {
        let offset = start + index as u64;
        let within = within_word(offset);
        let found_word = index
            .checked_sub(within)
            .and_then(|at| found.get(at..at + WORD_BYTES)?.try_into().ok())
            .map(u64::from_le_bytes);
        Self {
            index,
            offset,
            expected,
            found_word,
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            offset,
            expected,
            found_word,
        } = self;
        write!(
            f,
            "byte {index} is not the pattern's at {offset:#x} (seed {:#x})",
            expected.0
        )?;
        match found_word {
            Some(0) => write!(f, "; there are zeros"),
            Some(word) => match origin(*word) {
                (POISON, at) => write!(f, "; there is untouched poison of {at:#x}"),
                (seed, at) if seed == *expected => write!(f, "; there is the word of {at:#x}"),
                (seed, at) if at < 1 << 40 => {
                    write!(f, "; there is the word of {at:#x} of seed {:#x}", seed.0)
                }
                _ => write!(
                    f,
                    "; there is {word:#018x}, which is no word of the pattern"
                ),
            },
            None => Ok(()),
        }
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_tells_where_it_belongs() {
        for seed in [Seed(0), Seed(0x0101), Seed(0x7fff), POISON] {
            for offset in [0, 8, 4096, (1 << 30) + 24, (1 << 50) - 8] {
                assert_eq!(origin(word(seed, offset)), (seed, offset));
            }
        }
        assert_eq!(word(Seed(1), 15), word(Seed(1), 8));
    }

    #[test]
    fn any_cut_gives_the_same_bytes() {
        let mut whole = [0; 64];
        fill(Seed(7), 4096, &mut whole);
        for start in 0..20 {
            for end in start..64 {
                let mut part = vec![0; end - start];
                fill(Seed(7), 4096 + start as u64, &mut part);
                assert_eq!(part, whole[start..end], "{start}..{end}");
                check(Seed(7), 4096 + start as u64, &part).unwrap();
            }
        }
    }

    #[test]
    fn a_byte_that_differs_is_found_wherever_it_is() {
        let mut bytes = vec![0; 10_000];
        fill(Seed(3), 100, &mut bytes);
        for index in [0, 1, 4095, 4096, 9_999] {
            let mut wrong = bytes.clone();
            wrong[index] ^= 1;
            let mismatch = check(Seed(3), 100, &wrong).unwrap_err();
            assert_eq!(
                (mismatch.index, mismatch.offset),
                (index, 100 + index as u64)
            );
        }
    }

    #[test]
    fn a_mismatch_says_what_is_there_instead() {
        let said = |word: u64| {
            check(Seed(3), 0, &word.to_le_bytes())
                .unwrap_err()
                .to_string()
        };
        assert!(said(0).contains("zeros"));
        assert!(said(word(POISON, 64)).contains("untouched poison of 0x40"));
        assert!(said(word(Seed(3), 512)).contains("the word of 0x200"));
        assert!(said(word(Seed(4), 512)).contains("0x200 of seed 0x4"));
        assert!(said(0x1234).contains("no word of the pattern"));
    }
}
