//! What kind of controller is emulated. Plain values; every field has a default that a common
//! drive would have.

use std::fmt;
use std::time::Duration;

use nvme::{Error, ErrorKind, Result};

use crate::disk::Disk;
use crate::fault::{Faults, NoFaults};

/// How memory is spread over bus addresses when it is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scatter {
    /// One run for each mapping.
    #[default]
    Contiguous,
    /// Each 4 KiB at an address of its own, no two of them neighbours.
    Pages,
    /// Each 2 MiB at an address of its own, no two of them neighbours.
    HugePages,
}

/// Which SGLs are taken (identify controller, SGLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SglSupport {
    /// None.
    #[default]
    None,
    /// Any addresses and lengths.
    Bytes,
    /// Addresses and lengths in dwords.
    Dwords,
}

/// A namespace. Their identifiers are 1, 2, … in order.
#[derive(Debug)]
pub struct Namespace {
    /// Where its bytes are.
    pub disk: Box<dyn Disk>,
    /// log2 of a block's bytes: 9 to 16.
    pub block_shift: u8,
    /// Bytes of metadata of each block, in a buffer of their own. They are announced and not
    /// kept: reads and writes leave the metadata buffer alone.
    pub metadata_bytes: u16,
    /// DPS: the protection information type that is announced.
    pub protection: u8,
    /// NOIOB: blocks, 0 for none.
    pub optimal_boundary: u16,
}

impl Namespace {
    /// Without metadata.
    #[must_use]
    pub fn new(disk: impl Disk + 'static, block_bytes: u32) -> Self {
        Self {
            disk: Box::new(disk),
            block_shift: u8::try_from(block_bytes.ilog2()).expect("below 32"),
            metadata_bytes: 0,
            protection: 0,
            optimal_boundary: 0,
        }
    }

    /// Blocks; a last part counts as one.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.disk.len_bytes().div_ceil(1 << self.block_shift)
    }
}

/// The controller.
pub struct Config {
    /// Its name in messages.
    pub name: String,
    /// SN, at most 20 ASCII characters.
    pub serial: String,
    /// CAP.MQES, not zero-based: 2 to 65,536.
    pub max_queue_entries: u32,
    /// I/O queues of each kind that can be had, 1 to 65,534.
    pub io_queues: u16,
    /// Interrupt vectors, from 1 on.
    pub vectors: u16,
    /// CAP.DSTRD, below 16.
    pub doorbell_stride: u8,
    /// CAP.MPSMIN and CAP.MPSMAX, below 16.
    pub page_shifts: (u8, u8),
    /// CAP.TO, in units of 500 ms.
    pub timeout_half_seconds: u8,
    /// From CC.EN = 1 to CSTS.RDY = 1.
    pub ready_delay: Duration,
    /// From CC.EN = 0 to CSTS.RDY = 0. Commands under way may move data meanwhile.
    pub reset_delay: Duration,
    /// From CC.SHN to CSTS.SHST.
    pub shutdown_delay: Duration,
    /// MDTS: transfers are at most 2^this smallest pages; 0 for no limit.
    pub max_data_transfer: u8,
    /// SGLS.
    pub sgl: SglSupport,
    /// Whether "doorbell buffer config" is there.
    pub doorbell_buffer: bool,
    /// Whether there is a volatile write cache.
    pub volatile_write_cache: bool,
    /// ACL: aborts at once, zero-based.
    pub abort_limit: u8,
    /// AERL: asynchronous event requests at once, zero-based.
    pub async_event_limit: u8,
    /// CRDT1 to CRDT3, units of 100 ms.
    pub retry_delays: [u16; 3],
    /// How memory is spread over bus addresses.
    pub scatter: Scatter,
    /// Mappings of fewer bytes stay in one piece, as queues of more than a page have to.
    pub scatter_from_bytes: u64,
    /// Decides the order and the gaps of scattered memory.
    pub seed: u64,
    /// The namespaces, 1 at least.
    pub namespaces: Vec<Namespace>,
    /// What goes wrong.
    pub faults: Box<dyn Faults>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name", &self.name)
            .field("namespaces", &self.namespaces)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// A controller with one namespace.
    #[must_use]
    pub fn new(namespace: Namespace) -> Self {
        Self {
            name: "emulated".into(),
            serial: "UBIO0001".into(),
            max_queue_entries: 1024,
            io_queues: 64,
            vectors: 65,
            doorbell_stride: 0,
            page_shifts: (0, 4),
            timeout_half_seconds: 20,
            ready_delay: Duration::ZERO,
            reset_delay: Duration::ZERO,
            shutdown_delay: Duration::ZERO,
            max_data_transfer: 0,
            sgl: SglSupport::None,
            doorbell_buffer: false,
            volatile_write_cache: true,
            abort_limit: 3,
            async_event_limit: 3,
            retry_delays: [0; 3],
            scatter: Scatter::Contiguous,
            scatter_from_bytes: 0,
            seed: 0,
            namespaces: vec![namespace],
            faults: Box::new(NoFaults),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let (min, max) = self.page_shifts;
        let namespace = |namespace: &Namespace| (9..=16).contains(&namespace.block_shift);
        for (holds, what) in [
            (
                (2..=1 << 16).contains(&self.max_queue_entries),
                "max_queue_entries",
            ),
            ((1..u16::MAX).contains(&self.io_queues), "io_queues"),
            ((1..=2048).contains(&self.vectors), "vectors"),
            (self.doorbell_stride < 16, "doorbell_stride"),
            (min <= max && max < 16, "page_shifts"),
            (self.max_data_transfer < 32, "max_data_transfer"),
            (
                self.namespaces.iter().all(namespace),
                "a namespace's block_shift",
            ),
            (
                (1..=1024).contains(&self.namespaces.len()),
                "the number of namespaces",
            ),
        ] {
            if !holds {
                let what = format!("{what} of the emulated controller is out of range");
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
        }
        Ok(())
    }
}
