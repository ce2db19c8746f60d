//! Writes a GGUF header for tensors that lie back to back but for padding. Knows no sources.

use super::{MAGIC, Pair};
use crate::dtype::GgmlType;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MAX_HEADER_BYTES;

/// A tensor to be listed in a header.
#[derive(Debug, Clone, Copy)]
pub struct InfoEntry<'a> {
    /// The name.
    pub name: &'a str,
    /// The element type.
    pub dtype: GgmlType,
    /// Dimensions, outermost first; written innermost first.
    pub shape: &'a [u64],
    /// First byte, from the payload's start.
    pub begin: u64,
}

/// The file's bytes up to the payload, zero-padded to `alignment` (a power of two from 8).
///
/// llama.cpp demands that infos come in the order of the data and that each tensor begins at
/// the padded end of the one before: give `infos` so. `pairs` must agree with `alignment`.
///
/// # Errors
/// [`ErrorKind::TooLarge`] past [`MAX_HEADER_BYTES`].
pub fn write_header<'a>(
    version: u32,
    pairs: &[&Pair],
    infos: impl ExactSizeIterator<Item = InfoEntry<'a>>,
    alignment: u64,
) -> Result<Vec<u8>> {
    assert!(
        alignment.is_power_of_two() && alignment >= 8,
        "bad alignment"
    );
    let mut out = MAGIC.to_vec();
    out.extend(version.to_le_bytes());
    out.extend((infos.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    for pair in pairs {
        push_string(&mut out, &pair.key);
        out.extend(pair.value_type.to_le_bytes());
        out.extend(&pair.value);
    }
    for info in infos {
        push_string(&mut out, info.name);
        let dims = u32::try_from(info.shape.len()).expect("a GGUF tensor has few dimensions");
        out.extend(dims.to_le_bytes());
        for dim in info.shape.iter().rev() {
            out.extend(dim.to_le_bytes());
        }
        out.extend(info.dtype.code().to_le_bytes());
        out.extend(info.begin.to_le_bytes());
    }
    if out.len() as u64 > MAX_HEADER_BYTES {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the header would take {} bytes, at most {MAX_HEADER_BYTES}",
                out.len()
            ),
            "select fewer tensors",
        ));
    }
    let alignment = usize::try_from(alignment).unwrap_or(usize::MAX);
    out.resize(out.len().next_multiple_of(alignment), 0);
    Ok(out)
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
