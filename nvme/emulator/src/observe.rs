//! What tests see of the controller: counters, and every write it does to memory.

use std::fmt;

use nvme::dma::DmaRun;

/// What was counted since the emulator was made.
#[derive(Clone, PartialEq, Eq)]
pub struct Counters {
    /// Admin commands fetched, by opcode.
    pub admin_commands: [u64; 256],
    /// Other commands fetched, by opcode.
    pub io_commands: [u64; 256],
    /// Completions written.
    pub completions: u64,
    /// Bytes of commands' data read from memory.
    pub dma_read_bytes: u64,
    /// Bytes of commands' data written to memory.
    pub dma_write_bytes: u64,
    /// PRP list pages and SGL segments read.
    pub list_pages: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Writes to doorbell registers.
    pub doorbell_writes: u64,
    /// Accesses to addresses that were not mapped.
    pub iommu_faults: u64,
    /// Resets that were completed.
    pub resets: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            admin_commands: [0; 256],
            io_commands: [0; 256],
            completions: 0,
            dma_read_bytes: 0,
            dma_write_bytes: 0,
            list_pages: 0,
            interrupts: 0,
            doorbell_writes: 0,
            iommu_faults: 0,
            resets: 0,
        }
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = |commands: &[u64; 256]| commands.iter().sum::<u64>();
        f.debug_struct("Counters")
            .field("admin_commands", &total(&self.admin_commands))
            .field("io_commands", &total(&self.io_commands))
            .field("completions", &self.completions)
            .field("dma_read_bytes", &self.dma_read_bytes)
            .field("dma_write_bytes", &self.dma_write_bytes)
            .field("list_pages", &self.list_pages)
            .field("interrupts", &self.interrupts)
            .field("doorbell_writes", &self.doorbell_writes)
            .field("iommu_faults", &self.iommu_faults)
            .field("resets", &self.resets)
            .finish()
    }
}

/// What a write to memory was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// Data of a command.
    Data,
    /// A completion queue entry.
    Completion,
    /// An event index of a shadow doorbell.
    EventIndex,
    /// Data of a command that ended before: what no controller may do.
    Violation,
}

/// A write of the controller to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaWrite {
    /// Where, as the controller sees it.
    pub run: DmaRun,
    /// What for.
    pub kind: WriteKind,
    /// The command's submission queue; for event indices, the queue's.
    pub queue: u16,
    /// The command's identifier; 0 for event indices.
    pub command_id: u16,
}

/// Called for every write to memory, under the emulator's lock: it must not call the emulator.
pub type Observer = Box<dyn FnMut(&DmaWrite) + Send>;
