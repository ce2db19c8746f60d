//! Placement: the destination is what it claims to be, for random tensors.

use crate::build::{Folder, Gguf, counting, open, refused, safetensors, text};
use fs_adapter::format::{gguf as gguf_format, safetensors as safetensors_format};
use fs_adapter::placement::{self, Placement};
use fs_adapter::plan::{Order, Plan, Selection};
use fs_adapter::{DType, ErrorKind, GgmlType, Model};
use proptest::prelude::*;
use std::os::unix::fs::FileExt as _;

fn all(model: &Model) -> Plan {
    Plan::new(model, &Selection::all(), Order::File).expect("a plan")
}

fn read(model: &Model, file: usize, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    model.files()[file]
        .file()
        .read_exact_at(&mut bytes, offset)
        .expect("a read");
    bytes
}

/// Moves the bytes as a placement says, onto zeros; every byte at most once.
fn moved(model: &Model, placement: &Placement) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(placement.len_bytes).expect("small")];
    let mut taken = vec![false; out.len()];
    let mut put = |offset: u64, bytes: &[u8]| {
        let at = usize::try_from(offset).expect("small");
        assert!(
            !taken[at..at + bytes.len()].contains(&true),
            "written twice"
        );
        taken[at..at + bytes.len()].fill(true);
        out[at..at + bytes.len()].copy_from_slice(bytes);
    };
    if let Some(header) = &placement.header {
        put(0, header);
    }
    for file in &placement.files {
        put(file.offset, &read(model, file.file.as_usize(), 0, file.len));
    }
    if placement.files.is_empty() {
        for placed in &placement.tensors {
            let tensor = &model.tensors()[placed.tensor];
            assert_eq!(placed.len, tensor.len);
            put(
                placed.offset,
                &read(model, tensor.file.as_usize(), tensor.offset, tensor.len),
            );
        }
    }
    out
}

/// Opens what was moved and demands that every placed tensor is there, equal.
fn reopened(model: &Model, placement: &Placement, name: &str) -> Model {
    let folder = Folder::new();
    let result = open(folder.write(name, moved(model, placement))).expect("a valid result");
    assert_eq!(result.tensors().len(), placement.tensors.len());
    for placed in &placement.tensors {
        let from = &model.tensors()[placed.tensor];
        let to = &result.tensors()[result.tensors().find(&from.name).expect("the name")];
        assert_eq!(
            (to.dtype, &to.shape, to.offset, to.len),
            (from.dtype, &from.shape, placed.offset, from.len)
        );
        assert_eq!(
            read(&result, 0, to.offset, to.len),
            read(model, from.file.as_usize(), from.offset, from.len),
        );
    }
    result
}

/// Name, type and shape of a random tensor.
type Spec = (String, DType, Vec<u64>);

fn safetensors_specs() -> impl Strategy<Value = Vec<Spec>> {
    let dtype = proptest::sample::select(DType::safetensors().collect::<Vec<_>>());
    let shape = proptest::collection::vec(0u64..5, 0..4);
    let spec =
        ("[a-z.\"\\\\é\u{1}\u{10ffff}]{0,8}", dtype, shape).prop_map(|(name, dtype, mut shape)| {
            // Whole bytes for every type: one dimension of 4.
            shape.push(4);
            (name, dtype, shape)
        });
    proptest::collection::vec(spec, 0..12).prop_map(|mut specs| {
        specs.sort_by(|a, b| a.0.cmp(&b.0));
        specs.dedup_by(|a, b| a.0 == b.0);
        specs
    })
}

fn safetensors_file(specs: &[Spec]) -> Vec<u8> {
    let mut end = 0;
    let entries: Vec<String> = specs
        .iter()
        .map(|(name, dtype, shape)| {
            let begin = end;
            end += dtype.len_bytes(shape).expect("small");
            let name = serde_json::to_string(name).expect("a string");
            format!(
                r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            )
        })
        .collect();
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}}{}{}}}"#,
        if entries.is_empty() { "" } else { "," },
        entries.join(",")
    );
    safetensors(&header, usize::try_from(end).expect("small"))
}

