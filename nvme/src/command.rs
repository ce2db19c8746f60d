//! Typed commands. Every one comes through a constructor that demands an opcode, so that none
//! is "delete queue" by forgetting it; identifiers and data pointers come later, from the
//! queue and from the memory.

use nvme_sys::opcode::{admin, cns, nvm};
use nvme_sys::sgl::SglDescriptor;
use nvme_sys::sqe::{
    ALL_NAMESPACES, CDW11_CONTIGUOUS, CDW11_DEALLOCATE, CDW11_INTERRUPTS, PSDT_SGL, SubmissionEntry,
};

use crate::device::halves;
use crate::dma::Iova;
use crate::lba::{BlockCount, Lba};
use crate::prp::DataPointer;

/// A namespace's identifier, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u32);

/// A queue's identifier; 0 is the admin queue's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

/// A command that lacks only its identifier and where its data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(SubmissionEntry);

impl Command {
    /// The one constructor.
    fn new(opcode: u8, namespace: Option<NamespaceId>) -> Self {
        Self(SubmissionEntry {
            opcode,
            namespace_id: namespace.map_or(0, |id| id.0).into(),
            ..SubmissionEntry::default()
        })
    }

    fn blocks(opcode: u8, namespace: NamespaceId, first: Lba, count: BlockCount) -> Self {
        let mut command = Self::new(opcode, Some(namespace));
        let [low, high] = halves(first.0);
        command.0.cdw10 = low.into();
        command.0.cdw11 = high.into();
        command.0.cdw12 = u32::from(count.zero_based()).into();
        command
    }

    /// Reads blocks (NVM 3.2.4).
    #[must_use]
    pub fn read(namespace: NamespaceId, first: Lba, count: BlockCount) -> Self {
        Self::blocks(nvm::READ, namespace, first, count)
    }

    /// Writes blocks (NVM 3.2.6).
    #[must_use]
    pub fn write(namespace: NamespaceId, first: Lba, count: BlockCount) -> Self {
        Self::blocks(nvm::WRITE, namespace, first, count)
    }

    /// Compares blocks with memory (NVM 3.2.1).
    #[must_use]
    pub fn compare(namespace: NamespaceId, first: Lba, count: BlockCount) -> Self {
        Self::blocks(nvm::COMPARE, namespace, first, count)
    }

    /// Makes blocks read as zeroes (NVM 3.2.8).
    #[must_use]
    pub fn write_zeroes(namespace: NamespaceId, first: Lba, count: BlockCount) -> Self {
        Self::blocks(nvm::WRITE_ZEROES, namespace, first, count)
    }

    /// Makes what was written durable (Base 7.1).
    #[must_use]
    pub fn flush(namespace: NamespaceId) -> Self {
        Self::new(nvm::FLUSH, Some(namespace))
    }

    /// Deallocates ranges; the data are their descriptors (NVM 3.2.3).
    ///
    /// # Panics
    /// Unless there are 1 to 256 ranges.
    #[must_use]
    pub fn deallocate(namespace: NamespaceId, ranges: usize) -> Self {
        let zero_based = ranges
            .checked_sub(1)
            .and_then(|count| u8::try_from(count).ok());
        let mut command = Self::new(nvm::DATASET_MANAGEMENT, Some(namespace));
        command.0.cdw10 = u32::from(zero_based.expect("1 to 256 ranges")).into();
        command.0.cdw11 = CDW11_DEALLOCATE.into();
        command
    }

    /// Asks for the controller's data, 4096 bytes (Base 5.17).
    #[must_use]
    pub fn identify_controller() -> Self {
        let mut command = Self::new(admin::IDENTIFY, None);
        command.0.cdw10 = u32::from(cns::CONTROLLER).into();
        command
    }

    /// Asks for a namespace's data, 4096 bytes (Base 5.17).
    #[must_use]
    pub fn identify_namespace(namespace: NamespaceId) -> Self {
        let mut command = Self::new(admin::IDENTIFY, Some(namespace));
        command.0.cdw10 = u32::from(cns::NAMESPACE).into();
        command
    }

    /// Asks for a feature's value, which comes as the result (Base 5.15).
    #[must_use]
    pub fn get_feature(feature: u8) -> Self {
        let mut command = Self::new(admin::GET_FEATURES, None);
        command.0.cdw10 = u32::from(feature).into();
        command
    }

    /// Sets a feature (Base 5.27).
    #[must_use]
    pub fn set_feature(feature: u8, value: u32) -> Self {
        let mut command = Self::new(admin::SET_FEATURES, None);
        command.0.cdw10 = u32::from(feature).into();
        command.0.cdw11 = value.into();
        command
    }

