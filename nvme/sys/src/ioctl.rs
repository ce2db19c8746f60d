//! The kernel's passthrough: ioctls on `/dev/nvmeX`, `/dev/ngXnY` and `/dev/nvmeXnY`, and
//! io_uring's `IORING_OP_URING_CMD` on `/dev/ngXnY`. `include/uapi/linux/nvme_ioctl.h`.
//!
//! Here integers are the machine's own: this is memory shared with the kernel, not the wire.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout;

/// `struct nvme_passthru_cmd`: a command with a 32-bit result.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PassthruCmd {
    /// The opcode.
    pub opcode: u8,
    /// Must be 0.
    pub flags: u8,
    /// Reserved.
    pub rsvd1: u16,
    /// Namespace identifier.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Address of the metadata.
    pub metadata: u64,
    /// Address of the data.
    pub addr: u64,
    /// Bytes of metadata.
    pub metadata_len: u32,
    /// Bytes of data.
    pub data_len: u32,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
    /// Milliseconds; 0 for the kernel's default.
    pub timeout_ms: u32,
    /// The completion's dword 0.
    pub result: u32,
}

layout!(
    PassthruCmd, 72,
    nsid @ 4, metadata @ 16, addr @ 24, metadata_len @ 32, data_len @ 36, cdw10 @ 40,
    timeout_ms @ 64, result @ 68,
);

/// `struct nvme_uring_cmd`: what lies in the 80 bytes of a big submission entry (SQE128) from
/// its command area on. The completion's 64-bit result comes in the big completion entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct UringCmd {
    /// The opcode.
    pub opcode: u8,
    /// Must be 0.
    pub flags: u8,
    /// Reserved.
    pub rsvd1: u16,
    /// Namespace identifier.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Address of the metadata.
    pub metadata: u64,
    /// Address of the data.
    pub addr: u64,
    /// Bytes of metadata.
    pub metadata_len: u32,
    /// Bytes of data.
    pub data_len: u32,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
    /// Milliseconds; 0 for the kernel's default.
    pub timeout_ms: u32,
    /// Reserved.
    pub rsvd2: u32,
}

layout!(
    UringCmd, 72,
    nsid @ 4, metadata @ 16, addr @ 24, metadata_len @ 32, data_len @ 36, cdw10 @ 40,
    timeout_ms @ 64, rsvd2 @ 68,
);

/// `_IO('N', nr)`.
const fn io(nr: u32) -> u32 {
    ((b'N' as u32) << 8) | nr
}

/// `_IOWR('N', nr, T)`.
const fn iowr<T>(nr: u32) -> u32 {
    assert!(size_of::<T>() < 1 << 14);
    #[expect(clippy::cast_possible_truncation, reason = "below 2^14, as asserted")]
    let size = size_of::<T>() as u32;
    (3 << 30) | (size << 16) | io(nr)
}

/// `NVME_IOCTL_ID`: the namespace identifier of a namespace's device.
pub const IOCTL_ID: u32 = io(0x40);
/// `NVME_IOCTL_ADMIN_CMD`, of a [`PassthruCmd`].
pub const IOCTL_ADMIN_CMD: u32 = iowr::<PassthruCmd>(0x41);
/// `NVME_IOCTL_IO_CMD`, of a [`PassthruCmd`].
pub const IOCTL_IO_CMD: u32 = iowr::<PassthruCmd>(0x43);
/// `NVME_IOCTL_RESET`.
pub const IOCTL_RESET: u32 = io(0x44);
/// `NVME_URING_CMD_IO`: a [`UringCmd`] on an I/O queue.
pub const URING_CMD_IO: u32 = iowr::<UringCmd>(0x80);
/// `NVME_URING_CMD_ADMIN`: a [`UringCmd`] on the admin queue.
pub const URING_CMD_ADMIN: u32 = iowr::<UringCmd>(0x82);

// As the header's macros give them on x86-64 and aarch64.
const _: () = {
    assert!(IOCTL_ID == 0x4e40);
    assert!(IOCTL_ADMIN_CMD == 0xc048_4e41);
    assert!(IOCTL_IO_CMD == 0xc048_4e43);
    assert!(URING_CMD_IO == 0xc048_4e80);
    assert!(URING_CMD_ADMIN == 0xc048_4e82);
};
