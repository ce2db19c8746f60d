//! Asking for memory before tables are made of it: an allocation that fails later ends the
//! program, one that is refused here is an error.

/// Whether `bytes` of memory are to be had now. They are given back at once, untouched.
#[must_use]
pub fn is_available(bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes).is_ok();
    // Or the compiler leaves out what nobody looks at.
    std::hint::black_box(&probe);
    reserved
}

#[cfg(test)]
mod tests {
    use super::is_available;

    #[test]
    fn there_is_little_memory_but_not_all_of_it() {
        assert!(is_available(0) && is_available(1 << 20));
        assert!(!is_available(isize::MAX as usize) && !is_available(usize::MAX));
    }
}
