//! What must hold for every input of a parser: refused, or accepted and then true. Shared by
//! the fuzz targets and the regression tests; knows no fuzzer.

use fs_adapter::format::gguf::{self, InfoEntry};
use fs_adapter::format::safetensors::{self, HeaderEntry};
use fs_adapter::{Error, index};
use std::path::{Component, Path};

/// An error has a remedy and fits one line of text.
fn check_error(error: &Error) {
    let shown = error.to_string();
    assert!(!error.remedy().is_empty() && !error.detail().is_empty());
    assert!(!shown.contains(char::is_control), "{shown:?}");
    assert!(shown.len() < 20_000, "{} bytes of error", shown.len());
}

/// Ranges inside the file, apart from each other, names unique.
fn check_tensors<'a>(
    tensors: impl Iterator<Item = (&'a str, u64, u64)>,
    start: u64,
    file_len: u64,
) {
    let mut all: Vec<_> = tensors.collect();
    all.sort_unstable_by_key(|&(_, offset, len)| (offset, len));
    let mut end = start;
    for &(name, offset, len) in &all {
        assert!(offset >= end, "{name:?} overlaps");
        end = offset.checked_add(len).expect("no overflow");
        assert!(end <= file_len, "{name:?} ends outside");
    }
    all.sort_unstable();
    assert!(
        all.windows(2).all(|pair| pair[0].0 != pair[1].0),
        "a name twice"
    );
}

/// Parses a safetensors file; what is accepted comes back equal from its own written header.
pub fn safetensors(bytes: &[u8]) {
    let file_len = bytes.len() as u64;
    let header = match safetensors::parse_header(bytes, file_len) {
        Ok(header) => header,
        Err(error) => return check_error(&error),
    };
    let tensors = header.tensors.iter();
    check_tensors(
        tensors.clone().map(|t| (t.name.as_str(), t.offset, t.len)),
        header.payload_offset,
        file_len,
    );
    let payload: u64 = tensors.clone().map(|tensor| tensor.len).sum();
    assert_eq!(
        header.payload_offset + payload,
        file_len,
        "the file is covered"
    );

    let metadata = header.metadata.clone().unwrap_or_default();
    let entries = tensors.map(|tensor| HeaderEntry {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        begin: tensor.offset - header.payload_offset,
        len: tensor.len,
    });
    let written = safetensors::write_header(&metadata, entries, 4096).expect("it fits");
    let written_len = written.len() as u64;
    assert_eq!(written_len % 4096, 0);
    let mut again = safetensors::parse_header(&written, written_len + payload).expect("valid");
    assert_eq!(again.payload_offset, written_len);
    again.payload_offset = header.payload_offset;
    for tensor in &mut again.tensors {
        tensor.offset = tensor.offset - written_len + header.payload_offset;
    }
    // No metadata and empty metadata are written alike.
    again.metadata = header
        .metadata
        .as_ref()
        .map(|_| again.metadata.unwrap_or_default());
    assert_eq!(again, header);
}

/// Parses a GGUF file, whole and by prefixes; what is accepted comes back equal from its own
/// written header.
pub fn gguf(bytes: &[u8]) {
    let file_len = bytes.len() as u64;
    let parsed = gguf::parse_header(bytes, file_len);
    for cut in [bytes.len() / 3, bytes.len() / 2] {
        // A prefix may ask for more, or know already; it never knows otherwise.
        match (gguf::parse_prefix(&bytes[..cut], file_len), &parsed) {
            (Ok(None), _) => {}
            (Ok(Some(header)), Ok(whole)) => assert_eq!(&header, whole),
            (Err(error), Err(whole)) => assert_eq!(error.to_string(), whole.to_string()),
            (part, whole) => panic!("{part:?} of {whole:?}"),
        }
    }
    let header = match parsed {
        Ok(header) => header,
        Err(error) => return check_error(&error),
    };
    check_tensors(
        header
            .tensors
            .iter()
            .map(|t| (t.name.as_str(), t.offset, t.len)),
        if header.tensors.is_empty() {
            0
        } else {
            header.payload_offset
        },
        file_len,
    );
    assert!(
        header
            .tensors
            .iter()
            .all(|tensor| tensor.offset % header.alignment == 0)
    );

    let pairs: Vec<&gguf::Pair> = header.pairs.iter().collect();
    let infos = header.tensors.iter().map(|tensor| InfoEntry {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        begin: tensor.offset - header.payload_offset,
    });
    let written =
        gguf::write_header(header.version, &pairs, infos, header.alignment).expect("it fits");
    assert_eq!(
        written.len() as u64,
        header.payload_offset,
        "the same bytes but for padding"
    );
    let shared = written.len().min(bytes.len());
    let again = gguf::parse_header(&written[..shared], file_len).expect("valid");
    assert_eq!(again, header);
}

/// Parses an index; what is accepted stays in its folder and is sorted.
pub fn index(bytes: &[u8]) {
    let index = match index::parse(bytes) {
        Ok(index) => index,
        Err(error) => return check_error(&error),
    };
    assert!(!index.shards.is_empty() && !index.tensors.is_empty());
    assert!(index.shards.is_sorted() && index.tensors.is_sorted());
    assert!(index.tensors.windows(2).all(|pair| pair[0].0 != pair[1].0));
    for shard in &index.shards {
        assert!(!shard.contains('\0'));
        assert!(
            Path::new(shard)
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
        );
    }
    for (tensor, shard) in &index.tensors {
        assert_eq!(index.shard_of(tensor), Some(*shard));
        assert!(*shard < index.shards.len());
    }
}
