//! Writes a safetensors header for tensors that lie back to back. Knows no source files.

use super::{LENGTH_BYTES, METADATA_KEY};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MAX_HEADER_BYTES;
use std::io::Write as _;

/// A tensor to be listed in a header.
#[derive(Debug, Clone, Copy)]
pub struct HeaderEntry<'a> {
    /// The name.
    pub name: &'a str,
    /// The element type; not a GGML one.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: &'a [u64],
    /// First byte, from the payload's start.
    pub begin: u64,
    /// Bytes.
    pub len: u64,
}

/// The file's bytes up to the payload: length, JSON, and spaces so that the payload starts at
/// a multiple of `payload_alignment` bytes (a power of two, at least 8).
///
/// The entries are written in the given order. They must have distinct names and lie back to
/// back; that is the caller's duty, and a reader's check.
///
/// # Errors
/// [`ErrorKind::TooLarge`] past the format's header limit, [`ErrorKind::Unsupported`] for a
/// GGML type or a tensor that bears the metadata's name.
pub fn write_header<'a>(
    metadata: &[(String, String)],
    entries: impl IntoIterator<Item = HeaderEntry<'a>>,
    payload_alignment: u64,
) -> Result<Vec<u8>> {
    assert!(
        payload_alignment.is_power_of_two() && payload_alignment >= 8,
        "bad alignment"
    );
    let mut out = vec![0; 8];
    out.push(b'{');
    if !metadata.is_empty() {
        push_string(&mut out, METADATA_KEY);
        out.extend(b":{");
        for (key, value) in metadata {
            push_string(&mut out, key);
            out.push(b':');
            push_string(&mut out, value);
            out.push(b',');
        }
        out.pop();
        out.extend(b"},");
    }
    for entry in entries {
        if entry.dtype.bits().is_none() || entry.name == METADATA_KEY {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "a {} tensor of this name does not fit into safetensors",
                    entry.dtype
                ),
                "keep the model's own format",
            )
            .at_tensor(entry.name));
        }
        push_string(&mut out, entry.name);
        let (dtype, begin, end) = (entry.dtype.name(), entry.begin, entry.begin + entry.len);
        let shape = entry
            .shape
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(",");
        write!(
            out,
            r#":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}},"#
        )
        .expect("writing to memory cannot fail");
    }
    if out.last() == Some(&b',') {
        out.pop();
    }
    out.push(b'}');
    let alignment = usize::try_from(payload_alignment).unwrap_or(usize::MAX);
    out.resize(out.len().next_multiple_of(alignment), b' ');
    let length = out.len() as u64 - LENGTH_BYTES;
    if length > MAX_HEADER_BYTES {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("the header would take {length} bytes, at most {MAX_HEADER_BYTES} are allowed"),
            "select fewer tensors",
        ));
    }
    out[..8].copy_from_slice(&length.to_le_bytes());
    Ok(out)
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string always serialises into memory");
}
