//! The reference implementation as judge: what is accepted here it accepts, what is written
//! here it reads.

use crate::build::{Folder, open, safetensors};
use fs_adapter::DType;
use fs_adapter::format::safetensors::parse_header;
use fs_adapter::placement;
use fs_adapter::plan::{Order, Plan, Selection};
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};

#[test]
fn names_and_sizes_of_types_are_the_reference_ones() {
    for dtype in DType::safetensors() {
        let theirs: Dtype = serde_json::from_str(&format!("\"{dtype}\"")).expect("a known name");
        assert_eq!(Some(theirs.bitsize() as u64), dtype.bits(), "{dtype}");
    }
}

#[test]
fn the_reference_reads_a_placed_file() {
    let folder = Folder::new();
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
        "e":{"dtype":"I64","shape":[0,2],"data_offsets":[3,3]},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}}"#;
    let model = open(folder.write("m.safetensors", safetensors(header, 11))).expect("valid");
    let plan = Plan::new(&model, &Selection::all(), Order::File).expect("a plan");
    let placement = placement::safetensors(&model, &plan).expect("a placement");
    let mut bytes = placement.header.expect("a header");
    bytes.resize(usize::try_from(placement.len_bytes).expect("small"), 0);
    let theirs = SafeTensors::deserialize(&bytes).expect("valid for the reference");
    assert_eq!(theirs.tensor("a").expect("a").shape(), [2]);
    assert_eq!(theirs.tensor("e").expect("e").shape(), [0, 2]);
    assert_eq!(theirs.len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// One byte changed in a valid file: whatever is still accepted here, the reference
    /// accepts with the same tensors.
    #[test]
    fn nothing_is_accepted_that_the_reference_refuses(at in 0usize..200, byte in 0u8..=255) {
        let header = r#"{"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"a":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}}"#;
        let mut bytes = safetensors(header, 11);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(ours) = parse_header(&bytes, bytes.len() as u64) {
            let theirs = SafeTensors::deserialize(&bytes).expect("valid for the reference");
            prop_assert_eq!(theirs.len(), ours.tensors.len());
            for tensor in &ours.tensors {
                let view = theirs.tensor(&tensor.name).expect("the name");
                prop_assert_eq!(view.data().len() as u64, tensor.len);
                prop_assert_eq!(view.dtype().to_string(), tensor.dtype.name());
            }
        }
    }
}
