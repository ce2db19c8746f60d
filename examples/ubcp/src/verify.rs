//! `--verify`: an independent reread of the source, by name, with plain buffered reads, that
//! is compared with what was loaded. Shares nothing with the way the bytes came.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use fs_adapter::placement::Placement;
use fs_adapter::{FileIndex, Model, ModelFile, TensorIndex};

use crate::exit::{Exit, Failure, shortened};

/// Bytes read and compared at once.
const PART_BYTES: usize = 1 << 20;

/// What was loaded of a file from an offset on.
struct Pair<'a> {
    file: FileIndex,
    offset: u64,
    bytes: &'a [u8],
}

/// Compares all of `bytes`, the destination of a load of `model` as placed: whole files in
/// place, else every tensor, and the header that was made for them.
pub(crate) fn placed(model: &Model, placement: &Placement, bytes: &[u8]) -> Result<(), Failure> {
    if let Some(header) = &placement.header
        && let Some(at) = difference(header, &bytes[..header.len()])
    {
        return Err(mismatch(format!(
            "byte {at} of the result's header is not what was written"
        )));
    }
    let part = |offset: u64, len: u64| &bytes[index(offset)..index(offset + len)];
    if placement.files.is_empty() {
        let mut placed = placement.tensors.clone();
        placed.sort_by_key(|placed| placed.tensor);
        let tensors: Vec<_> = placed
            .iter()
            .map(|placed| (placed.tensor, part(placed.offset, placed.len)))
            .collect();
        return self::tensors(model, &tensors);
    }
    let mut reread = Reread::new(model);
    placement.files.iter().try_for_each(|file| {
        reread.compare(&Pair {
            file: file.file,
            offset: 0,
            bytes: part(file.offset, file.len),
        })
    })
}

/// Compares single tensors, best in file order: each file is then read once from front to
/// back.
pub(crate) fn tensors(model: &Model, loaded: &[(TensorIndex, &[u8])]) -> Result<(), Failure> {
    let mut reread = Reread::new(model);
    loaded.iter().try_for_each(|&(index, bytes)| {
        let tensor = &model.tensors()[index];
        reread.compare(&Pair {
            file: tensor.file,
            offset: tensor.offset,
            bytes,
        })
    })
}

/// The files, opened a second time as they are needed.
struct Reread<'a> {
    model: &'a Model,
    open: Option<(FileIndex, File)>,
    part: Vec<u8>,
}

impl<'a> Reread<'a> {
    fn new(model: &'a Model) -> Self {
        Self {
            model,
            open: None,
            part: vec![0; PART_BYTES],
        }
    }

    fn compare(&mut self, pair: &Pair<'_>) -> Result<(), Failure> {
        if self
            .open
            .as_ref()
            .is_none_or(|(file, _)| *file != pair.file)
        {
            self.open = Some((pair.file, reopen(self.model.file(pair.file))?));
        }
        let path = self.model.file(pair.file).path();
        let Some((_, file)) = &self.open else {
            return Ok(());
        };
        let mut at = pair.offset;
        for loaded in pair.bytes.chunks(PART_BYTES) {
            let part = &mut self.part[..loaded.len()];
            file.read_exact_at(part, at).map_err(|cause| {
                let exit = match cause.kind() {
                    std::io::ErrorKind::UnexpectedEof => Exit::Changed,
                    _ => Exit::Io,
                };
                Failure::os(exit, path, "reread the file", &cause)
                    .remedy("keep the file still while it is loaded, and load it again")
            })?;
            if let Some(first) = difference(part, loaded) {
                return Err(self.differs(pair.file, at + first as u64));
            }
            at += loaded.len() as u64;
        }
        Ok(())
    }

    /// Names the place by what lies there.
    fn differs(&self, file: FileIndex, at: u64) -> Failure {
        let table = self.model.tensors().as_slice();
        let after = table.partition_point(|tensor| (tensor.file, tensor.offset) <= (file, at));
        let inside = table[..after]
            .iter()
            .rev()
            .find(|tensor| tensor.file == file && at - tensor.offset < tensor.len);
        let place = match inside {
            Some(tensor) => format!(
                "tensor {}, byte {}",
                shortened(&tensor.name),
                at - tensor.offset
            ),
            None => "the file's header or padding".to_owned(),
        };
        mismatch(format!(
            "what was loaded differs from the file first at {place} (byte {at} of the file)"
        ))
        .at(self.model.file(file).path())
    }
}

