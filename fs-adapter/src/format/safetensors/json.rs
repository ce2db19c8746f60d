//! The JSON of a safetensors header, into plain values. Knows grammar and nothing else: no
//! dtype, no offset rule.
//!
//! A visitor, because a map type would swallow repeated keys. Nesting cannot grow: every value
//! has a fixed shape, so the first bracket too many is a type error.

use super::{LENGTH_BYTES, NOT_VALID};
use crate::error::{Error, ErrorKind, Result, bad_json, quoted};
use crate::limits::{MAX_DIMS, MAX_TENSORS};
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::fmt;

/// No JSON, or JSON of another shape: from here the two look alike.
const EITHER: &str = "the file is damaged, or breaks the format's rules (whoever else reads it): \
                      fetch it again, or write it again with a current library";

/// One tensor as the JSON gives it; `begin` and `end` count from the payload's start.
pub(super) struct RawEntry {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) begin: u64,
    pub(super) end: u64,
}

#[derive(Default)]
pub(super) struct RawHeader {
    pub(super) metadata: Option<Vec<(String, String)>>,
    pub(super) entries: Vec<RawEntry>,
    duplicate: Option<(String, &'static str)>,
}

pub(super) fn parse(text: &str) -> Result<RawHeader> {
    let mut header = RawHeader::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer
        .deserialize_map(HeaderVisitor {
            header: &mut header,
        })
        .and_then(|()| deserializer.end())
        .map_err(|error| bad_json(text, LENGTH_BYTES, "the header", EITHER, error))?;
    match header.duplicate.take() {
        Some((tensor, field)) => Err(Error::new(
            ErrorKind::Duplicate,
            format!("the key {field:?} occurs twice"),
            NOT_VALID,
        )
        .at_tensor(&tensor)),
        None => Ok(header),
    }
}

struct HeaderVisitor<'a> {
    header: &'a mut RawHeader,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == super::METADATA_KEY {
                let pairs = map.next_value_seed(Metadata)?;
                if self.header.metadata.replace(pairs).is_some() {
                    self.header
                        .duplicate
                        .get_or_insert((name, super::METADATA_KEY));
                }
                continue;
            }
            let (entry, duplicate) =
                map.next_value_seed(Info { name: &name }).map_err(|error| {
                    A::Error::custom(format_args!("tensor {}: {error}", quoted(&name)))
                })?;
            if let Some(field) = duplicate {
                self.header.duplicate.get_or_insert((name, field));
            }
            self.header.entries.push(entry);
            if self.header.entries.len() > MAX_TENSORS {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX_TENSORS} tensors"
                )));
            }
        }
        Ok(())
    }
}

struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = Vec<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata, an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value::<String>().map_err(|error| {
                A::Error::custom(format_args!("metadata {}: {error}", quoted(&key)))
            })?;
            pairs.push((key, value));
        }
        Ok(pairs)
    }
}

struct Info<'a> {
    name: &'a str,
}

impl<'de> DeserializeSeed<'de> for Info<'_> {
    type Value = (RawEntry, Option<&'static str>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Info<'_> {
    type Value = (RawEntry, Option<&'static str>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut dtype, mut shape, mut offsets, mut duplicate) = (None, None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let repeated = match key.as_str() {
                "dtype" => dtype
                    .replace(map.next_value::<String>()?)
                    .is_some()
                    .then_some("dtype"),
                "shape" => shape
                    .replace(map.next_value_seed(Shape)?)
                    .is_some()
                    .then_some("shape"),
                "data_offsets" => offsets
                    .replace(map.next_value::<(u64, u64)>()?)
                    .is_some()
                    .then_some("data_offsets"),
                other => {
                    return Err(A::Error::custom(format_args!(
                        "unknown key {}",
                        quoted(other)
                    )));
                }
            };
            duplicate = duplicate.or(repeated);
        }
        let missing = |field| A::Error::custom(format_args!("{field:?} is missing"));
        let dtype = dtype.ok_or_else(|| missing("dtype"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        let (begin, end) = offsets.ok_or_else(|| missing("data_offsets"))?;
        Ok((
            RawEntry {
                name: self.name.to_owned(),
                dtype,
                shape,
                begin,
                end,
            },
            duplicate,
        ))
    }
}

struct Shape;

impl<'de> DeserializeSeed<'de> for Shape {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut shape = Vec::with_capacity(4);
        while let Some(dim) = seq.next_element::<u64>()? {
            shape.push(dim);
            if shape.len() > MAX_DIMS {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
        }
        Ok(shape)
    }
}
