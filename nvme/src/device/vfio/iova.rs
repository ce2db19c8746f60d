//! Which device addresses are free. Plain arithmetic: maps nothing, knows no kernel.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Addresses, both ends included, as the kernel gives them: a range may end with the last one.
pub(super) type Range = RangeInclusive<u64>;

/// Where devices of x86 write their message-signalled interrupts; never memory, whatever the
/// container says.
const MSI_WINDOW: Range = 0xfee0_0000..=0xfeef_ffff;

/// Addresses from here on are given first: what lies below is full of windows that bridges
/// claim for themselves.
const HIGH: u64 = 1 << 32;

/// Device addresses of one container.
#[derive(Debug)]
pub(super) struct IovaSpace {
    /// Sorted, not overlapping.
    valid: Vec<Range>,
    /// First address → last address.
    taken: BTreeMap<u64, u64>,
}

impl IovaSpace {
    /// The addresses of `valid` without those of `reserved`, without the interrupts' window
    /// and without address 0, which drivers and devices take for "none".
    pub(super) fn new(valid: &[Range], reserved: &[Range]) -> Self {
        Self {
            valid: usable(valid, reserved),
            taken: BTreeMap::new(),
        }
    }

    /// Other limits, as when a device with limits of its own comes in; what is taken stays.
    pub(super) fn limit(&mut self, valid: &[Range], reserved: &[Range]) {
        self.valid = usable(valid, reserved);
    }

    /// Takes `len_bytes` at the lowest address that is `phase` more than a multiple of
    /// `alignment`, above 4 GiB where there is one. Gives `None` when there is no room.
    ///
    /// # Panics
    /// If `len_bytes` is 0, `alignment` no power of two, or `phase` not below it.
    pub(super) fn take(&mut self, len_bytes: u64, alignment: u64, phase: u64) -> Option<u64> {
        assert!(len_bytes > 0 && alignment.is_power_of_two() && phase < alignment);
        let start = self
            .find(HIGH, len_bytes, alignment, phase)
            .or_else(|| self.find(0, len_bytes, alignment, phase))?;
        self.taken.insert(start, start + (len_bytes - 1));
        Some(start)
    }

    fn find(&self, floor: u64, len_bytes: u64, alignment: u64, phase: u64) -> Option<u64> {
        let fit = |from: u64| {
            let ahead = phase.wrapping_sub(from) & (alignment - 1);
            let start = from.checked_add(ahead)?;
            Some((start, start.checked_add(len_bytes - 1)?))
        };
        for range in &self.valid {
            let mut candidate = fit(floor.max(*range.start()));
            while let Some((start, last)) = candidate {
                if last > *range.end() {
                    break;
                }
                // The taken stretch with the highest start that is not beyond `last`.
                let Some((_, &end)) = self.taken.range(..=last).next_back() else {
                    return Some(start);
                };
                if end < start {
                    return Some(start);
                }
                candidate = end.checked_add(1).and_then(fit);
            }
        }
        None
    }

    /// Gives back what was taken at `start`; `false` if nothing was taken with this length.
    pub(super) fn give(&mut self, start: u64, len_bytes: u64) -> bool {
        let is = self.is_taken(start, len_bytes);
        if is {
            self.taken.remove(&start);
        }
        is
    }

    /// Whether just this was taken.
    pub(super) fn is_taken(&self, start: u64, len_bytes: u64) -> bool {
        len_bytes > 0
            && self.taken.get(&start).copied() == start.checked_add(len_bytes - 1)
            && self.taken.contains_key(&start)
    }
}

fn usable(valid: &[Range], reserved: &[Range]) -> Vec<Range> {
    let mut usable: Vec<Range> = valid
        .iter()
        .filter(|range| !range.is_empty())
        .cloned()
        .collect();
    for hole in reserved.iter().chain(&[MSI_WINDOW, 0..=0]) {
        usable = usable
            .iter()
            .flat_map(|range| without(range, hole))
            .collect();
    }
    usable.sort_by_key(|range| *range.start());
    usable.into_iter().fold(Vec::new(), joined)
}

/// Appends a range, as one with the last where the two touch or overlap.
fn joined(mut ranges: Vec<Range>, next: Range) -> Vec<Range> {
    match ranges.last_mut() {
        Some(last) if *next.start() <= last.end().saturating_add(1) => {
            *last = *last.start()..=*last.end().max(next.end());
        }
        _ => ranges.push(next),
    }
    ranges
}

