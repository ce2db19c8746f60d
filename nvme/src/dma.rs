//! Memory as a device sees it: bus addresses, and runs of them.

/// An address on the bus, as an IOMMU or the host bridge understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u64);

/// A stretch of memory that is contiguous on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaRun {
    /// First byte.
    pub start: Iova,
    /// Bytes.
    pub len_bytes: u64,
}

/// A controller's memory page: what PRP entries count in. A power of two from 4 KiB on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    shift: u8,
}

impl PageSize {
    /// 4 KiB, which every controller knows.
    pub const MIN: Self = Self { shift: 12 };

    /// As CC.MPS says it: 4096 << `mps` bytes, `mps` being 0 to 15.
    #[must_use]
    pub fn from_mps(mps: u8) -> Option<Self> {
        (mps < 16).then_some(Self { shift: 12 + mps })
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        1 << self.shift
    }

    /// Where in its page an address lies.
    #[must_use]
    pub fn offset(self, address: Iova) -> u64 {
        address.0 & (self.bytes() - 1)
    }

    /// PRP entries of a page.
    #[must_use]
    pub fn entries(self) -> usize {
        1 << (self.shift - 3)
    }
}
