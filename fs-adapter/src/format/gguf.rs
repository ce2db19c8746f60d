//! The GGUF header: parsed strictly, and written. Knows no files and no destinations.
//!
//! Layout (ggml `docs/gguf.md`): magic, version, counts, key-value pairs, tensor infos,
//! padding to `general.alignment`, then the tensors, each at a multiple of that alignment.
//! Numbers are little-endian.
//!
//! Values of keys are walked, not decoded: they are carried to a destination byte for byte.
//! So strings inside values are not required to be UTF-8 (old tokenizers are not); keys and
//! tensor names are.
//!
//! No crate is used: `gguf` 0.1.2 knows 18 of today's 35 types, allocates by the file's own
//! counts, and checks no extents. llama.cpp's reader (`gguf.cpp`) and the Python `gguf` package
//! are what the rules were taken from. Stricter than both here: overlaps, padding, trailing
//! bytes, truth values. More lenient than llama.cpp: gaps between tensors, any order of infos,
//! names of 64 bytes and more, arrays in arrays.

mod cursor;
mod layout;
mod pairs;
mod write;

pub use pairs::Pair;
pub use write::{InfoEntry, write_header};

use crate::dtype::{DType, GgmlType};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{MAX_ALIGNMENT, MAX_GGUF_DIMS, MAX_GGUF_KEYS, MAX_HEADER_BYTES, MAX_TENSORS};
use cursor::{Cursor, Stop};

/// The first bytes of every GGUF file.
pub const MAGIC: &[u8] = b"GGUF";

/// Alignment of a file that names none, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The key that sets the alignment of tensors, a `uint32`.
pub const ALIGNMENT_KEY: &str = "general.alignment";

const FETCH_AGAIN: &str = "the file is damaged: fetch or write it again";

/// A valid header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Format version, 2 or 3 (their layouts are equal).
    pub version: u32,
    /// The key-value pairs in the file's order, undecoded.
    pub pairs: Vec<Pair>,
    /// Alignment of tensors in bytes: a power of two, at least 8.
    pub alignment: u64,
    /// The tensors in the order of their infos.
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
    pub dtype: GgmlType,
    /// Dimensions, outermost first; the file has them the other way round.
    pub shape: Box<[u64]>,
    /// First byte, from the file's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Parses and validates a header. `bytes` starts at the file's first byte and holds at least
/// the whole header; `file_len` is the file's length in bytes.
///
/// # Errors
/// One [`Error`] with tensor and offset where they are known: see [`ErrorKind`].
pub fn parse_header(bytes: &[u8], file_len: u64) -> Result<Header> {
    match parse_prefix(bytes, file_len)? {
        Some(header) => Ok(header),
        None => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the header is longer than the {} bytes given", bytes.len()),
            "pass the whole header",
        )),
    }
}

