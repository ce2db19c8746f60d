//! What a stream's objects are: files of a model, or a namespace. For the check at its end, and
//! for the words of its failure.

use std::sync::Arc;

use fs_adapter::Model;
use ubio_core::StreamPlan;

use crate::error::{Error, Result};

/// Where a stream's bytes come from.
pub(crate) enum Origin {
    /// Files of a model.
    Files {
        model: Arc<Model>,
        /// Which of the model's files object 0 is; the others follow.
        first: u32,
    },
    /// A namespace. Nobody can tell whether it was written meanwhile.
    Namespace {
        /// Its address.
        name: String,
        /// Bytes of a block.
        block_bytes: u32,
    },
}

impl Origin {
    /// Looks at the files that were read once more.
    pub(super) fn check_unchanged(&self, plan: &StreamPlan, objects: usize) -> Result<()> {
        let Self::Files { model, first } = self else {
            return Ok(());
        };
        let files = &model.files()[*first as usize..];
        let mut read = vec![false; objects];
        for fill in &plan.fills {
            read[fill.object.0 as usize] = true;
        }
        let mut read = files.iter().zip(read).filter(|(_, read)| *read);
        Ok(read.try_for_each(|(file, _)| file.check_unchanged())?)
    }

    /// Names the object in an error.
    pub(super) fn at(&self, object: u32, error: Error) -> Error {
        match self {
            Self::Files { model, first } => {
                error.at(model.files()[(first + object) as usize].path())
            }
            Self::Namespace { name, .. } => error.at(name),
        }
    }
}
