//! Memory that tells who wrote it: poison all around and inside, so that a byte too many or
//! a byte too late shows. And known content: each byte a function of its offset.
//!
//! unsafe: reads and fills raw regions between operations.
#![expect(
    unsafe_code,
    reason = "looks at memory that no operation uses at the moment"
)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use ubio::sys::memory::{Region, StableMemory};

/// What untouched memory holds.
pub(crate) const POISON: u8 = 0xa5;

/// Bytes of poison before and behind the usable part.
pub(crate) const GUARD_BYTES: u64 = 64 << 10;

/// The eight bytes of the known content at `8 * index`.
fn word_at(seed: u64, index: u64) -> [u8; 8] {
    let mut word = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)).to_le_bytes()
}

/// The known content: the byte at `offset` of whatever was made with `seed`.
pub fn byte_at(seed: u64, offset: u64) -> u8 {
    word_at(seed, offset >> 3)[usize::from(offset.to_le_bytes()[0] & 7)]
}

/// The bytes of the known content from `offset` on, for as long as `bytes` is.
pub fn fill(bytes: &mut [u8], seed: u64, offset: u64) {
    let skip = usize::from(offset.to_le_bytes()[0] & 7);
    let (head, rest) = bytes.split_at_mut(((8 - skip) % 8).min(bytes.len()));
    for (byte, at) in head.iter_mut().zip(offset..) {
        *byte = byte_at(seed, at);
    }
    for (word, index) in rest.chunks_mut(8).zip(offset.div_ceil(8)..) {
        word.copy_from_slice(&word_at(seed, index)[..word.len()]);
    }
}

/// A poisoned region. Usable are the bytes between the guards; offsets are the region's.
#[derive(Debug)]
pub(crate) struct Guarded {
    region: Arc<Region>,
    len_bytes: u64,
}

impl Guarded {
    /// Memory of any kind, of which the guards take their share.
    pub(crate) fn of(region: Arc<Region>, len_bytes: u64) -> Self {
        assert!(region.len_bytes() >= len_bytes + 2 * GUARD_BYTES);
        let guarded = Self { region, len_bytes };
        guarded.poison(0..guarded.region.len_bytes());
        guarded
    }

    /// Memory of `len_bytes` that begins `lead` bytes into a page, without guards of its own.
    pub(crate) fn unaligned(lead: usize, len_bytes: usize) -> Self {
        Self {
            region: Arc::new(Region::adopt(Unaligned::new(lead, len_bytes))),
            len_bytes: len_bytes as u64,
        }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The usable part.
    pub(crate) fn inside(&self) -> Range<u64> {
        GUARD_BYTES..GUARD_BYTES + self.len_bytes
    }

    /// What a range holds now.
    pub(crate) fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let len = usize::try_from(range.end - range.start).expect("64-bit");
        let mut bytes = vec![0; len];
        // SAFETY: the suites call this only while no operation may write the range.
        unsafe { self.region.copy_out(range.start, &mut bytes) };
        bytes
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the suites call this only while no operation uses the range.
        unsafe { self.region.write(offset, bytes) };
    }

    pub(crate) fn poison(&self, range: Range<u64>) {
        let len = usize::try_from(range.end - range.start).expect("64-bit");
        self.write(range.start, &vec![POISON; len]);
    }

    /// Fails unless every byte outside `touched` is poison.
    pub(crate) fn check_poison_outside(&self, touched: &[Range<u64>]) {
        let mut touched = touched.to_vec();
        touched.sort_by_key(|range| range.start);
        touched.push(self.region.len_bytes()..self.region.len_bytes());
        let mut at = 0;
        for range in touched {
            if at < range.start {
                let bytes = self.bytes(at..range.start);
                if bytes != vec![POISON; bytes.len()] {
                    let wrong = bytes.iter().position(|&byte| byte != POISON);
                    panic!(
                        "byte {} was written, and nothing asked for it (next target at {})",
                        at + wrong.expect("they differ") as u64,
                        range.start
                    );
                }
            }
            at = at.max(range.end);
        }
    }
}

/// A caller's memory that does not begin with a page.
struct Unaligned {
    memory: Vec<u8>,
    start: usize,
    len_bytes: usize,
}

impl Unaligned {
    fn new(lead: usize, len_bytes: usize) -> Self {
        let memory = vec![POISON; lead + len_bytes + 4096];
        let to_page = memory.as_ptr().align_offset(4096);
        Self {
            memory,
            start: to_page + lead,
            len_bytes,
        }
    }
}

// SAFETY: a vector's contents stay where they are while it is not changed, and it owns them.
unsafe impl StableMemory for Unaligned {
    fn as_raw(&mut self) -> (NonNull<u8>, usize) {
        let bytes = &mut self.memory[self.start..self.start + self.len_bytes];
        (NonNull::from(bytes).cast(), self.len_bytes)
    }
}

/// Fails with the place of the first difference.
pub(crate) fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: lengths differ");
    if found != wanted {
        let differs = |&at: &usize| found[at] != wanted[at];
        let at = (0..found.len()).find(differs).expect("they differ");
        panic!(
            "{what}: byte {at} is {:#04x}, should be {:#04x}",
            found[at], wanted[at]
        );
    }
}
