//! Loads and stores on memory of a device: each byte once, none beside, nothing wider than its
//! alignment allows, and no reference ever. Knows addresses only.
//!
//! The widest store is a line of 64 bytes, aligned, which a write-combining mapping sends as
//! one burst (Intel SDM vol. 3, "Write Combining (WC) Memory Location"; on an uncached mapping
//! the same stores go out one by one). Stores are posted: after [`store_fence`] they have left
//! the processor, and a read behind them cannot pass them on the way to the device (PCI
//! Express Base, "Transaction Ordering Rules"; Linux `Documentation/driver-api/device-io.rst`).
//!
//! unsafe: volatile and vector accesses through raw pointers.
#![expect(
    unsafe_code,
    reason = "device memory is touched through raw pointers only"
)]

/// What a write-combining buffer holds.
const LINE_BYTES: usize = 64;

/// The widest access of at most 8 bytes for a place with `left` bytes to go.
fn width(place: usize, left: usize) -> usize {
    let aligned = 1 << place.trailing_zeros().min(3);
    let mut width = aligned;
    while width > left {
        width /= 2;
    }
    width
}

/// Stores `len` bytes into device memory with accesses of at most 8 bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
unsafe fn store_words(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at < len; width gives no more than is left, at a place aligned for it.
        unsafe {
            let (from, to) = (from.add(at), to.add(at));
            let width = width(to as usize, len - at);
            match width {
                8 => to
                    .cast::<u64>()
                    .write_volatile(from.cast::<u64>().read_unaligned()),
                4 => to
                    .cast::<u32>()
                    .write_volatile(from.cast::<u32>().read_unaligned()),
                2 => to
                    .cast::<u16>()
                    .write_volatile(from.cast::<u16>().read_unaligned()),
                _ => to.write_volatile(from.read()),
            }
            at += width;
        }
    }
}

/// Stores whole lines.
///
/// # Safety
/// `from` is readable and `to`, a multiple of a line, writable for `lines` lines; they do not
/// overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn store_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (mut source, mut target) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    for _ in 0..lines {
        // SAFETY: inside the lines that the caller promised; loads need no alignment, stores
        // have it.
        unsafe {
            let a = _mm_loadu_si128(source);
            let b = _mm_loadu_si128(source.add(1));
            let c = _mm_loadu_si128(source.add(2));
            let d = _mm_loadu_si128(source.add(3));
            _mm_stream_si128(target, a);
            _mm_stream_si128(target.add(1), b);
            _mm_stream_si128(target.add(2), c);
            _mm_stream_si128(target.add(3), d);
            source = source.add(4);
            target = target.add(4);
        }
    }
}

/// Stores whole lines.
///
/// # Safety
/// As for the other architecture.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store_lines(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: promised by the caller.
    unsafe { store_words(from, to, lines * LINE_BYTES) };
}

/// Stores `len` bytes of ordinary memory into device memory. They are on their way when it
/// returns, not there.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]; nobody writes the source meanwhile.
pub(crate) unsafe fn store(from: *const u8, to: *mut u8, len: usize) {
    let head = (to as usize).next_multiple_of(LINE_BYTES) - to as usize;
    let head = head.min(len);
    let lines = (len - head) / LINE_BYTES;
    let tail = head + lines * LINE_BYTES;
    // SAFETY: head, lines and tail partition the range the caller promised; the lines start
    // at a multiple of one.
    unsafe {
        store_words(from, to, head);
        store_lines(from.add(head), to.add(head), lines);
        store_words(from.add(tail), to.add(tail), len - tail);
    }
}

/// Bytes that are brought along at a time where no ordinary memory is at hand.
const PART_BYTES: usize = 4096;

/// Stores zeros.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub(crate) unsafe fn store_zeros(to: *mut u8, len: usize) {
    let zeros = [0u8; PART_BYTES];
    let mut at = 0;
    while at < len {
        let part = (len - at).min(PART_BYTES);
        // SAFETY: inside the range the caller promised.
        unsafe { store(zeros.as_ptr(), to.add(at), part) };
        at += part;
    }
}

