//! What windows are made of. A [`WindowMemory`] is attached to each source once; from then
//! on sources and copy engines name places in it by id and offset. Knows no leases: who may
//! touch which window when is the core's business.

use std::sync::Arc;

use crate::sys::memory::Region;

pub use crate::sys::memory::MemoryKind;

/// A stretch of memory that storage may write to, cut into windows of equal size.
#[derive(Clone, Debug)]
pub struct WindowMemory {
    region: Arc<Region>,
    window_bytes: u64,
}

impl WindowMemory {
    fn new(region: Arc<Region>, window_bytes: u64, kind: MemoryKind) -> Self {
        assert!(window_bytes > 0, "a window has a size");
        assert_eq!(region.kind(), kind, "the kind of the memory");
        Self {
            region,
            window_bytes,
        }
    }

    /// Host memory cut into windows of `window_bytes`; a rest at the end is not used.
    ///
    /// # Panics
    /// If it is other memory.
    pub fn host(region: Arc<Region>, window_bytes: u64) -> Self {
        Self::new(region, window_bytes, MemoryKind::Host)
    }

    /// Peer-to-peer memory with pages, cut in the same way.
    ///
    /// # Panics
    /// If it is other memory.
    pub fn p2p(region: Arc<Region>, window_bytes: u64) -> Self {
        Self::new(region, window_bytes, MemoryKind::P2p)
    }

    /// A BAR's memory, without pages, cut in the same way.
    ///
    /// # Panics
    /// If it is other memory.
    pub fn bar(region: Arc<Region>, window_bytes: u64) -> Self {
        Self::new(region, window_bytes, MemoryKind::Bar)
    }

    /// Memory of whatever kind it is, cut in the same way.
    pub fn of(region: Arc<Region>, window_bytes: u64) -> Self {
        let kind = region.kind();
        Self::new(region, window_bytes, kind)
    }

    /// The kind.
    pub fn kind(&self) -> MemoryKind {
        self.region.kind()
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
