//! Who may write, or look at, which part of a region now. Loads claim what they fill for as
//! long as a device, a worker or a reader of theirs may touch it; a second load into the same
//! bytes is refused. Knows no loads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::Region;

/// Claimed ranges of one region, as start and end. A handful at most, and only touched when
/// a load begins or ends.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Vec<(u64, u64)>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody gets any of it again: a device that cannot be asked any more may still write it.
    pub(crate) fn give_up(&self) {
        self.lock().push((0, u64::MAX));
    }
}

/// The sole use of a range of a region, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    region: Arc<Region>,
    range: (u64, u64),
}

impl Claim {
    /// Claims `len_bytes` from `offset`; `None` if part of that is claimed.
    pub(crate) fn take(region: &Arc<Region>, offset: u64, len_bytes: u64) -> Option<Self> {
        let range = (offset, offset.checked_add(len_bytes)?);
        let mut claims = region.claims().lock();
        if claims
            .iter()
            .any(|&(start, end)| start < range.1 && range.0 < end)
        {
            return None;
        }
        claims.push(range);
        drop(claims);
        Some(Self {
            region: Arc::clone(region),
            range,
        })
    }
}

impl Claim {
    /// First byte and bytes.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.range.0, self.range.1 - self.range.0)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.region.claims().lock();
        if let Some(index) = claims.iter().position(|&range| range == self.range) {
            claims.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_exclude_each_other_where_they_meet() {
        let region = Arc::new(Region::anonymous(4096, false).expect("memory"));
        let middle = Claim::take(&region, 100, 100).expect("free");
        for (offset, len) in [(0, 101), (199, 1), (150, 10), (0, 4096)] {
            assert!(
                Claim::take(&region, offset, len).is_none(),
                "{offset}+{len}"
            );
        }
        let before = Claim::take(&region, 0, 100).expect("ends where it begins");
        let after = Claim::take(&region, 200, 100).expect("begins where it ends");
        let empty = Claim::take(&region, 100, 0).expect("nothing of it");
        assert!(Claim::take(&region, u64::MAX, 1).is_none());
        drop((before, after, empty, middle));
        let all = Claim::take(&region, 0, 4096).expect("free again");
        region.claims().give_up();
        drop(all);
        assert!(Claim::take(&region, 0, 1).is_none());
    }
}
