//! Medians, and the interval of a median ratio by bootstrap over pairs. Seeded: the same samples
//! give the same interval.

/// splitmix64, for orders and resampling.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An index below `bound`; the bias of the remainder is far below what is measured.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }

    /// Puts the items into a random order (Fisher-Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The median; 0 for no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// A quantile by linear interpolation; 0 for no values.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let last_f = crate::repo::float(last as u64);
    let position = q.clamp(0.0, 1.0) * last_f;
    let below = (0..=last)
        .rev()
        .find(|i| crate::repo::float(*i as u64) <= position)
        .unwrap_or(0);
    let above = (below + 1).min(last);
    let part = position - crate::repo::float(below as u64);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

/// A median ratio and where it lies with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) pairs: usize,
}

impl Ratio {
    /// The interval's width as a part of the median.
    pub(crate) fn width(&self) -> f64 {
        if self.median > 0.0 {
            (self.high - self.low) / self.median
        } else {
            f64::INFINITY
        }
    }

    /// Whether the goal is reached: over at least 15 pairs, an interval at most a tenth wide
    /// reaches it. Otherwise what keeps this from being said.
    pub(crate) fn reaches(&self, goal: f64) -> Verdict {
        if self.pairs < MIN_PAIRS {
            Verdict::TooFew
        } else if self.high < goal {
            Verdict::Below
        } else if self.width() > MAX_WIDTH && self.low < goal {
            Verdict::TooNoisy
        } else {
            Verdict::Reached
        }
    }
}

const MIN_PAIRS: usize = 15;
const MAX_WIDTH: f64 = 0.1;

/// What a ratio says about a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Reached,
    Below,
    TooNoisy,
    TooFew,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reached => "reached",
            Self::Below => "below",
            Self::TooNoisy => "too noisy to say",
            Self::TooFew => "too few pairs to say",
        })
    }
}

/// The median of the pairs' ratios `over / under`, with its interval.
pub(crate) fn ratio(pairs: &[(f64, f64)], seed: u64) -> Option<Ratio> {
    const RESAMPLES: usize = 4000;
    let ratios: Vec<f64> = pairs
        .iter()
        .filter(|(over, under)| *over > 0.0 && *under > 0.0)
        .map(|(over, under)| over / under)
        .collect();
    if ratios.is_empty() {
        return None;
    }
    let mut random = Random::new(seed);
    let medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let again: Vec<f64> = ratios
                .iter()
                .map(|_| ratios[random.below(ratios.len())])
                .collect();
            median(&again)
        })
        .collect();
    Some(Ratio {
        median: median(&ratios),
        low: quantile(&medians, 0.025),
        high: quantile(&medians, 0.975),
        pairs: ratios.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!((quantile(&[0.0, 10.0], 0.99) - 9.9).abs() < 1e-12);
        assert!(median(&[]).abs() < 1e-12);
    }

    #[test]
    fn a_shuffle_keeps_all_items_and_repeats_with_its_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            Random::new(seed).shuffle(&mut items);
            items
        };
        let mut sorted = shuffled(7);
        assert_eq!(sorted, shuffled(7));
        assert_ne!(sorted, shuffled(8));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn the_interval_covers_a_known_ratio_and_tightens_with_pairs() {
        let noisy = |count: u64| -> Vec<(f64, f64)> {
            let mut random = Random::new(1);
            (0..count)
                .map(|_| {
                    (
                        1.2 * (1.0 + 0.02 * crate::repo::float(random.next() % 100) / 100.0),
                        1.0,
                    )
                })
                .collect()
        };
        let few = ratio(&noisy(5), 3).unwrap();
        let many = ratio(&noisy(200), 3).unwrap();
        assert!(many.low <= 1.212 && 1.212 <= many.high, "{many:?}");
        assert!(many.width() < few.width());
        assert_eq!(ratio(&noisy(15), 3), ratio(&noisy(15), 3));
    }

    #[test]
    fn verdicts() {
        let of = |low, high, pairs| Ratio {
            median: 1.0,
            low,
            high,
            pairs,
        };
        assert_eq!(of(0.98, 1.02, 15).reaches(0.97), Verdict::Reached);
        assert_eq!(of(0.90, 0.96, 15).reaches(0.97), Verdict::Below);
        assert_eq!(of(0.80, 1.20, 15).reaches(0.97), Verdict::TooNoisy);
        assert_eq!(of(0.98, 1.40, 15).reaches(0.97), Verdict::Reached);
        assert_eq!(of(0.98, 1.02, 14).reaches(0.97), Verdict::TooFew);
    }
}
