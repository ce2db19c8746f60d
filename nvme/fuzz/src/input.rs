//! The bytes of a fuzzer, read from their front. Knows not what they mean.

/// Zeroes once it has ended.
#[derive(Debug)]
pub(super) struct Input {
    bytes: Vec<u8>,
    at: usize,
}

impl Input {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            at: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte.unwrap_or(0)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(super) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }
}
