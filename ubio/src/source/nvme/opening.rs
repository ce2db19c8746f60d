//! From an address to a source.

use super::{NvmeAddress, NvmeOptions, NvmeSource};
use crate::error::{Error, ErrorKind, Result};

impl NvmeAddress {
    /// Opens what it names.
    ///
    /// # Errors
    /// Unsupported.
    pub fn open(&self, _options: &NvmeOptions) -> Result<NvmeSource> {
        Err(Error::new(ErrorKind::Unsupported, self.to_string()))
    }
}
