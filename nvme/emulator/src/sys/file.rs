//! A disk that is a file: bytes move between the file and target memory without a stop, by
//! `preadv` and `pwritev` on raw addresses. Knows no blocks.
#![expect(
    unsafe_code,
    reason = "system calls on memory that nobody may hold references to"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nvme::memory::RawMemory;
use nvme::{Error, Result};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use crate::disk::Disk;

/// A disk that is a regular file or a block device.
///
/// Where the file's length is no multiple of a block, the rest of its last block reads as
/// zeroes; a write to it makes the file longer.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    len_bytes: u64,
    read_only: bool,
}

impl FileDisk {
    /// Opens a file.
    ///
    /// # Errors
    /// NotFound, Permission, or another of the operating system's.
    pub fn open(path: &Path, read_only: bool) -> Result<Self> {
        let opened = OpenOptions::new().read(true).write(!read_only).open(path);
        let failed = |error| Error::os(format!("cannot open {}", path.display()), error);
        let file = opened.map_err(failed)?;
        // A block device's length is where its end is.
        let len_bytes = seek(&file, SeekFrom::End(0)).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            file,
            len_bytes,
            read_only,
        })
    }
}

/// Addresses of one system call.
const MAX_VECTORS: usize = 128;

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

impl FileDisk {
    fn transfer(&self, way: Way, mut offset: u64, memory: &[RawMemory]) -> io::Result<()> {
        let mut rest = Rest {
            memory,
            done_bytes: 0,
        };
        loop {
            let mut vectors = [libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; MAX_VECTORS];
            let count = rest.fill(&mut vectors);
            if count == 0 {
                return Ok(());
            }
            let moved = self.call(way, offset, &vectors[..count])?;
            if moved == 0 {
                return match way {
                    // The rest of the last block.
                    Way::Read if offset >= self.len_bytes => {
                        rest.zero();
                        Ok(())
                    }
                    // It was cut since: what is missing is not zeroes.
                    Way::Read => Err(io::ErrorKind::UnexpectedEof.into()),
                    Way::Write => Err(io::ErrorKind::WriteZero.into()),
                };
            }
            offset += moved;
            rest.advance(moved);
        }
    }

