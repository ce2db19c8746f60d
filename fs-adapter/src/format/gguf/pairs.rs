//! Key-value pairs: walked to find where each ends, kept as bytes. Knows value types' sizes,
//! not what keys mean.

use super::FETCH_AGAIN;
use super::cursor::{Cursor, Stop};
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::limits::{MAX_GGUF_ARRAY_DEPTH, MAX_GGUF_KEY_BYTES};

/// `enum gguf_type`: the codes that are named here.
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// One key with its value as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The key; not empty.
    pub key: String,
    /// The value's type code (`enum gguf_type`: 4 is `uint32`, 8 a string, 9 an array).
    pub value_type: u32,
    /// The value's bytes, after the type code.
    pub value: Box<[u8]>,
    /// First byte of the pair, from the file's start; 0 for a pair made here.
    pub offset: u64,
}

impl Pair {
    /// A pair with a `uint32` value.
    #[must_use]
    pub fn from_u32(key: &str, value: u32) -> Self {
        Self {
            key: key.to_owned(),
            value_type: 4,
            value: value.to_le_bytes().into(),
            offset: 0,
        }
    }

    /// The value, if its type is `uint32`.
    #[must_use]
    pub fn as_u32(&self) -> Option<u32> {
        (self.value_type == 4)
            .then(|| {
                self.value
                    .first_chunk()
                    .map(|bytes| u32::from_le_bytes(*bytes))
            })
            .flatten()
    }

    /// The value, if it is an integer of any width that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        let signed = matches!(self.value_type, 1 | 3 | 5 | 11);
        if !signed && !matches!(self.value_type, 0 | 2 | 4 | 10) {
            return None;
        }
        let mut wide = [0; 8];
        wide.get_mut(..self.value.len())?
            .copy_from_slice(&self.value);
        let negative = signed && self.value.last().is_some_and(|byte| byte & 0x80 != 0);
        (!negative).then_some(u64::from_le_bytes(wide))
    }

    /// The value, if it is a string and UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        (self.value_type == STRING)
            .then(|| self.value.get(8..))?
            .and_then(|text| std::str::from_utf8(text).ok())
    }
}

/// Bytes of a scalar; `None` for strings, arrays and unknown types.
fn scalar_bytes(value_type: u32) -> Option<u64> {
    match value_type {
        0 | 1 | BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Pair, Stop> {
    let offset = cursor.position();
    let key = cursor.string("a key", MAX_GGUF_KEY_BYTES)?;
    if key.is_empty() {
        return Err(
            Error::new(ErrorKind::Malformed, "a key is empty", FETCH_AGAIN)
                .at_offset(offset)
                .into(),
        );
    }
    let value_type = cursor.u32()?;
    let mut measure = cursor.fork();
    skip_value(&mut measure, key, value_type, 0)?;
    let value = cursor.take(measure.position() - cursor.position())?.into();
    Ok(Pair {
        key: key.to_owned(),
        value_type,
        value,
        offset,
    })
}

pub(super) fn check_duplicates(pairs: &[Pair]) -> Result<()> {
    let mut order: Vec<&Pair> = pairs.iter().collect();
    order.sort_by_key(|pair| (pair.key.as_str(), pair.offset));
    match order.windows(2).find(|two| two[0].key == two[1].key) {
        Some(two) => Err(Error::new(
            ErrorKind::Duplicate,
            format!("the key {} occurs twice", quoted(&two[1].key)),
            FETCH_AGAIN,
        )
        .at_offset(two[1].offset)),
        None => Ok(()),
    }
}

fn skip_value(cursor: &mut Cursor<'_>, key: &str, value_type: u32, depth: u32) -> Result<(), Stop> {
    let start = cursor.position();
    let wrong = |kind, detail: String| {
        Stop::Error(
            Error::new(kind, format!("key {}: {detail}", quoted(key)), FETCH_AGAIN)
                .at_offset(start),
        )
    };
    match (value_type, scalar_bytes(value_type)) {
        (BOOL, _) => match cursor.u8()? {
            0 | 1 => Ok(()),
            other => Err(wrong(
                ErrorKind::Malformed,
                format!("{other} is no truth value"),
            )),
        },
        (_, Some(bytes)) => cursor.take(bytes).map(drop),
        (STRING, _) => skip_string(cursor),
        (ARRAY, _) => {
            if depth == MAX_GGUF_ARRAY_DEPTH {
                let detail = format!("arrays are nested deeper than {MAX_GGUF_ARRAY_DEPTH}");
                return Err(wrong(ErrorKind::TooLarge, detail));
            }
            let item_type = cursor.u32()?;
            let count = cursor.u64()?;
            skip_items(cursor, key, item_type, count, depth + 1)
        }
        _ => Err(wrong(
            ErrorKind::Malformed,
            format!("unknown value type {value_type}"),
        )),
    }
}

fn skip_items(
    cursor: &mut Cursor<'_>,
    key: &str,
    item_type: u32,
    count: u64,
    depth: u32,
) -> Result<(), Stop> {
    let min_bytes = match (item_type, scalar_bytes(item_type)) {
        (_, Some(bytes)) => bytes,
        (STRING, _) => 8,
        (ARRAY, _) => 12,
        _ => {
            let detail = format!("key {}: unknown item type {item_type}", quoted(key));
            return Err(Error::new(ErrorKind::Malformed, detail, FETCH_AGAIN)
                .at_offset(cursor.position())
                .into());
        }
    };
    let what = format!("array items for key {}", quoted(key));
    cursor.check_count(&what, count, min_bytes, usize::MAX)?;
    match item_type {
        BOOL | STRING | ARRAY => {
            for _ in 0..count {
                skip_value(cursor, key, item_type, depth)?;
            }
            Ok(())
        }
        _ => cursor.take(count * min_bytes).map(drop),
    }
}

fn skip_string(cursor: &mut Cursor<'_>) -> Result<(), Stop> {
    let len = cursor.u64()?;
    cursor.take(len).map(drop)
}
