//! The file formats. Each submodule parses header bytes against an explicit file length and
//! touches no file; this file only tells the formats apart.

pub mod gguf;
pub mod safetensors;

use std::path::Path;

/// The format of a model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Hugging Face safetensors, one file or shards.
    Safetensors,
    /// GGUF version 2 or 3, one file or a split.
    Gguf,
    /// Any other file: one tensor of bytes.
    Raw,
}

impl Format {
    /// The lower-case name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Raw => "raw",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a file is, by its first bytes and, where those are damaged, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detected {
    Safetensors,
    Gguf,
    /// Perhaps an index: a JSON object. Only the text tells.
    JsonObject,
    /// An index by its name.
    Index,
    Raw,
}

/// Bytes that [`detect`] wants to see.
pub(crate) const DETECT_BYTES: usize = 64;

/// Tells formats apart. The content comes first, since cached files have names without an
/// extension; the extension decides for content that fits no format, so that a damaged file
/// is reported as damaged and not taken for raw bytes.
pub(crate) fn detect(path: &Path, head: &[u8]) -> Detected {
    let name = path
        .file_name()
        .unwrap_or_default()
        .as_encoded_bytes()
        .to_ascii_lowercase();
    if head.starts_with(gguf::MAGIC) {
        Detected::Gguf
    } else if name.ends_with(b".safetensors") || safetensors::looks_like(head) {
        Detected::Safetensors
    } else if name.ends_with(b".gguf") {
        Detected::Gguf
    } else if name.ends_with(b".safetensors.index.json") {
        Detected::Index
    } else if head.trim_ascii_start().starts_with(b"{") {
        Detected::JsonObject
    } else {
        Detected::Raw
    }
}
