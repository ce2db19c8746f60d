//! The safetensors header: parsed strictly, and written. Knows no files and no destinations.
//!
//! Layout (<https://github.com/huggingface/safetensors>, "Format"): 8 bytes little-endian
//! header length N, N bytes JSON starting with `{` and padded with spaces, then the tensors
//! back to back, without gaps, to the end of the file.
//!
//! The `safetensors` crate is not used here: its deserialiser keeps the last of two equal
//! keys without a word, ignores unknown fields, names no tensor when a size is wrong, searches
//! its names linearly for some errors, and wants the whole file as one slice. It is the oracle
//! in the tests instead: what is accepted or written here, it accepts.

mod json;
mod write;

pub use write::{HeaderEntry, write_header};

use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::limits::{MAX_DIMS, MAX_HEADER_BYTES, MAX_TENSORS};
use json::RawEntry;

/// Bytes of the length that starts a file.
pub const LENGTH_BYTES: u64 = 8;

/// The JSON key that holds free-form text instead of a tensor.
pub const METADATA_KEY: &str = "__metadata__";

const FETCH_AGAIN: &str = "the file is damaged: fetch or write it again";
const NOT_VALID: &str = "not a valid safetensors file: write it again with a current library";

/// A valid header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The free-form text of `__metadata__`, in the file's order; `None` if there is none.
    pub metadata: Option<Vec<(String, String)>>,
    /// The tensors by rising offset.
    pub tensors: Vec<Entry>,
    /// First payload byte, from the file's start.
    pub payload_offset: u64,
}

/// One tensor of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Box<[u64]>,
    /// First byte, from the file's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Whether `head` could start a safetensors file: a sane length, then a JSON object.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    let (Some(length), Some(b'{')) = (head.first_chunk::<8>(), head.get(8)) else {
        return false;
    };
    let next = head.get(9).copied().unwrap_or(b'}');
    u64::from_le_bytes(*length) <= MAX_HEADER_BYTES
        && (next == b'"' || next == b'}' || next.is_ascii_whitespace())
}

/// Reads the header length out of the first 8 bytes and checks it against the file.
///
/// # Errors
/// [`ErrorKind::Truncated`] if the file is shorter than the header, [`ErrorKind::TooLarge`]
/// past [`MAX_HEADER_BYTES`], [`ErrorKind::Malformed`] for a length too small for `{}`.
pub fn header_len(bytes: &[u8], file_len: u64) -> Result<u64> {
    let Some(length) = bytes
        .first_chunk::<8>()
        .filter(|_| file_len >= LENGTH_BYTES)
    else {
        return Err(Error::new(
            ErrorKind::Truncated,
            format!("{file_len} bytes are too few for a safetensors file"),
            FETCH_AGAIN,
        )
        .at_offset(0));
    };
    let length = u64::from_le_bytes(*length);
    let error = if length > MAX_HEADER_BYTES {
        Error::new(
            ErrorKind::TooLarge,
            format!("the header claims {length} bytes, at most {MAX_HEADER_BYTES} are allowed"),
            FETCH_AGAIN,
        )
    } else if length < 2 {
        Error::new(
            ErrorKind::Malformed,
            format!("the header claims {length} bytes, too few for a JSON object"),
            FETCH_AGAIN,
        )
    } else if length > file_len - LENGTH_BYTES {
        Error::new(
            ErrorKind::Truncated,
            format!("the header claims {length} bytes, but the file has {file_len} in all"),
            FETCH_AGAIN,
        )
    } else {
        return Ok(length);
    };
    Err(error.at_offset(0))
}

/// Parses and validates a header. `bytes` starts at the file's first byte and holds at least
/// the whole header; `file_len` is the file's length in bytes.
///
/// # Errors
/// One [`Error`] with tensor and offset where they are known: see [`ErrorKind`].
pub fn parse_header(bytes: &[u8], file_len: u64) -> Result<Header> {
    let length = header_len(bytes, file_len)?;
    let payload_offset = LENGTH_BYTES + length;
    let text = usize::try_from(payload_offset)
        .ok()
        .and_then(|end| bytes.get(8..end));
    let Some(text) = text else {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} bytes given, the header ends at {payload_offset}",
                bytes.len()
            ),
            "pass the whole header",
        ));
    };
    let text = std::str::from_utf8(text).map_err(|error| {
        Error::new(ErrorKind::Malformed, "the header is not UTF-8", FETCH_AGAIN)
            .at_offset(LENGTH_BYTES + error.valid_up_to() as u64)
            .caused_by(error)
    })?;
    if !text.starts_with('{') {
        return Err(Error::new(
            ErrorKind::Malformed,
            "the header does not begin with '{', as the format demands",
            NOT_VALID,
        )
        .at_offset(LENGTH_BYTES));
    }
    let raw = json::parse(text)?;
    let metadata = raw.metadata.map(check_metadata).transpose()?;
    if raw.entries.len() > MAX_TENSORS {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("more than {MAX_TENSORS} tensors"),
            "split the model into shards",
        ));
    }
    check_duplicates(&raw.entries)?;
    let tensors = raw
        .entries
        .into_iter()
        .map(|entry| check_entry(entry, payload_offset))
        .collect::<Result<Vec<_>>>()?;
    let tensors = check_layout(tensors, payload_offset, file_len)?;
    Ok(Header {
        metadata,
        tensors,
        payload_offset,
    })
}

