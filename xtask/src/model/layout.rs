//! Names, types, shapes and places of the model's tensors, and the safetensors headers over them.
//!
//! The names and shapes are those of a decoder-only transformer; around them lie
//! the cases that loaders trip over: odd offsets, unpadded headers, empty and
//! 0-dimensional tensors, a hundred tiny ones beside one of a hundred megabytes.

use std::fmt::Write;

/// The index file's name, as Hugging Face writes it.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// How many files the model is cut into.
const SHARDS: u8 = 4;

/// Which of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Everything the format allows: tensors at odd offsets, every width of type.
    Odd,
    /// What common writers make: falling type size, padded headers. Some loaders take no other.
    Aligned,
}

impl Kind {
    /// The folder below `.xtask/models/`.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Odd => "big",
            Self::Aligned => "aligned",
        }
    }
}

/// Element types used here, by their safetensors names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtype {
    Bool,
    U8,
    I8,
    F8E4M3,
    F8E5M2,
    I16,
    F16,
    Bf16,
    I32,
    F32,
    I64,
    F64,
}

impl Dtype {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::I16 => "I16",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I32 => "I32",
            Self::F32 => "F32",
            Self::I64 => "I64",
            Self::F64 => "F64",
        }
    }

    fn size(self) -> u64 {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}

/// The transformer's sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    hidden: u64,
    inter: u64,
    kv: u64,
    vocab: u64,
}

impl Dims {
    /// A 1-billion-parameter model's.
    pub(crate) const BIG: Self = Self {
        hidden: 2048,
        inter: 5632,
        kv: 256,
        vocab: 32_003,
    };
    /// A model to test other programs with.
    pub(super) const SMALL: Self = Self {
        hidden: 512,
        inter: 1408,
        kv: 64,
        vocab: 8_003,
    };
    /// For tests.
    #[cfg(test)]
    pub(super) const TINY: Self = Self {
        hidden: 64,
        inter: 176,
        kv: 16,
        vocab: 1_003,
    };
}

/// One tensor in its shard.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    name: String,
    pub(super) dtype: Dtype,
    shape: Vec<u64>,
    /// Offsets in the shard's payload.
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Tensor {
    fn new(name: impl Into<String>, dtype: Dtype, shape: &[u64]) -> Self {
        let end = shape.iter().product::<u64>() * dtype.size();
        Self {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            begin: 0,
            end,
        }
    }

    fn len_bytes(&self) -> u64 {
        self.end - self.begin
    }
}

/// One file of the model.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    /// The length word and the JSON header.
    pub(super) head: Vec<u8>,
    pub(super) payload: u64,
    pub(super) tensors: Vec<Tensor>,
    pub(super) seed: u64,
}

impl Shard {
    pub(super) fn head_bytes(&self) -> u64 {
        self.head.len() as u64
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.head_bytes() + self.payload
    }
}

/// The model's files, their payloads together being exactly `payload` bytes.
pub(super) fn shards(kind: Kind, dims: &Dims, payload: u64) -> Vec<Shard> {
    let mut rest = tensors(kind, dims, payload).into_iter().peekable();
    let mut taken = 0;
    (1..=SHARDS)
        .map(|number| {
            let until = payload / u64::from(SHARDS) * u64::from(number);
            let mut mine = Vec::new();
            while let Some(tensor) = rest.next_if(|_| taken < until || number == SHARDS) {
                taken += tensor.len_bytes();
                mine.push(tensor);
            }
            shard(kind, number, mine)
        })
        .collect()
}

fn shard(kind: Kind, number: u8, mut tensors: Vec<Tensor>) -> Shard {
    if kind == Kind::Aligned {
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.size()));
    }
    let mut payload = 0;
    for tensor in &mut tensors {
        let length = tensor.len_bytes();
        tensor.begin = payload;
        tensor.end = payload + length;
        payload = tensor.end;
    }
    // The payload starts at 8 + header: odd for two shards of four.
    let residue = match (kind, number) {
        (Kind::Odd, 1) => 1,
        (Kind::Odd, 2) => 3,
        (Kind::Odd, 3) => 2,
        _ => 0,
    };
    let mut json = header(&tensors);
    while json.len() % 8 != residue {
        json.push(' ');
    }
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.extend(json.into_bytes());
    let name = format!("model-{number:05}-of-{SHARDS:05}.safetensors");
    Shard {
        name,
        head,
        payload,
        tensors,
        seed: 0x7562_696f_0000_0000 | u64::from(number),
    }
}

fn header(tensors: &[Tensor]) -> String {
    let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    for tensor in tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let _ = write!(
            json,
            r#","{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}}"#,
            tensor.name,
            tensor.dtype.name(),
            shape.join(","),
            tensor.begin,
            tensor.end,
        );
    }
    json.push('}');
    json
}

/// The text of `model.safetensors.index.json`.
pub(super) fn index(shards: &[Shard]) -> String {
    let total: u64 = shards.iter().map(|shard| shard.payload).sum();
    let map: serde_json::Map<String, serde_json::Value> = shards
        .iter()
        .flat_map(|shard| {
            let place = |tensor: &Tensor| (tensor.name.clone(), shard.name.clone().into());
            shard.tensors.iter().map(place)
        })
        .collect();
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    format!("{index:#}\n")
}

