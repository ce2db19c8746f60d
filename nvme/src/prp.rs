//! PRP entries: bus addresses of a transfer's memory pages. Base 4.1.1.
//!
//! The first entry may begin anywhere in its page (at a dword), every other one begins with its
//! page. One page: PRP1 alone. Two: PRP1 and PRP2. More: PRP2 leads to a list; where that does
//! not fit into its own page, the page's last entry leads to the next list page instead of
//! naming memory. Pure: list pages are slices here, and their addresses numbers.

use std::fmt;

use crate::dma::{DmaRun, Iova, PageSize};

pub mod table;

/// What a command gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPointer {
    /// PRP entry 1.
    pub prp1: u64,
    /// PRP entry 2: 0, a page, or a list.
    pub prp2: u64,
}

/// Why memory cannot be named by PRP entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrpError {
    /// There are no bytes.
    Empty,
    /// It does not begin at a dword.
    Unaligned(Iova),
    /// A run other than the first begins inside of a page, or one other than the last ends
    /// there.
    Broken(Iova),
    /// A run leaves the address space.
    Overflow(Iova),
    /// So many list pages are needed, and fewer were given.
    TooFewLists {
        /// Needed.
        needed: usize,
        /// Given.
        given: usize,
    },
}

impl fmt::Display for PrpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no memory"),
            Self::Unaligned(at) => write!(f, "memory at {:#x} does not begin at a dword", at.0),
            Self::Broken(at) => write!(f, "memory is broken inside of a page at {:#x}", at.0),
            Self::Overflow(at) => write!(f, "memory from {:#x} leaves the address space", at.0),
            Self::TooFewLists { needed, given } => {
                write!(f, "{needed} list pages are needed, {given} given")
            }
        }
    }
}

impl std::error::Error for PrpError {}

/// A page for entries: its address, and its memory as 64-bit entries, [`PageSize::entries`] of
/// them, in the machine's order (the writer stores them little-endian).
#[derive(Debug)]
pub struct ListPage<'a> {
    /// Where the controller finds it: the start of a page.
    pub address: Iova,
    /// The entries, little-endian once written.
    pub entries: &'a mut [u64],
}

/// How many list pages `pages` memory pages need.
#[must_use]
pub fn list_pages(pages: usize, page: PageSize) -> usize {
    let (listed, whole) = (pages.saturating_sub(1), page.entries());
    match pages {
        0..=2 => 0,
        _ if listed <= whole => 1,
        // All but the last page give one entry away.
        _ => 1 + (listed - whole).div_ceil(whole - 1),
    }
}

/// How many memory pages `runs` touch.
///
/// # Errors
/// As [`write()`], but for the lists.
pub fn count_pages(runs: &[DmaRun], page: PageSize) -> Result<usize, PrpError> {
    check(runs, page)?;
    let pages = |run: &DmaRun| (page.offset(run.start) + run.len_bytes).div_ceil(page.bytes());
    let count: u64 = runs.iter().map(pages).sum();
    Ok(usize::try_from(count).expect("runs are in the address space"))
}

