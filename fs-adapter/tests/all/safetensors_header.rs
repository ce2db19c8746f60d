//! safetensors headers: what is accepted, and each way to be wrong.
//!
//! long: tables of cases, one row each.

use crate::build::{refused, safetensors, safetensors_claiming};
use fs_adapter::format::safetensors::{Header, parse_header};
use fs_adapter::{DType, Error, ErrorKind};

fn parse(bytes: &[u8]) -> Result<Header, Error> {
    parse_header(bytes, bytes.len() as u64)
}

const ONE: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn valid_headers_are_accepted() {
    for (what, header, data_len, tensors) in [
        ("one tensor", ONE.to_owned(), 8, 1),
        ("no tensor", "{}".to_owned(), 0, 0),
        ("padded with spaces", format!("{ONE}   "), 8, 1),
        (
            "scalar",
            r#"{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}"#.to_owned(),
            8,
            1,
        ),
        (
            "empty",
            r#"{"a":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]}}"#.to_owned(),
            0,
            1,
        ),
        (
            "empty ones between others",
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                "e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},
                "f":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},
                "b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#
                .to_owned(),
            2,
            4,
        ),
        (
            "keys in any order",
            r#"{"a":{"data_offsets":[0,4],"shape":[2],"dtype":"BF16"}}"#.to_owned(),
            4,
            1,
        ),
        (
            "two to a byte",
            r#"{"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}}"#.to_owned(),
            3,
            1,
        ),
        (
            "four to three bytes",
            r#"{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}"#.to_owned(),
            3,
            1,
        ),
        ("empty metadata", r#"{"__metadata__":{}}"#.to_owned(), 0, 0),
        (
            "an empty name",
            r#"{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#.to_owned(),
            1,
            1,
        ),
    ] {
        let parsed = parse(&safetensors(&header, data_len));
        assert_eq!(
            parsed
                .unwrap_or_else(|e| panic!("{what}: {e}"))
                .tensors
                .len(),
            tensors,
            "{what}"
        );
    }
}

