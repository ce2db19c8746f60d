//! Registers in a mapped BAR: single accesses of 32 bits, in order with memory. Knows offsets
//! and no meaning.
//!
//! unsafe: on aarch64 barriers need assembly.
#![cfg_attr(
    target_arch = "aarch64",
    expect(unsafe_code, reason = "barriers are instructions")
)]

use std::sync::atomic::{Ordering, compiler_fence};

use super::sys::FileMapping;

/// Little-endian registers at the start of a BAR.
#[derive(Debug)]
pub(super) struct Registers(FileMapping);

impl Registers {
    pub(super) fn new(mapping: FileMapping) -> Self {
        Self(mapping)
    }

    /// Bytes that can be accessed.
    pub(super) fn len_bytes(&self) -> u64 {
        self.0.raw().len_bytes()
    }

    /// Reads; a device that is gone gives all ones.
    ///
    /// # Panics
    /// If the register is not inside, or not aligned: a bug of ours.
    #[inline]
    pub(super) fn read(&self, offset: u64) -> u32 {
        let value: u32 = self.0.raw().read(offset);
        memory_after_register();
        u32::from_le(value)
    }

    /// Writes, after everything that was written to memory.
    ///
    /// # Panics
    /// If the register is not inside, or not aligned: a bug of ours.
    #[inline]
    pub(super) fn write(&self, offset: u64, value: u32) {
        register_after_memory();
        self.0.raw().write(offset, value.to_le());
    }
}

/// What was written to memory before is there when a register is written after this: a queue
/// entry before its doorbell.
///
/// x86 keeps stores to ordinary memory in order with later stores to uncached memory, so only
/// the compiler has to be told. (Stores past the cache and to write-combining memory are not
/// kept in order; who makes those ends them with a fence.) On aarch64 the barrier has to reach
/// the outer domain, which the language's fences do not.
#[inline]
fn register_after_memory() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes nothing.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    compiler_fence(Ordering::SeqCst);
}

/// What is read from memory after this was there when the register before it was read. As
/// above; an uncached load of x86 is done before a later one begins.
#[inline]
fn memory_after_register() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes nothing.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn registers() -> Registers {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[0xff; 8192]).expect("written");
        Registers::new(FileMapping::new(&file, 4096, 4096, 0).expect("mapped"))
    }

    #[test]
    fn what_is_written_is_read() {
        let registers = registers();
        assert_eq!(registers.read(4092), u32::MAX);
        registers.write(4, 0x0102_0304);
        assert_eq!(registers.read(4), 0x0102_0304);
        assert_eq!(registers.read(8), u32::MAX);
        assert_eq!(registers.len_bytes(), 4096);
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn a_doorbell_beyond_the_bar_is_a_bug() {
        registers().write(4096, 1);
    }
}
