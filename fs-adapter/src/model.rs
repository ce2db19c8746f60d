//! A model, opened: its files (kept open), their headers (validated), one tensor table.
//! Moves no payload byte and knows no destination.

pub(crate) mod gguf_split;
mod indexed;

use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{self, Folder, ModelFile, Opened};
use crate::folder::{self, Candidate};
use crate::format::{DETECT_BYTES, Detected, Format, detect, gguf, safetensors};
use crate::limits::{
    MAX_HEADER_BYTES, MAX_TENSORS, TABLE_BYTES_PER_HEADER_BYTE, TABLE_BYTES_PER_TENSOR,
};
use crate::memory;
use crate::tensor_table::{FileIndex, Tensor, TensorTable};
use std::path::Path;

/// How a model is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Follow symbolic links to files of the model, as the Hugging Face cache needs them
    /// (default). Otherwise a link is refused, also one that is named itself, be it to a file
    /// or to a folder: for folders one does not trust.
    pub follow_links: bool,
    /// Take the path for this format instead of detecting it; [`Format::Raw`] moves any one
    /// file as bytes.
    pub format: Option<Format>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            follow_links: true,
            format: None,
        }
    }
}

impl OpenOptions {
    /// Sets [`OpenOptions::follow_links`].
    #[must_use]
    pub fn follow_links(mut self, follow_links: bool) -> Self {
        self.follow_links = follow_links;
        self
    }

    /// Sets [`OpenOptions::format`].
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }
}

/// An opened model. Every file is open and every header valid; [`Model::check_unchanged`]
/// tells later whether that still holds.
#[derive(Debug)]
pub struct Model {
    files: Vec<ModelFile>,
    headers: Headers,
    tensors: TensorTable,
}

/// What placement needs of the headers, one item per file.
#[derive(Debug)]
pub(crate) enum Headers {
    /// `__metadata__` of each file.
    Safetensors(Vec<Option<Vec<(String, String)>>>),
    Gguf(Vec<GgufHeader>),
    Raw,
}

#[derive(Debug)]
pub(crate) struct GgufHeader {
    pub(crate) version: u32,
    pub(crate) alignment: u64,
    pub(crate) pairs: Vec<gguf::Pair>,
}

impl Model {
    /// Opens what `path` names: a safetensors or GGUF file (told by its content), the first
    /// part of a GGUF split (all parts are opened), an index JSON (all shards), a folder with
    /// one model in it, or any other file as raw bytes.
    ///
    /// Everything is opened and validated before this returns.
    ///
    /// # Errors
    /// One [`Error`] that names the file; the kinds are listed at [`ErrorKind`]. A file that
    /// claims a format by content or name and breaks its rules is an error, not raw bytes.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        match file::open(path, options.follow_links)? {
            Opened::File(file) => Self::open_file(file, options),
            Opened::Folder(folder) => Self::open_folder(&folder, options),
        }
    }

    /// The format of the files.
    #[must_use]
    pub fn format(&self) -> Format {
        match self.headers {
            Headers::Safetensors(_) => Format::Safetensors,
            Headers::Gguf(_) => Format::Gguf,
            Headers::Raw => Format::Raw,
        }
    }

    /// The files, in the order of [`FileIndex`].
    #[must_use]
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// The file at `index`.
    ///
    /// # Panics
    /// If `index` is of another model.
    #[must_use]
    pub fn file(&self, index: FileIndex) -> &ModelFile {
        &self.files[index.as_usize()]
    }

    /// The tensors in file order: by file, then by offset.
    #[must_use]
    pub fn tensors(&self) -> &TensorTable {
        &self.tensors
    }

    /// Sum of all tensors' bytes, without headers and padding.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.tensors.payload_bytes()
    }

    /// Compares every file with what it was when it was opened: size, times, inode, through
    /// the descriptor and by name.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] for the first file that differs; [`ErrorKind::Io`].
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(ModelFile::check_unchanged)
    }

    pub(crate) fn headers(&self) -> &Headers {
        &self.headers
    }

    fn open_file(file: ModelFile, options: &OpenOptions) -> Result<Self> {
        file.check_not_empty()?;
        let head_len = file.len_bytes().min(DETECT_BYTES as u64);
        let head = file.read_head(as_usize(head_len))?;
        let detected = match options.format {
            Some(Format::Safetensors) if head.trim_ascii_start().starts_with(b"{") => {
                Detected::Index
            }
            Some(Format::Safetensors) => Detected::Safetensors,
            Some(Format::Gguf) => Detected::Gguf,
            Some(Format::Raw) => Detected::Raw,
            None => detect(file.path(), &head),
        };
        match detected {
            Detected::Safetensors => Self::from_safetensors(vec![file]),
            Detected::Gguf => gguf_split::open(file, options),
            Detected::Index => {
                indexed::open(&file, &file::folder_of(file.path(), options.follow_links)?)
            }
            Detected::JsonObject if file.len_bytes() <= MAX_HEADER_BYTES => {
                let text = read_all(&file)?;
                if contains(&text, b"\"weight_map\"") {
                    indexed::open(&file, &file::folder_of(file.path(), options.follow_links)?)
                } else {
                    Self::from_raw(file)
                }
            }
            Detected::JsonObject | Detected::Raw => Self::from_raw(file),
        }
    }

    fn open_folder(folder: &Folder, options: &OpenOptions) -> Result<Self> {
        if options.format == Some(Format::Raw) {
            return Err(Error::new(
                ErrorKind::NotAFile,
                "a folder cannot be moved as raw bytes",
                "name one file",
            )
            .at_path(folder.path()));
        }
        let candidate = folder::find(folder, options.format, |index_name| {
            let file = folder.open_file(Path::new(index_name))?;
            Ok(indexed::read(&file)?.shards)
        })?;
        match candidate {
            Candidate::Index(name) => {
                let file = folder.open_file(Path::new(&name))?;
                indexed::open(&file, folder)
            }
            Candidate::Files(names) => {
                let open = |name: &String| folder.open_file(Path::new(name));
                Self::from_safetensors(names.iter().map(open).collect::<Result<_>>()?)
            }
            Candidate::Gguf(name) => gguf_split::open_in(folder, &name),
        }
    }

    /// Safetensors files, each a whole one.
    fn from_safetensors(files: Vec<ModelFile>) -> Result<Self> {
        let mut tensors = Vec::new();
        let mut metadata = Vec::with_capacity(files.len());
        for (file, index) in files.iter().zip((0..).map(FileIndex)) {
            let header = read_safetensors(file).map_err(|error| error.at_path(file.path()))?;
            metadata.push(header.metadata);
            make_room(&mut tensors, header.tensors.len(), file)?;
            tensors.extend(header.tensors.into_iter().map(|entry| Tensor {
                name: entry.name,
                dtype: entry.dtype,
                shape: entry.shape,
                file: index,
                offset: entry.offset,
                len: entry.len,
            }));
            check_tensor_count(tensors.len(), file)?;
        }
        Self::new(files, Headers::Safetensors(metadata), tensors)
    }

    fn from_raw(file: ModelFile) -> Result<Self> {
        let tensor = Tensor {
            name: file.name(),
            dtype: DType::U8,
            shape: [file.len_bytes()].into(),
            file: FileIndex(0),
            offset: 0,
            len: file.len_bytes(),
        };
        Self::new(vec![file], Headers::Raw, vec![tensor])
    }

    fn new(files: Vec<ModelFile>, headers: Headers, tensors: Vec<Tensor>) -> Result<Self> {
        check_memory_for_tensors(tensors.len())?;
        let tensors =
            TensorTable::new(tensors, |index| files[index.as_usize()].name()).map_err(|error| {
                match files.as_slice() {
                    [only] => error.at_path(only.path()),
                    _ => error,
                }
            })?;
        Ok(Self {
            files,
            headers,
            tensors,
        })
    }
}

