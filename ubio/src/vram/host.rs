//! Host memory for destinations: what pages it stands on, and whether there is enough.
//! Knows no backend.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::memory::{HUGE_PAGE_BYTES, Region, round_up};

/// Anonymous host memory for a destination: on huge pages where there are any, its length
/// rounded up to them where that costs less than an eighth.
///
/// # Errors
/// NoSpace: the kernel gives no address space, or the machine has not that much memory left
/// (by its own estimate, `MemAvailable`): without overcommit limits the load would end in the
/// hands of the out-of-memory killer.
pub fn allocate(len_bytes: u64) -> Result<Arc<Region>> {
    if let Some(available) = available_bytes()
        && available < len_bytes
    {
        let what = format!("{len_bytes} bytes of memory are needed, {available} are available");
        return Err(Error::new(ErrorKind::NoSpace, what)
            .remedy("free memory, load fewer tensors, or map the file instead"));
    }
    // Reserved huge pages come whole; transparent ones leave the rest to base pages.
    let rounded = round_up(len_bytes, HUGE_PAGE_BYTES);
    let little_waste = rounded - len_bytes <= len_bytes / 8;
    let len_bytes = if little_waste { rounded } else { len_bytes };
    Ok(Arc::new(Region::anonymous(len_bytes, true)?))
}

/// What the kernel thinks can be had without swapping, bytes.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where rounding up would waste much: whether huge pages are had depends on the
    /// machine, and not on the length.
    #[test]
    fn all_lengths_of_a_huge_page_and_more_stand_on_the_same_pages() {
        let pages = |len_bytes| {
            let region = allocate(len_bytes).expect("little memory");
            (
                region.pages() == crate::sys::memory::Pages::Base,
                region.len_bytes(),
            )
        };
        let (base, _) = pages(16 << 20);
        assert_eq!(pages(3_000_000), (base, 3_002_368));
        assert_eq!(pages(5_000_000).0, base);
        assert!(pages(4096).0);
    }
}
