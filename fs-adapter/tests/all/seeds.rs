//! The fuzzers' seeds: small files that reach every branch of a parser. Kept under
//! `fuzz/seeds`; run with `WRITE_SEEDS=1` to write them again.

use crate::build::{Gguf, safetensors, text};
use std::path::Path;

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let array = |item: u32, count: u64, items: Vec<u8>| {
        [&item.to_le_bytes()[..], &count.to_le_bytes(), &items].concat()
    };
    let values = Gguf::small()
        .pair("b", 7, &[1])
        .pair("d", 12, &[0; 8])
        .pair("s", 9, &array(8, 2, [text("x"), text("yz")].concat()))
        .pair("n", 9, &array(9, 1, array(2, 2, vec![0; 4])))
        .u16("split.no", 0)
        .u16("split.count", 1);
    vec![
        ("safetensors/empty", safetensors("{}", 0)),
        (
            "safetensors/two",
            safetensors(
                r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b.0":{"dtype":"F4","shape":[0],"data_offsets":[8,8]}}"#,
                8,
            ),
        ),
        (
            "safetensors/mixed",
            safetensors(
                r#"{"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},"b":{"dtype":"BF16","shape":[],"data_offsets":[3,5]},"e":{"dtype":"I64","shape":[0],"data_offsets":[5,5]}}  "#,
                5,
            ),
        ),
        ("gguf/empty", Gguf::new().build()),
        ("gguf/small", Gguf::small().build()),
        ("gguf/values", values.build()),
        (
            "gguf/aligned",
            Gguf::new().align(64).tensor("a", &[32, 2], 2, 0).tensor("b", &[256], 12, 64).data(208).build(),
        ),
        (
            "index/two",
            br#"{"metadata":{"total_size":3},"weight_map":{"a":"m-1.safetensors","b":"sub/m-2.safetensors"}}"#
                .to_vec(),
        ),
        ("index/escape", br#"{"weight_map":{"\u0061":"../x"}}"#.to_vec()),
    ]
}

#[test]
fn seeds_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, bytes) in seeds() {
        let path = folder.join(name);
        if std::env::var_os("WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, &bytes).expect("a seed");
        }
        assert_eq!(
            std::fs::read(&path).ok(),
            Some(bytes),
            "{name}: run with WRITE_SEEDS=1"
        );
    }
}
