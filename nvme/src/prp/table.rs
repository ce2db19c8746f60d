//! PRP lists of a stretch of memory, made once, from which every command into it takes its
//! data pointer: nothing is written when a command is made.
//!
//! A list page holds the addresses of so many neighbouring memory pages and, in its last slot,
//! leads to the next list page. A command's list begins at the slot of its second page. That
//! goes wrong in one case: if exactly one page is left for the last slot, a controller takes
//! what is there for that page (Base 4.1.1). So there are two sets of lists over the same
//! memory, whose list pages end at different memory pages, and a command takes the one that
//! does not fail it. Pure: list memory is a closure here, and addresses are numbers.

use crate::dma::{Iova, PageSize};
use crate::planted::{self, PlantedBug};
use crate::prp::DataPointer;

/// How lists over a number of memory pages are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLayout {
    page: PageSize,
    pages: u64,
}

/// The two sets of lists.
const SETS: u64 = 2;

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Of all list pages.
    list: u64,
    /// In its list page.
    slot: u64,
}

impl TableLayout {
    /// For `pages` memory pages.
    #[must_use]
    pub fn new(pages: u64, page: PageSize) -> Self {
        Self { page, pages }
    }

    /// Memory pages that a list page names.
    fn named(self) -> u64 {
        self.page.entries() as u64 - 1
    }

    /// How far a set's list pages are ahead of the first set's, in memory pages.
    fn shift(self, set: u64) -> u64 {
        set * (self.named() / SETS)
    }

    /// List pages of one set.
    fn lists_per_set(self) -> u64 {
        (self.pages + self.shift(SETS - 1)).div_ceil(self.named())
    }

    /// List pages in all.
    #[must_use]
    pub fn lists(self) -> u64 {
        SETS * self.lists_per_set()
    }

    fn slot(self, set: u64, page: u64) -> Slot {
        let at = page + self.shift(set);
        Slot {
            list: set * self.lists_per_set() + at / self.named(),
            slot: at % self.named(),
        }
    }

    /// Fills the list pages: `put` takes the list page, the slot and the entry. `address`
    /// tells where a memory page is, `list` where a list page is.
    pub fn fill(
        self,
        address: impl Fn(u64) -> Iova,
        list: impl Fn(u64) -> Iova,
        mut put: impl FnMut(u64, u64, u64),
    ) {
        for set in 0..SETS {
            for page in 0..self.pages {
                let at = self.slot(set, page);
                put(at.list, at.slot, address(page).0);
            }
            let first = set * self.lists_per_set();
            for at in first..first + self.lists_per_set() - 1 {
                if planted::is(PlantedBug::DropListEntry) {
                    continue;
                }
                put(at, self.named(), list(at + 1).0);
            }
        }
    }

    /// The data pointer of `len_bytes` from `offset_bytes` of the memory on.
    ///
    /// # Panics
    /// If there are none, or they are not inside.
    #[inline]
    pub fn pointer(
        self,
        offset_bytes: u64,
        len_bytes: u64,
        address: impl Fn(u64) -> Iova,
        list: impl Fn(u64) -> Iova,
    ) -> DataPointer {
        let bytes = self.page.bytes();
        let (first, in_page) = (offset_bytes / bytes, offset_bytes % bytes);
        let last = (offset_bytes + len_bytes - 1) / bytes;
        assert!(
            len_bytes > 0 && last < self.pages,
            "{offset_bytes}+{len_bytes} is outside of the memory"
        );
        let prp1 = address(first).0 + in_page;
        let prp2 = match last - first {
            0 => 0,
            1 => address(last).0,
            _ => {
                let at = self.list_of(first + 1, last);
                list(at.list).0 + at.slot * 8
            }
        };
        DataPointer { prp1, prp2 }
    }