    fn call(&self, way: Way, offset: u64, vectors: &[libc::iovec]) -> io::Result<u64> {
        let (fd, count) = (self.file.as_raw_fd(), vectors.len());
        let count = libc::c_int::try_from(count).expect("at most MAX_VECTORS");
        let offset = libc::off64_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            // SAFETY: the vectors name memory that stays mapped, as `RawMemory` promises; the
            // kernel does not keep them.
            let moved = unsafe {
                match way {
                    Way::Read => libc::preadv64(fd, vectors.as_ptr(), count, offset),
                    Way::Write => libc::pwritev64(fd, vectors.as_ptr(), count, offset),
                }
            };
            if let Ok(moved) = u64::try_from(moved) {
                return Ok(moved);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Memory that is still to be filled or written.
struct Rest<'a> {
    memory: &'a [RawMemory],
    /// Of the first stretch.
    done_bytes: u64,
}

impl Rest<'_> {
    /// Writes addresses, joined where they touch; gives their number.
    fn fill(&self, vectors: &mut [libc::iovec; MAX_VECTORS]) -> usize {
        let mut count = 0;
        for (at, memory) in self.memory.iter().enumerate() {
            let skip = if at == 0 { self.done_bytes } else { 0 };
            let len = memory.len_bytes() - skip;
            let start = memory.at(skip, len).cast::<libc::c_void>();
            let len = usize::try_from(len).expect("64-bit address space");
            if let Some(last) = usize::checked_sub(count, 1).map(|last| &mut vectors[last])
                && last.iov_base.addr() + last.iov_len == start.addr()
            {
                last.iov_len += len;
            } else if count == MAX_VECTORS {
                break;
            } else {
                vectors[count].iov_base = start;
                vectors[count].iov_len = len;
                count += 1;
            }
        }
        count
    }

    fn advance(&mut self, moved: u64) {
        self.done_bytes += moved;
        while let Some((first, others)) = self.memory.split_first()
            && self.done_bytes >= first.len_bytes()
        {
            self.done_bytes -= first.len_bytes();
            self.memory = others;
        }
    }

    fn zero(&self) {
        let mut skip = self.done_bytes;
        for memory in self.memory {
            memory.zero(skip, memory.len_bytes() - skip);
            skip = 0;
        }
    }
}

impl Disk for FileDisk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&mut self, offset: u64, to: &[RawMemory]) -> io::Result<()> {
        self.transfer(Way::Read, offset, to)
    }

    fn write(&mut self, offset: u64, from: &[RawMemory]) -> io::Result<()> {
        self.transfer(Way::Write, offset, from)
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) -> io::Result<()> {
        if len_bytes == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, hole, offset, len_bytes).is_ok() {
            return Ok(());
        }
        let (zeroes, mut at) = ([0; 64 << 10], 0);
        while at < len_bytes {
            let len = (len_bytes - at).min(zeroes.len() as u64);
            let part = &zeroes[..usize::try_from(len).expect("at most 64 KiB")];
            self.file.write_all_at(part, offset + at)?;
            at += len;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nvme::memory::{Pages, TargetMemory};

    use super::*;

    #[test]
    fn scattered_memory_is_read_and_written_beyond_one_call_and_beyond_the_end() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let bytes: Vec<u8> = (0..300 * 1024 + 100)
            .map(|at: u32| at.to_le_bytes()[1])
            .collect();
        file.write_all(&bytes).expect("written");
        let mut disk = FileDisk::open(file.path(), false).expect("opens");
        assert_eq!(disk.len_bytes(), bytes.len() as u64);
        let pages = Pages::new(1 << 20).expect("memory");
        // Every second stretch of 1 KiB, 300 of them, and one that goes past the end.
        let parts: Vec<_> = (0..301)
            .map(|at| pages.raw().part(at * 2048, 1024))
            .collect();
        pages.raw().copy_from(600 * 1024 + 100, &[9; 924]);
        disk.read(0, &parts).expect("reads");
        for (at, part) in parts.iter().enumerate() {
            let mut read = [0; 1024];
            part.copy_to(0, &mut read);
            let mut expected = [0; 1024];
            let there = &bytes[at * 1024..(at * 1024 + 1024).min(bytes.len())];
            expected[..there.len()].copy_from_slice(there);
            assert_eq!(read, expected, "{at}");
        }
        disk.write(512, &parts[..300]).expect("writes");
        disk.zero(1024, 512).expect("zeroes");
        disk.flush().expect("flushes");
        let written = std::fs::read(file.path()).expect("reads");
        assert_eq!(written[512..1024], bytes[..512]);
        assert_eq!(written[1024..1536], [0; 512]);
        assert_eq!(written[1536..512 + 300 * 1024], bytes[1024..300 * 1024]);
    }

    #[test]
    fn files_that_are_not_there_are_named() {
        let error = FileDisk::open(Path::new("no/such/disk"), true).expect_err("missing");
        assert_eq!(error.kind(), nvme::ErrorKind::NotFound);
        assert!(error.to_string().contains("no/such/disk"), "{error}");
    }

    #[test]
    fn what_was_cut_is_an_error_and_the_last_blocks_rest_is_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), vec![7; 5000]).expect("room");
        let mut disk = FileDisk::open(file.path(), true).expect("there");
        let pages = Pages::new(8192).expect("memory");
        let memory = pages.raw();
        memory.copy_from(0, &[1; 8192]);
        disk.read(0, &[memory.part(0, 5120)])
            .expect("its last block");
        let word = |at| memory.read::<[u8; 1]>(at)[0];
        assert_eq!(
            (word(4999), word(5000), word(5119), word(5120)),
            (7, 0, 0, 1)
        );
        File::options()
            .write(true)
            .open(file.path())
            .and_then(|file| file.set_len(4096))
            .expect("cut");
        let error = disk.read(0, &[memory.part(0, 5120)]).expect_err("cut");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        disk.read(0, &[memory.part(0, 4096)])
            .expect("what is there");
    }
}
