//! Copies that pass the cache by: what is written is not read again soon (a destination larger
//! than any cache), what is read (a window) is filled again and should stay.
//!
//! unsafe: vector loads and stores through raw pointers.
#![expect(unsafe_code, reason = "non-temporal stores take raw pointers")]

/// Copies shorter than this go through the cache.
const STREAM_BYTES: usize = 32 << 10;

/// Copies `len` bytes.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    if len < STREAM_BYTES {
        // SAFETY: promised by the caller.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail partition the range the caller promised; stores are
    // aligned to lines, loads need no alignment.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let mut source = from.add(head).cast::<__m128i>();
        let mut target = to.add(head).cast::<__m128i>();
        for _ in 0..lines {
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
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        _mm_sfence();
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    use super::{STREAM_BYTES, copy};

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        const EDGE: usize = 80;
        let from: Vec<u8> = (0..=250).cycle().take(2 * STREAM_BYTES).collect();
        for len in [
            0,
            1,
            STREAM_BYTES - 1,
            STREAM_BYTES,
            STREAM_BYTES + 1,
            STREAM_BYTES + 63,
        ] {
            for (source, target) in [(0, 0), (1, 0), (0, 1), (17, 63), (64, 65)] {
                let mut to = vec![0xff; len + 2 * EDGE];
                // SAFETY: both ranges lie in their vectors, which are not the same.
                unsafe { copy(from[source..].as_ptr(), to[target..].as_mut_ptr(), len) };
                assert!(
                    to[target..target + len] == from[source..source + len],
                    "{len}"
                );
                assert!(to[..target].iter().all(|&byte| byte == 0xff));
                assert!(to[target + len..].iter().all(|&byte| byte == 0xff));
            }
        }
    }
}
