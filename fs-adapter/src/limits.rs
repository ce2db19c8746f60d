//! Every bound on what a file may ask for, in one place. Knows no format's layout.
//!
//! A count read from a file is checked against these, and against the bytes that are left,
//! before anything is allocated for it.

/// Largest header, index or key-value section that is read, in bytes (the safetensors limit).
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Memory that is asked for before a header or an index is parsed, per byte of it: about twice
/// what its entries, sorted and checked, were seen to take.
pub const TABLE_BYTES_PER_HEADER_BYTE: usize = 8;

/// Memory that is asked for before a model's tensors are indexed, planned and placed, per
/// tensor, bytes: about twice what that was seen to take.
pub const TABLE_BYTES_PER_TENSOR: usize = 256;

/// Most tensors in one model.
pub const MAX_TENSORS: usize = 1 << 20;

/// Most dimensions of a safetensors tensor (what PyTorch and NumPy can hold).
pub const MAX_DIMS: usize = 64;

/// Most dimensions of a GGUF tensor (`GGML_MAX_DIMS`).
pub const MAX_GGUF_DIMS: u32 = 4;

/// Most key-value pairs in a GGUF file.
pub const MAX_GGUF_KEYS: usize = 1 << 16;

/// Longest GGUF key, in bytes (GGUF specification, "Key").
pub const MAX_GGUF_KEY_BYTES: u64 = 65_535;

/// Deepest nesting of GGUF arrays.
pub const MAX_GGUF_ARRAY_DEPTH: u32 = 4;

/// Largest tensor alignment that is accepted or produced, in bytes.
pub const MAX_ALIGNMENT: u64 = 16 << 20;

/// Most shards of one model.
pub const MAX_SHARDS: usize = 65_535;

/// Most entries of a folder that are looked at.
pub const MAX_FOLDER_ENTRIES: usize = 1 << 20;

/// Distance between the images of two files in one destination, in bytes: one huge page.
pub const IMAGE_FILE_ALIGNMENT: u64 = 2 << 20;

/// Default tensor alignment of library placement, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 256;

/// Alignment of a safetensors payload in a destination, in bytes: one page.
pub const SAFETENSORS_PAYLOAD_ALIGNMENT: u64 = 4096;
