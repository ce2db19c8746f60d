//! `*.safetensors.index.json`: which tensor is in which shard. Parses text; opens nothing and
//! knows no tensor's size.

use crate::error::{Error, ErrorKind, Result, bad_json, quoted};
use crate::file::check_relative;
use crate::limits::{MAX_SHARDS, MAX_TENSORS};
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use std::path::Path;

/// The key of the map from tensor names to shard names.
const WEIGHT_MAP: &str = "weight_map";

const FETCH_AGAIN: &str = "fetch the index again, or write it again from the shards";

/// A valid index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    /// The shards' names, sorted, each once: relative paths that stay inside the folder.
    pub shards: Vec<String>,
    /// Tensor names, sorted, each once, with the shard's place in `shards`.
    pub tensors: Vec<(String, usize)>,
}

impl ShardIndex {
    /// The shard that should hold this tensor, as a place in `shards`.
    #[must_use]
    pub fn shard_of(&self, tensor: &str) -> Option<usize> {
        let at = self
            .tensors
            .binary_search_by(|(name, _)| name.as_str().cmp(tensor))
            .ok()?;
        Some(self.tensors[at].1)
    }
}

/// Parses an index. Other top-level keys (`metadata` with its often wrong `total_size`) are
/// skipped.
///
/// # Errors
/// [`ErrorKind::Malformed`] for bad JSON, a missing or empty map, or a shard name that is no
/// string; [`ErrorKind::Duplicate`] for a repeated key; [`ErrorKind::UnsafePath`] for a shard
/// name that is absolute or has `..`; [`ErrorKind::TooLarge`] past the limits.
pub fn parse(bytes: &[u8]) -> Result<ShardIndex> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Error::new(ErrorKind::Malformed, "the index is not UTF-8", FETCH_AGAIN)
            .at_offset(error.valid_up_to() as u64)
            .caused_by(error)
    })?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let raw = deserializer
        .deserialize_map(TopVisitor)
        .and_then(|raw| deserializer.end().map(|()| raw))
        .map_err(|error| bad_json(text, 0, "the index", FETCH_AGAIN, error))?;
    if let Some(key) = raw.duplicate {
        let detail = format!("the key {} occurs twice in the index", quoted(&key));
        return Err(Error::new(ErrorKind::Duplicate, detail, FETCH_AGAIN));
    }
    let Some(map) = raw.weight_map.filter(|map| !map.is_empty()) else {
        let detail = format!("the index has no tensors in {WEIGHT_MAP:?}");
        return Err(Error::new(ErrorKind::Malformed, detail, FETCH_AGAIN));
    };
    resolve(map)
}

fn resolve(mut map: Vec<(String, String)>) -> Result<ShardIndex> {
    map.sort_unstable();
    if let Some(pair) = map.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let detail = "the tensor occurs twice in the index";
        return Err(Error::new(ErrorKind::Duplicate, detail, FETCH_AGAIN).at_tensor(&pair[1].0));
    }
    let mut shards: Vec<String> = map.iter().map(|(_, shard)| shard.clone()).collect();
    shards.sort_unstable();
    shards.dedup();
    if shards.len() > MAX_SHARDS {
        let detail = format!(
            "{} shards, at most {MAX_SHARDS} are supported",
            shards.len()
        );
        return Err(Error::new(
            ErrorKind::TooLarge,
            detail,
            "merge some of the shards",
        ));
    }
    for shard in &shards {
        check_relative(Path::new(shard)).map_err(|error| {
            match map.iter().find(|(_, named)| named == shard) {
                Some((tensor, _)) => error.at_tensor(tensor),
                None => error,
            }
        })?;
    }
    let tensors = map
        .into_iter()
        .filter_map(|(tensor, shard)| Some((tensor, shards.binary_search(&shard).ok()?)))
        .collect();
    Ok(ShardIndex { shards, tensors })
}

#[derive(Default)]
struct Raw {
    weight_map: Option<Vec<(String, String)>>,
    duplicate: Option<String>,
}

struct TopVisitor;

impl<'de> Visitor<'de> for TopVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an index object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        const MAX_KEYS: usize = 64;
        let mut raw = Raw::default();
        let mut keys: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == WEIGHT_MAP {
                raw.weight_map = Some(map.next_value::<WeightMap>()?.0);
            } else {
                // serde_json skips a value without recursion, however deep it is.
                map.next_value::<IgnoredAny>()?;
            }
            if keys.contains(&key) {
                raw.duplicate.get_or_insert(key);
            } else if keys.len() == MAX_KEYS {
                return Err(A::Error::custom(format_args!("more than {MAX_KEYS} keys")));
            } else {
                keys.push(key);
            }
        }
        Ok(raw)
    }
}

struct WeightMap(Vec<(String, String)>);

impl<'de> serde::Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor).map(Self)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensor names to shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(tensor) = map.next_key::<String>()? {
            let shard = map.next_value::<String>().map_err(|error| {
                A::Error::custom(format_args!("tensor {}: {error}", quoted(&tensor)))
            })?;
            pairs.push((tensor, shard));
            if pairs.len() > MAX_TENSORS {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX_TENSORS} tensors"
                )));
            }
        }
        Ok(pairs)
    }
}