    /// Where the list of pages `first..=last` begins.
    #[inline]
    fn list_of(self, first: u64, last: u64) -> Slot {
        let (begin, end) = (self.slot(0, first), self.slot(0, last));
        let alone = end.slot == 0 && end.list > begin.list;
        if alone { self.slot(1, first) } else { begin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks as a controller does, knowing nothing of the layout: the memory pages of a
    /// transfer, by their addresses.
    fn walk(
        pointer: DataPointer,
        pages: u64,
        page: PageSize,
        read: &dyn Fn(u64) -> u64,
    ) -> Vec<u64> {
        let mut found = vec![pointer.prp1];
        if pages == 2 {
            found.push(pointer.prp2);
        }
        if pages <= 2 {
            return found;
        }
        let mut at = pointer.prp2;
        loop {
            let left = pages - found.len() as u64;
            if left == 0 {
                return found;
            }
            let is_last_slot = (at + 8).is_multiple_of(page.bytes());
            let entry = read(at);
            assert!(
                entry.is_multiple_of(page.bytes()),
                "entries begin with a page"
            );
            if is_last_slot && left > 1 {
                at = entry;
            } else {
                found.push(entry);
                at += 8;
            }
        }
    }

    struct Made {
        layout: TableLayout,
        lists: std::collections::HashMap<u64, u64>,
    }

    const MEMORY: u64 = 1 << 40;
    const LISTS: u64 = 1 << 50;

    /// Memory pages and list pages are nowhere neighbours.
    fn memory_page(page: PageSize) -> impl Fn(u64) -> Iova {
        move |at| Iova(MEMORY + at * 3 * page.bytes())
    }

    fn list_page(page: PageSize) -> impl Fn(u64) -> Iova {
        move |at| Iova(LISTS + at * 2 * page.bytes())
    }

    fn made(pages: u64, page: PageSize) -> Made {
        let layout = TableLayout::new(pages, page);
        let mut lists = std::collections::HashMap::new();
        let list = list_page(page);
        layout.fill(memory_page(page), list_page(page), |at, slot, entry| {
            assert!(at < layout.lists() && slot < page.entries() as u64);
            let before = lists.insert(list(at).0 + slot * 8, entry);
            assert_eq!(before, None, "a slot is filled twice");
        });
        Made { layout, lists }
    }

    impl Made {
        fn check(&self, first: u64, pages: u64, in_page: u64, page: PageSize) {
            let (offset, len) = (
                first * page.bytes() + in_page,
                pages * page.bytes() - in_page,
            );
            let address = memory_page(page);
            let pointer = self.layout.pointer(offset, len, &address, list_page(page));
            let read = |at: u64| *self.lists.get(&at).expect("an entry that was written");
            let found = walk(pointer, pages, page, &read);
            let mut wanted: Vec<u64> = (first..first + pages).map(|at| address(at).0).collect();
            wanted[0] += in_page;
            assert_eq!(found, wanted, "{pages} pages from page {first}");
        }
    }

    #[test]
    fn every_command_into_the_memory_is_named_in_full() {
        let page = PageSize::MIN;
        let made = made(1700, page);
        for first in (0..1700).step_by(3).chain(505..520).chain(1015..1030) {
            for pages in [
                1, 2, 3, 4, 255, 256, 257, 510, 511, 512, 513, 514, 1021, 1022, 1023, 1024, 1025,
                1534,
            ] {
                if first + pages <= 1700 {
                    for in_page in [0, 4, 512, 4092] {
                        made.check(first, pages, in_page, page);
                    }
                }
            }
        }
    }

    #[test]
    fn every_end_after_a_list_page_is_named_in_full() {
        let page = PageSize::MIN;
        let made = made(1100, page);
        for last in 500..1100 {
            for first in [0, 1, 2, 3, 100, 254, 255, 256, 257, 490] {
                made.check(first, last - first + 1, 0, page);
            }
        }
    }

    #[test]
    fn larger_pages_have_longer_lists() {
        let page = PageSize::from_mps(1).expect("8 KiB");
        let made = made(2100, page);
        for pages in [1, 2, 3, 1023, 1024, 1025, 1026, 2047, 2100] {
            made.check(0, pages, 0, page);
        }
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn nothing_outside_is_named() {
        let page = PageSize::MIN;
        let made = made(8, page);
        made.check(5, 4, 0, page);
    }
}
