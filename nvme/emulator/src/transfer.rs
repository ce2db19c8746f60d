//! A command's data pointer to memory: the controller's own walk over PRP entries (Base 4.1.1)
//! and SGL descriptors (Base 4.1.2). Moves no data; shares no code with the writers in `nvme`.

use nvme_sys::sgl::{DATA_BLOCK, LAST_SEGMENT, SEGMENT, SglDescriptor};
use nvme_sys::sqe::{FUSE_MASK, PSDT_MASK, SubmissionEntry};
use zerocopy::FromBytes;

use crate::config::SglSupport;
use crate::iommu::{Iommu, Pieces, Unmapped};
use crate::status;

/// Why there is no memory for a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WalkError {
    /// The pointer is wrong in itself.
    Status(u16),
    /// It leads to where nothing is.
    Unmapped(u64),
}

impl From<Unmapped> for WalkError {
    fn from(Unmapped(address): Unmapped) -> Self {
        Self::Unmapped(address)
    }
}

/// Descriptors of one transfer: more are refused, so that a loop of segments ends.
const MAX_DESCRIPTORS: usize = 64 << 10;
const DESCRIPTOR_BYTES: u64 = 16;

/// A walk.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    pub(crate) iommu: &'a Iommu,
    /// Bytes of a memory page.
    pub(crate) page_bytes: u64,
    pub(crate) sgl: SglSupport,
    pub(crate) pieces: &'a mut Pieces,
    /// Room for one list page.
    pub(crate) list: &'a mut Vec<u8>,
    /// Counts list pages and SGL segments.
    pub(crate) list_pages: &'a mut u64,
}