/// Names the memory of `runs`, using `lists` where two entries do not suffice.
///
/// # Errors
/// See [`PrpError`]; nothing is written then.
pub fn write(
    runs: &[DmaRun],
    page: PageSize,
    lists: &mut [ListPage<'_>],
) -> Result<DataPointer, PrpError> {
    let pages = count_pages(runs, page)?;
    let needed = list_pages(pages, page);
    if needed > lists.len() {
        let given = lists.len();
        return Err(PrpError::TooFewLists { needed, given });
    }
    let mut entries = entries(runs, page);
    let prp1 = entries.next().expect("checked to be there");
    if needed == 0 {
        let prp2 = entries.next().unwrap_or(0);
        return Ok(DataPointer { prp1, prp2 });
    }
    let lists = &mut lists[..needed];
    for at in 0..needed {
        let next = lists.get(at + 1).map(|list| list.address);
        let list = &mut lists[at];
        assert!(list.entries.len() == page.entries(), "a page of entries");
        let (last, others) = list.entries.split_last_mut().expect("a page of entries");
        for slot in others.iter_mut() {
            // The rest of the last page is not looked at.
            *slot = entries.next().unwrap_or(0).to_le();
        }
        let leads_on = next.map(|address| address.0);
        *last = leads_on.or_else(|| entries.next()).unwrap_or(0).to_le();
    }
    debug_assert!(entries.next().is_none(), "all of the memory is named");
    Ok(DataPointer {
        prp1,
        prp2: lists[0].address.0,
    })
}

/// The entries: the first byte, and then each page.
fn entries(runs: &[DmaRun], page: PageSize) -> impl Iterator<Item = u64> {
    runs.iter().flat_map(move |run| {
        let (start, offset) = (run.start.0, page.offset(run.start));
        let pages = (offset + run.len_bytes).div_ceil(page.bytes());
        (0..pages).map(move |index| match index {
            0 => start,
            _ => start - offset + index * page.bytes(),
        })
    })
}

fn check(runs: &[DmaRun], page: PageSize) -> Result<(), PrpError> {
    let (Some(first), Some(last)) = (runs.first(), runs.len().checked_sub(1)) else {
        return Err(PrpError::Empty);
    };
    if !first.start.0.is_multiple_of(4) {
        return Err(PrpError::Unaligned(first.start));
    }
    for (index, run) in runs.iter().enumerate() {
        if run.len_bytes == 0 {
            return Err(PrpError::Empty);
        }
        // Up to the last page's end, so that arithmetic on pages does not leave it either.
        let end = run.start.0.checked_add(run.len_bytes);
        let Some(end) = end.filter(|&end| end <= u64::MAX - page.bytes()) else {
            return Err(PrpError::Overflow(run.start));
        };
        if index > 0 && page.offset(run.start) != 0 {
            return Err(PrpError::Broken(run.start));
        }
        if index < last && page.offset(Iova(end)) != 0 {
            return Err(PrpError::Broken(Iova(end)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: PageSize = PageSize::MIN;
    const LISTS: u64 = 0x1_0000_0000;

    /// Lists for any transfer of these tests, at addresses that are not neighbours.
    fn written(runs: &[DmaRun], page: PageSize, lists: usize) -> Result<Written, PrpError> {
        let mut memory = vec![vec![0xdead; page.entries()]; lists];
        let address = |index: u64| Iova(LISTS + index * 3 * page.bytes());
        let mut pages: Vec<_> = (0..)
            .zip(&mut memory)
            .map(|(index, entries)| ListPage {
                address: address(index),
                entries,
            })
            .collect();
        let pointer = write(runs, page, &mut pages)?;
        let lists = (0..).map(address).map(|at| at.0).zip(memory).collect();
        Ok(Written { pointer, lists })
    }

    struct Written {
        pointer: DataPointer,
        lists: std::collections::HashMap<u64, Vec<u64>>,
    }

    /// Walks as a controller does, byte by byte of what is left, knowing nothing of the
    /// writer. Gives the address of each page-wise piece and its length.
    fn walk(written: &Written, len_bytes: u64, page: PageSize) -> Vec<(u64, u64)> {
        let in_page = |address: u64| page.bytes() - address % page.bytes();
        let mut left = len_bytes;
        let mut pieces = Vec::new();
        let mut take = |address: u64, left: &mut u64| {
            let len = in_page(address).min(*left);
            pieces.push((address, len));
            *left -= len;
        };
        take(written.pointer.prp1, &mut left);
        if left == 0 {
            return pieces;
        }
        if left <= page.bytes() {
            assert_eq!(
                written.pointer.prp2 % page.bytes(),
                0,
                "PRP2 begins with its page"
            );
            take(written.pointer.prp2, &mut left);
            return pieces;
        }
        let mut list = &written.lists[&written.pointer.prp2];
        let mut slot = 0;
        while left > 0 {
            let entry = u64::from_le(list[slot]);
            assert_eq!(
                entry % page.bytes(),
                0,
                "listed entries begin with their page"
            );
            let is_last_slot = slot + 1 == page.entries();
            if is_last_slot && left > page.bytes() {
                (list, slot) = (&written.lists[&entry], 0);
                continue;
            }
            take(entry, &mut left);
            slot += 1;
        }
        pieces
    }

    /// The bytes of runs or pieces, as ranges that are joined where they touch.
    fn joined(pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (start, len) in pieces {
            match all.last_mut() {
                Some((before, length)) if *before + *length == start => *length += len,
                _ => all.push((start, len)),
            }
        }
        all
    }

    fn one(start: u64, len_bytes: u64) -> [DmaRun; 1] {
        [DmaRun {
            start: Iova(start),
            len_bytes,
        }]
    }

    #[test]
    fn every_count_of_pages_around_a_list_page_is_named_in_full() {
        for offset in [0, 4, 512, 4092] {
            for pages in [
                1, 2, 3, 511, 512, 513, 514, 1023, 1024, 1025, 1534, 1535, 1536,
            ] {
                for tail in [0, 1, 4095] {
                    let len_bytes = u64::checked_sub(pages * 4096, offset + tail);
                    let Some(len_bytes) = len_bytes.filter(|&len| len > 0) else {
                        continue;
                    };
                    let runs = one(0x7000_0000 + offset, len_bytes);
                    let written = written(&runs, PAGE, 4).expect("room");
                    let pieces = walk(&written, len_bytes, PAGE);
                    assert_eq!(pieces.len() as u64, pages, "{offset} {pages} {tail}");
                    assert_eq!(joined(pieces), [(0x7000_0000 + offset, len_bytes)]);
                }
            }
        }
    }

    #[test]
    fn lists_are_as_few_as_can_be() {
        for (pages, lists) in [
            (0, 0),
            (1, 0),
            (2, 0),
            (3, 1),
            (513, 1),
            (514, 2),
            (1024, 2),
            (1025, 3),
            (1535, 3),
            (1536, 4),
        ] {
            assert_eq!(list_pages(pages, PAGE), lists, "{pages}");
        }
        let large = PageSize::from_mps(4).expect("64 KiB");
        assert_eq!((list_pages(8193, large), list_pages(8194, large)), (1, 2));
    }

    #[test]
    fn what_entries_cannot_name_is_refused() {
        let run = |start, len_bytes| one(start, len_bytes)[0];
        let given = written(&one(0x1000, 514 * 4096), PAGE, 1);
        let few = PrpError::TooFewLists {
            needed: 2,
            given: 1,
        };
        assert_eq!(given.err(), Some(few));
        for (runs, error) in [
            (vec![], PrpError::Empty),
            (vec![run(0x1000, 0)], PrpError::Empty),
            (vec![run(0x1002, 8)], PrpError::Unaligned(Iova(0x1002))),
            (
                vec![run(0x1000, 0x1000), run(0x3004, 8)],
                PrpError::Broken(Iova(0x3004)),
            ),
            (
                vec![run(0x1000, 0x800), run(0x3000, 8)],
                PrpError::Broken(Iova(0x1800)),
            ),
            (
                vec![run(u64::MAX - 3, 8)],
                PrpError::Overflow(Iova(u64::MAX - 3)),
            ),
        ] {
            assert_eq!(written(&runs, PAGE, 4).err(), Some(error));
        }
    }

    proptest! {
        #[test]
        fn a_walk_finds_the_memory_again(
            mps in 0u8..3,
            first_offset in (0u64..1024).prop_map(|dwords| dwords * 4),
            runs in prop::collection::vec((1u64..700, 0u64..8), 1..6),
            cut in 0u64..4096,
        ) {
            let page = PageSize::from_mps(mps).expect("a size");
            let mut at = 0x10_0000_0000;
            let mut made: Vec<DmaRun> = Vec::new();
            for (pages, gap) in runs {
                at += gap * page.bytes();
                made.push(DmaRun { start: Iova(at), len_bytes: pages * page.bytes() });
                at += pages * page.bytes();
            }
            let offset = first_offset % page.bytes();
            made[0].start.0 += offset;
            made[0].len_bytes -= offset;
            let last = made.last_mut().expect("one at least");
            last.len_bytes -= cut.min(last.len_bytes - 1);
            let len_bytes = made.iter().map(|run| run.len_bytes).sum();
            let pages = count_pages(&made, page).expect("legal");
            let written = written(&made, page, list_pages(pages, page)).expect("room");
            let pieces = walk(&written, len_bytes, page);
            prop_assert_eq!(pieces.len(), pages);
            let memory = made.iter().map(|run| (run.start.0, run.len_bytes));
            prop_assert_eq!(joined(pieces), joined(memory));
        }
    }
}