fn check_metadata(pairs: Vec<(String, String)>) -> Result<Vec<(String, String)>> {
    let mut keys: Vec<&str> = pairs.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::new(
            ErrorKind::Duplicate,
            format!("the metadata key {} occurs twice", quoted(pair[0])),
            NOT_VALID,
        )),
        None => Ok(pairs),
    }
}

fn check_duplicates(entries: &[RawEntry]) -> Result<()> {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::new(
            ErrorKind::Duplicate,
            "the name occurs twice in the header",
            NOT_VALID,
        )
        .at_tensor(pair[0])),
        None => Ok(()),
    }
}

fn check_entry(raw: RawEntry, payload_offset: u64) -> Result<Entry> {
    let RawEntry {
        name,
        dtype,
        shape,
        begin,
        end,
    } = raw;
    let in_tensor = |error: Error| error.at_tensor(&name);
    let Some(dtype) = DType::from_safetensors_name(&dtype) else {
        return Err(in_tensor(Error::new(
            ErrorKind::Unsupported,
            format!("unknown dtype {}", quoted(&dtype)),
            "convert the tensor, or use a version that knows this type",
        )));
    };
    if shape.len() > MAX_DIMS {
        return Err(in_tensor(Error::new(
            ErrorKind::TooLarge,
            format!(
                "{} dimensions, at most {MAX_DIMS} are supported",
                shape.len()
            ),
            "store the tensor with fewer dimensions",
        )));
    }
    if begin > end {
        return Err(in_tensor(Error::new(
            ErrorKind::Malformed,
            format!("the data ends at {end}, before it begins at {begin}"),
            NOT_VALID,
        )));
    }
    let len = dtype.len_bytes(&shape).map_err(in_tensor)?;
    if len != end - begin {
        return Err(in_tensor(Error::new(
            ErrorKind::Malformed,
            format!(
                "shape {shape:?} of {dtype} takes {len} bytes, the header gives {}",
                end - begin
            ),
            NOT_VALID,
        )));
    }
    let offset = begin
        .checked_add(payload_offset)
        .filter(|offset| offset.checked_add(len).is_some());
    let Some(offset) = offset else {
        return Err(in_tensor(Error::new(
            ErrorKind::OutOfRange,
            format!("the data would begin at {begin}, past any file's end"),
            FETCH_AGAIN,
        )));
    };
    Ok(Entry {
        name,
        dtype,
        shape: shape.into_boxed_slice(),
        offset,
        len,
    })
}

/// Sorts by offset and demands that the tensors fill the payload: no gap, no overlap, no rest.
fn check_layout(mut tensors: Vec<Entry>, payload_offset: u64, file_len: u64) -> Result<Vec<Entry>> {
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.len));
    let mut end = payload_offset;
    let mut previous: Option<&str> = None;
    for tensor in &tensors {
        if tensor.offset != end {
            let before = previous.map_or("the header".to_owned(), |name| {
                format!("tensor {}", quoted(name))
            });
            let tensor_end = tensor.offset + tensor.len;
            let error = if tensor.offset < end {
                let detail = format!("overlaps {before} by {} bytes", end - tensor.offset);
                Error::new(ErrorKind::Malformed, detail, NOT_VALID)
            } else if tensor_end > file_len {
                let detail = format!("ends at byte {tensor_end}, but the file has {file_len}");
                Error::new(ErrorKind::OutOfRange, detail, FETCH_AGAIN)
            } else {
                let detail = format!(
                    "leaves a gap of {} bytes after {before}",
                    tensor.offset - end
                );
                Error::new(ErrorKind::Malformed, detail, NOT_VALID)
            };
            return Err(error.at_tensor(&tensor.name).at_offset(tensor.offset));
        }
        end = tensor.offset + tensor.len;
        previous = Some(&tensor.name);
    }
    if end > file_len {
        let cut = tensors
            .iter()
            .find(|tensor| tensor.offset + tensor.len > file_len);
        let error = Error::new(
            ErrorKind::Truncated,
            format!(
                "the file has {file_len} bytes, its tensors need {end}: {} missing",
                end - file_len
            ),
            FETCH_AGAIN,
        );
        return Err(match cut {
            Some(tensor) => error.at_tensor(&tensor.name).at_offset(tensor.offset),
            None => error,
        });
    }
    if end < file_len {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("{} bytes follow the last tensor", file_len - end),
            "cut the file to its header's size, or write it again",
        )
        .at_offset(end));
    }
    Ok(tensors)
}
