//! Chains of capabilities behind VFIO's answers (`struct vfio_info_cap_header`), as bytes.
//! Asks nobody, and believes no offset before it has looked.

use super::iova::Range;
use vfio_bindings::bindings::vfio::{
    VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL,
    VFIO_REGION_INFO_CAP_SPARSE_MMAP,
};

/// A chain that does not keep to its own lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed chain of capabilities")
    }
}

impl std::error::Error for Malformed {}

/// Bytes of `struct vfio_info_cap_header`: id, version, offset of the next.
const HEADER_BYTES: usize = 8;

fn bytes<const N: usize>(all: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let rest = all.get(offset..).ok_or(Malformed)?;
    rest.first_chunk().copied().ok_or(Malformed)
}

fn read_u32(all: &[u8], offset: usize) -> Result<u32, Malformed> {
    bytes(all, offset).map(u32::from_ne_bytes)
}

fn read_u64(all: &[u8], offset: usize) -> Result<u64, Malformed> {
    bytes(all, offset).map(u64::from_ne_bytes)
}

/// The capability `id` of a chain that begins at `first` (0: there is none), from its header
/// to the end of the answer. `head_bytes` are the answer's own structure.
fn find(answer: &[u8], first: u32, head_bytes: usize, id: u32) -> Result<Option<&[u8]>, Malformed> {
    let mut offset = first as usize;
    // Each capability takes its header at least, so a chain with more has a loop.
    for _ in 0..=answer.len() / HEADER_BYTES {
        if offset == 0 {
            return Ok(None);
        }
        if offset < head_bytes {
            return Err(Malformed);
        }
        let this = u16::from_ne_bytes(bytes(answer, offset)?);
        let next = read_u32(answer, offset + 4)?;
        if u32::from(this) == id {
            return Ok(answer.get(offset..));
        }
        offset = next as usize;
    }
    Err(Malformed)
}

/// Pairs of 64-bit words behind a count at 8 and a reserved word.
fn pairs(capability: &[u8]) -> Result<Vec<(u64, u64)>, Malformed> {
    const PAIRS_AT: usize = 16;
    let count = read_u32(capability, 8)? as usize;
    // A count beyond the bytes would make the vector large before the first read fails.
    if count > capability.len() / 16 {
        return Err(Malformed);
    }
    (0..count)
        .map(|index| {
            let at = PAIRS_AT + index * 16;
            Ok((read_u64(capability, at)?, read_u64(capability, at + 8)?))
        })
        .collect()
}

/// The device addresses that a container takes; `None` where the kernel does not say (before
/// Linux 5.4).
pub(super) fn iova_ranges(
    answer: &[u8],
    first: u32,
    head_bytes: usize,
) -> Result<Option<Vec<Range>>, Malformed> {
    let id = VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE;
    let Some(capability) = find(answer, first, head_bytes, id)? else {
        return Ok(None);
    };
    let ranges = pairs(capability)?;
    Ok(Some(
        ranges.into_iter().map(|(start, end)| start..=end).collect(),
    ))
}

/// How many more mappings a container takes; `None` where the kernel does not say (before
/// Linux 5.10).
pub(super) fn mappings_left(
    answer: &[u8],
    first: u32,
    head_bytes: usize,
) -> Result<Option<u32>, Malformed> {
    let id = VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL;
    let capability = find(answer, first, head_bytes, id)?;
    capability.map(|bytes| read_u32(bytes, 8)).transpose()
}

/// The stretches of a region that can be mapped, as (offset, bytes); `None` where that is the
/// whole region.
pub(super) fn sparse_areas(
    answer: &[u8],
    first: u32,
    head_bytes: usize,
) -> Result<Option<Vec<(u64, u64)>>, Malformed> {
    let id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
    find(answer, first, head_bytes, id)?.map(pairs).transpose()
}

#[cfg(test)]
pub(super) mod tests;