fn without(range: &Range, hole: &Range) -> Vec<Range> {
    if hole.is_empty() || hole.end() < range.start() || range.end() < hole.start() {
        return vec![range.clone()];
    }
    let below = hole.start().checked_sub(1).map(|end| *range.start()..=end);
    let above = hole.end().checked_add(1).map(|start| start..=*range.end());
    below
        .into_iter()
        .chain(above)
        .filter(|rest| !rest.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn interrupts_and_null_are_never_given() {
        let mut space = IovaSpace::new(&[0..=0xffff_ffff], &[]);
        let whole = space.take(0xfee0_0000 - PAGE, PAGE, 0);
        assert_eq!(whole, Some(PAGE), "from the second page to the window");
        assert_eq!(space.take(PAGE, PAGE, 0), Some(0xfef0_0000));
    }

    #[test]
    fn the_last_address_can_be_had_and_nothing_beyond() {
        let mut space = IovaSpace::new(&[u64::MAX - (PAGE - 1)..=u64::MAX], &[]);
        assert_eq!(space.take(2 * PAGE, PAGE, 0), None);
        assert_eq!(space.take(PAGE, PAGE, 0), Some(u64::MAX - (PAGE - 1)));
        assert_eq!(space.take(PAGE, PAGE, 0), None);
        assert_eq!(space.take(u64::MAX, PAGE, 0), None);
    }

    #[test]
    fn high_addresses_come_first_and_low_ones_when_they_are_gone() {
        let mut space = IovaSpace::new(&[PAGE..=HIGH + PAGE - 1], &[]);
        assert_eq!(space.take(PAGE, PAGE, 0), Some(HIGH));
        assert_eq!(space.take(PAGE, PAGE, 0), Some(PAGE));
    }

    #[test]
    fn only_what_was_taken_is_given_back() {
        let mut space = IovaSpace::new(&[HIGH..=HIGH + 15 * PAGE], &[]);
        let start = space.take(2 * PAGE, PAGE, 0).expect("room");
        assert!(!space.give(start, PAGE));
        assert!(!space.give(start + PAGE, PAGE));
        assert!(!space.give(start, 0));
        assert!(space.give(start, 2 * PAGE));
        assert!(!space.give(start, 2 * PAGE));
    }

    #[test]
    fn other_limits_leave_what_is_taken() {
        let mut space = IovaSpace::new(&[HIGH..=HIGH + 8 * PAGE - 1], &[]);
        assert_eq!(space.take(2 * PAGE, PAGE, 0), Some(HIGH));
        space.limit(&[HIGH + PAGE..=HIGH + 4 * PAGE - 1], &[]);
        assert_eq!(space.take(2 * PAGE, PAGE, 0), Some(HIGH + 2 * PAGE));
        assert_eq!(space.take(PAGE, PAGE, 0), None);
        assert!(space.give(HIGH, 2 * PAGE));
        assert_eq!(space.take(PAGE, PAGE, 0), Some(HIGH + PAGE));
    }

    /// Pages that the model looks at: around 4 GiB, and around the interrupts' window.
    const PAGES: u64 = 96;
    const STARTS: [u64; 2] = [0xfee0_0000 - 16 * PAGE, HIGH - 32 * PAGE];

    /// One page after the other: which are free, by plain looking.
    struct Model(BTreeMap<u64, bool>);

    impl Model {
        fn take(&mut self, pages: u64, alignment: u64, phase: u64) -> Option<u64> {
            let fits = |start: u64| {
                start % alignment == phase
                    && (0..pages).all(|page| self.0.get(&(start + page * PAGE)) == Some(&true))
            };
            let found = self
                .0
                .keys()
                .copied()
                .find(|&page| page >= HIGH && fits(page));
            let start = found.or_else(|| self.0.keys().copied().find(|&page| fits(page)))?;
            self.mark(start, pages, false);
            Some(start)
        }

        fn mark(&mut self, start: u64, pages: u64, free: bool) {
            for page in 0..pages {
                self.0.insert(start + page * PAGE, free);
            }
        }
    }

    fn range(which: usize, from: u64, pages: u64) -> Range {
        let start = STARTS[which] + from * PAGE;
        start..=start + pages * PAGE - 1
    }

    proptest! {
        #[test]
        fn gives_what_plain_looking_finds(
            valid in prop::collection::vec((0_usize..2, 0..PAGES / 2, 1..PAGES / 2), 1..4),
            holes in prop::collection::vec((0_usize..2, 0..PAGES, 1_u64..12), 0..4),
            steps in prop::collection::vec((any::<bool>(), 1_u64..9, 0_u32..4, any::<prop::sample::Index>()), 1..60),
        ) {
            // Valid ranges of one start must not overlap: the kernel's do not.
            let mut ranges: Vec<Range> = Vec::new();
            for (which, from, pages) in valid {
                let new = range(which, from, pages);
                if ranges.iter().all(|old| old.end() < new.start() || new.end() < old.start()) {
                    ranges.push(new);
                }
            }
            let holes: Vec<Range> = holes
                .into_iter()
                .map(|(which, from, pages)| range(which, from, pages))
                .collect();
            let mut model = Model(BTreeMap::new());
            for page in STARTS.iter().flat_map(|start| (0..PAGES).map(move |page| start + page * PAGE)) {
                let free = ranges.iter().any(|range| range.contains(&page))
                    && !holes.iter().chain(&[MSI_WINDOW]).any(|hole| hole.contains(&page));
                model.0.insert(page, free);
            }
            let mut space = IovaSpace::new(&ranges, &holes);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, pages, shift, pick) in steps {
                if take || taken.is_empty() {
                    let alignment = PAGE << shift;
                    let phase = (pick.index(1 << shift) as u64) * PAGE;
                    let got = space.take(pages * PAGE, alignment, phase);
                    prop_assert_eq!(got, model.take(pages, alignment, phase));
                    taken.extend(got.map(|start| (start, pages)));
                } else {
                    let (start, pages) = taken.swap_remove(pick.index(taken.len()));
                    prop_assert!(space.give(start, pages * PAGE));
                    model.mark(start, pages, true);
                }
            }
        }
    }
}
