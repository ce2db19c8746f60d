//! The simulator's dice: splitmix64. Small, fast and the same everywhere, so that a seed is a
//! run.

use std::ops::Range;

/// A seeded sequence of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

/// The finaliser of splitmix64: spreads every bit of `word` over all of them.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng {
            state: mix(seed ^ 0x7562_696f_2073_696d),
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// One of `0..count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        assert!(count > 0, "nothing to choose from");
        usize::try_from(self.next() >> 16).unwrap_or(0) % count
    }

    /// One of a range.
    pub(crate) fn range(&mut self, range: Range<u32>) -> u32 {
        let span = u64::from(range.end - range.start);
        range.start + u32::try_from((self.next() >> 16) % span).unwrap_or(0)
    }

    /// True `in_thousand` times of a thousand.
    pub(crate) fn chance(&mut self, in_thousand: u32) -> bool {
        self.range(0..1000) < in_thousand
    }

    /// True `in_many` times of a hundred thousand.
    pub(crate) fn rare(&mut self, in_many: u32) -> bool {
        self.range(0..100_000) < in_many
    }

    /// One of a few.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
