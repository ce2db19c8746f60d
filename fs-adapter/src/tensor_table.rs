//! The tensor table: every tensor of a model with its place in the files, in file order.
//! Knows neither formats nor destinations.

use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::MAX_TENSORS;

/// Index of a file in [`crate::Model::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIndex(pub u32);

impl FileIndex {
    /// As a slice index.
    #[must_use]
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// Index of a tensor in a [`TensorTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorIndex(pub u32);

impl TensorIndex {
    /// As a slice index.
    #[must_use]
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// One tensor and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The name, as the file spells it; unique in the model.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Dimensions, outermost first (GGUF lists them the other way round in the file). Empty
    /// for a scalar.
    pub shape: Box<[u64]>,
    /// The file that holds the bytes.
    pub file: FileIndex,
    /// First byte, from the file's start.
    pub offset: u64,
    /// Bytes; 0 if a dimension is 0.
    pub len: u64,
}

/// The tensors of a model in file order: by file, then by offset.
#[derive(Debug, Clone, Default)]
pub struct TensorTable {
    tensors: Vec<Tensor>,
    by_name: Vec<TensorIndex>,
    payload_bytes: u64,
}

impl TensorTable {
    /// Sorts `tensors` into file order (stable, so empty tensors keep the header's order).
    /// `file_name` is only asked for an error's text.
    ///
    /// # Errors
    /// [`ErrorKind::Duplicate`] if a name occurs twice, [`ErrorKind::TooLarge`] for more than
    /// [`MAX_TENSORS`].
    pub(crate) fn new(
        mut tensors: Vec<Tensor>,
        file_name: impl Fn(FileIndex) -> String,
    ) -> Result<Self> {
        if tensors.len() > MAX_TENSORS {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "{} tensors, at most {MAX_TENSORS} are supported",
                    tensors.len()
                ),
                "split the model",
            ));
        }
        tensors.sort_by_key(|tensor| (tensor.file, tensor.offset, tensor.len));
        let mut by_name: Vec<TensorIndex> = (0u32..).map(TensorIndex).take(tensors.len()).collect();
        by_name.sort_by_key(|index| (tensors[index.as_usize()].name.as_str(), *index));
        let twin = by_name
            .windows(2)
            .find(|pair| tensors[pair[0].as_usize()].name == tensors[pair[1].as_usize()].name);
        if let Some(pair) = twin {
            let (first, second) = (&tensors[pair[0].as_usize()], &tensors[pair[1].as_usize()]);
            return Err(Error::new(
                ErrorKind::Duplicate,
                format!(
                    "the name occurs twice: in {} at byte {} and in {} at byte {}",
                    file_name(first.file),
                    first.offset,
                    file_name(second.file),
                    second.offset
                ),
                "a tensor's name must be unique: write the model again",
            )
            .at_tensor(&second.name));
        }
        let payload_bytes = tensors
            .iter()
            .fold(0u64, |sum, tensor| sum.saturating_add(tensor.len));
        Ok(Self {
            tensors,
            by_name,
            payload_bytes,
        })
    }

    /// How many tensors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The tensors in file order.
    #[must_use]
    pub fn as_slice(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors in file order, with their indices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (TensorIndex, &Tensor)> {
        self.indices().zip(&self.tensors)
    }

    /// Every index, in file order.
    pub fn indices(&self) -> impl ExactSizeIterator<Item = TensorIndex> + use<> {
        (0..u32::try_from(self.tensors.len()).unwrap_or(u32::MAX)).map(TensorIndex)
    }

    /// The tensor at `index`; `None` if there is none (an index of another table).
    #[must_use]
    pub fn get(&self, index: TensorIndex) -> Option<&Tensor> {
        self.tensors.get(index.as_usize())
    }

    /// The tensor with exactly this name. Takes O(log n).
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TensorIndex> {
        let at = self
            .by_name
            .binary_search_by(|index| self.tensors[index.as_usize()].name.as_str().cmp(name))
            .ok()?;
        Some(self.by_name[at])
    }

    /// Sum of all tensors' bytes, without headers and padding.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }
}

impl std::ops::Index<TensorIndex> for TensorTable {
    type Output = Tensor;

    /// # Panics
    /// If `index` is not of this table.
    fn index(&self, index: TensorIndex) -> &Tensor {
        &self.tensors[index.as_usize()]
    }
}
