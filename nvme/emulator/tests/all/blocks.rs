//! Commands of the NVM command set: what they do to the disk, and what each refuses.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nvme::memory::RawMemory;
use nvme_emulator::{Config, Disk, FileDisk, MemoryDisk, Namespace, status};
use nvme_sys::opcode::{admin, feature, nvm};
use nvme_sys::sqe::{CDW11_DEALLOCATE, CDW12_FORCE_UNIT_ACCESS, DatasetRange, SubmissionEntry};
use zerocopy::IntoBytes;

use crate::driver::{Driver, at, blocks, command, config, pattern};

#[test]
fn ranges_sizes_and_namespaces_are_checked() {
    for block_bytes in [512, 1024, 2048, 4096] {
        let count = (1 << 20) / u64::from(block_bytes);
        let mut config = Config {
            max_data_transfer: 1,
            ..config(1 << 20, block_bytes)
        };
        config
            .namespaces
            .push(Namespace::new(MemoryDisk::new(1 << 20).read_only(), 512));
        let mut driver = Driver::stepped(config);
        let mut queue = driver.queue(1, 16);
        let memory = driver.memory(16 << 10);
        let [first, second] = [0, 4096].map(|offset| memory.address(offset).0);
        let read = |lba, count| at(blocks(nvm::READ, lba, count), first, second);
        let most = 8192 / block_bytes;
        driver
            .run(&mut queue, read(count - u64::from(most), most))
            .expect("the last blocks");
        assert_eq!(
            driver.run(&mut queue, read(count, 1)),
            Err(status::LBA_OUT_OF_RANGE)
        );
        assert_eq!(
            driver.run(&mut queue, read(count - 1, 2)),
            Err(status::LBA_OUT_OF_RANGE)
        );
        assert_eq!(
            driver.run(&mut queue, read(u64::MAX, 2)),
            Err(status::LBA_OUT_OF_RANGE)
        );
        assert_eq!(status::LBA_OUT_OF_RANGE, 0x4080);
        assert_eq!(
            driver.run(&mut queue, read(0, most + 1)),
            Err(status::INVALID_FIELD)
        );
        let of = |namespace: u32, opcode| SubmissionEntry {
            namespace_id: namespace.into(),
            ..at(blocks(opcode, 0, 1), first, second)
        };
        for namespace in [0, 3, u32::MAX] {
            let result = driver.run(&mut queue, of(namespace, nvm::READ));
            assert_eq!(result, Err(status::INVALID_NAMESPACE));
        }
        driver
            .run(&mut queue, of(u32::MAX, nvm::FLUSH))
            .expect("all are flushed");
        for opcode in [nvm::WRITE, nvm::WRITE_ZEROES] {
            let result = driver.run(&mut queue, of(2, opcode));
            assert_eq!(result, Err(status::WRITE_PROTECTED));
        }
        assert_eq!(
            driver.run(&mut queue, of(1, 0x7d)),
            Err(status::INVALID_OPCODE)
        );
        let fused = SubmissionEntry {
            flags: 2,
            ..of(1, nvm::READ)
        };
        assert_eq!(driver.run(&mut queue, fused), Err(status::INVALID_FIELD));
        let commands = driver.emulator.counters().io_commands;
        assert_eq!(commands[usize::from(nvm::FLUSH)], 1);
    }
}

