//! The GGML types: wire code, name, elements and bytes per block. Knows no block's inside.
//!
//! Source: `enum ggml_type` of ggml.h and the block structs of ggml-common.h (ggml, 2026).
//! Codes 4, 5, 31-33 and 36-38 belonged to types that were removed from the format.
//! Code 42 is the mainline `Q2_0` (64 elements); a fork that uses it for 128-element blocks
//! writes smaller tensors, which then overlap here and are refused.

/// A type of the GGML library as found in GGUF files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(u8);

/// (code, name, elements per block, bytes per block), by rising code.
const TYPES: [(u8, &str, u64, u64); 35] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
];

impl GgmlType {
    /// Every type of the current specification.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().map(|entry| Self(entry.0))
    }

    /// The type with this wire code; `None` for unknown and removed ones.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        TYPES
            .iter()
            .find(|entry| u32::from(entry.0) == code)
            .map(|entry| Self(entry.0))
    }

    /// The type with this name (`Q4_K`; case matters).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES
            .iter()
            .find(|entry| entry.1 == name)
            .map(|entry| Self(entry.0))
    }

    /// The wire code.
    #[must_use]
    pub fn code(self) -> u32 {
        u32::from(self.0)
    }

    /// The name, as GGML prints it in capitals.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Elements per block; a row is a whole number of blocks.
    #[must_use]
    pub fn block_elements(self) -> u64 {
        self.entry().2
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.entry().3
    }

    fn entry(self) -> &'static (u8, &'static str, u64, u64) {
        TYPES
            .iter()
            .find(|entry| entry.0 == self.0)
            .expect("a GgmlType is only made from a code in the table")
    }
}

impl std::fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
