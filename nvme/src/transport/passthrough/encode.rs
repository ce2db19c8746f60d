//! Commands as the kernel's passthrough takes them. The one place where a block count becomes
//! both NLB and the length of the data: the kernel does not compare the two. Knows no rings.

use nvme_sys::ioctl::{PassthruCmd, UringCmd};

use crate::command::Command;
use crate::namespace::Namespace;
use crate::transport::{Direction, Io};

/// Memory of this process, as the kernel wants it: an address and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) address: u64,
    pub(super) len_bytes: u32,
}

/// What [`Io`] asks for, with its memory at `address`.
///
/// # Panics
/// If it is longer than a length can say; the transport's limit is below that.
pub(super) fn transfer(namespace: &Namespace, io: &Io, address: u64, timeout_ms: u32) -> UringCmd {
    let command = match io.direction {
        Direction::Read => Command::read(namespace.id, io.lba, io.blocks),
        Direction::Write => Command::write(namespace.id, io.lba, io.blocks),
        Direction::Compare => Command::compare(namespace.id, io.lba, io.blocks),
    };
    let len_bytes = namespace.block.len_bytes(io.blocks);
    let len_bytes = u32::try_from(len_bytes).expect("within the transport's limit");
    uring_cmd(command, Some(Data { address, len_bytes }), timeout_ms)
}

/// A command for io_uring.
pub(super) fn uring_cmd(command: Command, data: Option<Data>, timeout_ms: u32) -> UringCmd {
    // The kernel has command identifiers and data pointers of its own.
    let entry = command.entry(0);
    UringCmd {
        opcode: entry.opcode,
        nsid: entry.namespace_id.get(),
        cdw2: entry.cdw2.get(),
        cdw3: entry.cdw3.get(),
        addr: data.map_or(0, |data| data.address),
        data_len: data.map_or(0, |data| data.len_bytes),
        cdw10: entry.cdw10.get(),
        cdw11: entry.cdw11.get(),
        cdw12: entry.cdw12.get(),
        cdw13: entry.cdw13.get(),
        cdw14: entry.cdw14.get(),
        cdw15: entry.cdw15.get(),
        timeout_ms,
        ..UringCmd::default()
    }
}

/// A command for the ioctl.
pub(super) fn passthru_cmd(command: Command, data: Data) -> PassthruCmd {
    let UringCmd {
        opcode,
        nsid,
        cdw2,
        cdw3,
        addr,
        data_len,
        cdw10,
        cdw11,
        cdw12,
        cdw13,
        cdw14,
        cdw15,
        ..
    } = uring_cmd(command, Some(data), 0);
    PassthruCmd {
        opcode,
        nsid,
        cdw2,
        cdw3,
        addr,
        data_len,
        cdw10,
        cdw11,
        cdw12,
        cdw13,
        cdw14,
        cdw15,
        ..PassthruCmd::default()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::command::NamespaceId;
    use crate::lba::{BlockCount, BlockSize, Lba};
    use crate::transport::MemoryId;

    fn namespace(shift: u8) -> Namespace {
        Namespace {
            id: NamespaceId(0x0102_0304),
            block: BlockSize::from_shift(shift).expect("a size"),
            blocks: 1 << 40,
            guid: None,
            eui64: None,
        }
    }

    fn io(direction: Direction, blocks: u32) -> Io {
        Io {
            token: 7,
            direction,
            lba: Lba(0x0000_00ab_1234_5678),
            blocks: BlockCount::new(blocks).expect("a count"),
            memory: MemoryId(0),
            offset: 0,
        }
    }

    /// Byte for byte what `struct nvme_uring_cmd` is for a read of 8 blocks of 512.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_read_is_these_bytes() {
        let namespace = namespace(9);
        let cmd = transfer(&namespace, &io(Direction::Read, 8), 0x7f00_1122_3000, 5000);
        let mut expected = [0_u8; 72];
        expected[0] = 0x02;
        expected[4..8].copy_from_slice(&[0x04, 0x03, 0x02, 0x01]);
        expected[24..32].copy_from_slice(&[0x00, 0x30, 0x22, 0x11, 0x00, 0x7f, 0x00, 0x00]);
        expected[36..40].copy_from_slice(&[0x00, 0x10, 0x00, 0x00]);
        expected[40..44].copy_from_slice(&[0x78, 0x56, 0x34, 0x12]);
        expected[44..48].copy_from_slice(&[0xab, 0x00, 0x00, 0x00]);
        expected[48..52].copy_from_slice(&[0x07, 0x00, 0x00, 0x00]);
        expected[64..68].copy_from_slice(&[0x88, 0x13, 0x00, 0x00]);
        assert_eq!(cmd.as_bytes(), expected);
    }

    #[test]
    fn blocks_and_bytes_agree() {
        for (shift, blocks) in [
            (9, 1),
            (9, 256),
            (9, 65_536),
            (12, 1),
            (12, 128),
            (12, 65_536),
        ] {
            for (direction, opcode) in [
                (Direction::Read, 2),
                (Direction::Write, 1),
                (Direction::Compare, 5),
            ] {
                let cmd = transfer(&namespace(shift), &io(direction, blocks), 4096, 0);
                assert_eq!(cmd.opcode, opcode);
                assert_eq!((cmd.cdw12 & 0xffff) + 1, blocks);
                assert_eq!(cmd.data_len, blocks << shift);
                assert_eq!((cmd.flags, cmd.metadata, cmd.metadata_len), (0, 0, 0));
            }
        }
    }

    #[test]
    fn a_flush_has_no_data() {
        let cmd = uring_cmd(Command::flush(NamespaceId(3)), None, 0);
        let expected = UringCmd {
            nsid: 3,
            ..UringCmd::default()
        };
        assert_eq!(cmd, expected);
    }

    #[test]
    fn identify_is_the_same_command_by_ioctl() {
        let data = Data {
            address: 0x1000,
            len_bytes: 4096,
        };
        let cmd = passthru_cmd(Command::identify_namespace(NamespaceId(9)), data);
        assert_eq!((cmd.opcode, cmd.nsid, cmd.cdw10), (6, 9, 0));
        assert_eq!((cmd.addr, cmd.data_len), (0x1000, 4096));
        let cmd = passthru_cmd(Command::identify_controller(), data);
        assert_eq!((cmd.opcode, cmd.nsid, cmd.cdw10), (6, 0, 1));
    }
}