#[test]
fn compare_zeroes_and_deallocate() {
    let mut driver = Driver::stepped(config(1 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(256 << 10);
    let prps = driver.prps(&memory, 0, 256 << 10);
    let all = |opcode| at(blocks(opcode, 0, 512), prps.prp1, prps.prp2);
    driver.run(&mut queue, all(nvm::READ)).expect("read");
    driver.run(&mut queue, all(nvm::COMPARE)).expect("the same");
    let last = (256 << 10) - 1;
    memory.raw().write(last, !memory.raw().read::<u8>(last));
    assert_eq!(
        driver.run(&mut queue, all(nvm::COMPARE)),
        Err(status::COMPARE_FAILURE)
    );
    driver
        .run(&mut queue, blocks(nvm::WRITE_ZEROES, 3, 2))
        .expect("zeroed");
    let range = |start: u64, blocks: u32| DatasetRange {
        attributes: 0.into(),
        blocks: blocks.into(),
        start: start.into(),
    };
    let ranges = [range(10, 1), range(20, 3)];
    memory.raw().copy_from(0, ranges.as_bytes());
    let manage = |count: u32, cdw11| SubmissionEntry {
        namespace_id: 1.into(),
        ..at(
            command(nvm::DATASET_MANAGEMENT, count - 1, cdw11),
            prps.prp1,
            0,
        )
    };
    driver.run(&mut queue, manage(2, 0)).expect("a hint");
    driver
        .run(&mut queue, manage(2, CDW11_DEALLOCATE))
        .expect("deallocated");
    memory
        .raw()
        .copy_from(0, [range(30, 1), range(2048, 1)].as_bytes());
    let beyond = driver.run(&mut queue, manage(2, CDW11_DEALLOCATE));
    assert_eq!(beyond, Err(status::LBA_OUT_OF_RANGE));
    driver.run(&mut queue, all(nvm::READ)).expect("read");
    let mut bytes = vec![0; 256 << 10];
    memory.raw().copy_to(0, &mut bytes);
    let mut expected = pattern(256 << 10);
    for (start, count) in [(3, 2), (10, 1), (20, 3)] {
        expected[start * 512..(start + count) * 512].fill(0);
    }
    assert!(bytes == expected, "and block 30 is untouched");
}

#[test]
fn a_shared_disk_shows_what_was_written() {
    let disk = Arc::new(Mutex::new(MemoryDisk::new(1 << 20)));
    let mut driver = Driver::stepped(Config::new(Namespace::new(Arc::clone(&disk), 4096)));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(128 << 10);
    memory.raw().copy_from(0, &pattern(128 << 10));
    let prps = driver.prps(&memory, 0, 128 << 10);
    let write = at(blocks(nvm::WRITE, 1, 32), prps.prp1, prps.prp2);
    driver.run(&mut queue, write).expect("written");
    let disk = disk.lock().expect("no panic");
    assert!(disk.bytes(4096, 128 << 10) == pattern(128 << 10));
    assert_eq!(disk.bytes(0, 4096), [0; 4096]);
    assert_eq!(disk.bytes(132 << 10, 4096), [0; 4096]);
}

/// Counts flushes; reads and writes fail where they touch byte 5000.
#[derive(Debug)]
struct Bad {
    disk: MemoryDisk,
    flushes: Arc<AtomicU32>,
}

fn check(offset: u64, memory: &[RawMemory]) -> io::Result<()> {
    let end = offset + memory.iter().map(RawMemory::len_bytes).sum::<u64>();
    if (offset..end).contains(&5000) {
        return Err(io::Error::other("bad medium"));
    }
    Ok(())
}

impl Disk for Bad {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read(&mut self, offset: u64, to: &[RawMemory]) -> io::Result<()> {
        check(offset, to)?;
        self.disk.read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[RawMemory]) -> io::Result<()> {
        check(offset, from)?;
        self.disk.write(offset, from)
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) -> io::Result<()> {
        self.disk.zero(offset, len_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_disk_that_fails_fails_the_command_and_what_must_be_durable_is_flushed() {
    let flushes = Arc::new(AtomicU32::new(0));
    let disk = Bad {
        disk: MemoryDisk::new(1 << 20),
        flushes: Arc::clone(&flushes),
    };
    let flushed = || flushes.swap(0, Ordering::Relaxed);
    let mut driver = Driver::stepped(Config::new(Namespace::new(disk, 512)));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(4096);
    let one = |opcode, lba| at(blocks(opcode, lba, 1), memory.address(0).0, 0);
    assert_eq!(
        driver.run(&mut queue, one(nvm::READ, 9)),
        Err(status::UNRECOVERED_READ)
    );
    assert_eq!(
        driver.run(&mut queue, one(nvm::COMPARE, 9)),
        Err(status::UNRECOVERED_READ)
    );
    assert_eq!(
        driver.run(&mut queue, one(nvm::WRITE, 9)),
        Err(status::WRITE_FAULT)
    );
    assert_eq!(
        (status::UNRECOVERED_READ, status::WRITE_FAULT),
        (0x281, 0x280)
    );
    driver.run(&mut queue, one(nvm::WRITE, 8)).expect("written");
    assert_eq!(flushed(), 0);
    let mut forced = one(nvm::WRITE, 8);
    forced.cdw12 = CDW12_FORCE_UNIT_ACCESS.into();
    driver.run(&mut queue, forced).expect("written");
    assert_eq!(flushed(), 1);
    driver.run(&mut queue, one(nvm::FLUSH, 0)).expect("flushed");
    assert_eq!(flushed(), 1);
    let off = command(admin::SET_FEATURES, feature::VOLATILE_WRITE_CACHE.into(), 0);
    driver.run_admin(off).expect("set");
    driver.run(&mut queue, one(nvm::WRITE, 8)).expect("written");
    assert_eq!(flushed(), 1);
    // A shutdown leaves nothing in the cache.
    driver
        .device
        .write_u32(0x14, crate::driver::ENABLED | 1 << 14);
    driver.emulator.run();
    assert_eq!(driver.device.read_u32(0x1c), 1 | 2 << 2);
    assert_eq!(flushed(), 1);
}

#[test]
fn a_file_is_a_disk() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), pattern(70_000)).expect("written");
    for read_only in [true, false] {
        let disk = FileDisk::open(file.path(), read_only).expect("opens");
        let mut driver = Driver::stepped(Config::new(Namespace::new(disk, 512)));
        let mut queue = driver.queue(1, 16);
        let memory = driver.memory(70_144);
        let prps = driver.prps(&memory, 0, 70_144);
        let all = at(blocks(nvm::READ, 0, 137), prps.prp1, prps.prp2);
        memory.raw().copy_from(70_000, &[3; 144]);
        driver.run(&mut queue, all).expect("read");
        let mut bytes = vec![0; 70_144];
        memory.raw().copy_to(0, &mut bytes);
        assert!(bytes[..70_000] == pattern(70_000));
        assert_eq!(bytes[70_000..], [0; 144], "beyond the end there are zeroes");
        let write = driver.run(&mut queue, at(blocks(nvm::WRITE, 1, 1), prps.prp1, 0));
        assert_eq!(
            write,
            if read_only {
                Err(status::WRITE_PROTECTED)
            } else {
                Ok(0)
            }
        );
    }
    assert_eq!(
        std::fs::read(file.path()).expect("reads")[512..1024],
        pattern(512)
    );
}
