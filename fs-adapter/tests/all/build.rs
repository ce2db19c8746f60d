//! Builds valid and broken files byte by byte, without the crate's own writers.

use fs_adapter::{Error, ErrorKind, Model, OpenOptions};
use std::path::{Path, PathBuf};

/// A safetensors file with this header text and `data_len` counted-up payload bytes.
pub(crate) fn safetensors(header: &str, data_len: usize) -> Vec<u8> {
    safetensors_claiming(header.len() as u64, header, data_len)
}

/// The same, with a header length of one's choice.
pub(crate) fn safetensors_claiming(length: u64, header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(counting(data_len));
    bytes
}

/// A safetensors file with one-byte tensors of these names.
pub(crate) fn safetensors_of(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            format!(
                r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#,
                at + 1
            )
        })
        .collect();
    safetensors(&format!("{{{}}}", entries.join(",")), names.len())
}

/// `len` bytes that differ from their neighbours.
pub(crate) fn counting(len: usize) -> impl Iterator<Item = u8> {
    (0u8..=250).cycle().take(len)
}

/// A GGUF file under construction; every field can be made to lie.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) magic: Vec<u8>,
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) pair_count: Option<u64>,
    pub(crate) align: usize,
    pub(crate) data_len: usize,
    pub(crate) pairs: Vec<Vec<u8>>,
    pub(crate) infos: Vec<Vec<u8>>,
}

impl Gguf {
    pub(crate) fn new() -> Self {
        Self {
            magic: b"GGUF".to_vec(),
            version: 3,
            tensor_count: None,
            pair_count: None,
            align: 32,
            data_len: 0,
            pairs: Vec::new(),
            infos: Vec::new(),
        }
    }

    /// One F32 tensor `t` of 8 elements, and its 32 bytes.
    pub(crate) fn small() -> Self {
        Self::new()
            .string("general.architecture", "llama")
            .tensor("t", &[8], 0, 0)
            .data(32)
    }

    pub(crate) fn pair(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        let mut pair = text(key);
        pair.extend(value_type.to_le_bytes());
        pair.extend(value);
        self.pairs.push(pair);
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn u16(self, key: &str, value: u16) -> Self {
        self.pair(key, 2, &value.to_le_bytes())
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.pair(key, 8, &text(value))
    }

    /// `dims` innermost first, as in the file.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], code: u32, offset: u64) -> Self {
        let mut info = text(name);
        info.extend(u32::try_from(dims.len()).expect("few").to_le_bytes());
        info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        info.extend(code.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.raw_info(info)
    }

    pub(crate) fn raw_info(mut self, info: Vec<u8>) -> Self {
        self.infos.push(info);
        self
    }

    pub(crate) fn data(mut self, data_len: usize) -> Self {
        self.data_len = data_len;
        self
    }

    pub(crate) fn align(mut self, align: usize) -> Self {
        self.align = align;
        self.u32("general.alignment", u32::try_from(align).expect("small"))
    }

    /// The header without padding.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.clone();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(
            self.tensor_count
                .unwrap_or(self.infos.len() as u64)
                .to_le_bytes(),
        );
        bytes.extend(
            self.pair_count
                .unwrap_or(self.pairs.len() as u64)
                .to_le_bytes(),
        );
        bytes.extend(self.pairs.iter().flatten());
        bytes.extend(self.infos.iter().flatten());
        bytes
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(self.align), 0);
        bytes.extend(counting(self.data_len));
        bytes
    }
}

/// A GGUF string.
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// A folder that is removed afterwards.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("a subfolder");
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    pub(crate) fn link(&self, target: &str, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("a subfolder");
        std::os::unix::fs::symlink(target, &path).expect("a link");
        path
    }
}

pub(crate) fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
    Model::open(path, &OpenOptions::default())
}

/// Demands this kind of error, a text in it, and what every error owes its reader.
#[track_caller]
pub(crate) fn refused<T>(
    what: &str,
    result: Result<T, Error>,
    kind: ErrorKind,
    text: &str,
) -> Error {
    let Err(error) = result else {
        panic!("{what}: was accepted");
    };
    let shown = error.to_string();
    assert_eq!(error.kind(), kind, "{what}: {shown}");
    assert!(shown.contains(text), "{what}: {text:?} is not in: {shown}");
    assert!(!error.remedy().is_empty(), "{what}: no remedy: {shown}");
    assert!(
        !shown.contains(char::is_control),
        "{what}: more than a line: {shown:?}"
    );
    error
}
