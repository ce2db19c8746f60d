//! `--verify`: an independent reread of the source, by name, with plain buffered reads, that
//! is compared with what was loaded. Shares nothing with the way the bytes came.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use fs_adapter::placement::Placement;
use fs_adapter::{FileIndex, Model, ModelFile};

use crate::exit::{Exit, Failure, shortened};

/// Bytes read and compared at once.
const PART_BYTES: usize = 1 << 20;

/// A range of a file that should be found at an offset of the destination.
struct Pair {
    file: FileIndex,
    offset: u64,
    len: u64,
    destination: u64,
}

/// Compares all of `bytes`, the destination of a load of `model` as placed.
pub(crate) fn verify(model: &Model, placement: &Placement, bytes: &[u8]) -> Result<(), Failure> {
    if let Some(header) = &placement.header
        && let Some(at) = difference(header, &bytes[..header.len()])
    {
        return Err(mismatch(format!(
            "byte {at} of the result's header is not what was written"
        )));
    }
    let mut reread = Reread::new(model);
    for pair in pairs(model, placement) {
        reread.compare(&pair, bytes)?;
    }
    Ok(())
}

/// In file order, so that each file is read once from front to back.
fn pairs(model: &Model, placement: &Placement) -> Vec<Pair> {
    if !placement.files.is_empty() {
        let whole = |file: &fs_adapter::placement::PlacedFile| Pair {
            file: file.file,
            offset: 0,
            len: file.len,
            destination: file.offset,
        };
        return placement.files.iter().map(whole).collect();
    }
    let mut placed = placement.tensors.clone();
    placed.sort_by_key(|placed| placed.tensor);
    let one = |placed: &fs_adapter::placement::PlacedTensor| {
        let tensor = &model.tensors()[placed.tensor];
        Pair {
            file: tensor.file,
            offset: tensor.offset,
            len: tensor.len,
            destination: placed.offset,
        }
    };
    placed.iter().map(one).collect()
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

    fn compare(&mut self, pair: &Pair, bytes: &[u8]) -> Result<(), Failure> {
        if self
            .open
            .as_ref()
            .is_none_or(|(file, _)| *file != pair.file)
        {
            self.open = Some((pair.file, reopen(self.model.file(pair.file))?));
        }
        let model_file = self.model.file(pair.file);
        let Some((_, file)) = &self.open else {
            return Ok(());
        };
        let mut done = 0;
        while done < pair.len {
            let want =
                usize::try_from(pair.len - done).map_or(PART_BYTES, |left| left.min(PART_BYTES));
            let part = &mut self.part[..want];
            let at = pair.offset + done;
            file.read_exact_at(part, at).map_err(|cause| {
                let failure =
                    |exit| Failure::os(exit, model_file.path(), "reread the file", &cause);
                match cause.kind() {
                    std::io::ErrorKind::UnexpectedEof => failure(Exit::Changed),
                    _ => failure(Exit::Io),
                }
                .remedy("keep the file still while it is loaded, and load it again")
            })?;
            let start = index(pair.destination + done);
            if let Some(first) = difference(part, &bytes[start..start + want]) {
                return Err(self.differs(pair.file, at + first as u64));
            }
            done += want as u64;
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
