//! Controller registers: offsets into BAR 0 and the fields in them.
//! Base 3.1.3; doorbells: PCIe transport 3.1.2.

/// Controller capabilities, 8 bytes.
pub const CAP: u64 = 0x00;
/// Version.
pub const VS: u64 = 0x08;
/// Interrupt mask set; not with MSI-X.
pub const INTMS: u64 = 0x0c;
/// Interrupt mask clear; not with MSI-X.
pub const INTMC: u64 = 0x10;
/// Controller configuration.
pub const CC: u64 = 0x14;
/// Controller status.
pub const CSTS: u64 = 0x1c;
/// Subsystem reset.
pub const NSSR: u64 = 0x20;
/// Admin queue attributes.
pub const AQA: u64 = 0x24;
/// Admin submission queue, a bus address, 8 bytes.
pub const ASQ: u64 = 0x28;
/// Admin completion queue, a bus address, 8 bytes.
pub const ACQ: u64 = 0x30;
/// Controller memory buffer location.
pub const CMBLOC: u64 = 0x38;
/// Controller memory buffer size.
pub const CMBSZ: u64 = 0x3c;
/// Controller memory buffer memory space control, 8 bytes.
pub const CMBMSC: u64 = 0x50;
/// The first doorbell: the admin submission queue's.
pub const DOORBELLS: u64 = 0x1000;

/// What [`VS`] reads when the device is gone, like every register.
pub const GONE: u32 = u32::MAX;

/// Offset of a queue's submission doorbell; `stride` is [`Cap::doorbell_stride`].
#[must_use]
pub fn sq_doorbell(queue_id: u16, stride: u8) -> u64 {
    DOORBELLS + 2 * u64::from(queue_id) * (4 << stride)
}

/// Offset of a queue's completion doorbell; `stride` is [`Cap::doorbell_stride`].
#[must_use]
pub fn cq_doorbell(queue_id: u16, stride: u8) -> u64 {
    DOORBELLS + (2 * u64::from(queue_id) + 1) * (4 << stride)
}

/// The value of [`CAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    fn bits(self, shift: u32, width: u32) -> u8 {
        u8::try_from(self.0 >> shift & ((1 << width) - 1)).unwrap_or(u8::MAX)
    }

    /// MQES: most entries of an I/O queue. Not zero-based here, so at least 1.
    #[must_use]
    pub fn max_queue_entries(self) -> u32 {
        (u32::try_from(self.0 & 0xffff).unwrap_or(0)) + 1
    }

    /// CQR: queues have to lie in one physical piece.
    #[must_use]
    pub fn contiguous_queues(self) -> bool {
        self.bits(16, 1) == 1
    }

    /// TO: the longest that enabling or disabling takes, in units of 500 ms.
    #[must_use]
    pub fn timeout_half_seconds(self) -> u8 {
        self.bits(24, 8)
    }

    /// DSTRD: doorbells are 4 << this bytes apart.
    #[must_use]
    pub fn doorbell_stride(self) -> u8 {
        self.bits(32, 4)
    }

    /// CSS: the NVM command set is there.
    #[must_use]
    pub fn nvm_command_set(self) -> bool {
        self.bits(37, 1) == 1
    }

    /// MPSMIN: the smallest memory page is 4096 << this bytes.
    #[must_use]
    pub fn min_page_shift(self) -> u8 {
        self.bits(48, 4)
    }

    /// MPSMAX: the largest memory page is 4096 << this bytes.
    #[must_use]
    pub fn max_page_shift(self) -> u8 {
        self.bits(52, 4)
    }

    /// CMBS: there may be a controller memory buffer.
    #[must_use]
    pub fn memory_buffer(self) -> bool {
        self.bits(57, 1) == 1
    }
}

/// CC.EN.
pub const CC_ENABLE: u32 = 1;
/// Shift of CC.CSS; 0 is the NVM command set.
pub const CC_CSS_SHIFT: u32 = 4;
/// Shift of CC.MPS: memory pages are 4096 << MPS bytes.
pub const CC_MPS_SHIFT: u32 = 7;
/// Shift of CC.SHN.
pub const CC_SHN_SHIFT: u32 = 14;
/// CC.SHN, after the shift: a normal shutdown.
pub const CC_SHN_NORMAL: u32 = 1;
/// Shift of CC.IOSQES.
pub const CC_IOSQES_SHIFT: u32 = 16;
/// Shift of CC.IOCQES.
pub const CC_IOCQES_SHIFT: u32 = 20;

/// CSTS.RDY.
pub const CSTS_READY: u32 = 1;
/// CSTS.CFS: a fatal error; only a reset helps.
pub const CSTS_FATAL: u32 = 1 << 1;
/// Shift of CSTS.SHST.
pub const CSTS_SHST_SHIFT: u32 = 2;
/// CSTS.SHST, after the shift: the shutdown is complete.
pub const CSTS_SHST_COMPLETE: u32 = 2;

/// Shift of AQA.ACQS, the zero-based size of the admin completion queue; the submission
/// queue's (ASQS) is in bits 11:0.
pub const AQA_ACQS_SHIFT: u32 = 16;
/// Most entries of an admin queue.
pub const MAX_ADMIN_ENTRIES: u32 = 4096;
