//! Element types: what an element is called and how many bytes a shape takes.
//! Knows no files and no arithmetic on values.

mod ggml;

pub use ggml::GgmlType;

use crate::error::{Error, ErrorKind, Result};
use std::fmt;

/// The type of a tensor's elements: every type of the safetensors format, or a GGML type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// One byte per truth value (`BOOL`).
    Bool,
    /// 4-bit float, two per byte (`F4`).
    F4,
    /// 6-bit float, 2 exponent bits (`F6_E2M3`).
    F6E2M3,
    /// 6-bit float, 3 exponent bits (`F6_E3M2`).
    F6E3M2,
    /// Unsigned byte (`U8`).
    U8,
    /// Signed byte (`I8`).
    I8,
    /// 8-bit float, 5 exponent bits (`F8_E5M2`).
    F8E5M2,
    /// 8-bit float, 4 exponent bits (`F8_E4M3`).
    F8E4M3,
    /// 8-bit exponent only (`F8_E8M0`).
    F8E8M0,
    /// 8-bit float, 4 exponent bits, no infinities, unsigned zero (`F8_E4M3FNUZ`).
    F8E4M3Fnuz,
    /// 8-bit float, 5 exponent bits, no infinities, unsigned zero (`F8_E5M2FNUZ`).
    F8E5M2Fnuz,
    /// Signed 16-bit integer (`I16`).
    I16,
    /// Unsigned 16-bit integer (`U16`).
    U16,
    /// IEEE 754 half precision (`F16`).
    F16,
    /// Brain float (`BF16`).
    BF16,
    /// Signed 32-bit integer (`I32`).
    I32,
    /// Unsigned 32-bit integer (`U32`).
    U32,
    /// IEEE 754 single precision (`F32`).
    F32,
    /// Complex number of two 32-bit floats (`C64`).
    C64,
    /// IEEE 754 double precision (`F64`).
    F64,
    /// Signed 64-bit integer (`I64`).
    I64,
    /// Unsigned 64-bit integer (`U64`).
    U64,
    /// A type of the GGML library, in blocks.
    Ggml(GgmlType),
}

/// Every safetensors type with its name in the format and its bits per element.
///
/// Source: `safetensors` 0.8, `Dtype::bitsize`; a test compares the two.
const SAFETENSORS: [(DType, &str, u64); 22] = [
    (DType::Bool, "BOOL", 8),
    (DType::F4, "F4", 4),
    (DType::F6E2M3, "F6_E2M3", 6),
    (DType::F6E3M2, "F6_E3M2", 6),
    (DType::U8, "U8", 8),
    (DType::I8, "I8", 8),
    (DType::F8E5M2, "F8_E5M2", 8),
    (DType::F8E4M3, "F8_E4M3", 8),
    (DType::F8E8M0, "F8_E8M0", 8),
    (DType::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (DType::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (DType::I16, "I16", 16),
    (DType::U16, "U16", 16),
    (DType::F16, "F16", 16),
    (DType::BF16, "BF16", 16),
    (DType::I32, "I32", 32),
    (DType::U32, "U32", 32),
    (DType::F32, "F32", 32),
    (DType::C64, "C64", 64),
    (DType::F64, "F64", 64),
    (DType::I64, "I64", 64),
    (DType::U64, "U64", 64),
];

impl DType {
    /// Every type a safetensors file can hold.
    pub fn safetensors() -> impl Iterator<Item = Self> {
        SAFETENSORS.iter().map(|&(dtype, _, _)| dtype)
    }

    /// The type with this name in a safetensors header (case matters).
    #[must_use]
    pub fn from_safetensors_name(name: &str) -> Option<Self> {
        SAFETENSORS
            .iter()
            .find(|entry| entry.1 == name)
            .map(|entry| entry.0)
    }

    /// The name in the type's own format: `BF16`, `F8_E4M3`, `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ggml(ggml) => ggml.name(),
            plain => plain.safetensors_entry().map_or("?", |entry| entry.1),
        }
    }

    /// Bits per element of a safetensors type; `None` for GGML types, which come in blocks.
    #[must_use]
    pub fn bits(self) -> Option<u64> {
        self.safetensors_entry().map(|entry| entry.2)
    }

    /// Bytes that a tensor of this `shape` (outermost dimension first; empty: one element)
    /// takes.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] if a product overflows `u64`; [`ErrorKind::Malformed`] if the
    /// elements do not fill whole bytes, or a row does not fill whole blocks.
    pub fn len_bytes(self, shape: &[u64]) -> Result<u64> {
        let overflow = || {
            Error::new(
                ErrorKind::TooLarge,
                format!("shape {shape:?} of {self} overflows 64-bit sizes"),
                "the file is damaged or hostile: fetch it again",
            )
        };
        let elements = shape
            .iter()
            .try_fold(1u64, |product, &dim| product.checked_mul(dim))
            .ok_or_else(overflow)?;
        if let Self::Ggml(ggml) = self {
            let row = shape.last().copied().unwrap_or(1);
            let (block_elements, block_bytes) = (ggml.block_elements(), ggml.block_bytes());
            if row % block_elements != 0 {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!("rows of {row} elements do not fill {self} blocks of {block_elements}"),
                    "the file is damaged or of a newer quantisation: fetch it again",
                ));
            }
            return (elements / block_elements)
                .checked_mul(block_bytes)
                .ok_or_else(overflow);
        }
        let bits = elements
            .checked_mul(self.bits().unwrap_or(8))
            .ok_or_else(overflow)?;
        if bits % 8 != 0 {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!("{elements} elements of {self} do not fill whole bytes"),
                "write the tensor with padded rows",
            ));
        }
        Ok(bits / 8)
    }

    fn safetensors_entry(self) -> Option<&'static (Self, &'static str, u64)> {
        SAFETENSORS.iter().find(|entry| entry.0 == self)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
