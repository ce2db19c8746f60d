//! What identify commands return: 4096 bytes each. Fields that neither side uses have no names.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout;

/// Bytes of every identify structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// Identify controller. Base figure 275, NVM figure 109.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor.
    pub vendor_id: U16,
    /// SSVID: PCI subsystem vendor.
    pub subsystem_vendor_id: U16,
    /// SN: ASCII, padded with spaces.
    pub serial: [u8; 20],
    /// MN: ASCII, padded with spaces.
    pub model: [u8; 40],
    /// FR: ASCII, padded with spaces.
    pub firmware: [u8; 8],
    reserved_72: [u8; 5],
    /// MDTS: the largest transfer is 2^this smallest memory pages; 0 for no limit.
    pub max_data_transfer: u8,
    /// CNTLID.
    pub controller_id: U16,
    /// VER, as the register says it.
    pub version: U32,
    reserved_84: [u8; 8],
    /// OAES: events that can be had, see [`OAES_NAMESPACE_ATTRIBUTE`].
    pub optional_events: U32,
    reserved_96: [u8; 32],
    /// CRDT1 to CRDT3: delays before a retry, in units of 100 ms.
    pub retry_delays: [U16; 3],
    reserved_134: [u8; 122],
    /// OACS, see [`OACS_DOORBELL_BUFFER`].
    pub optional_admin: U16,
    /// ACL: aborts at once, zero-based.
    pub abort_limit: u8,
    /// AERL: asynchronous event requests at once, zero-based.
    pub async_event_limit: u8,
    reserved_260: [u8; 252],
    /// SQES: log2 of the smallest (bits 3:0) and largest (7:4) submission entry.
    pub sq_entry_sizes: u8,
    /// CQES: log2 of the smallest (bits 3:0) and largest (7:4) completion entry.
    pub cq_entry_sizes: u8,
    /// MAXCMD: most commands a queue should have under way; 0 where not said.
    pub max_commands: U16,
    /// NN: the largest namespace identifier.
    pub namespaces: U32,
    /// ONCS, see [`ONCS_COMPARE`] and its neighbours.
    pub optional_nvm: U16,
    /// FUSES.
    pub fused: U16,
    /// FNA.
    pub format_attributes: u8,
    /// VWC: bit 0, there is a volatile write cache.
    pub volatile_write_cache: u8,
    reserved_526: [u8; 10],
    /// SGLS, see [`SGLS_SUPPORT_MASK`].
    pub sgl_support: U32,
    reserved_540: [u8; 228],
    /// SUBNQN: UTF-8, ended by a NUL.
    pub subsystem_nqn: [u8; 256],
    reserved_1024: [u8; 3072],
}

layout!(
    IdentifyController, IDENTIFY_BYTES,
    serial @ 4, model @ 24, firmware @ 64, max_data_transfer @ 77, controller_id @ 78,
    version @ 80, optional_events @ 92, retry_delays @ 128, optional_admin @ 256, abort_limit @ 258,
    async_event_limit @ 259, sq_entry_sizes @ 512, cq_entry_sizes @ 513, max_commands @ 514,
    namespaces @ 516, optional_nvm @ 520, fused @ 522, format_attributes @ 524,
    volatile_write_cache @ 525, sgl_support @ 536, subsystem_nqn @ 768,
);

/// OAES, and the asynchronous event configuration: a namespace's identify data has changed.
pub const OAES_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// OACS: doorbell buffer config is supported.
pub const OACS_DOORBELL_BUFFER: u16 = 1 << 8;
/// ONCS: compare is supported.
pub const ONCS_COMPARE: u16 = 1;
/// ONCS: dataset management is supported.
pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// ONCS: write zeroes is supported.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// SGLS, bits 1:0: 0 for no SGLs, 1 for any alignment, 2 for dwords only.
pub const SGLS_SUPPORT_MASK: u32 = 0b11;

/// Identify namespace, of the NVM command set. NVM figure 97.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: logical blocks.
    pub size: U64,
    /// NCAP: logical blocks that may be allocated.
    pub capacity: U64,
    /// NUSE: logical blocks that are allocated.
    pub used: U64,
    /// NSFEAT.
    pub features: u8,
    /// NLBAF: LBA formats, zero-based.
    pub formats: u8,
    /// FLBAS: the format in use, bits 3:0, with bits 6:5 above them; bit 4, metadata follows
    /// each block instead of lying apart.
    pub format: u8,
    /// MC.
    pub metadata_capabilities: u8,
    /// DPC.
    pub protection_capabilities: u8,
    /// DPS: bits 2:0, the protection information type; 0 for none.
    pub protection: u8,
    reserved_30: [u8; 3],
    /// DLFEAT: what deallocated blocks read as.
    pub deallocated: u8,
    reserved_34: [u8; 12],
    /// NOIOB: reads and writes had better not cross multiples of so many blocks; 0 for none.
    pub optimal_boundary: U16,
    reserved_48: [u8; 56],
    /// NGUID.
    pub guid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF63.
    pub lba_formats: [LbaFormat; 64],
    reserved_384: [u8; 3712],
}

layout!(
    IdentifyNamespace, IDENTIFY_BYTES,
    size @ 0, capacity @ 8, used @ 16, features @ 24, formats @ 25, format @ 26,
    metadata_capabilities @ 27, protection_capabilities @ 28, protection @ 29, deallocated @ 33,
    optimal_boundary @ 46, guid @ 104, eui64 @ 120, lba_formats @ 128,
);

/// One LBA format. NVM figure 98.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: bytes of metadata of each block.
    pub metadata_bytes: U16,
    /// LBADS: log2 of a block's bytes; below 9 the format is not there.
    pub block_shift: u8,
    /// RP: relative performance, bits 1:0; 0 is best.
    pub performance: u8,
}

layout!(LbaFormat, 4, metadata_bytes @ 0, block_shift @ 2, performance @ 3);

impl IdentifyNamespace {
    /// The format in use.
    #[must_use]
    pub fn lba_format(&self) -> LbaFormat {
        let low = self.format & 0xf;
        // Bits 6:5 count where there are more than 16 formats.
        let high = if self.formats >= 16 {
            self.format >> 5 & 0b11
        } else {
            0
        };
        self.lba_formats[usize::from(high << 4 | low)]
    }
}
