//! One NVMe command by ioctl, for the status that the drive gives: the plainest way there is,
//! none of ours.
//!
//! unsafe: the ioctl.
#![expect(unsafe_code, reason = "an ioctl whose structure the kernel reads")]

use std::ffi::c_void;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use nvme_sys::ioctl::{IOCTL_IO_CMD, PassthruCmd};
use nvme_sys::opcode::nvm;
use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

struct Command(PassthruCmd);

// SAFETY: the number is that of the structure, which lives as long as the call; what the kernel
// gives is the status.
unsafe impl Ioctl for Command {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        IOCTL_IO_CMD
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> io::Result<i32> {
        Ok(output)
    }
}

/// The status (0: success) of reading one block of 512 bytes of a namespace.
pub(crate) fn of_read(node: &Path, nsid: u32, lba: u64) -> Result<i32> {
    let file = File::open(node).with_context(|| format!("cannot open {}", node.display()))?;
    let mut block = [0_u8; 512];
    let [low, high] = [lba & u64::from(u32::MAX), lba >> 32].map(u32::try_from);
    let command = PassthruCmd {
        opcode: nvm::READ,
        nsid,
        addr: block.as_mut_ptr() as u64,
        data_len: 512,
        cdw10: low?,
        cdw11: high?,
        ..PassthruCmd::default()
    };
    // SAFETY: the block lives until the call returns, which is when the command has ended.
    let status = unsafe { ioctl(&file, Command(command)) };
    status.with_context(|| format!("{} takes no command", node.display()))
}
