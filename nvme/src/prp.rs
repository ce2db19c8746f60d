//! PRP entries: bus addresses of a transfer's memory pages. Base 4.1.1.
//!
//! The first entry may begin anywhere in its page (at a dword), every other one begins with its
//! page. One page: PRP1 alone. Two: PRP1 and PRP2. More: PRP2 leads to a list; where that does
//! not fit into its own page, the page's last entry leads to the next list page instead of
//! naming memory. Pure: list pages are slices here, and their addresses numbers.

use std::fmt;

use crate::dma::{DmaRun, Iova, PageSize};

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
