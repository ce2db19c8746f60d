//! A destination that is a valid GGUF file. Knows the format's rules, no bytes.

use super::{PlacedTensor, Placement, add, align_up, overflow};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gguf::{ALIGNMENT_KEY, InfoEntry, Pair, check_alignment, write_header};
use crate::model::gguf_split::SPLIT_PREFIX;
use crate::model::{GgufHeader, Headers, Model};
use crate::plan::Plan;
use std::collections::HashSet;

/// Places the tensors as a GGUF file, in plan order, each at a multiple of the alignment.
///
/// Keys are kept byte for byte, except `general.alignment` where `align` (bytes) asks for
/// another one, and the `split.*` keys. The parts of a split become one file; of a key in
/// several parts the first value stays. The last tensor is padded too: llama.cpp reads the
/// padding.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the model is not GGUF or `align` is not a power of two
/// from 8 bytes to 16 MiB; [`ErrorKind::TooLarge`] if the header or the destination grows past
/// its limit.
pub fn gguf(model: &Model, plan: &Plan, align: Option<u64>) -> Result<Placement> {
    let Headers::Gguf(headers) = model.headers() else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("a {} model cannot become a GGUF file", model.format()),
            "keep the model's own format",
        ));
    };
    let Some(first) = headers.first() else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the model has no files",
            "open one",
        ));
    };
    let align = align.unwrap_or(first.alignment);
    let align_u32 =
        check_alignment(align).and_then(|()| u32::try_from(align).map_err(|_| overflow()));
    let align_u32 = align_u32.map_err(|error| {
        Error::new(
            ErrorKind::InvalidArgument,
            error.detail(),
            "use a power of two from 8 to 16 MiB",
        )
    })?;
    let changed = (align != first.alignment).then(|| Pair::from_u32(ALIGNMENT_KEY, align_u32));
    let pairs = merge(headers, changed.as_ref());

    let table = model.tensors();
    let mut end = 0;
    let mut tensors = plan
        .order
        .iter()
        .map(|&tensor| {
            let placed = PlacedTensor {
                tensor,
                offset: end,
                len: table[tensor].len,
            };
            end = align_up(add(end, placed.len)?, align)?;
            Ok(placed)
        })
        .collect::<Result<Vec<_>>>()?;
    let infos = tensors.iter().map(|placed| {
        let tensor = &table[placed.tensor];
        let DType::Ggml(dtype) = tensor.dtype else {
            unreachable!("tensors of a GGUF model have GGML types");
        };
        InfoEntry {
            name: &tensor.name,
            dtype,
            shape: &tensor.shape,
            begin: placed.offset,
        }
    });
    let header = write_header(first.version, &pairs, infos, align)?;
    let payload_offset = header.len() as u64;
    let len_bytes = end.checked_add(payload_offset).ok_or_else(overflow)?;
    tensors
        .iter_mut()
        .for_each(|placed| placed.offset += payload_offset);
    Ok(Placement {
        header: Some(header),
        len_bytes,
        tensors,
        files: Vec::new(),
    })
}

/// The keys of all parts, the first of each, without those about the split. A changed
/// alignment takes the place of the old one, or the end.
fn merge<'a>(headers: &'a [GgufHeader], changed: Option<&'a Pair>) -> Vec<&'a Pair> {
    let mut seen = HashSet::new();
    let mut pairs: Vec<&Pair> = headers
        .iter()
        .enumerate()
        .flat_map(|(part, header)| header.pairs.iter().map(move |pair| (part, pair)))
        // Another part's alignment says nothing about this file.
        .filter(|(part, pair)| *part == 0 || pair.key != ALIGNMENT_KEY)
        .map(|(_, pair)| pair)
        .filter(|pair| !pair.key.starts_with(SPLIT_PREFIX) && seen.insert(pair.key.as_str()))
        .collect();
    if let Some(changed) = changed {
        match pairs.iter_mut().find(|pair| pair.key == ALIGNMENT_KEY) {
            Some(old) => *old = changed,
            None => pairs.push(changed),
        }
    }
    pairs
}