impl Walk<'_> {
    /// Finds the memory of `len_bytes` of a command of an I/O queue, or of the admin queue.
    pub(crate) fn command(
        &mut self,
        entry: &SubmissionEntry,
        admin: bool,
        len_bytes: u64,
    ) -> Result<(), WalkError> {
        self.pieces.clear();
        if entry.flags & PSDT_MASK == 0 {
            return self.prp(entry.data1.get(), entry.data2.get(), len_bytes);
        }
        let psdt = (entry.flags & PSDT_MASK) >> PSDT_MASK.trailing_zeros();
        if admin || self.sgl == SglSupport::None || psdt == 0b11 {
            return Err(WalkError::Status(status::INVALID_FIELD));
        }
        let [a, b, c, d, e, f, g, kind] = entry.data2.get().to_le_bytes();
        let descriptor = SglDescriptor {
            address: entry.data1,
            len_bytes: u32::from_le_bytes([a, b, c, d]).into(),
            reserved: [e, f, g],
            kind,
        };
        self.sgl(descriptor, len_bytes)
    }

    fn aligned(&self, address: u64) -> Result<u64, WalkError> {
        if address.is_multiple_of(self.page_bytes) {
            Ok(address)
        } else {
            Err(WalkError::Status(status::INVALID_PRP_OFFSET))
        }
    }

    fn prp(&mut self, prp1: u64, prp2: u64, len_bytes: u64) -> Result<(), WalkError> {
        if !prp1.is_multiple_of(4) {
            return Err(WalkError::Status(status::INVALID_PRP_OFFSET));
        }
        let first = (self.page_bytes - prp1 % self.page_bytes).min(len_bytes);
        let mut left = len_bytes - first;
        self.iommu.gather(prp1, first, self.pieces)?;
        if left == 0 {
            return Ok(());
        }
        if left <= self.page_bytes {
            let address = self.aligned(prp2)?;
            return Ok(self.iommu.gather(address, left, self.pieces)?);
        }
        // The first list may begin anywhere in its page, at a qword.
        if !prp2.is_multiple_of(8) {
            return Err(WalkError::Status(status::INVALID_PRP_OFFSET));
        }
        let mut list_at = prp2;
        loop {
            let slots = (self.page_bytes - list_at % self.page_bytes) / 8;
            let wanted = left.div_ceil(self.page_bytes);
            // With more pages than slots, the last slot leads on.
            let (data, leads_on) = if wanted > slots {
                (slots - 1, true)
            } else {
                (wanted, false)
            };
            self.fetch(list_at, (data + u64::from(leads_on)) * 8)?;
            for slot in 0..data {
                let address = self.aligned(self.entry(slot))?;
                let len = left.min(self.page_bytes);
                self.iommu.gather(address, len, self.pieces)?;
                left -= len;
            }
            if !leads_on {
                return Ok(());
            }
            list_at = self.aligned(self.entry(data))?;
        }
    }

    fn fetch(&mut self, address: u64, len_bytes: u64) -> Result<(), WalkError> {
        let len = usize::try_from(len_bytes).expect("a page or a bounded segment");
        self.list.resize(len, 0);
        *self.list_pages += 1;
        Ok(self.iommu.copy_to(address, self.list)?)
    }

    fn entry(&self, slot: u64) -> u64 {
        let at = usize::try_from(slot).expect("in a page") * 8;
        let bytes = self.list[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    }

    fn sgl(&mut self, first: SglDescriptor, len_bytes: u64) -> Result<(), WalkError> {
        let mut left = len_bytes;
        let mut seen = 0;
        let (mut segment, mut is_last) = match first.kind {
            DATA_BLOCK => {
                self.block(&first, &mut left)?;
                return Self::all(left);
            }
            SEGMENT => (first, false),
            LAST_SEGMENT => (first, true),
            _ => return Err(WalkError::Status(status::INVALID_SGL_TYPE)),
        };
        loop {
            let len = u64::from(segment.len_bytes.get());
            if len == 0 || !len.is_multiple_of(DESCRIPTOR_BYTES) {
                return Err(WalkError::Status(status::INVALID_SGL_SEGMENT));
            }
            let count = usize::try_from(len / DESCRIPTOR_BYTES).expect("32 bits");
            seen += count;
            if seen > MAX_DESCRIPTORS {
                return Err(WalkError::Status(status::INVALID_SGL_COUNT));
            }
            self.fetch(segment.address.get(), len)?;
            let mut next = None;
            for at in 0..count {
                let bytes = &self.list[at * 16..at * 16 + 16];
                let descriptor = SglDescriptor::read_from_bytes(bytes).expect("16 bytes");
                match descriptor.kind {
                    DATA_BLOCK => self.block(&descriptor, &mut left)?,
                    SEGMENT | LAST_SEGMENT if !is_last && at + 1 == count => {
                        next = Some((descriptor, descriptor.kind == LAST_SEGMENT));
                    }
                    SEGMENT | LAST_SEGMENT => {
                        return Err(WalkError::Status(status::INVALID_SGL_SEGMENT));
                    }
                    _ => return Err(WalkError::Status(status::INVALID_SGL_TYPE)),
                }
            }
            match next {
                Some(next) => (segment, is_last) = next,
                None if is_last => return Self::all(left),
                // A segment that is not the last leads on.
                None => return Err(WalkError::Status(status::INVALID_SGL_SEGMENT)),
            }
        }
    }

    fn block(&mut self, block: &SglDescriptor, left: &mut u64) -> Result<(), WalkError> {
        let (address, len) = (block.address.get(), u64::from(block.len_bytes.get()));
        let dwords = address.is_multiple_of(4) && len.is_multiple_of(4);
        if self.sgl == SglSupport::Dwords && !dwords {
            return Err(WalkError::Status(status::INVALID_SGL_GRANULARITY));
        }
        // Longer than the transfer is for controllers that say so (SGLS bit 18).
        let rest = left.checked_sub(len);
        *left = rest.ok_or(WalkError::Status(status::INVALID_SGL_LENGTH))?;
        Ok(self.iommu.gather(address, len, self.pieces)?)
    }

    fn all(left: u64) -> Result<(), WalkError> {
        match left {
            0 => Ok(()),
            _ => Err(WalkError::Status(status::INVALID_SGL_LENGTH)),
        }
    }
}

/// Whether the command is part of a fused pair, which this controller does not have.
pub(crate) fn is_fused(entry: &SubmissionEntry) -> bool {
    entry.flags & FUSE_MASK != 0
}