    /// Makes a completion queue of `entries`, with or without interrupts (Base 5.4).
    #[must_use]
    pub fn create_cq(queue: QueueId, entries: QueueEntries, interrupt: Option<u16>) -> Self {
        let mut command = Self::queue(admin::CREATE_CQ, queue, Some(entries));
        let vector = interrupt.map_or(0, |vector| CDW11_INTERRUPTS | u32::from(vector) << 16);
        command.0.cdw11 = (CDW11_CONTIGUOUS | vector).into();
        command
    }

    /// Makes a submission queue of `entries` whose completions go to `completions`
    /// (Base 5.5).
    #[must_use]
    pub fn create_sq(queue: QueueId, entries: QueueEntries, completions: QueueId) -> Self {
        let mut command = Self::queue(admin::CREATE_SQ, queue, Some(entries));
        command.0.cdw11 = (CDW11_CONTIGUOUS | u32::from(completions.0) << 16).into();
        command
    }

    /// Ends a submission queue (Base 5.7).
    #[must_use]
    pub fn delete_sq(queue: QueueId) -> Self {
        Self::queue(admin::DELETE_SQ, queue, None)
    }

    /// Ends a completion queue (Base 5.6).
    #[must_use]
    pub fn delete_cq(queue: QueueId) -> Self {
        Self::queue(admin::DELETE_CQ, queue, None)
    }

    fn queue(opcode: u8, queue: QueueId, entries: Option<QueueEntries>) -> Self {
        let mut command = Self::new(opcode, None);
        let size = entries.map_or(0, |entries| u32::from(entries.zero_based()) << 16);
        command.0.cdw10 = (size | u32::from(queue.0)).into();
        command
    }

    /// Asks to abort a command of a queue (Base 5.1). It may end by itself first.
    #[must_use]
    pub fn abort(queue: QueueId, command_id: u16) -> Self {
        let mut command = Self::new(admin::ABORT, None);
        command.0.cdw10 = (u32::from(command_id) << 16 | u32::from(queue.0)).into();
        command
    }

    /// Asks to be told of the next event (Base 5.2).
    #[must_use]
    pub fn async_event() -> Self {
        Self::new(admin::ASYNC_EVENT, None)
    }

    /// Reads `len_bytes` (dwords) of a log page, which also lets its event be raised again
    /// (Base 5.16).
    #[must_use]
    pub fn log_page(log: u8, len_bytes: u32) -> Self {
        let mut command = Self::new(admin::GET_LOG_PAGE, Some(NamespaceId(ALL_NAMESPACES)));
        let dwords = len_bytes / 4 - 1;
        command.0.cdw10 = (dwords << 16 | u32::from(log)).into();
        command
    }

    /// Puts doorbells and event indices into memory, a page each (Base 5.8).
    #[must_use]
    pub fn doorbell_buffer(doorbells: Iova, event_indices: Iova) -> Self {
        Self::new(admin::DOORBELL_BUFFER, None).with_data(DataPointer {
            prp1: doorbells.0,
            prp2: event_indices.0,
        })
    }

    /// Says where the data is.
    #[must_use]
    pub fn with_data(mut self, data: DataPointer) -> Self {
        self.0.data1 = data.prp1.into();
        self.0.data2 = data.prp2.into();
        self
    }

    /// Says where the data is, by one SGL descriptor.
    #[must_use]
    pub fn with_sgl(mut self, descriptor: SglDescriptor) -> Self {
        let kind = u64::from(descriptor.kind) << 56;
        self.0.flags = PSDT_SGL;
        self.0.data1 = descriptor.address;
        self.0.data2 = (u64::from(descriptor.len_bytes.get()) | kind).into();
        self
    }

    /// The entry for a queue.
    #[must_use]
    pub fn entry(mut self, command_id: u16) -> SubmissionEntry {
        self.0.command_id = command_id.into();
        self.0
    }
}

/// Entries of a queue: 2 to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntries(u32);

impl QueueEntries {
    /// `None` unless 2 to 65,536: a queue of one entry would never have room.
    #[must_use]
    pub fn new(entries: u32) -> Option<Self> {
        (2..=1 << 16).contains(&entries).then_some(Self(entries))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// QSIZE: one less.
    #[must_use]
    pub fn zero_based(self) -> u16 {
        u16::try_from(self.0 - 1).expect("at most 65,536")
    }
}
