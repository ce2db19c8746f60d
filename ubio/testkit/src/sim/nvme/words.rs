//! What the namespace holds: words that tell their place, and that no other seed has. A disk for
//! the emulator, and the same bytes for whoever checks. Knows no commands.

use std::io;

use nvme::memory::RawMemory;
use nvme_emulator::Disk;

/// The bytes of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub(crate) seed: u64,
    pub(crate) len_bytes: u64,
    scratch: Vec<u8>,
}

impl Words {
    pub(crate) fn new(seed: u64, len_bytes: u64) -> Words {
        Words {
            seed,
            len_bytes,
            scratch: Vec::new(),
        }
    }

    fn word(&self, number: u64) -> [u8; 8] {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed).to_le_bytes()
    }

    /// Bytes from `offset` on.
    pub(crate) fn fill(&self, offset: u64, bytes: &mut [u8]) {
        let (number, within) = (offset / 8, usize::try_from(offset % 8).unwrap_or(0));
        let head = bytes.len().min((8 - within) % 8);
        let (first, rest) = bytes.split_at_mut(head);
        first.copy_from_slice(&self.word(number)[within..within + head]);
        let next = number + u64::from(within > 0);
        for (number, part) in (next..).zip(rest.chunks_mut(8)) {
            part.copy_from_slice(&self.word(number)[..part.len()]);
        }
    }

    /// Where memory differs from the bytes from `offset` on, if it does.
    pub(crate) fn difference(&mut self, offset: u64, memory: RawMemory) -> Option<u64> {
        let len = usize::try_from(memory.len_bytes()).unwrap_or(usize::MAX);
        let mut right = std::mem::take(&mut self.scratch);
        right.resize(2 * len, 0);
        let (right_half, found) = right.split_at_mut(len);
        self.fill(offset, right_half);
        memory.copy_to(0, found);
        let differs = if right_half == found {
            None
        } else {
            let pairs = right_half.iter().zip(&*found);
            (0..).zip(pairs).find(|(_, (one, other))| one != other)
        };
        let at = differs.map(|(at, _)| at);
        self.scratch = right;
        at
    }
}

impl Disk for Words {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&mut self, mut offset: u64, to: &[RawMemory]) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.scratch);
        for memory in to {
            let len = usize::try_from(memory.len_bytes()).unwrap_or(usize::MAX);
            bytes.resize(bytes.len().max(len), 0);
            self.fill(offset, &mut bytes[..len]);
            memory.copy_from(0, &bytes[..len]);
            offset += memory.len_bytes();
        }
        self.scratch = bytes;
        Ok(())
    }

    fn write(&mut self, _offset: u64, _from: &[RawMemory]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn zero(&mut self, _offset: u64, _len_bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
