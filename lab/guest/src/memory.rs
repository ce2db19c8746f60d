//! Bytes that direct I/O takes: they start with a page, and are this process's alone once a read
//! has returned. Memory for devices is `nvme::memory`'s. Knows nothing of drives.

const PAGE_BYTES: usize = 4096;

/// Bytes that start at a page's start.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    /// One page more than asked, so that a page's start lies in its first page.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// So many zero bytes.
    pub(crate) fn new(len_bytes: usize) -> Self {
        let bytes = vec![0; len_bytes + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES);
        Self {
            bytes,
            start,
            len: len_bytes,
        }
    }

    /// All of them.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_start_where_pages_start() {
        for len in [0, 1, 512, 4096, 10_000] {
            let mut pages = AlignedBytes::new(len);
            assert_eq!(pages.as_mut().len(), len);
            assert_eq!(pages.as_mut().as_ptr().align_offset(PAGE_BYTES), 0);
        }
    }
}
