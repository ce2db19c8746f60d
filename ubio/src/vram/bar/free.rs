//! Which pages of a stretch nobody has: first fit, neighbours joined. Knows numbers only.

/// Free ranges as start and length, in order, none touching the next.
#[derive(Debug)]
pub(super) struct FreeList(Vec<(u64, u64)>);

impl FreeList {
    /// All of `len_bytes`.
    pub(super) fn new(len_bytes: u64) -> Self {
        Self(vec![(0, len_bytes)])
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.0.iter().map(|&(_, len)| len).sum()
    }

    /// Takes `len_bytes` from the first gap that has them.
    pub(super) fn take(&mut self, len_bytes: u64) -> Option<u64> {
        let index = self.0.iter().position(|&(_, len)| len >= len_bytes)?;
        let (start, len) = &mut self.0[index];
        let taken = *start;
        if *len == len_bytes {
            self.0.remove(index);
        } else {
            *start += len_bytes;
            *len -= len_bytes;
        }
        Some(taken)
    }

    /// # Panics
    /// If any of it is free already.
    pub(super) fn give_back(&mut self, start: u64, len_bytes: u64) {
        let index = self.0.partition_point(|&(other, _)| other < start);
        let end = start + len_bytes;
        let after = self.0.get(index).copied();
        let before = index.checked_sub(1).map(|index| self.0[index]);
        assert!(
            after.is_none_or(|(start, _)| end <= start)
                && before.is_none_or(|(other, len)| other + len <= start),
            "given back twice"
        );
        let joins_after = after.is_some_and(|(start, _)| start == end);
        let joins_before = before.is_some_and(|(other, len)| other + len == start);
        match (joins_before, joins_after) {
            (true, true) => {
                let (_, len) = self.0.remove(index);
                self.0[index - 1].1 += len_bytes + len;
            }
            (true, false) => self.0[index - 1].1 += len_bytes,
            (false, true) => {
                self.0[index].0 = start;
                self.0[index].1 += len_bytes;
            }
            (false, false) => self.0.insert(index, (start, len_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_from_the_front_and_joined_again() {
        let mut free = FreeList::new(100);
        let parts: Vec<u64> = (0..10).map(|_| free.take(10).expect("room")).collect();
        assert_eq!(parts, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
        assert_eq!((free.take(1), free.free_bytes()), (None, 0));
        for start in [50, 20, 70, 60, 10] {
            free.give_back(start, 10);
        }
        assert_eq!(free.0, [(10, 20), (50, 30)]);
        assert_eq!(free.take(25), Some(50));
        assert_eq!(free.take(20), Some(10));
        assert_eq!(free.0, [(75, 5)]);
        free.give_back(50, 25);
        free.give_back(80, 20);
        free.give_back(0, 50);
        assert_eq!(free.0, [(0, 100)]);
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn what_is_free_is_not_given_back() {
        let mut free = FreeList::new(100);
        free.take(50).expect("room");
        free.give_back(40, 20);
    }
}
