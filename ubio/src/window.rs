//! What windows are made of. A [`WindowMemory`] is attached to each source once; from then
//! on sources and copy engines name places in it by id and offset. Knows no leases: who may
//! touch which window when is the core's business.

use std::sync::Arc;

use crate::sys::memory::Region;

/// What kind of memory it is, and so which sources can fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Host memory: every source can fill it, and it can be registered.
    Host,
}

impl MemoryKind {
    /// The word used in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
        }
    }
}

/// A stretch of memory that storage may write to, cut into windows of equal size.
#[derive(Clone, Debug)]
pub struct WindowMemory {
    kind: MemoryKind,
    region: Arc<Region>,
    window_bytes: u64,
}

impl WindowMemory {
    /// Host memory cut into windows of `window_bytes`; a rest at the end is not used.
    pub fn host(region: Arc<Region>, window_bytes: u64) -> Self {
        assert!(window_bytes > 0, "a window has a size");
        Self {
            kind: MemoryKind::Host,
            region,
            window_bytes,
        }
    }

    /// The kind.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The memory itself.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes of one window.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// How many windows there are.
    pub fn windows(&self) -> u64 {
        self.region.len_bytes() / self.window_bytes
    }
}
