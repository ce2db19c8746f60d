//! GGUF headers: what is accepted, and each way to be wrong.
//!
//! long: tables of cases, one row each.

use crate::build::{Gguf, refused, text};
use fs_adapter::format::gguf::{Header, parse_header, parse_prefix};
use fs_adapter::{Error, ErrorKind, GgmlType};

fn parse(bytes: &[u8]) -> Result<Header, Error> {
    parse_header(bytes, bytes.len() as u64)
}

fn array(item_type: u32, count: u64, items: &[u8]) -> Vec<u8> {
    let mut bytes = item_type.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(items);
    bytes
}

#[test]
fn valid_files_are_accepted() {
    let version_2 = Gguf {
        version: 2,
        ..Gguf::small()
    };
    let all_values = Gguf::small()
        .pair("u8", 0, &[255])
        .pair("i8", 1, &[255])
        .pair("u16", 2, &[0; 2])
        .pair("i16", 3, &[0; 2])
        .pair("u32", 4, &[0; 4])
        .pair("i32", 5, &[0; 4])
        .pair("f32", 6, &[255; 4])
        .pair("false", 7, &[0])
        .pair("true", 7, &[1])
        .pair("u64", 10, &[0; 8])
        .pair("i64", 11, &[0; 8])
        .pair("f64", 12, &[0; 8])
        .pair("no strings", 9, &array(8, 0, &[]))
        .pair(
            "strings",
            9,
            &array(8, 2, &[text("a"), text("bc")].concat()),
        )
        .pair("nested", 9, &array(9, 1, &array(2, 2, &[0; 4])))
        .pair("not UTF-8", 8, &[&1u64.to_le_bytes()[..], &[0xff]].concat());
    for (what, gguf, tensors) in [
        ("small", Gguf::small(), 1),
        ("version 2", version_2, 1),
        ("all value types", all_values, 1),
        (
            "only keys",
            Gguf::new().string("general.architecture", "llama"),
            0,
        ),
        ("nothing", Gguf::new(), 0),
        ("scalar", Gguf::new().tensor("s", &[], 0, 0).data(4), 1),
        ("empty tensor", Gguf::new().tensor("e", &[0], 12, 0), 1),
        (
            "empty tensor before another",
            Gguf::new()
                .tensor("e", &[0, 4], 0, 0)
                .tensor("t", &[8], 0, 0)
                .data(32),
            2,
        ),
        (
            "four dimensions",
            Gguf::new().tensor("t", &[32, 2, 3, 1], 8, 0).data(34 * 6),
            1,
        ),
        (
            "padded end",
            Gguf::new().tensor("t", &[1], 0, 0).data(32),
            1,
        ),
        ("bare end", Gguf::new().tensor("t", &[1], 0, 0).data(4), 1),
        (
            "a gap",
            Gguf::new()
                .tensor("a", &[1], 0, 0)
                .tensor("b", &[1], 0, 128)
                .data(132),
            2,
        ),
        (
            "any order",
            Gguf::new()
                .tensor("b", &[1], 0, 32)
                .tensor("a", &[1], 0, 0)
                .data(36),
            2,
        ),
        (
            "alignment 8",
            Gguf::new().align(8).tensor("t", &[1], 24, 8).data(9),
            1,
        ),
        (
            "alignment 4096",
            Gguf::new()
                .align(4096)
                .tensor("t", &[1], 24, 4096)
                .data(4097),
            1,
        ),
    ] {
        let parsed = parse(&gguf.build()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(parsed.tensors.len(), tensors, "{what}");
    }
}

#[test]
fn every_type_is_known_with_its_block() {
    assert_eq!(GgmlType::all().count(), 35);
    for dtype in GgmlType::all() {
        let (elements, bytes) = (dtype.block_elements(), dtype.block_bytes());
        let len = usize::try_from(3 * bytes).expect("small");
        let file = |row: u64| {
            Gguf::new()
                .tensor("t", &[row, 3], dtype.code(), 0)
                .data(len)
                .build()
        };
        let parsed = parse(&file(elements)).unwrap_or_else(|error| panic!("{dtype:?}: {error}"));
        assert_eq!(parsed.tensors[0].len, 3 * bytes, "{dtype:?}");
        assert_eq!(GgmlType::from_name(dtype.name()), Some(dtype));
        if elements > 1 {
            // Three rows of a third of three blocks: whole blocks in all, but not in a row.
            let result = parse(&file(elements + 1));
            refused(dtype.name(), result, ErrorKind::Malformed, "do not fill");
        }
    }
}

#[test]
fn shapes_are_outermost_first() {
    let bytes = Gguf::new().tensor("t", &[4, 3, 2], 0, 0).data(96).build();
    assert_eq!(&*parse(&bytes).expect("valid").tensors[0].shape, &[2, 3, 4]);
}

#[test]
fn every_truncation_is_refused() {
    let gguf = Gguf::small().pair("tokens", 9, &array(8, 2, &[text("a"), text("bc")].concat()));
    let whole = gguf.build();
    for len in 0..whole.len() {
        let error = refused(
            &format!("{len} bytes"),
            parse(&whole[..len]),
            ErrorKind::Truncated,
            "",
        );
        assert!(error.offset().is_some(), "{len} bytes");
    }
}

#[test]
fn a_prefix_asks_for_more_until_it_is_enough() {
    let whole = Gguf::small().build();
    let header_len = Gguf::small().header().len();
    for len in 0..=whole.len() {
        let parsed = parse_prefix(&whole[..len], whole.len() as u64).expect("no error");
        assert_eq!(parsed.is_some(), len >= header_len, "{len} bytes");
    }
    let result = parse_header(&whole[..header_len - 1], whole.len() as u64);
    refused(
        "short prefix",
        result,
        ErrorKind::InvalidArgument,
        "longer than",
    );
}

#[test]
fn broken_preambles_and_counts_are_refused() {
    use ErrorKind::{NotAModel, TooLarge, Truncated, Unsupported};
    let with = |change: fn(&mut Gguf)| {
        let mut gguf = Gguf::small();
        change(&mut gguf);
        gguf
    };
    for (what, gguf, kind, text) in [
        (
            "magic",
            with(|g| g.magic = b"GGML".to_vec()),
            NotAModel,
            "letters GGUF",
        ),
        (
            "version 0",
            with(|g| g.version = 0),
            Unsupported,
            "version 0",
        ),
        (
            "version 1",
            with(|g| g.version = 1),
            Unsupported,
            "version 1",
        ),
        (
            "version 4",
            with(|g| g.version = 4),
            Unsupported,
            "version 4",
        ),
        (
            "big-endian",
            with(|g| g.version = 3u32.swap_bytes()),
            Unsupported,
            "big-endian (version 3)",
        ),
        (
            "tensors",
            with(|g| g.tensor_count = Some(u64::MAX)),
            Truncated,
            "18446744073709551615 tensors",
        ),
        (
            "tensors by one",
            with(|g| g.tensor_count = Some(5)),
            TooLarge,
            "name claims",
        ),
        (
            "keys",
            with(|g| g.pair_count = Some(1 << 40)),
            Truncated,
            "1099511627776 keys",
        ),
    ] {
        refused(what, parse(&gguf.build()), kind, text);
    }
    // A sparse file can be as long as a count wants.
    for (what, gguf, text) in [
        (
            "tensors",
            with(|g| g.tensor_count = Some(1 << 30)),
            "1073741824 tensors, at most",
        ),
        (
            "keys",
            with(|g| g.pair_count = Some(1 << 30)),
            "1073741824 keys, at most",
        ),
    ] {
        refused(what, parse_prefix(&gguf.build(), 1 << 40), TooLarge, text);
    }
    let long_array = Gguf::new().pair("k", 9, &array(0, 1 << 30, &[])).build();
    refused(
        "array",
        parse_prefix(&long_array, 1 << 40),
        TooLarge,
        "header is longer",
    );
    let long_string = Gguf::new()
        .pair("k", 8, &(1u64 << 30).to_le_bytes())
        .build();
    refused(
        "string",
        parse_prefix(&long_string, 1 << 40),
        TooLarge,
        "header is longer",
    );
}

#[test]
fn broken_pairs_are_refused() {
    use ErrorKind::{Duplicate, Malformed, TooLarge, Truncated};
    let nested = |depth: usize| (0..depth).fold(array(0, 1, &[0]), |inner, _| array(9, 1, &inner));
    let small = Gguf::small;
    for (what, gguf, kind, text) in [
        (
            "empty key",
            small().pair("", 0, &[0]),
            Malformed,
            "key is empty",
        ),
        (
            "long key",
            small().pair(&"k".repeat(65_536), 0, &[0]),
            TooLarge,
            "65536",
        ),
        (
            "key twice",
            small().u32("k", 1).u32("k", 1),
            Duplicate,
            "\"k\"",
        ),
        (
            "unknown type",
            small().pair("k", 13, &[0]),
            Malformed,
            "unknown value type 13",
        ),
        (
            "huge type",
            small().pair("k", u32::MAX, &[0]),
            Malformed,
            "unknown value type",
        ),
        (
            "unknown item type",
            small().pair("k", 9, &array(13, 0, &[])),
            Malformed,
            "item type 13",
        ),
        (
            "truth 2",
            small().pair("k", 7, &[2]),
            Malformed,
            "truth value",
        ),
        (
            "truths",
            small().pair("k", 9, &array(7, 2, &[1, 3])),
            Malformed,
            "truth value",
        ),
        (
            "string length",
            small().pair("k", 8, &u64::MAX.to_le_bytes()),
            Truncated,
            "are needed",
        ),
        (
            "array count",
            small().pair("k", 9, &array(0, u64::MAX, &[])),
            Truncated,
            "array items",
        ),
        (
            "array bytes overflow",
            small().pair("k", 9, &array(12, 1 << 61, &[])),
            Truncated,
            "items",
        ),
        (
            "strings",
            small().pair("k", 9, &array(8, 1 << 20, &[])),
            Truncated,
            "array items",
        ),
        (
            "deep arrays",
            small().pair("k", 9, &nested(4)),
            TooLarge,
            "nested",
        ),
        (
            "alignment 0",
            small().u32("general.alignment", 0),
            Malformed,
            "power of two",
        ),
        (
            "alignment 24",
            small().u32("general.alignment", 24),
            Malformed,
            "power of two",
        ),
        (
            "alignment 4",
            small().u32("general.alignment", 4),
            Malformed,
            "multiple of 8",
        ),
        (
            "alignment 2^31",
            small().u32("general.alignment", 1 << 31),
            TooLarge,
            "too large",
        ),
        (
            "alignment of u64",
            small().pair("general.alignment", 10, &32u64.to_le_bytes()),
            Malformed,
            "uint32",
        ),
    ] {
        refused(what, parse(&gguf.build()), kind, text);
    }
    assert!(parse(&small().pair("k", 9, &nested(3)).build()).is_ok());
    let mut bytes = small().u32("k", 1).build();
    let at = bytes
        .iter()
        .rposition(|&byte| byte == b'k')
        .expect("the key");
    bytes[at] = 0xff;
    refused("key not UTF-8", parse(&bytes), Malformed, "not UTF-8");
}

#[test]
fn broken_infos_are_refused() {
    use ErrorKind::{Duplicate, Malformed, OutOfRange, TooLarge, Truncated, Unsupported};
    let one = |dims: &[u64], code, offset| Gguf::new().tensor("t", dims, code, offset).data(64);
    let two = |first: u64, second: u64| {
        Gguf::new()
            .tensor("a", &[16], 0, first)
            .tensor("b", &[16], 0, second)
            .data(128)
    };
    for (what, gguf, kind, text) in [
        (
            "five dimensions",
            one(&[1; 5], 0, 0),
            Malformed,
            "5 dimensions",
        ),
        ("removed type", one(&[32], 4, 0), Unsupported, "type 4"),
        (
            "removed repacked type",
            one(&[32], 31, 0),
            Unsupported,
            "type 31",
        ),
        ("unknown type", one(&[32], 43, 0), Unsupported, "type 43"),
        (
            "huge type",
            one(&[32], u32::MAX, 0),
            Unsupported,
            "type 4294967295",
        ),
        ("block", one(&[33], 2, 0), Malformed, "blocks of 32"),
        (
            "dimension past i64",
            one(&[1 << 63], 24, 0),
            TooLarge,
            "63-bit",
        ),
        (
            "shape overflows",
            one(&[1 << 33, 1 << 33], 24, 0),
            TooLarge,
            "overflows",
        ),
        (
            "bytes overflow",
            one(&[1 << 62], 28, 0),
            TooLarge,
            "overflows",
        ),
        ("unaligned", one(&[1], 0, 4), Malformed, "not a multiple"),
        (
            "offset overflows",
            one(&[1], 0, u64::MAX - 31),
            OutOfRange,
            "any file",
        ),
        (
            "offset past the file",
            one(&[1], 0, 1 << 20),
            OutOfRange,
            "but the file has",
        ),
        ("too long", one(&[17], 0, 0), Truncated, "but the file has"),
        ("same place", two(0, 0), Malformed, "overlaps tensor"),
        ("overlap", two(0, 32), Malformed, "by 32 bytes"),
        ("overlap, other order", two(32, 0), Malformed, "by 32 bytes"),
        (
            "trailing",
            two(0, 64).data(129),
            Malformed,
            "1 bytes follow",
        ),
        (
            "trailing after nothing",
            Gguf::new().data(64),
            Malformed,
            "bytes follow",
        ),
        (
            "name twice",
            Gguf::new()
                .tensor("a", &[8], 0, 0)
                .tensor("a", &[8], 0, 32)
                .data(64),
            Duplicate,
            "twice",
        ),
    ] {
        refused(what, parse(&gguf.build()), kind, text);
    }
    let endless = [&u64::MAX.to_le_bytes()[..], &[0; 32]].concat();
    refused(
        "name length",
        parse(&Gguf::new().raw_info(endless).build()),
        TooLarge,
        "name claims",
    );
    let long = [&4096u64.to_le_bytes()[..], &[0; 32]].concat();
    refused(
        "name length",
        parse(&Gguf::new().raw_info(long).build()),
        Truncated,
        "are needed",
    );
}

#[test]
fn a_tokenizer_of_150_000_words_parses_quickly() {
    let words: Vec<u8> = (0..150_000)
        .flat_map(|n| text(&format!("word{n}")))
        .collect();
    let scores = vec![0; 4 * 150_000];
    let gguf = Gguf::small()
        .pair("tokenizer.ggml.tokens", 9, &array(8, 150_000, &words))
        .pair("tokenizer.ggml.scores", 9, &array(6, 150_000, &scores));
    let bytes = gguf.build();
    let start = std::time::Instant::now();
    assert_eq!(parse(&bytes).expect("valid").pairs.len(), 3);
    assert!(start.elapsed().as_secs() < 2, "took {:?}", start.elapsed());
}