/// Loads `len` bytes of device memory into ordinary memory: uncached, a round trip each, and
/// so slow.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn load(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at < len; width gives no more than is left, at a place aligned for it.
        unsafe {
            let (from, to) = (from.add(at), to.add(at));
            let width = width(from as usize, len - at);
            match width {
                8 => to
                    .cast::<u64>()
                    .write_unaligned(from.cast::<u64>().read_volatile()),
                4 => to
                    .cast::<u32>()
                    .write_unaligned(from.cast::<u32>().read_volatile()),
                2 => to
                    .cast::<u16>()
                    .write_unaligned(from.cast::<u16>().read_volatile()),
                _ => to.write(from.read_volatile()),
            }
            at += width;
        }
    }
}

/// From device memory to device memory.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn load_and_store(from: *const u8, to: *mut u8, len: usize) {
    let mut bytes = [0u8; PART_BYTES];
    let mut at = 0;
    while at < len {
        let part = (len - at).min(PART_BYTES);
        // SAFETY: inside the ranges the caller promised.
        unsafe {
            load(from.add(at), bytes.as_mut_ptr(), part);
            store(bytes.as_ptr(), to.add(at), part);
        }
        at += part;
    }
}

/// That a fence is behind the stores of this thread: a read-back without one proves nothing.
#[derive(Debug)]
pub(crate) struct Fenced(());

/// No store behind it leaves the processor before those in front, and these are out of its
/// write-combining buffers.
pub(crate) fn store_fence() -> Fenced {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Fenced(())
}

/// Loads the aligned four bytes that `at` lies in: when it returns, what was stored in front
/// of the fence has reached the device.
///
/// # Safety
/// Those four bytes are readable.
pub(crate) unsafe fn read_back(_fenced: Fenced, at: *const u8) -> u32 {
    let at = at.map_addr(|address| address & !3).cast::<u32>();
    // SAFETY: promised by the caller; aligned.
    unsafe { at.read_volatile() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: usize = 80;

    /// Every length around the widths that matter, from and to every alignment that matters.
    fn check(copy: unsafe fn(*const u8, *mut u8, usize)) {
        let from: Vec<u8> = (1..=250).cycle().take(3 * PART_BYTES).collect();
        let lens = (0..=200).chain([PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 67]);
        for len in lens {
            for (source, target) in [(0, 0), (1, 0), (0, 1), (3, 4), (17, 63), (66, 34), (64, 65)] {
                let mut to = vec![0xff; len + 2 * EDGE];
                let start = to.as_ptr() as usize % LINE_BYTES;
                let target = target + (LINE_BYTES - start) % LINE_BYTES % 16;
                // SAFETY: both ranges lie in their vectors, which are not the same.
                unsafe { copy(from[source..].as_ptr(), to[target..].as_mut_ptr(), len) };
                assert!(
                    to[target..target + len] == from[source..source + len],
                    "{len}"
                );
                assert!(to[..target].iter().all(|&byte| byte == 0xff), "{len}");
                assert!(to[target + len..].iter().all(|&byte| byte == 0xff), "{len}");
            }
        }
    }

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        check(store);
        check(load);
        check(load_and_store);
    }

    #[test]
    fn zeros_stay_in_their_range() {
        for (target, len) in [(0, 0), (0, 1), (5, 3), (63, 2), (1, PART_BYTES), (7, 9001)] {
            let mut to = vec![0xff; 3 * PART_BYTES];
            // SAFETY: inside the vector.
            unsafe { store_zeros(to[target..].as_mut_ptr(), len) };
            let wrong = to.iter().enumerate().position(|(at, &byte)| {
                let inside = (target..target + len).contains(&at);
                byte != if inside { 0 } else { 0xff }
            });
            assert_eq!(wrong, None, "{target} {len}");
        }
    }

    #[test]
    fn accesses_are_as_wide_as_their_place_and_what_is_left_allow() {
        for (place, left, wanted) in [
            (0, 8, 8),
            (0, 100, 8),
            (0, 7, 4),
            (0, 1, 1),
            (8, 3, 2),
            (4, 8, 4),
            (2, 8, 2),
            (6, 1, 1),
            (1, 8, 1),
        ] {
            assert_eq!(width(place, left), wanted, "{place} {left}");
        }
    }

    #[test]
    fn a_read_back_gives_the_word_around_its_byte() {
        let words = [0x0403_0201_u32.to_le(), 0x0807_0605_u32.to_le()];
        let first = words.as_ptr().cast::<u8>();
        for at in 0..8 {
            // SAFETY: inside the two words.
            let found = unsafe { read_back(store_fence(), first.add(at)) };
            assert_eq!(found, words[at / 4], "{at}");
        }
    }
}
