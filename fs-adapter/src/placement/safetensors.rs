//! A destination that is a valid safetensors file. Knows the format's rules, no bytes.

use super::{PlacedTensor, Placement, add, overflow};
use crate::error::{Error, ErrorKind, Result};
use crate::format::safetensors::{HeaderEntry, write_header};
use crate::limits::SAFETENSORS_PAYLOAD_ALIGNMENT;
use crate::model::{Headers, Model};
use crate::plan::Plan;
use std::cmp::Reverse;
use std::collections::HashSet;

/// Places the tensors as a safetensors file: a header that ends on a page, then the tensors
/// without gaps, by falling element size (plan order within a size), so that each is aligned to
/// its type. Shards become one file; of their `__metadata__` the first value of each key stays.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the model is not safetensors; [`ErrorKind::TooLarge`] if
/// the header or the destination grows past its limit.
pub fn safetensors(model: &Model, plan: &Plan) -> Result<Placement> {
    let Headers::Safetensors(metadata) = model.headers() else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "a {} model cannot become a safetensors file",
                model.format()
            ),
            "keep the model's own format",
        ));
    };
    let table = model.tensors();
    let mut by_size: Vec<usize> = (0..plan.order.len()).collect();
    by_size.sort_by_key(|&at| Reverse(table[plan.order[at]].dtype.bits()));

    let mut begins = vec![0; plan.order.len()];
    let mut end = 0;
    for &at in &by_size {
        begins[at] = end;
        end = add(end, table[plan.order[at]].len)?;
    }
    let entries = by_size.iter().map(|&at| {
        let tensor = &table[plan.order[at]];
        HeaderEntry {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            begin: begins[at],
            len: tensor.len,
        }
    });
    let header = write_header(&merge(metadata), entries, SAFETENSORS_PAYLOAD_ALIGNMENT)?;
    let payload_offset = header.len() as u64;
    let len_bytes = end.checked_add(payload_offset).ok_or_else(overflow)?;
    let tensors = plan
        .order
        .iter()
        .zip(begins)
        .map(|(&tensor, begin)| PlacedTensor {
            tensor,
            offset: payload_offset + begin,
            len: table[tensor].len,
        })
        .collect();
    Ok(Placement {
        header: Some(header),
        len_bytes,
        tensors,
        files: Vec::new(),
    })
}

/// All keys in the order of their first occurrence, with their first value.
fn merge(metadata: &[Option<Vec<(String, String)>>]) -> Vec<(String, String)> {
    let mut seen = HashSet::new();
    metadata
        .iter()
        .flatten()
        .flatten()
        .filter(|(key, _)| seen.insert(key.as_str()))
        .cloned()
        .collect()
}