/// Like [`parse_header`], but gives `None` if the header goes on after `bytes` and could still
/// be valid: read more and call again.
///
/// # Errors
/// As [`parse_header`]; [`ErrorKind::TooLarge`] past [`MAX_HEADER_BYTES`].
pub fn parse_prefix(bytes: &[u8], file_len: u64) -> Result<Option<Header>> {
    match parse(&mut Cursor::new(bytes, file_len)) {
        Ok(header) => Ok(Some(header)),
        Err(Stop::NeedMore) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn parse(cursor: &mut Cursor<'_>) -> Result<Header, Stop> {
    let version = preamble(cursor)?;
    let tensor_count = cursor.u64()?;
    let pair_count = cursor.u64()?;
    let tensor_count = cursor.check_count("tensors", tensor_count, 8 + 4 + 4 + 8, MAX_TENSORS)?;
    let pair_count = cursor.check_count("keys", pair_count, 8 + 1 + 4 + 1, MAX_GGUF_KEYS)?;

    let mut pairs = Vec::new();
    for _ in 0..pair_count {
        pairs.push(pairs::read(cursor)?);
    }
    pairs::check_duplicates(&pairs)?;
    let alignment = alignment(&pairs)?;

    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(info(cursor, alignment)?);
    }
    let header_end = cursor.position();
    let payload_offset = header_end.next_multiple_of(alignment);
    let tensors = layout::check(
        infos,
        header_end,
        payload_offset,
        alignment,
        cursor.file_len(),
    )?;
    Ok(Header {
        version,
        pairs,
        alignment,
        tensors,
        payload_offset,
    })
}

fn preamble(cursor: &mut Cursor<'_>) -> Result<u32, Stop> {
    if cursor.take(4)? != MAGIC {
        return Err(Error::new(
            ErrorKind::NotAModel,
            "the file does not start with the letters GGUF",
            "name a GGUF file; a web page or a pointer file may have been saved in its place",
        )
        .at_offset(0)
        .into());
    }
    let version = cursor.u32()?;
    let (detail, remedy) = match version {
        2 | 3 => return Ok(version),
        1 => (
            "GGUF version 1".to_owned(),
            "convert the file with a current llama.cpp",
        ),
        _ if version & 0xffff == 0 && version != 0 => (
            format!("the file is big-endian (version {})", version.swap_bytes()),
            "convert it with gguf-convert-endian",
        ),
        _ => (
            format!("GGUF version {version}; versions 2 and 3 are supported"),
            "write the file as version 3",
        ),
    };
    Err(Error::new(ErrorKind::Unsupported, detail, remedy)
        .at_offset(4)
        .into())
}

fn alignment(pairs: &[Pair]) -> Result<u64, Stop> {
    let Some(pair) = pairs.iter().find(|pair| pair.key == ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let Some(value) = pair.as_u32().map(u64::from) else {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("{ALIGNMENT_KEY} is not a uint32"),
            FETCH_AGAIN,
        )
        .at_offset(pair.offset)
        .into());
    };
    check_alignment(value).map_err(|error| error.at_offset(pair.offset))?;
    Ok(value)
}

/// Checks an alignment of GGUF tensors: what the specification demands (a multiple of 8) and
/// what both readers demand (a power of two).
pub(crate) fn check_alignment(alignment: u64) -> Result<()> {
    let (kind, what) = if alignment > MAX_ALIGNMENT {
        (ErrorKind::TooLarge, "too large")
    } else if !alignment.is_power_of_two() {
        (ErrorKind::Malformed, "not a power of two")
    } else if alignment < 8 {
        (ErrorKind::Malformed, "not a multiple of 8")
    } else {
        return Ok(());
    };
    Err(Error::new(
        kind,
        format!("an alignment of {alignment} bytes is {what}"),
        "use a power of two from 8 bytes to 16 MiB",
    ))
}

/// A tensor info; `offset` counts from the payload's start until the layout is checked.
fn info(cursor: &mut Cursor<'_>, alignment: u64) -> Result<Entry, Stop> {
    let start = cursor.position();
    let name = cursor
        .string("a tensor's name", MAX_HEADER_BYTES)?
        .to_owned();
    let place = |error: Error| Stop::Error(error.at_tensor(&name).at_offset(start));
    let dims = cursor.u32()?;
    if dims > MAX_GGUF_DIMS {
        return Err(place(Error::new(
            ErrorKind::Malformed,
            format!("{dims} dimensions, at most {MAX_GGUF_DIMS} are allowed"),
            FETCH_AGAIN,
        )));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cursor.u64()?);
    }
    shape.reverse();
    let code = cursor.u32()?;
    let offset = cursor.u64()?;
    let Some(dtype) = GgmlType::from_code(code) else {
        return Err(place(Error::new(
            ErrorKind::Unsupported,
            format!("unknown GGML type {code}"),
            "use a version that knows this type, or quantise the model again",
        )));
    };
    // llama.cpp's bound on dimensions and on their product.
    if shape.iter().any(|&dim| i64::try_from(dim).is_err()) {
        return Err(place(Error::new(
            ErrorKind::TooLarge,
            format!("shape {shape:?} overflows 63-bit sizes"),
            FETCH_AGAIN,
        )));
    }
    let len = DType::Ggml(dtype).len_bytes(&shape).map_err(place)?;
    if offset % alignment != 0 {
        return Err(place(Error::new(
            ErrorKind::Malformed,
            format!("the data offset {offset} is not a multiple of the alignment {alignment}"),
            FETCH_AGAIN,
        )));
    }
    Ok(Entry {
        name,
        dtype,
        shape: shape.into_boxed_slice(),
        offset,
        len,
    })
}
