//! A sharded safetensors model by its index: every shard is there, and index and shards agree
//! on every tensor. Knows no folder layout beyond the names in the index.

use super::{Model, check_memory_for_header, read_all};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{Folder, ModelFile};
use crate::index::{self, ShardIndex};
use crate::limits::MAX_HEADER_BYTES;
use std::path::Path;

/// Opens the shards that the index in `file` names, relative to `folder`.
pub(super) fn open(file: &ModelFile, folder: &Folder) -> Result<Model> {
    let index = read(file)?;
    let shards = index
        .shards
        .iter()
        .map(|name| {
            folder
                .open_file(Path::new(name))
                .map_err(|error| match error.kind() {
                    ErrorKind::NotFound => Error::new(
                        ErrorKind::Incomplete,
                        format!(
                            "a shard that {} names is missing: {}",
                            file.name(),
                            error.detail()
                        ),
                        "fetch the missing shard",
                    )
                    .at_path(&folder.path().join(name))
                    .caused_by(error),
                    _ => error,
                })
        })
        .collect::<Result<Vec<_>>>()?;
    let model = Model::from_safetensors(shards)?;
    check_agreement(&model, &index).map_err(|error| error.at_path(file.path()))?;
    Ok(model)
}

/// Reads the index in `file`.
pub(super) fn read(file: &ModelFile) -> Result<ShardIndex> {
    check_memory_for_header(file, file.len_bytes().min(MAX_HEADER_BYTES))?;
    index::parse(&read_all(file)?).map_err(|error| error.at_path(file.path()))
}

fn check_agreement(model: &Model, index: &ShardIndex) -> Result<()> {
    const REMEDY: &str = "fetch index and shards again, from the same revision";
    let wrong = |detail: String, tensor: &str| {
        Err(Error::new(ErrorKind::IndexMismatch, detail, REMEDY).at_tensor(tensor))
    };
    for (_, tensor) in model.tensors().iter() {
        let shard = &index.shards[tensor.file.as_usize()];
        match index.shard_of(&tensor.name) {
            Some(named) if named == tensor.file.as_usize() => {}
            Some(named) => {
                let detail = format!(
                    "the index puts it into {}, but it is in {shard}",
                    index.shards[named]
                );
                return wrong(detail, &tensor.name);
            }
            None => {
                return wrong(
                    format!("it is in {shard}, but not in the index"),
                    &tensor.name,
                );
            }
        }
    }
    for (name, shard) in &index.tensors {
        if model.tensors().find(name).is_none() {
            let shard = &index.shards[*shard];
            return wrong(
                format!("the index puts it into {shard}, but it is not there"),
                name,
            );
        }
    }
    Ok(())
}