fn mismatch(message: String) -> Failure {
    Failure::new(Exit::Mismatch, "mismatch", message).remedy(
        "nothing was published; load it again, with --route cached if that differs too, and \
         report this with --trace",
    )
}

/// Opens by name what the model has open, and makes sure that it is the same.
fn reopen(file: &ModelFile) -> Result<File, Failure> {
    let fail = |cause: std::io::Error| {
        Failure::os(Exit::Changed, file.path(), "open the file again", &cause)
            .remedy("keep the file still while it is loaded, and load it again")
    };
    let again = File::open(file.path()).map_err(fail)?;
    let metadata = again.metadata().map_err(fail)?;
    if (metadata.dev(), metadata.ino()) != (file.identity().device, file.identity().inode) {
        let replaced = std::io::Error::other("it was replaced by another file");
        return Err(fail(replaced));
    }
    Ok(again)
}

/// Index of the first byte that differs.
fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other)
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("the destination is in memory")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use fs_adapter::plan::{Order, Plan, Selection};
    use fs_adapter::{Model, OpenOptions, placement};

    use super::placed;
    use crate::exit::Exit;

    /// Two tensors of three bytes, `a` and `b`.
    fn model(folder: &tempfile::TempDir) -> (Model, Vec<u8>) {
        let header = r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[3,6]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(b"abcdef");
        let path = folder.path().join("model.safetensors");
        let mut file = std::fs::File::create(&path).expect("create");
        file.write_all(&bytes).expect("write");
        let model = Model::open(&path, &OpenOptions::default()).expect("a model");
        (model, bytes)
    }

    #[test]
    fn every_byte_counts_in_place() {
        let folder = tempfile::tempdir().expect("folder");
        let (model, bytes) = model(&folder);
        let image = placement::image(&model).expect("image");
        placed(&model, &image, &bytes).expect("equal");
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            let failure = placed(&model, &image, &wrong).expect_err("it differs");
            assert_eq!(failure.exit, Exit::Mismatch);
            let place = format!("(byte {at} of the file)");
            assert!(failure.message.contains(&place), "{failure}");
        }
    }

    #[test]
    fn the_first_difference_is_named_by_tensor_and_byte() {
        let folder = tempfile::tempdir().expect("folder");
        let (model, _) = model(&folder);
        let plan = Plan::new(&model, &Selection::all(), Order::File).expect("plan");
        let packed = placement::packed(&model, &plan, 8).expect("packed");
        let right = *b"abc.....def";
        placed(&model, &packed, &right).expect("equal: padding does not count");
        let failure = placed(&model, &packed, b"abc.....dEF").expect_err("it differs");
        assert!(
            failure.message.contains("tensor \"b\", byte 1 "),
            "{failure}"
        );
        assert_eq!(failure.exit, Exit::Mismatch);

        let named = placement::safetensors(&model, &plan).expect("placed");
        let mut whole = named.header.clone().expect("a header");
        whole.extend_from_slice(b"abcdef");
        placed(&model, &named, &whole).expect("equal");
        whole[9] ^= 1;
        let failure = placed(&model, &named, &whole).expect_err("it differs");
        assert!(failure.message.contains("header"), "{failure}");
    }

    #[test]
    fn a_source_that_changed_is_told_apart() {
        let folder = tempfile::tempdir().expect("folder");
        let (model, bytes) = model(&folder);
        let image = placement::image(&model).expect("image");
        let path = model.files()[0].path();
        std::fs::write(path, &bytes[..bytes.len() - 2]).expect("cut");
        let failure = placed(&model, &image, &bytes).expect_err("it was cut");
        assert_eq!(failure.exit, Exit::Changed);
        std::fs::remove_file(path).expect("remove");
        std::fs::write(path, &bytes).expect("replace");
        let failure = placed(&model, &image, &bytes).expect_err("it was replaced");
        assert_eq!(failure.exit, Exit::Changed);
    }
}
