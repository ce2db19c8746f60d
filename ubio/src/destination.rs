//! A destination before its load begins: does the placement tell the truth about the model,
//! does the memory fit it, is it free; then header and padding are put in place. Callers can
//! make placements and memory themselves, so nothing is taken on trust here that a device or
//! a raw copy would later rely on.
//!
//! unsafe: writes header and padding into destination memory.
#![expect(
    unsafe_code,
    reason = "the destination is claimed and not handed out yet"
)]

use std::sync::Arc;

use fs_adapter::Model;
use fs_adapter::placement::Placement;

use crate::error::{Error, ErrorKind, Result};
use crate::plan::ALIGNMENT;
use crate::sys::claim::Claim;
use crate::sys::memory::{Region, round_up};

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
        .remedy("use a placement as fs_adapter::placement made it, and memory that fits it")
}

/// What bytes of the destination a placement covers, in order.
#[derive(Debug)]
pub(crate) struct Covered(Vec<(u64, u64)>);

/// Checks `placement` against the model it is said to be of.
///
/// # Errors
/// InvalidInput: a tensor or file the model has not, another length than it has there, a file
/// twice, ranges beyond the placement's length or over each other.
pub(crate) fn check(model: &Model, placement: &Placement) -> Result<Covered> {
    let mut ranges = Vec::with_capacity(placement.tensors.len() + placement.files.len() + 1);
    if let Some(header) = &placement.header {
        ranges.push((0, header.len() as u64));
    }
    for placed in &placement.tensors {
        let tensor = model.tensors().get(placed.tensor).ok_or_else(|| {
            invalid(format!(
                "the placement names tensor {}, which there is not",
                placed.tensor.0
            ))
        })?;
        if placed.len != tensor.len {
            let (name, len) = (&tensor.name, tensor.len);
            return Err(invalid(format!(
                "the placement has {} bytes for {name} of {len}",
                placed.len
            )));
        }
        // Also of one without bytes: it is looked at all the same.
        let end = placed.offset.checked_add(placed.len);
        if end.is_none_or(|end| end > placement.len_bytes) {
            return Err(invalid(format!(
                "{} lies beyond the placement's end",
                tensor.name
            )));
        }
        if placement.files.is_empty() {
            ranges.push((placed.offset, placed.len));
            continue;
        }
        let file = placement.files.iter().find(|file| file.file == tensor.file);
        let place = file.and_then(|file| file.offset.checked_add(tensor.offset));
        if place != Some(placed.offset) {
            return Err(invalid(format!(
                "{} is not where its file's image has it",
                tensor.name
            )));
        }
    }
    let mut placed_before = vec![false; model.files().len()];
    for placed in &placement.files {
        let file = model.files().get(placed.file.as_usize());
        if file.is_none_or(|file| file.len_bytes() != placed.len)
            || !placed.offset.is_multiple_of(ALIGNMENT)
        {
            return Err(invalid(format!(
                "the placement of file {} is not its image",
                placed.file.0
            )));
        }
        if std::mem::replace(&mut placed_before[placed.file.as_usize()], true) {
            return Err(invalid(format!("file {} is placed twice", placed.file.0)));
        }
        // Read in whole blocks: what a block has beyond the file is the file's too.
        ranges.push((placed.offset, round_up(placed.len, ALIGNMENT)));
    }
    covered(ranges, placement)
}

fn covered(mut ranges: Vec<(u64, u64)>, placement: &Placement) -> Result<Covered> {
    ranges.retain(|&(_, len)| len > 0);
    ranges.sort_unstable();
    let mut end = 0;
    for &(offset, len) in &ranges {
        if offset < end {
            return Err(invalid(format!(
                "the placement puts two things at byte {offset}"
            )));
        }
        end = offset
            .checked_add(len)
            .ok_or_else(|| invalid("the placement overflows".to_owned()))?;
    }
    let len_bytes = placement.len_bytes;
    let most = if placement.files.is_empty() {
        len_bytes
    } else {
        round_up(len_bytes, ALIGNMENT)
    };
    if end > most {
        return Err(invalid(format!(
            "the placement ends at {len_bytes}, its last byte at {end}"
        )));
    }
    Ok(Covered(ranges))
}

/// Checks that `region` can take `placement`, and claims it.
///
/// # Errors
/// InvalidInput (too small; in place: not aligned), Busy (somebody fills it, or a load's
/// tensors are looked at).
pub(crate) fn claim(region: &Arc<Region>, placement: &Placement) -> Result<Arc<Claim>> {
    let (has, mut needs) = (region.len_bytes(), placement.len_bytes);
    if !placement.files.is_empty() {
        needs = round_up(needs, ALIGNMENT);
        if !(region.address(0, 0) as u64).is_multiple_of(ALIGNMENT) {
            return Err(invalid(format!(
                "memory for a load in place begins at a multiple of {ALIGNMENT} bytes"
            )));
        }
    }
    if has < needs {
        return Err(invalid(format!(
            "the destination has {has} bytes, the load needs {needs}"
        )));
    }
    Claim::take(region, 0, has).map(Arc::new).ok_or_else(|| {
        Error::new(ErrorKind::Busy, "the destination is in use by another load")
            .remedy("drop what was loaded into it first")
    })
}

/// Writes the placement's header, and zeroes what lies between the tensors: memory that was
/// used before must not show through.
pub(crate) fn clear(region: &Region, placement: &Placement, covered: &Covered) {
    if let Some(header) = &placement.header {
        // SAFETY: the load has not begun and the region is claimed: nobody else touches it.
        unsafe { region.write(0, header) };
    }
    let mut end = 0;
    for &(offset, len) in covered.0.iter().chain([&(placement.len_bytes, 0)]) {
        if end < offset {
            // SAFETY: as above.
            unsafe { region.zero(end, offset - end) };
        }
        end = offset + len;
    }
}