/// Asks for the memory that the entries of a header or an index will take.
fn check_memory_for_header(file: &ModelFile, header_bytes: u64) -> Result<()> {
    check_memory(as_usize(header_bytes).saturating_mul(TABLE_BYTES_PER_HEADER_BYTE))
        .map_err(|error| error.at_path(file.path()))
}

/// Asks for the memory that it will take to index, plan and place so many tensors.
pub(crate) fn check_memory_for_tensors(count: usize) -> Result<()> {
    check_memory(count.saturating_mul(TABLE_BYTES_PER_TENSOR))
}

fn check_memory(bytes: usize) -> Result<()> {
    match memory::is_available(bytes) {
        true => Ok(()),
        false => Err(Error::out_of_memory(bytes)),
    }
}

/// Makes room for the tensors of one more file.
fn make_room(tensors: &mut Vec<Tensor>, more: usize, file: &ModelFile) -> Result<()> {
    tensors.try_reserve(more).map_err(|_refused| {
        let bytes = (tensors.len() + more).saturating_mul(size_of::<Tensor>());
        Error::out_of_memory(bytes).at_path(file.path())
    })
}

fn check_tensor_count(count: usize, file: &ModelFile) -> Result<()> {
    if count <= MAX_TENSORS {
        return Ok(());
    }
    let detail = format!("more than {MAX_TENSORS} tensors up to this file");
    Err(Error::new(ErrorKind::TooLarge, detail, "load fewer shards at once").at_path(file.path()))
}

/// Names the two commonest stand-ins for a model file: nothing, and the pointer that a clone
/// without Git LFS leaves in its place.
fn check_content(file: &ModelFile) -> Result<()> {
    const POINTER: &[u8] = b"version https://git-lfs";
    file.check_not_empty()?;
    let head_len = as_usize(file.len_bytes().min(POINTER.len() as u64));
    if file.read_head(head_len)? == POINTER {
        let detail = "this is a Git LFS pointer, not the file it points to";
        return Err(
            Error::new(ErrorKind::NotAModel, detail, "fetch the file: git lfs pull")
                .at_path(file.path()),
        );
    }
    Ok(())
}

fn read_safetensors(file: &ModelFile) -> Result<safetensors::Header> {
    let len = file.len_bytes();
    check_content(file)?;
    let head = file.read_head(as_usize(len.min(safetensors::LENGTH_BYTES)))?;
    let header_len = safetensors::header_len(&head, len)?;
    check_memory_for_header(file, header_len)?;
    let bytes = file.read_head(as_usize(safetensors::LENGTH_BYTES + header_len))?;
    safetensors::parse_header(&bytes, len)
}

/// Reads a whole file that has to be small.
fn read_all(file: &ModelFile) -> Result<Vec<u8>> {
    let len = file.len_bytes();
    if len > MAX_HEADER_BYTES {
        let detail = format!("the file has {len} bytes, at most {MAX_HEADER_BYTES} are read");
        return Err(Error::new(
            ErrorKind::TooLarge,
            detail,
            "an index should be far smaller",
        )
        .at_path(file.path()));
    }
    file.read_head(as_usize(len))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// For lengths already bounded by [`MAX_HEADER_BYTES`].
fn as_usize(len: u64) -> usize {
    usize::try_from(len).expect("bounded by the header limit")
}
