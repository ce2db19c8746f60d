//! Index JSON: what is accepted, and each way to be wrong.
//!
//! long: tables of cases, one row each.

use crate::build::refused;
use fs_adapter::ErrorKind;
use fs_adapter::index::parse;

#[test]
fn a_valid_index_is_sorted_and_complete() {
    let index = parse(
        br#"{"metadata":{"total_size":12,"deep":[[{"x":null}]]},
            "weight_map":{"b":"s2.safetensors","a":"s1.safetensors","c":"sub/s3.safetensors"}}"#,
    )
    .expect("valid");
    assert_eq!(
        index.shards,
        ["s1.safetensors", "s2.safetensors", "sub/s3.safetensors"]
    );
    assert_eq!(index.shard_of("b"), Some(1));
    assert_eq!(index.shard_of("d"), None);
}

#[test]
fn broken_indices_are_refused() {
    use ErrorKind::{Duplicate, Malformed, UnsafePath};
    let naming = |shard: &str| format!(r#"{{"weight_map":{{"t":"{shard}"}}}}"#);
    for (what, text, kind, part) in [
        ("empty", String::new(), Malformed, "not valid"),
        ("not JSON", "weights".to_owned(), Malformed, "not valid"),
        ("a list", "[]".to_owned(), Malformed, "index object"),
        ("no map", "{}".to_owned(), Malformed, "no tensors"),
        (
            "empty map",
            r#"{"weight_map":{}}"#.to_owned(),
            Malformed,
            "no tensors",
        ),
        (
            "map is a list",
            r#"{"weight_map":[]}"#.to_owned(),
            Malformed,
            "map from tensor names",
        ),
        (
            "shard is a number",
            r#"{"weight_map":{"t":1}}"#.to_owned(),
            Malformed,
            "tensor \"t\"",
        ),
        (
            "shard is null",
            r#"{"weight_map":{"t":null}}"#.to_owned(),
            Malformed,
            "expected a string",
        ),
        (
            "trailing",
            format!("{} x", naming("a")),
            Malformed,
            "trailing",
        ),
        (
            "tensor twice",
            r#"{"weight_map":{"t":"a","t":"a"}}"#.to_owned(),
            Duplicate,
            "\"t\"",
        ),
        (
            "map twice",
            r#"{"weight_map":{"t":"a"},"weight_map":{"u":"a"}}"#.to_owned(),
            Duplicate,
            "weight_map",
        ),
        (
            "metadata twice",
            r#"{"metadata":{},"metadata":{},"weight_map":{"t":"a"}}"#.to_owned(),
            Duplicate,
            "metadata",
        ),
        ("parent", naming("../x"), UnsafePath, "../x"),
        ("parent within", naming("a/../x"), UnsafePath, "inside"),
        ("parent at the end", naming("a/.."), UnsafePath, "inside"),
        ("absolute", naming("/etc/passwd"), UnsafePath, "/etc/passwd"),
        ("current folder", naming("."), UnsafePath, "inside"),
        ("no name", naming(""), UnsafePath, "inside"),
        ("folder", naming("a/"), UnsafePath, "inside"),
        ("NUL", naming("a\\u0000b"), UnsafePath, "inside"),
        (
            "bomb",
            format!(r#"{{"weight_map":{}"#, "{\"a\":".repeat(100_000)),
            Malformed,
            "not valid",
        ),
        (
            "skipped bomb",
            format!(r#"{{"metadata":{}"#, "[".repeat(1_000_000)),
            Malformed,
            "not valid",
        ),
    ] {
        refused(what, parse(text.as_bytes()), kind, part);
    }
    refused("bad UTF-8", parse(b"{\"a\xff\":1}"), Malformed, "not UTF-8");
    let keys: Vec<String> = (0..100).map(|n| format!("\"{n}\":0")).collect();
    let many = format!("{{{}}}", keys.join(","));
    refused(
        "many keys",
        parse(many.as_bytes()),
        Malformed,
        "more than 64 keys",
    );
}

#[test]
fn a_deep_value_that_is_skipped_needs_no_stack() {
    let deep = format!(
        r#"{{"metadata":{}{},"weight_map":{{"t":"a"}}}}"#,
        "[".repeat(1_000_000),
        "]".repeat(1_000_000)
    );
    assert!(parse(deep.as_bytes()).is_ok());
}