fn gguf_specs() -> impl Strategy<Value = Vec<Spec>> {
    let dtype = proptest::sample::select(GgmlType::all().collect::<Vec<_>>());
    let spec = (
        "[a-z.é]{1,8}",
        dtype,
        proptest::collection::vec(0u64..4, 0..3),
        0u64..3,
    )
        .prop_map(|(name, dtype, mut shape, blocks)| {
            shape.push(blocks * dtype.block_elements());
            (name, DType::Ggml(dtype), shape)
        });
    proptest::collection::vec(spec, 0..12).prop_map(|mut specs| {
        specs.sort_by(|a, b| a.0.cmp(&b.0));
        specs.dedup_by(|a, b| a.0 == b.0);
        specs
    })
}

fn gguf_file(specs: &[Spec], align: usize) -> Vec<u8> {
    let mut gguf = Gguf::new()
        .string("general.architecture", "llama")
        .align(align)
        .u32("x", 7);
    let mut end = 0;
    for (name, dtype, shape) in specs {
        let DType::Ggml(ggml) = *dtype else {
            panic!("GGML types only")
        };
        let dims: Vec<u64> = shape.iter().rev().copied().collect();
        gguf = gguf.tensor(name, &dims, ggml.code(), end);
        end = (end + dtype.len_bytes(shape).expect("small")).next_multiple_of(align as u64);
    }
    gguf.data(usize::try_from(end).expect("small")).build()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn safetensors_come_back_equal(specs in safetensors_specs()) {
        let folder = Folder::new();
        let model = open(folder.write("model.safetensors", safetensors_file(&specs))).expect("valid");
        let placement = placement::safetensors(&model, &all(&model)).expect("a placement");
        let result = reopened(&model, &placement, "model.safetensors");
        let payload = placement.header.as_ref().expect("a header").len() as u64;
        prop_assert_eq!(payload % 4096, 0);
        for tensor in result.tensors().as_slice() {
            let size = tensor.dtype.bits().expect("bits").div_ceil(8);
            // 6-bit types have no power of two to be aligned to; their size in bytes is 1.
            prop_assert_eq!(tensor.offset % size, 0);
        }
        let again = placement::safetensors(&result, &all(&result)).expect("a placement");
        prop_assert_eq!(moved(&result, &again), moved(&model, &placement));
    }

    #[test]
    fn gguf_comes_back_equal(specs in gguf_specs(), from in 3u32..8, to in proptest::option::of(3u32..13)) {
        let folder = Folder::new();
        let model = open(folder.write("model.gguf", gguf_file(&specs, 1 << from))).expect("valid");
        let align = to.map(|to| 1u64 << to);
        let placement = placement::gguf(&model, &all(&model), align).expect("a placement");
        let result = reopened(&model, &placement, "model.gguf");
        let align = align.unwrap_or(1 << from);
        let bytes = moved(&model, &placement);
        let header = gguf_format::parse_header(&bytes, bytes.len() as u64).expect("valid");
        prop_assert_eq!(header.alignment, align);
        prop_assert_eq!(header.pairs.len(), 3);
        // What llama.cpp demands: infos in the order of the data, padded, nothing between.
        let mut end = header.payload_offset;
        for tensor in &header.tensors {
            prop_assert_eq!(tensor.offset, end);
            end = (end + tensor.len).next_multiple_of(align);
        }
        prop_assert_eq!(end, placement.len_bytes);
        prop_assert_eq!(result.tensors().len(), specs.len());
    }

    #[test]
    fn packed_is_aligned_and_in_plan_order(specs in safetensors_specs(), align in 0u32..16) {
        let folder = Folder::new();
        let model = open(folder.write("model.safetensors", safetensors_file(&specs))).expect("valid");
        let plan = all(&model);
        let placement = placement::packed(&model, &plan, 1 << align).expect("a placement");
        let order: Vec<_> = placement.tensors.iter().map(|placed| placed.tensor).collect();
        prop_assert_eq!(order, plan.order);
        let mut end = 0u64;
        for placed in &placement.tensors {
            prop_assert_eq!(placed.offset, end.next_multiple_of(1 << align));
            end = placed.offset + placed.len;
        }
        prop_assert_eq!(placement.len_bytes, end);
        moved(&model, &placement);
    }
}

fn two_shards(first: &str, second: &str) -> (Folder, Model) {
    let folder = Folder::new();
    folder.write("model-00001-of-00002.safetensors", safetensors(first, 3));
    folder.write("model-00002-of-00002.safetensors", safetensors(second, 8));
    let model = open(folder.root()).expect("valid");
    (folder, model)
}

