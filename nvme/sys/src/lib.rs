//! NVMe on the wire and at the kernel's door: structures, numbers and bits, and nothing that
//! decides anything. Refuses to know queues, memory and files.
//!
//! | module | what | from |
//! |---|---|---|
//! | [`sqe`], [`cqe`] | submission and completion queue entries | Base 3.3.3 |
//! | [`opcode`] | opcodes | Base 5, 7; NVM 3 |
//! | [`sgl`] | SGL descriptors | Base 4.1.2 |
//! | [`identify`] | controller and namespace data | Base 5.17.2; NVM 4.1.5 |
//! | [`register`] | controller registers, doorbells | Base 3.1.3; PCIe transport 3.1.2 |
//! | [`status`] | status codes | Base 3.3.3.2.1 |
//! | [`ioctl`] | passthrough by ioctl and io_uring | `include/uapi/linux/nvme_ioctl.h` |
//!
//! "Base" is the NVM Express Base Specification 2.0c, "NVM" the NVM Command Set Specification
//! 1.0c, "PCIe transport" the NVMe over PCIe Transport Specification 1.0c. Every structure is
//! little-endian whatever the machine is (the types of `zerocopy`), has no padding, and is
//! asserted to have its size and its offsets.
#![no_std]

pub mod cqe;
pub mod identify;
pub mod ioctl;
pub mod opcode;
pub mod register;
pub mod sgl;
pub mod sqe;
pub mod status;

/// Asserts at compile time that a structure has its size and its fields' offsets.
macro_rules! layout {
    ($name:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size, "size");
            $(assert!(core::mem::offset_of!($name, $field) == $offset, stringify!($field));)*
        };
    };
}
pub(crate) use layout;