#[test]
fn every_dtype_is_known_with_its_size() {
    for dtype in DType::safetensors() {
        let bytes = dtype.bits().expect("safetensors types have bits");
        let name = dtype.name();
        let header =
            format!(r#"{{"a":{{"dtype":"{name}","shape":[8],"data_offsets":[0,{bytes}]}}}}"#);
        let bytes_usize = usize::try_from(bytes).expect("small");
        let parsed = parse(&safetensors(&header, bytes_usize)).expect(name);
        assert_eq!(
            (parsed.tensors[0].dtype, parsed.tensors[0].len),
            (dtype, bytes)
        );
    }
}

#[test]
fn places_count_from_the_file_start() {
    let parsed = parse(&safetensors(ONE, 8)).expect("valid");
    assert_eq!(parsed.payload_offset, 8 + ONE.len() as u64);
    assert_eq!(parsed.tensors[0].offset, parsed.payload_offset);
}

#[test]
fn metadata_is_kept_in_order() {
    let header = r#"{"__metadata__":{"format":"pt","a":"\u00e9"}}"#;
    let parsed = parse(&safetensors(header, 0)).expect("valid");
    let expected = vec![
        ("format".to_owned(), "pt".to_owned()),
        ("a".to_owned(), "é".to_owned()),
    ];
    assert_eq!(parsed.metadata, Some(expected));
}

#[test]
fn lengths_that_lie_are_refused() {
    use ErrorKind::{Malformed, TooLarge, Truncated};
    let len = ONE.len() as u64;
    for (what, claimed, kind, text) in [
        ("zero", 0, Malformed, "too few"),
        ("one", 1, Malformed, "too few"),
        ("past the file", len + 9, Truncated, "in all"),
        ("100 MB", 100_000_000, Truncated, "in all"),
        ("over 100 MB", 100_000_001, TooLarge, "at most 100000000"),
        ("u64::MAX", u64::MAX, TooLarge, "at most 100000000"),
        ("u64::MAX - 7", u64::MAX - 7, TooLarge, "at most 100000000"),
        ("into the data", len + 8, Malformed, "not valid"),
        ("one short", len - 1, Malformed, "not valid"),
    ] {
        refused(
            what,
            parse(&safetensors_claiming(claimed, ONE, 8)),
            kind,
            text,
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    let whole = safetensors(ONE, 8);
    for len in 0..whole.len() {
        refused(
            &format!("{len} bytes"),
            parse(&whole[..len]),
            ErrorKind::Truncated,
            "",
        );
    }
    let error = refused(
        "one short",
        parse(&whole[..whole.len() - 1]),
        ErrorKind::Truncated,
        "1 missing",
    );
    assert_eq!(error.tensor(), Some("a"));
}

#[test]
fn broken_headers_are_refused() {
    use ErrorKind::{Duplicate, Malformed, OutOfRange, TooLarge, Unsupported};
    let info = |dtype: &str, shape: &str, begin: &str, end: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    let two = |first: (u64, u64), second: (u64, u64)| {
        let one = |name: &str, (begin, end): (u64, u64)| {
            let len = end - begin;
            format!(r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#)
        };
        format!("{{{},{}}}", one("a", first), one("b", second))
    };
    let bomb = |open: &str| format!("{{\"a\":{}", open.repeat(100_000));
    for (what, header, data_len, kind, text) in [
        (
            "NUL padding",
            format!("{ONE}\0\0"),
            8,
            Malformed,
            "not valid",
        ),
        (
            "leading space",
            format!(" {ONE}"),
            8,
            Malformed,
            "begin with '{'",
        ),
        ("a list", "[]".to_owned(), 0, Malformed, "begin with '{'"),
        ("two objects", "{}{}".to_owned(), 0, Malformed, "trailing"),
        ("list bomb", bomb("["), 0, Malformed, "not valid"),
        ("object bomb", bomb("{\"a\":"), 0, Malformed, "not valid"),
        (
            "shape bomb",
            info("U8", &"[".repeat(100_000), "0", "1"),
            1,
            Malformed,
            "not valid",
        ),
        (
            "metadata bomb",
            format!(r#"{{"__metadata__":{{"a":{}"#, "[".repeat(100_000)),
            0,
            Malformed,
            "not valid",
        ),
        (
            "metadata number",
            r#"{"__metadata__":{"a":1}}"#.to_owned(),
            0,
            Malformed,
            "metadata",
        ),
        (
            "metadata null",
            r#"{"__metadata__":null}"#.to_owned(),
            0,
            Malformed,
            "object of strings",
        ),
        (
            "metadata twice",
            r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(),
            0,
            Duplicate,
            "twice",
        ),
        (
            "metadata key twice",
            r#"{"__metadata__":{"k":"1","k":"1"}}"#.to_owned(),
            0,
            Duplicate,
            "twice",
        ),
        (
            "tensor is a number",
            r#"{"a":1}"#.to_owned(),
            0,
            Malformed,
            "tensor \"a\"",
        ),
        (
            "no dtype",
            r#"{"a":{"shape":[],"data_offsets":[0,1]}}"#.to_owned(),
            1,
            Malformed,
            "dtype",
        ),
        (
            "no shape",
            r#"{"a":{"dtype":"U8","data_offsets":[0,1]}}"#.to_owned(),
            1,
            Malformed,
            "shape",
        ),
        (
            "no offsets",
            r#"{"a":{"dtype":"U8","shape":[]}}"#.to_owned(),
            1,
            Malformed,
            "data_offsets",
        ),
        (
            "unknown key",
            r#"{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":1}}"#.to_owned(),
            1,
            Malformed,
            "unknown key",
        ),
        (
            "dtype twice",
            r#"{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}"#.to_owned(),
            1,
            Duplicate,
            "dtype",
        ),
        (
            "unknown dtype",
            info("F7", "[1]", "0", "1"),
            1,
            Unsupported,
            "F7",
        ),
        (
            "lower-case dtype",
            info("f32", "[1]", "0", "4"),
            4,
            Unsupported,
            "f32",
        ),
        (
            "negative dimension",
            info("U8", "[-1]", "0", "1"),
            1,
            Malformed,
            "not valid",
        ),
        (
            "fractional dimension",
            info("U8", "[1.5]", "0", "1"),
            1,
            Malformed,
            "not valid",
        ),
        (
            "dimension past u64",
            info("U8", "[18446744073709551616]", "0", "1"),
            1,
            Malformed,
            "",
        ),
        (
            "three offsets",
            info("U8", "[1]", "0", "1,2"),
            1,
            Malformed,
            "not valid",
        ),
        (
            "backwards",
            info("U8", "[1]", "1", "0"),
            1,
            Malformed,
            "before it begins",
        ),
        (
            "shape overflows",
            info("U8", "[4294967296,4294967296]", "0", "1"),
            1,
            TooLarge,
            "overflows",
        ),
        (
            "bits overflow",
            info("F64", "[2305843009213693952]", "0", "1"),
            1,
            TooLarge,
            "overflows",
        ),
        (
            "half a byte",
            info("F4", "[3]", "0", "2"),
            2,
            Malformed,
            "whole bytes",
        ),
        (
            "too small",
            info("F32", "[2]", "0", "4"),
            4,
            Malformed,
            "takes 8 bytes",
        ),
        (
            "too large",
            info("F32", "[2]", "0", "12"),
            12,
            Malformed,
            "takes 8 bytes",
        ),
        (
            "offset overflows",
            info("U8", "[0]", "18446744073709551615", "18446744073709551615"),
            0,
            OutOfRange,
            "any file",
        ),
        (
            "gap at the start",
            info("U8", "[1]", "1", "2"),
            2,
            Malformed,
            "gap of 1",
        ),
        (
            "gap",
            two((0, 1), (2, 3)),
            3,
            Malformed,
            "gap of 1 bytes after tensor \"a\"",
        ),
        (
            "overlap",
            two((0, 2), (1, 3)),
            3,
            Malformed,
            "overlaps tensor \"a\" by 1",
        ),
        ("same range", two((0, 2), (0, 2)), 2, Malformed, "overlaps"),
        (
            "out of range",
            two((0, 1), (100, 101)),
            3,
            OutOfRange,
            "tensor \"b\"",
        ),
        (
            "trailing byte",
            ONE.to_owned(),
            9,
            Malformed,
            "1 bytes follow",
        ),
        (
            "bytes without tensors",
            "{}".to_owned(),
            1,
            Malformed,
            "1 bytes follow",
        ),
        (
            "65 dimensions",
            info("U8", &format!("[{}]", ["1"; 65].join(",")), "0", "1"),
            1,
            TooLarge,
            "dimensions",
        ),
        (
            "65 dimensions and rubbish",
            info("U8", &format!("[{},[]]", ["1"; 65].join(",")), "0", "1"),
            1,
            TooLarge,
            "dimensions",
        ),
    ] {
        refused(what, parse(&safetensors(&header, data_len)), kind, text);
    }
}

#[test]
fn equal_names_are_refused_whatever_they_say() {
    let entry = |dtype: &str, begin: u64| {
        format!(
            r#""a":{{"dtype":"{dtype}","shape":[2],"data_offsets":[{begin},{}]}}"#,
            begin + 2
        )
    };
    for (what, second) in [
        ("equal", entry("U8", 0)),
        ("equal range, other type", entry("I8", 0)),
        ("other range", entry("U8", 2)),
        (
            "escaped spelling",
            entry("U8", 2).replacen("\"a\"", "\"\\u0061\"", 1),
        ),
    ] {
        let header = format!("{{{},{second}}}", entry("U8", 0));
        let error = refused(
            what,
            parse(&safetensors(&header, 4)),
            ErrorKind::Duplicate,
            "twice",
        );
        assert_eq!(error.tensor(), Some("a"), "{what}");
    }
}

#[test]
fn bad_utf8_is_refused_with_its_place() {
    let mut bytes = safetensors(ONE, 8);
    bytes[8 + 2] = 0xff;
    let error = refused(
        "bad UTF-8",
        parse(&bytes),
        ErrorKind::Malformed,
        "not UTF-8",
    );
    assert_eq!(error.offset(), Some(10));
}

#[test]
fn bad_json_is_refused_with_its_place() {
    let header = "{\n\"a\": @}";
    let error = refused(
        "bad JSON",
        parse(&safetensors(header, 0)),
        ErrorKind::Malformed,
        "",
    );
    assert_eq!(error.offset(), Some(8 + 7));
}

#[test]
fn hostile_names_cannot_steer_a_terminal() {
    let header = r#"{"\u001b[2Jx\n":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}"#;
    refused(
        "escape",
        parse(&safetensors(header, 1)),
        ErrorKind::Unsupported,
        "\\u{1b}[2Jx\\n",
    );
    let long = "n".repeat(100_000);
    let header = format!(r#"{{"{long}":{{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}}}"#);
    let error = refused(
        "long",
        parse(&safetensors(&header, 1)),
        ErrorKind::Unsupported,
        "...",
    );
    assert!(error.to_string().len() < 500);
}

#[test]
fn a_hundred_thousand_tensors_parse_quickly() {
    let entries: Vec<String> = (0..100_000u64)
        .map(|at| {
            format!(
                r#""model.layers.{at}.weight":{{"dtype":"U8","shape":[1,1],"data_offsets":[{at},{}]}}"#,
                at + 1
            )
        })
        .collect();
    let bytes = safetensors(&format!("{{{}}}", entries.join(",")), 100_000);
    let start = std::time::Instant::now();
    assert_eq!(parse(&bytes).expect("valid").tensors.len(), 100_000);
    assert!(start.elapsed().as_secs() < 5, "took {:?}", start.elapsed());
}