#[test]
fn shards_become_one_file_with_their_metadata() {
    let (_folder, model) = two_shards(
        r#"{"__metadata__":{"format":"pt","a":"1"},"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#,
        r#"{"__metadata__":{"a":"2","b":"3"},"y":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#,
    );
    let placement = placement::safetensors(&model, &all(&model)).expect("a placement");
    let bytes = moved(&model, &placement);
    let header = safetensors_format::parse_header(&bytes, bytes.len() as u64).expect("valid");
    let metadata: Vec<(&str, &str)> = header
        .metadata
        .iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(metadata, [("format", "pt"), ("a", "1"), ("b", "3")]);
    // The larger type comes first in the file, the plan keeps its own order.
    assert_eq!(header.tensors[0].name, "y");
    assert_eq!(placement.tensors[0].offset, header.payload_offset + 8);
    reopened(&model, &placement, "one.safetensors");
}

#[test]
fn an_image_keeps_the_files() {
    let (_folder, model) = two_shards(
        r#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#,
        r#"{"y":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#,
    );
    let image = placement::image(&model).expect("an image");
    assert_eq!((image.files[0].offset, image.files[1].offset), (0, 2 << 20));
    let bytes = moved(&model, &image);
    for placed in &image.tensors {
        let tensor = &model.tensors()[placed.tensor];
        let at = usize::try_from(placed.offset).expect("small");
        let len = usize::try_from(placed.len).expect("small");
        assert_eq!(
            bytes[at..at + len],
            read(&model, tensor.file.as_usize(), tensor.offset, tensor.len)
        );
    }
    let folder = Folder::new();
    let whole: Vec<u8> = counting(5000).collect();
    let raw = open(folder.write("raw.bin", &whole)).expect("raw");
    assert_eq!(
        moved(&raw, &placement::image(&raw).expect("an image")),
        whole
    );
}

#[test]
fn a_split_becomes_one_gguf_without_split_keys() {
    let folder = Folder::new();
    let part = |number: u16, name: &str, extra: &str| {
        Gguf::new()
            .string("general.architecture", "llama")
            .u16("split.no", number)
            .u16("split.count", 2)
            .pair(
                extra,
                9,
                &[&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &text("v")].concat(),
            )
            .tensor(name, &[8], 0, 0)
            .data(32)
            .build()
    };
    folder.write("m-00001-of-00002.gguf", part(0, "a", "first"));
    folder.write("m-00002-of-00002.gguf", part(1, "b", "second"));
    let model = open(folder.root()).expect("valid");
    let placement = placement::gguf(&model, &all(&model), Some(4096)).expect("a placement");
    let bytes = moved(&model, &placement);
    let header = gguf_format::parse_header(&bytes, bytes.len() as u64).expect("valid");
    let keys: Vec<&str> = header.pairs.iter().map(|pair| pair.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "general.architecture",
            "first",
            "second",
            "general.alignment"
        ]
    );
    assert_eq!(header.pairs[0].as_str(), Some("llama"));
    reopened(&model, &placement, "one.gguf");
}

#[test]
fn a_selection_becomes_a_valid_file() {
    let folder = Folder::new();
    let gguf = Gguf::small()
        .tensor("u", &[32], 2, 32)
        .tensor("v", &[4], 0, 64)
        .data(80);
    let model = open(folder.write("m.gguf", gguf.build())).expect("valid");
    let selection = Selection::new(["[uv]"]).expect("a glob");
    let plan = Plan::new(&model, &selection, Order::File).expect("a plan");
    let placement = placement::gguf(&model, &plan, None).expect("a placement");
    assert_eq!(reopened(&model, &placement, "m.gguf").tensors().len(), 2);
}

#[test]
fn impossible_placements_are_refused() {
    use ErrorKind::InvalidArgument;
    let folder = Folder::new();
    let gguf = open(folder.write("m.gguf", Gguf::small().build())).expect("valid");
    let raw = open(folder.write("raw.bin", [1])).expect("valid");
    for align in [0, 3, 24, 1 << 40] {
        refused(
            "packed",
            placement::packed(&raw, &all(&raw), align),
            InvalidArgument,
            "alignment",
        );
    }
    for align in [0, 4, 24, 1 << 40] {
        refused(
            "gguf",
            placement::gguf(&gguf, &all(&gguf), Some(align)),
            InvalidArgument,
            "alignment",
        );
    }
    refused(
        "gguf as safetensors",
        placement::safetensors(&gguf, &all(&gguf)),
        InvalidArgument,
        "gguf",
    );
    refused(
        "raw as gguf",
        placement::gguf(&raw, &all(&raw), None),
        InvalidArgument,
        "raw",
    );
}
