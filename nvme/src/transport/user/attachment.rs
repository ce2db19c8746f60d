//! Memory that commands may target: mapped for the device, its PRP lists made.
//!
//! unsafe: names the whole pages that memory lies in.
#![expect(unsafe_code, reason = "names more of the owner's pages")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::command::Command;
use crate::device::{Device, Mapping};
use crate::dma::{DmaRun, PageSize};
use crate::error::Result;
use crate::memory::{PAGE_BYTES, RawMemory, TargetMemory};
use crate::prp::table::TableLayout;
use crate::sgl;
use crate::transport::MemoryId;
use crate::transport::user::UserTransport;

#[derive(Debug)]
pub(super) struct Attachment {
    mapping: Mapping,
    /// Bytes of the first page that are before the memory.
    lead: u64,
    len_bytes: u64,
    layout: TableLayout,
    lists: Mapping,
    /// Commands whose data an SGL named. One thread counts.
    sgl_commands: AtomicU64,
}

/// The whole pages that memory lies in.
struct WholePages {
    owner: Arc<dyn TargetMemory>,
    lead: u64,
}

// SAFETY: pages are mapped as a whole, and these as long as the memory inside of them.
unsafe impl TargetMemory for WholePages {
    fn raw(&self) -> RawMemory {
        let inside = self.owner.raw();
        let lead = usize::try_from(self.lead).expect("below a page");
        let len = (self.lead + inside.len_bytes()).next_multiple_of(PAGE_BYTES);
        let len = usize::try_from(len).expect("64-bit address space");
        // SAFETY: the page that the memory begins in is mapped from its start on, and the one
        // that it ends in up to its end.
        unsafe {
            let start = inside.start().sub(lead);
            RawMemory::new(start, len)
        }
    }
}

impl UserTransport {
    /// Commands into attached memory so far whose data was named by an SGL, not by a PRP list;
    /// memory that was attached more than once has one count.
    ///
    /// # Panics
    /// If it is not attached.
    #[must_use]
    pub fn sgl_commands(&self, memory: MemoryId) -> u64 {
        self.attachment(memory).sgl_commands.load(Ordering::Relaxed)
    }
}

impl Attachment {
    pub(super) fn new(device: &Arc<dyn Device>, memory: Arc<dyn TargetMemory>) -> Result<Self> {
        let raw = memory.raw();
        let lead = raw.start().as_ptr() as u64 % PAGE_BYTES;
        let whole = WholePages {
            owner: memory,
            lead,
        };
        let mapping = Mapping::new(device, Arc::new(whole))?;
        let pages = mapping.raw().len_bytes() / PAGE_BYTES;
        let layout = TableLayout::new(pages, PageSize::MIN);
        let lists = Mapping::pages(device, layout.lists() * PAGE_BYTES)?;
        let entries = lists.raw();
        let mut addresses = Vec::new();
        for run in mapping.runs() {
            let pages = run.len_bytes.div_ceil(PAGE_BYTES);
            addresses.extend((0..pages).map(|page| run.start.0 + page * PAGE_BYTES));
        }
        layout.fill(
            |page| crate::dma::Iova(addresses[usize::try_from(page).expect("64-bit")]),
            |list| lists.address(list * PAGE_BYTES),
            |list, slot, entry| entries.write(list * PAGE_BYTES + slot * 8, entry.to_le()),
        );
        Ok(Self {
            mapping,
            lead,
            len_bytes: raw.len_bytes(),
            layout,
            lists,
            sgl_commands: AtomicU64::new(0),
        })
    }

    /// Whether it is of exactly this memory.
    pub(super) fn is_of(&self, memory: RawMemory) -> bool {
        let start = self.mapping.raw().part(self.lead, self.len_bytes).start();
        (start, self.len_bytes) == (memory.start(), memory.len_bytes())
    }

    pub(super) fn runs(&self) -> &[DmaRun] {
        self.mapping.runs()
    }

    /// Completes a command with where its data is.
    ///
    /// # Panics
    /// If that is not inside of the memory.
    #[inline]
    pub(super) fn with_data(
        &self,
        command: Command,
        offset: u64,
        len_bytes: u64,
        sgl: bool,
    ) -> Command {
        let end = offset.checked_add(len_bytes);
        assert!(
            end.is_some_and(|end| end <= self.len_bytes),
            "{offset}+{len_bytes} is outside of the memory"
        );
        let offset = self.lead + offset;
        let needs_list = offset % PAGE_BYTES + len_bytes > 2 * PAGE_BYTES;
        if sgl
            && needs_list
            && let Some(descriptor) = sgl::data_block(self.mapping.run_at(offset), len_bytes)
        {
            let before = self.sgl_commands.load(Ordering::Relaxed);
            self.sgl_commands.store(before + 1, Ordering::Relaxed);
            return command.with_sgl(descriptor);
        }
        let pointer = self.layout.pointer(
            offset,
            len_bytes,
            |page| self.mapping.address(page * PAGE_BYTES),
            |list| self.lists.address(list * PAGE_BYTES),
        );
        command.with_data(pointer)
    }

    pub(super) fn give_up(self) {
        self.mapping.give_up();
        self.lists.give_up();
    }
}
