//! Another function's BAR as memory that commands may target. Knows neither what the memory
//! is nor who fills it.
//!
//! unsafe: promises that a mapping stays.
#![expect(unsafe_code, reason = "implements TargetMemory")]

use std::sync::Arc;

use super::container::VfioContainer;
use super::function::Function;
use super::sys::FileMapping;
use super::sysfs::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{RawMemory, TargetMemory};

/// Part of a PCI BAR, mapped read-write and uncached: each read of the processor goes over the
/// bus, so large copies belong to devices. Where the kernel keeps the BAR's interrupt table to
/// itself, it is not in the part.
///
/// Reading and writing it raises SIGBUS once the function's memory is switched off, which
/// nobody but this process can do while the value is there.
#[derive(Debug)]
pub struct BarMapping {
    mapping: FileMapping,
    bar: u8,
    offset_bytes: u64,
    function: Arc<Function>,
}

impl BarMapping {
    /// Opens a function of any kind, bound to vfio-pci, and maps the longest part of a BAR
    /// that can be mapped: mostly all of it.
    ///
    /// # Errors
    /// As [`VfioDevice::open`](super::VfioDevice::open); NotFound (no such BAR), Unsupported
    /// (I/O ports, or smaller than a page).
    pub fn open(container: &Arc<VfioContainer>, address: &str, bar: u8) -> Result<Self> {
        let function = Function::open(container, address, Role::Memory)?;
        Self::of(Arc::new(function), bar)
    }

    pub(super) fn of(function: Arc<Function>, bar: u8) -> Result<Self> {
        let region = function.bar(bar)?;
        let Some((offset_bytes, len_bytes)) = region.longest_area() else {
            let what = format!("BAR {bar} of {} cannot be mapped", function.address());
            return Err(Error::new(ErrorKind::Unsupported, what)
                .remedy("take a BAR of memory (not of I/O ports) of at least a page"));
        };
        Ok(Self {
            mapping: function.map(&region, offset_bytes, len_bytes)?,
            bar,
            offset_bytes,
            function,
        })
    }

    /// The function's address.
    #[must_use]
    pub fn address(&self) -> &str {
        self.function.address()
    }

    /// The BAR's number.
    #[must_use]
    pub fn bar(&self) -> u8 {
        self.bar
    }

    /// Where in the BAR the part begins.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Bytes of the part.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.raw().len_bytes()
    }
}

// SAFETY: one mapping from the start to the drop; the kernel keeps the function open for it.
unsafe impl TargetMemory for BarMapping {
    fn raw(&self) -> RawMemory {
        self.mapping.raw()
    }
}
