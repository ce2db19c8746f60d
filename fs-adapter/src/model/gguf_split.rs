//! A GGUF model, whole or split (`NAME-00001-of-00003.gguf`, `split.*` keys as llama.cpp's
//! gguf-split writes them). Knows which parts belong together, not what the keys else mean.

use super::{
    GgufHeader, Headers, Model, OpenOptions, as_usize, check_content, check_memory_for_header,
    check_tensor_count, make_room,
};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{Folder, ModelFile, folder_of};
use crate::format::gguf;
use crate::limits::{MAX_HEADER_BYTES, MAX_SHARDS};
use crate::shard_name::ShardName;
use crate::tensor_table::{FileIndex, Tensor};
use std::path::Path;

/// Keys that describe a split; a joined model has none of them.
pub(crate) const SPLIT_PREFIX: &str = "split.";
const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

const REMEDY: &str = "fetch all parts again, from the same revision";

/// Opens `file`, and the other parts if it is the first part of a split.
pub(super) fn open(file: ModelFile, options: &OpenOptions) -> Result<Model> {
    let header = read(&file).map_err(|error| error.at_path(file.path()))?;
    if split_count(&header) <= 1 {
        return join(vec![(file, header)]);
    }
    let folder = folder_of(file.path(), options.follow_links)?;
    open_split(&folder, file, header)
}

/// Opens the file `name` of `folder`, and the other parts if it is the first part of a split.
pub(super) fn open_in(folder: &Folder, name: &str) -> Result<Model> {
    let file = folder.open_file(Path::new(name))?;
    let header = read(&file).map_err(|error| error.at_path(file.path()))?;
    if split_count(&header) <= 1 {
        join(vec![(file, header)])
    } else {
        open_split(folder, file, header)
    }
}

fn open_split(folder: &Folder, first: ModelFile, header: gguf::Header) -> Result<Model> {
    let count = split_count(&header);
    let first_name = first.name();
    let fail =
        |kind, detail: String, remedy| Err(Error::new(kind, detail, remedy).at_path(first.path()));
    let named = ShardName::parse(&first_name, ".gguf");
    if let Some(shard) = named
        && (shard.count != count || value(&header, SPLIT_NO) != shard.number.checked_sub(1))
    {
        let number = value(&header, SPLIT_NO).map_or(0, |number| number.saturating_add(1));
        let detail = format!(
            "by its name this is part {} of {}, by its keys part {number} of {count}",
            shard.number, shard.count
        );
        return fail(ErrorKind::IndexMismatch, detail, REMEDY);
    }
    let Some(shard) = named else {
        let detail = format!("this is one of {count} parts, but its name does not tell the others");
        return fail(
            ErrorKind::Incomplete,
            detail,
            "name the parts NAME-00001-of-0000N.gguf",
        );
    };
    if count > MAX_SHARDS as u64 {
        let detail = format!("{count} parts, at most {MAX_SHARDS} are supported");
        return fail(ErrorKind::TooLarge, detail, "merge some of the parts");
    }
    if shard.number != 1 {
        let detail = format!(
            "this is not the first of {count} parts; that is {}",
            shard.part(1)
        );
        return fail(
            ErrorKind::Incomplete,
            detail,
            "name the first part, or the folder",
        );
    }
    let expected = value(&header, SPLIT_TENSORS);
    let names: Vec<String> = (2..=count).map(|number| shard.part(number)).collect();
    let mut parts = vec![(first, header)];
    for (name, number) in names.iter().zip(1u64..) {
        let file = folder
            .open_file(Path::new(name))
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::new(
                    ErrorKind::Incomplete,
                    format!(
                        "part {} of {count} is missing: {}",
                        number + 1,
                        error.detail()
                    ),
                    "fetch the missing part",
                )
                .at_path(&folder.path().join(name))
                .caused_by(error),
                _ => error,
            })?;
        let header = read(&file).map_err(|error| error.at_path(file.path()))?;
        if value(&header, SPLIT_NO) != Some(number) || split_count(&header) != count {
            let detail = format!(
                "the file does not say that it is part {} of {count}",
                number + 1
            );
            return Err(Error::new(ErrorKind::IndexMismatch, detail, REMEDY).at_path(file.path()));
        }
        parts.push((file, header));
    }
    let found: u64 = parts
        .iter()
        .map(|(_, header)| header.tensors.len() as u64)
        .sum();
    if let Some(expected) = expected.filter(|&expected| expected != found) {
        let detail = format!("the parts hold {found} tensors, the first part promises {expected}");
        return Err(Error::new(ErrorKind::IndexMismatch, detail, REMEDY).at_path(parts[0].0.path()));
    }
    join(parts)
}

fn join(parts: Vec<(ModelFile, gguf::Header)>) -> Result<Model> {
    let mut files = Vec::with_capacity(parts.len());
    let mut headers = Vec::with_capacity(parts.len());
    let mut tensors = Vec::new();
    for ((file, header), index) in parts.into_iter().zip((0..).map(FileIndex)) {
        make_room(&mut tensors, header.tensors.len(), &file)?;
        tensors.extend(header.tensors.into_iter().map(|entry| Tensor {
            name: entry.name,
            dtype: DType::Ggml(entry.dtype),
            shape: entry.shape,
            file: index,
            offset: entry.offset,
            len: entry.len,
        }));
        check_tensor_count(tensors.len(), &file)?;
        headers.push(GgufHeader {
            version: header.version,
            alignment: header.alignment,
            pairs: header.pairs,
        });
        files.push(file);
    }
    Model::new(files, Headers::Gguf(headers), tensors)
}

fn value(header: &gguf::Header, key: &str) -> Option<u64> {
    header.pairs.iter().find(|pair| pair.key == key)?.as_u64()
}

fn split_count(header: &gguf::Header) -> u64 {
    value(header, SPLIT_COUNT).unwrap_or(1)
}

/// Reads a header of unknown length: a little first, more as long as it goes on.
fn read(file: &ModelFile) -> Result<gguf::Header> {
    let len = file.len_bytes();
    let most = len.min(MAX_HEADER_BYTES);
    let mut want = most.min(1 << 20);
    check_content(file)?;
    loop {
        check_memory_for_header(file, want)?;
        let bytes = file.read_head(as_usize(want))?;
        match gguf::parse_prefix(&bytes, len)? {
            Some(header) => return Ok(header),
            None if want == most => return gguf::parse_header(&bytes, len),
            None => want = want.saturating_mul(4).min(most),
        }
    }
}
