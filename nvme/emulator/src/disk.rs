//! What a namespace's bytes are kept in: memory here, a file in
//! [`FileDisk`](crate::FileDisk). Knows no blocks and no commands; ranges were checked before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use nvme::memory::RawMemory;

/// Bytes that can be read into and written from memory that others write too.
///
/// Ranges lie inside of [`len_bytes`](Self::len_bytes), rounded up to a block. An error of a
/// read becomes "Unrecovered Read Error", one of anything else "Write Fault".
pub trait Disk: fmt::Debug + Send {
    /// Bytes.
    fn len_bytes(&self) -> u64;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Disk → memory, from `offset` on, filling one stretch after the other.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&mut self, offset: u64, to: &[RawMemory]) -> io::Result<()>;

    /// Memory → disk.
    ///
    /// # Errors
    /// The operating system's.
    fn write(&mut self, offset: u64, from: &[RawMemory]) -> io::Result<()>;

    /// Makes bytes read as zeroes.
    ///
    /// # Errors
    /// The operating system's.
    fn zero(&mut self, offset: u64, len_bytes: u64) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The operating system's.
    fn flush(&mut self) -> io::Result<()>;
}

/// A disk that others look into, or change, while it is in use.
impl<D: Disk> Disk for Arc<Mutex<D>> {
    fn len_bytes(&self) -> u64 {
        shared(self).len_bytes()
    }

    fn is_read_only(&self) -> bool {
        shared(self).is_read_only()
    }

    fn read(&mut self, offset: u64, to: &[RawMemory]) -> io::Result<()> {
        shared(self).read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[RawMemory]) -> io::Result<()> {
        shared(self).write(offset, from)
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) -> io::Result<()> {
        shared(self).zero(offset, len_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        shared(self).flush()
    }
}

fn shared<D>(disk: &Mutex<D>) -> MutexGuard<'_, D> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

const CHUNK_BYTES: u64 = 64 << 10;

/// A disk in memory that takes space only for what was written.
#[derive(Default)]
pub struct MemoryDisk {
    chunks: HashMap<u64, Box<[u8]>>,
    len_bytes: u64,
    read_only: bool,
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDisk")
            .field("len_bytes", &self.len_bytes)
            .field("chunks", &self.chunks.len())
            .finish_non_exhaustive()
    }
}

/// Part of a transfer that lies in one chunk: chunk, place in it, bytes.
fn parts(mut offset: u64, mut len_bytes: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    std::iter::from_fn(move || {
        let (chunk, within) = (offset / CHUNK_BYTES, offset % CHUNK_BYTES);
        let len = len_bytes.min(CHUNK_BYTES - within);
        offset += len;
        len_bytes -= len;
        (len > 0).then(|| (chunk, index(within), index(len)))
    })
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit address space")
}

impl MemoryDisk {
    /// A disk of zeroes.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            ..Self::default()
        }
    }

    /// A disk that holds `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut disk = Self::new(bytes.len() as u64);
        for (number, chunk) in (0..).zip(bytes.chunks(index(CHUNK_BYTES))) {
            disk.chunk(number)[..chunk.len()].copy_from_slice(chunk);
        }
        disk
    }

    /// Refuses writes from now on.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Bytes of it.
    #[must_use]
    pub fn bytes(&self, offset: u64, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        let mut at = 0;
        for (chunk, within, len) in parts(offset, len_bytes as u64) {
            if let Some(chunk) = self.chunks.get(&chunk) {
                bytes[at..at + len].copy_from_slice(&chunk[within..within + len]);
            }
            at += len;
        }
        bytes
    }

    fn chunk(&mut self, number: u64) -> &mut [u8] {
        let fresh = || vec![0; index(CHUNK_BYTES)].into_boxed_slice();
        self.chunks.entry(number).or_insert_with(fresh)
    }
}

impl Disk for MemoryDisk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&mut self, mut offset: u64, to: &[RawMemory]) -> io::Result<()> {
        for memory in to {
            let mut at = 0;
            for (chunk, within, len) in parts(offset, memory.len_bytes()) {
                match self.chunks.get(&chunk) {
                    Some(bytes) => memory.copy_from(at, &bytes[within..within + len]),
                    None => memory.zero(at, len as u64),
                }
                at += len as u64;
            }
            offset += at;
        }
        Ok(())
    }

    fn write(&mut self, mut offset: u64, from: &[RawMemory]) -> io::Result<()> {
        for memory in from {
            let mut at = 0;
            for (chunk, within, len) in parts(offset, memory.len_bytes()) {
                memory.copy_to(at, &mut self.chunk(chunk)[within..within + len]);
                at += len as u64;
            }
            offset += at;
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) -> io::Result<()> {
        // Only chunks that are there: a range may be the whole of a large disk.
        let end = offset + len_bytes;
        let whole = offset.div_ceil(CHUNK_BYTES)..end / CHUNK_BYTES;
        self.chunks.retain(|number, _| !whole.contains(number));
        let mut clear = |from: u64, to: u64| {
            for (chunk, within, len) in parts(from, to.saturating_sub(from)) {
                if let Some(bytes) = self.chunks.get_mut(&chunk) {
                    bytes[within..within + len].fill(0);
                }
            }
        };
        if whole.is_empty() {
            clear(offset, end);
        } else {
            clear(offset, whole.start * CHUNK_BYTES);
            clear(whole.end * CHUNK_BYTES, end);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvme::memory::{Pages, TargetMemory};

    use super::*;

    fn read(disk: &mut MemoryDisk, offset: u64, len: usize) -> Vec<u8> {
        let pages = Pages::new(len as u64).expect("memory");
        let memory = pages.raw().part(0, len as u64);
        disk.read(offset, &[memory]).expect("memory");
        let mut bytes = vec![0; len];
        memory.copy_to(0, &mut bytes);
        bytes
    }

    #[test]
    fn zeroing_reaches_its_range_and_no_further() {
        let ones = vec![1; 5 * index(CHUNK_BYTES)];
        for (from, to) in [
            (0, 5 * CHUNK_BYTES),
            (1, 2),
            (CHUNK_BYTES - 1, CHUNK_BYTES + 1),
            (CHUNK_BYTES, 2 * CHUNK_BYTES),
            (CHUNK_BYTES / 2, 4 * CHUNK_BYTES + 7),
            (3, 3),
        ] {
            let mut disk = MemoryDisk::of(&ones);
            disk.zero(from, to - from).expect("memory");
            let bytes = read(&mut disk, 0, ones.len());
            for (at, byte) in (0u64..).zip(bytes) {
                assert_eq!(byte == 0, (from..to).contains(&at), "{from}..{to} at {at}");
            }
        }
    }
}
