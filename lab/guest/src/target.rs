//! Memory that commands read into, full of poison at first: what landed, and what else was
//! touched. Every access is a volatile one of a word, and nothing here gives a reference out,
//! since devices write here at any time. Knows no transports.

use std::sync::Arc;

use anyhow::{Context, Result};
use nvme::memory::{RawMemory, TargetMemory};
use ubio::sys::memory::Region;
use ubio_lab_spec::pattern::{self, POISON, Seed};

const WORD_BYTES: u64 = 8;
const CHUNK_BYTES: u64 = 64 << 10;

/// Memory of any kind.
#[derive(Clone)]
pub(crate) struct Target {
    memory: Arc<dyn TargetMemory>,
    raw: RawMemory,
}

impl Target {
    /// Memory that somebody made, as it is, and that nobody makes references into.
    pub(crate) fn of(memory: Arc<dyn TargetMemory>) -> Self {
        let raw = memory.raw();
        Self { memory, raw }
    }

    /// Host memory on small pages, poisoned.
    pub(crate) fn host(len_bytes: u64) -> Result<Self> {
        let target = Self::of(Arc::new(Region::anonymous(len_bytes, false)?));
        target.poison(0, target.len_bytes());
        Ok(target)
    }

    /// The memory, for a transport.
    pub(crate) fn memory(&self) -> Arc<dyn TargetMemory> {
        Arc::clone(&self.memory)
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.raw.len_bytes()
    }

    /// Poisons the whole words of a range.
    pub(crate) fn poison(&self, offset: u64, len_bytes: u64) {
        self.fill(POISON, offset, offset, len_bytes);
    }

    /// Writes the pattern's words from `from` on; all three are multiples of 8.
    pub(crate) fn fill(&self, seed: Seed, from: u64, offset: u64, len_bytes: u64) {
        for at in (0..len_bytes).step_by(8) {
            self.raw.write(offset + at, pattern::word(seed, from + at));
        }
        // Stores to a device's memory are there when a load comes back.
        if len_bytes > 0 {
            let _there: u64 = self.raw.read(offset);
        }
    }

    /// Changes one byte.
    pub(crate) fn flip(&self, offset: u64) {
        let byte: u8 = self.raw.read(offset);
        self.raw.write(offset, !byte);
    }

    fn bytes(&self, offset: u64, len_bytes: u64) -> Result<Vec<u8>> {
        let first = offset / WORD_BYTES * WORD_BYTES;
        let end = (offset + len_bytes).next_multiple_of(WORD_BYTES);
        let words = (first..end)
            .step_by(8)
            .map(|at| self.raw.read::<[u8; 8]>(at));
        let all: Vec<u8> = words.flatten().collect();
        let start = usize::try_from(offset - first)?;
        Ok(all[start..start + usize::try_from(len_bytes)?].to_vec())
    }

    /// The bytes at `offset` are the pattern's from `from` on.
    pub(crate) fn check(&self, seed: Seed, from: u64, offset: u64, len_bytes: u64) -> Result<()> {
        for done in (0..len_bytes).step_by(CHUNK_BYTES.try_into()?) {
            let part = CHUNK_BYTES.min(len_bytes - done);
            pattern::check(seed, from + done, &self.bytes(offset + done, part)?)
                .with_context(|| format!("memory from {:#x} on", offset + done))?;
        }
        Ok(())
    }

    /// Whether every byte is zero.
    pub(crate) fn is_zero(&self) -> bool {
        let words = (0..self.len_bytes()).step_by(8);
        words
            .map(|at| self.raw.read::<u64>(at))
            .all(|word| word == 0)
    }

    /// All but these bytes is poison.
    pub(crate) fn untouched_but(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let end = offset + len_bytes;
        self.check(POISON, 0, 0, offset)
            .and_then(|()| self.check(POISON, end, end, self.len_bytes() - end))
            .context("written to outside of the read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_landed_and_what_else_was_touched() {
        let target = Target::host(4 * 4096).unwrap();
        target.untouched_but(0, 0).unwrap();
        let seed = Seed(7);
        target.fill(seed, 64, 4096, 512);
        target.check(seed, 64, 4096, 512).unwrap();
        target.check(seed, 67, 4099, 500).unwrap();
        target.untouched_but(4096, 512).unwrap();
        for outside in [0, 4095, 4608, 4 * 4096 - 1] {
            target.flip(outside);
            assert!(target.untouched_but(4096, 512).is_err(), "{outside}");
            target.flip(outside);
        }
        for inside in [4096, 4607] {
            target.flip(inside);
            assert!(target.check(seed, 64, 4096, 512).is_err(), "{inside}");
            target.flip(inside);
        }
        assert!(target.check(seed, 72, 4096, 512).is_err());
    }
}