/// The tensors in layer order, filled up to exactly `payload` bytes.
fn tensors(kind: Kind, dims: &Dims, payload: u64) -> Vec<Tensor> {
    let mut all = vec![Tensor::new(
        "model.embed_tokens.weight",
        Dtype::Bf16,
        &[dims.vocab, dims.hidden],
    )];
    let mut tail = vec![
        Tensor::new("model.norm.weight", Dtype::F32, &[dims.hidden]),
        Tensor::new("lm_head.weight", Dtype::F16, &[dims.vocab, dims.hidden]),
        Tensor::new("model.rotary_emb.inv_freq", Dtype::F64, &[32]),
        Tensor::new("model.step", Dtype::I64, &[]),
    ];
    let bytes = |list: &[Tensor]| list.iter().map(Tensor::len_bytes).sum::<u64>();
    let mut used = bytes(&all) + bytes(&tail);
    for number in 0.. {
        let layer = layer(kind, dims, number);
        if used + bytes(&layer) >= payload {
            break;
        }
        used += bytes(&layer);
        all.extend(layer);
    }
    tail.push(Tensor::new(
        "model.vocab_bytes",
        Dtype::U8,
        &[payload - used],
    ));
    all.extend(tail);
    all
}

fn layer(kind: Kind, dims: &Dims, number: u64) -> Vec<Tensor> {
    use Dtype::{Bf16, Bool, F8E4M3, F8E5M2, F16, F32, I8, I16, I32};
    let Dims {
        hidden, inter, kv, ..
    } = *dims;
    let main = match number % 6 {
        0 | 1 | 5 => Bf16,
        2 => F16,
        3 => I8,
        _ => F8E4M3,
    };
    let name = |part: &str| format!("model.layers.{number}.{part}");
    let mut tensors = vec![
        Tensor::new(name("input_layernorm.weight"), F32, &[hidden]),
        Tensor::new(name("self_attn.q_proj.weight"), main, &[hidden, hidden]),
        Tensor::new(name("self_attn.k_proj.weight"), main, &[kv, hidden]),
        Tensor::new(name("self_attn.v_proj.weight"), main, &[kv, hidden]),
        Tensor::new(name("self_attn.o_proj.weight"), main, &[hidden, hidden]),
        Tensor::new(name("post_attention_layernorm.weight"), F32, &[hidden]),
        Tensor::new(name("mlp.gate_proj.weight"), main, &[inter, hidden]),
        Tensor::new(name("mlp.up_proj.weight"), main, &[inter, hidden]),
        Tensor::new(name("mlp.down_proj.weight"), main, &[hidden, inter]),
    ];
    if main.size() == 1 {
        tensors.push(Tensor::new(
            name("mlp.gate_proj.weight_scale"),
            F32,
            &[inter],
        ));
        tensors.push(Tensor::new(name("mlp.input_scale"), F32, &[]));
    }
    if kind == Kind::Odd {
        // An odd number of booleans puts all that follows at odd offsets.
        tensors.insert(1, Tensor::new(name("self_attn.mask"), Bool, &[17, 31]));
        tensors.push(Tensor::new(name("self_attn.kv_scale"), F8E5M2, &[3]));
        tensors.push(Tensor::new(name("self_attn.pruned_heads"), I32, &[0, 4]));
        tensors.push(Tensor::new(name("mlp.bias"), I16, &[7]));
        tensors.push(Tensor::new(name("mlp.gate"), Bool, &[]));
        tensors.push(Tensor::new(name("mlp.expert_counts"), I8, &[1, 5, 1]));
    }
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_describe_the_payload_without_gaps() {
        for kind in [Kind::Odd, Kind::Aligned] {
            for shard in shards(kind, &Dims::TINY, 9 << 20) {
                let length = u64::from_le_bytes(shard.head[..8].try_into().unwrap());
                assert_eq!(length + 8, shard.head_bytes());
                let json: serde_json::Value = serde_json::from_slice(&shard.head[8..]).unwrap();
                let mut ranges: Vec<(u64, u64)> = json
                    .as_object()
                    .unwrap()
                    .iter()
                    .filter(|(name, _)| *name != "__metadata__")
                    .map(|(_, tensor)| {
                        let offsets = &tensor["data_offsets"];
                        (offsets[0].as_u64().unwrap(), offsets[1].as_u64().unwrap())
                    })
                    .collect();
                ranges.sort_unstable();
                let end = ranges.iter().fold(0, |at, (begin, end)| {
                    assert_eq!(at, *begin);
                    *end
                });
                assert_eq!(end, shard.payload);
            }
        }
    }

    #[test]
    fn odd_has_what_loaders_trip_over() {
        let shards = shards(Kind::Odd, &Dims::BIG, super::super::PAYLOAD_BYTES);
        assert_eq!(shards.len(), 4);
        let all: Vec<&Tensor> = shards.iter().flat_map(|shard| &shard.tensors).collect();
        assert!(
            all.iter()
                .any(|tensor| tensor.begin % 2 == 1 && tensor.dtype.size() > 1)
        );
        assert!(all.iter().any(|tensor| tensor.shape.is_empty()));
        assert!(all.iter().any(|tensor| tensor.begin == tensor.end));
        assert!(all.iter().any(|tensor| tensor.len_bytes() > 100 << 20));
        assert!(shards.iter().any(|shard| shard.head_bytes() % 2 == 1));
        assert!(shards.iter().all(|shard| shard.payload > 400 << 20));
    }

    #[test]
    fn aligned_is_aligned() {
        for shard in shards(Kind::Aligned, &Dims::BIG, super::super::PAYLOAD_BYTES) {
            assert_eq!(shard.head_bytes() % 8, 0);
            assert!(shard.tensors.iter().all(|t| t.begin % t.dtype.size() == 0));
        }
    }
}
