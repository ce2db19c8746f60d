//! Models made to order: valid ones, and the parts that broken ones are made of.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A tensor to be written: name, dtype, shape, bytes.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// Bytes that differ everywhere and from seed to seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(crate) fn entry(name: &str, dtype: &'static str, element: usize, shape: &[u64]) -> Entry {
    let elements: u64 = shape.iter().product();
    let len = usize::try_from(elements).expect("small") * element;
    let seed = name.bytes().map(u64::from).sum();
    Entry {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        bytes: noise(len, seed),
    }
}

/// Mixed types, odd offsets, empty and scalar tensors, one larger than a small window.
pub(crate) fn entries() -> Vec<Entry> {
    vec![
        entry("model.layers.1.weight", "F32", 4, &[300, 1001]),
        entry("model.layers.0.scale", "U8", 1, &[3]),
        entry("model.layers.0.weight", "BF16", 2, &[129, 1023]),
        entry("model.empty", "F16", 2, &[0, 7]),
        entry("model.scalar", "F64", 8, &[]),
        entry("model.embed.weight", "I8", 1, &[70_001]),
    ]
}

/// The bytes of a safetensors file with this header.
pub(crate) fn with_header(header: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn safetensors(entries: &[Entry]) -> Vec<u8> {
    let mut header = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut payload = Vec::new();
    for entry in entries {
        let begin = payload.len();
        payload.extend_from_slice(&entry.bytes);
        header += &format!(
            r#","{}":{{"dtype":"{}","shape":{:?},"data_offsets":[{begin},{}]}}"#,
            entry.name,
            entry.dtype,
            entry.shape,
            payload.len()
        );
    }
    header.push('}');
    with_header(&header, &payload)
}

/// A folder of two shards and their index.
pub(crate) fn write_shards(folder: &Path) -> Vec<Entry> {
    let mut first = entries();
    let second = first.split_off(3);
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let mut map = Vec::new();
    for (name, shard) in names.iter().zip([&first, &second]) {
        write(&folder.join(name), &safetensors(shard));
        map.extend(
            shard
                .iter()
                .map(|entry| format!(r#""{}":"{name}""#, entry.name)),
        );
    }
    let index = format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, map.join(","));
    write(
        &folder.join("model.safetensors.index.json"),
        index.as_bytes(),
    );
    first.into_iter().chain(second).collect()
}

/// A file of [`entries`] in `folder`.
pub(crate) fn write_model(folder: &Path) -> PathBuf {
    let path = folder.join("model.safetensors");
    write(&path, &safetensors(&entries()));
    path
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    let mut file = BufWriter::new(File::create(path).expect("create"));
    file.write_all(bytes).expect("write");
    file.into_inner().expect("flush").sync_all().expect("sync");
}

/// A safetensors file of `payload` bytes in tensors of 16 MiB, holes but for a byte in each.
pub(crate) fn write_sparse(path: &Path, payload: u64) {
    const TENSOR: u64 = 16 << 20;
    let tensors: Vec<String> = (0..payload / TENSOR)
        .map(|at| {
            format!(
                r#""t.{at}":{{"dtype":"U8","shape":[{TENSOR}],"data_offsets":[{},{}]}}"#,
                at * TENSOR,
                (at + 1) * TENSOR
            )
        })
        .collect();
    let head = with_header(&format!("{{{}}}", tensors.join(",")), &[]);
    let file = File::create(path).expect("create");
    file.set_len(head.len() as u64 + payload).expect("size");
    file.write_all_at(&head, 0).expect("header");
    for at in 0..payload / TENSOR {
        file.write_all_at(
            &[1 + u8::try_from(at % 255).expect("a byte")],
            head.len() as u64 + at * TENSOR,
        )
        .expect("a byte");
    }
    file.sync_all().expect("sync");
}

/// What a GGUF file is made of; every count and offset can lie.
pub(crate) struct Gguf {
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) pairs: Vec<Vec<u8>>,
    pub(crate) pair_count: Option<u64>,
    pub(crate) infos: Vec<Vec<u8>>,
    pub(crate) payload: Vec<u8>,
    pub(crate) align: usize,
}

impl Default for Gguf {
    fn default() -> Self {
        Self {
            version: 3,
            tensor_count: None,
            pairs: vec![pair("general.architecture", 8, &string("llama"))],
            pair_count: None,
            infos: vec![
                info("blk.1.w", &[1000], 0, 0),
                info("blk.0.w", &[64, 3], 1, 4000),
            ],
            payload: noise(4000 + 384, 5),
            align: 32,
        }
    }
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// A key with its type number and the value's bytes.
pub(crate) fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [string(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

/// A tensor's name, dimensions (innermost first), type number and offset.
pub(crate) fn info(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    let count = u32::try_from(dims.len()).expect("few dimensions");
    bytes.extend_from_slice(&count.to_le_bytes());
    for dim in dims {
        bytes.extend_from_slice(&dim.to_le_bytes());
    }
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes
}

impl Gguf {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        let tensors = self.tensor_count.unwrap_or(self.infos.len() as u64);
        bytes.extend_from_slice(&tensors.to_le_bytes());
        let pairs = self.pair_count.unwrap_or(self.pairs.len() as u64);
        bytes.extend_from_slice(&pairs.to_le_bytes());
        bytes.extend(self.pairs.concat());
        bytes.extend(self.infos.concat());
        bytes.resize(bytes.len().next_multiple_of(self.align), 0);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}
