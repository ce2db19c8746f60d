//! Where each selected tensor goes in one destination. Arithmetic only: moves nothing and
//! knows neither windows nor memory kinds.
//!
//! Bytes of a destination that no tensor, header or file covers are padding and must be zero.

mod gguf;
mod safetensors;

pub use gguf::gguf;
pub use safetensors::safetensors;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{IMAGE_FILE_ALIGNMENT, MAX_ALIGNMENT};
use crate::model::Model;
use crate::plan::Plan;
use crate::tensor_table::{FileIndex, TensorIndex};

/// A destination's layout.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// Bytes to put at the destination's start; `None` if the layout has no header of its own.
    pub header: Option<Vec<u8>>,
    /// Size of the destination in bytes, final padding included.
    pub len_bytes: u64,
    /// Where the tensors go, in plan order.
    pub tensors: Vec<PlacedTensor>,
    /// Whole files that are to be moved, headers and all, instead of single tensors: only in
    /// an [`image`], empty otherwise. The tensors then are views.
    pub files: Vec<PlacedFile>,
}

/// A tensor's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedTensor {
    /// Which tensor.
    pub tensor: TensorIndex,
    /// First byte, from the destination's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A whole file's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedFile {
    /// Which file.
    pub file: FileIndex,
    /// First byte, from the destination's start: a multiple of 2 MiB.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Library placement: the tensors one after the other in plan order, each at a multiple of
/// `align` bytes. No header; the destination is no file.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] unless `align` is a power of two up to [`MAX_ALIGNMENT`];
/// [`ErrorKind::TooLarge`] if the destination overflows `u64`.
pub fn packed(model: &Model, plan: &Plan, align: u64) -> Result<Placement> {
    if !align.is_power_of_two() || align > MAX_ALIGNMENT {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("an alignment of {align} bytes"),
            "use a power of two up to 16 MiB",
        ));
    }
    let mut end = 0;
    let tensors = plan
        .order
        .iter()
        .map(|&tensor| {
            let len = model.tensors()[tensor].len;
            let offset = align_up(end, align)?;
            end = add(offset, len)?;
            Ok(PlacedTensor {
                tensor,
                offset,
                len,
            })
        })
        .collect::<Result<_>>()?;
    Ok(Placement {
        header: None,
        len_bytes: end,
        tensors,
        files: Vec::new(),
    })
}

/// In-place placement: every file keeps its own layout; file `i` begins at a multiple of 2 MiB,
/// the first at 0. For a model of one file the destination is that file, byte for byte.
///
/// # Errors
/// [`ErrorKind::TooLarge`] if the destination overflows `u64`.
pub fn image(model: &Model) -> Result<Placement> {
    let mut end = 0;
    let mut files = Vec::with_capacity(model.files().len());
    for (file, index) in model.files().iter().zip((0..).map(FileIndex)) {
        let offset = align_up(end, IMAGE_FILE_ALIGNMENT)?;
        let len = file.len_bytes();
        end = add(offset, len)?;
        files.push(PlacedFile {
            file: index,
            offset,
            len,
        });
    }
    let tensors = model
        .tensors()
        .iter()
        .map(|(index, tensor)| PlacedTensor {
            tensor: index,
            offset: files[tensor.file.as_usize()].offset + tensor.offset,
            len: tensor.len,
        })
        .collect();
    Ok(Placement {
        header: None,
        len_bytes: end,
        tensors,
        files,
    })
}

fn overflow() -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "the destination would exceed 64-bit sizes",
        "select fewer tensors",
    )
}

fn align_up(offset: u64, align: u64) -> Result<u64> {
    offset.checked_next_multiple_of(align).ok_or_else(overflow)
}

fn add(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).ok_or_else(overflow)
}
