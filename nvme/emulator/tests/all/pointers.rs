//! Data pointers: PRP entries and lists, SGLs, and addresses that lead nowhere.

use std::sync::OnceLock;

use nvme::device::Mapping;
use nvme_emulator::{Config, MemoryDisk, Namespace, Scatter, SglSupport, status};
use nvme_sys::opcode::nvm;
use nvme_sys::sgl::{DATA_BLOCK, LAST_SEGMENT, SEGMENT, SglDescriptor};
use nvme_sys::sqe::{PSDT_SGL, SubmissionEntry};
use zerocopy::IntoBytes;

use crate::driver::{Driver, Queue, at, blocks, config, pattern};

const PAGES: u64 = 2000;

/// What the disk holds, made once.
static DISK: OnceLock<Vec<u8>> = OnceLock::new();

fn check(driver: &mut Driver, queue: &mut Queue, memory: &Mapping, offset: u64, blocks_: u32) {
    let len = u64::from(blocks_) * 512;
    let prps = driver.prps(memory, offset, len);
    // A byte of each block and around the transfer is marked before.
    memory.raw().zero(0, memory.raw().len_bytes());
    let lists = driver.emulator.counters().list_pages;
    let read = at(blocks(nvm::READ, 5, blocks_), prps.prp1, prps.prp2);
    driver.run(queue, read).expect("read");
    let read_lists = driver.emulator.counters().list_pages - lists;
    assert_eq!(read_lists, prps.lists.len() as u64);
    let mut bytes = vec![0; usize::try_from(memory.raw().len_bytes()).expect("small")];
    memory.raw().copy_to(0, &mut bytes);
    let [start, end] = [offset, offset + len].map(|at| usize::try_from(at).expect("small"));
    let disk = DISK.get_or_init(|| pattern(8 << 20));
    let zeroes = vec![0; bytes.len()];
    assert!(
        bytes[start..end] == disk[5 * 512..5 * 512 + (end - start)],
        "{offset} {blocks_}"
    );
    assert!(
        bytes[..start] == zeroes[..start],
        "before {offset} {blocks_}"
    );
    assert!(bytes[end..] == zeroes[end..], "after {offset} {blocks_}");
    // And back: to other blocks, compared by reading them through the front.
    let write = at(blocks(nvm::WRITE, 5, blocks_), prps.prp1, prps.prp2);
    driver.run(queue, write).expect("written");
    let compare = at(blocks(nvm::COMPARE, 5, blocks_), prps.prp1, prps.prp2);
    driver.run(queue, compare).expect("the same");
}

#[test]
fn every_count_of_pages_at_every_offset_over_every_address_space() {
    for scatter in [Scatter::Contiguous, Scatter::Pages, Scatter::HugePages] {
        let mut driver = Driver::stepped(Config {
            scatter,
            scatter_from_bytes: 128 << 10,
            seed: 7,
            ..config((8 << 20) + 4096, 512)
        });
        let mut queue = driver.queue(1, 16);
        assert_eq!(driver.memory(64 << 10).runs().len(), 1, "below the limit");
        let memory = driver.memory((PAGES + 1) * 4096);
        if scatter != Scatter::Contiguous {
            assert!(memory.runs().len() > 3);
            let touch =
                |pair: &[nvme::dma::DmaRun]| pair[0].start.0 + pair[0].len_bytes == pair[1].start.0;
            assert!(!memory.runs().windows(2).any(touch), "no neighbours");
        }
        for pages in [1, 2, 3, 512, 513, 514, 1023, 1024, 1025, PAGES] {
            for offset in [0, 4, 512, 4092] {
                // As many blocks as end in the last page.
                let count = (pages * 4096 - offset) / 512;
                if let Ok(count @ 1..) = u32::try_from(count) {
                    check(&mut driver, &mut queue, &memory, offset, count);
                }
            }
        }
        assert!(driver.emulator.iommu_faults().is_empty());
    }
}

#[test]
fn larger_memory_pages_and_lists_that_begin_inside_of_a_page() {
    for mps in [1, 4] {
        let mut driver = Driver::with_pages(config(9 << 20, 512), mps);
        let mut queue = driver.queue(1, 64);
        let memory = driver.memory(8 << 20);
        for (offset, count) in [
            (0, 1),
            (4096, 128),
            (512, 16000),
            (driver.page_bytes - 4, 9000),
        ] {
            check(&mut driver, &mut queue, &memory, offset, count);
        }
    }
    let mut driver = Driver::stepped(config(8 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(6 * 4096);
    let lists = driver.memory(2 * 4096);
    let page = |at: u64| memory.address(at * 4096).0;
    // The first list has two places; the second of them leads on.
    lists.raw().write(4080, page(1));
    lists.raw().write(4088, lists.address(4096).0);
    for at in 0..4 {
        lists.raw().write(4096 + at * 8, page(2 + at));
    }
    let read = at(blocks(nvm::READ, 0, 48), page(0), lists.address(4080).0);
    driver.run(&mut queue, read).expect("read");
    let mut bytes = vec![0; 6 * 4096];
    memory.raw().copy_to(0, &mut bytes);
    assert!(bytes == pattern(6 * 4096));
}

#[test]
fn offsets_where_none_may_be_are_refused() {
    let mut driver = Driver::stepped(config(8 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(4 * 4096);
    let list = driver.memory(4096);
    let page = |at: u64| memory.address(at * 4096).0;
    list.raw().write(0, page(1));
    list.raw().write(8, page(2) + 8);
    let mut expect = |count, prp1, prp2, status| {
        let result = driver.run(&mut queue, at(blocks(nvm::READ, 0, count), prp1, prp2));
        assert_eq!(result, status, "{count} {prp1:#x} {prp2:#x}");
    };
    let invalid = Err(status::INVALID_PRP_OFFSET);
    expect(1, page(0) + 2, 0, invalid);
    expect(16, page(0), page(1) + 4, invalid);
    list.raw()
        .copy_from(1028, [page(1), page(2)].map(u64::to_le).as_bytes());
    expect(24, page(0), list.address(1028).0, invalid);
    expect(24, page(0), list.address(0).0, invalid);
    expect(17, page(0) + 4096 - 512, list.address(0).0, invalid);
    list.raw().write(8, page(2));
    expect(24, page(0), list.address(0).0, Ok(0));
    assert_eq!(memory.raw().read::<u64>(3 * 4096), 0);
}

#[test]
fn what_is_not_mapped_fails_and_nothing_is_touched() {
    let mut driver = Driver::stepped(config(8 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(3 * 4096);
    let gone = driver.memory(4096);
    let nowhere = gone.address(0).0;
    let list = driver.memory(4096);
    let page = |at: u64| memory.address(at * 4096).0;
    list.raw().write(0, nowhere);
    let two = at(blocks(nvm::READ, 0, 16), page(0), nowhere);
    driver.run(&mut queue, two).expect("still mapped");
    memory.raw().zero(0, 3 * 4096);
    drop(gone);
    for (entry, address) in [
        (two, nowhere),
        (
            at(blocks(nvm::READ, 0, 24), page(0), list.address(0).0),
            nowhere,
        ),
        (at(blocks(nvm::READ, 0, 24), page(0), nowhere), nowhere),
        (
            at(blocks(nvm::READ, 0, 16), page(2), page(2) + 4096),
            page(2) + 4096,
        ),
        (
            at(blocks(nvm::WRITE, 0, 1), u64::MAX - 4095, 0),
            u64::MAX - 4095,
        ),
    ] {
        assert_eq!(driver.run(&mut queue, entry), Err(status::DATA_TRANSFER));
        let faults = driver.emulator.iommu_faults();
        let last = faults.last().expect("a fault");
        assert_eq!((last.address.0, last.queue), (address, 1));
        assert_eq!(last.write, entry.opcode == nvm::READ);
    }
    assert_eq!(driver.emulator.counters().iommu_faults, 5);
    let mut bytes = [0; 3 * 4096];
    memory.raw().copy_to(0, &mut bytes);
    assert_eq!(bytes, [0; 3 * 4096]);
}

#[test]
fn a_black_hole_swallows_data_and_reports_success() {
    let mut driver = Driver::stepped(config(8 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let memory = driver.memory(4 * 4096);
    driver.emulator.black_hole(memory.raw());
    let later = nvme::memory::Pages::new(4096).expect("memory");
    driver
        .emulator
        .black_hole(nvme::memory::TargetMemory::raw(&later));
    let later = Mapping::new(&driver.device, std::sync::Arc::new(later)).expect("maps");
    let list = driver.prps(&memory, 0, 4 * 4096);
    for entry in [
        at(blocks(nvm::READ, 1, 32), list.prp1, list.prp2),
        at(blocks(nvm::READ, 1, 1), later.address(0).0, 0),
    ] {
        driver.run(&mut queue, entry).expect("success");
    }
    let mut bytes = [0; 4 * 4096];
    memory.raw().copy_to(0, &mut bytes);
    assert_eq!(bytes, [0; 4 * 4096]);
    assert_eq!(later.raw().read::<u64>(0), 0);
}

fn descriptor(address: u64, len_bytes: u64, kind: u8) -> SglDescriptor {
    SglDescriptor {
        address: address.into(),
        len_bytes: u32::try_from(len_bytes).expect("32 bits").into(),
        reserved: [0; 3],
        kind,
    }
}

fn with_sgl(mut entry: SubmissionEntry, first: SglDescriptor) -> SubmissionEntry {
    let bytes = first.as_bytes();
    entry.flags = PSDT_SGL;
    entry.data1 = first.address;
    entry.data2 = u64::from_le_bytes(bytes[8..].try_into().expect("8 bytes")).into();
    entry
}

fn sgl_driver(sgl: SglSupport) -> (Driver, Queue) {
    let disk = MemoryDisk::of(&pattern(1 << 20));
    let mut driver = Driver::stepped(Config {
        sgl,
        ..Config::new(Namespace::new(disk, 512))
    });
    let queue = driver.queue(1, 16);
    (driver, queue)
}

#[test]
fn scatter_gather_lists_of_one_block_and_of_segments() {
    let (mut driver, mut queue) = sgl_driver(SglSupport::Bytes);
    let memory = driver.memory(1 << 16);
    let lists = driver.memory(8192);
    let place = |at: u64| memory.address(at).0;
    let read = blocks(nvm::READ, 0, 8);
    let block = |at, len| descriptor(place(at), len, DATA_BLOCK);
    driver
        .run(&mut queue, with_sgl(read, block(3, 4096)))
        .expect("one block");
    let mut bytes = [0; 4096];
    memory.raw().copy_to(3, &mut bytes);
    assert!(bytes[..] == pattern(4096));
    memory.raw().zero(0, 1 << 16);
    // A segment of two blocks that leads to a last one of two more.
    let more = descriptor(lists.address(4096).0, 32, LAST_SEGMENT);
    lists
        .raw()
        .copy_from(16, [block(100, 1000), block(5001, 1), more].as_bytes());
    lists
        .raw()
        .copy_from(4096, [block(6000, 0), block(8192, 3095)].as_bytes());
    let first = descriptor(lists.address(16).0, 48, SEGMENT);
    driver
        .run(&mut queue, with_sgl(read, first))
        .expect("segments");
    let mut bytes = vec![0; 1 << 16];
    memory.raw().copy_to(0, &mut bytes);
    let mut expected = vec![0; 1 << 16];
    let disk = pattern(4096);
    expected[100..1100].copy_from_slice(&disk[..1000]);
    expected[5001] = disk[1000];
    expected[8192..8192 + 3095].copy_from_slice(&disk[1001..]);
    assert!(bytes == expected);
}

#[test]
fn scatter_gather_lists_that_are_wrong_are_refused() {
    let (mut driver, mut queue) = sgl_driver(SglSupport::Bytes);
    let memory = driver.memory(1 << 16);
    let lists = driver.memory(4096);
    let (place, list) = (memory.address(0).0, lists.address(0).0);
    let read = blocks(nvm::READ, 0, 8);
    let block = |len| descriptor(place, len, DATA_BLOCK);
    let last = |len| descriptor(list, len, LAST_SEGMENT);
    let cases: [(SglDescriptor, Vec<SglDescriptor>, u16); 10] = [
        (block(4095), vec![], status::INVALID_SGL_LENGTH),
        (block(4097), vec![], status::INVALID_SGL_LENGTH),
        (
            descriptor(place, 4096, 0x40),
            vec![],
            status::INVALID_SGL_TYPE,
        ),
        (
            descriptor(place, 4096, 0x01),
            vec![],
            status::INVALID_SGL_TYPE,
        ),
        (last(0), vec![], status::INVALID_SGL_SEGMENT),
        (last(24), vec![], status::INVALID_SGL_SEGMENT),
        (
            last(32),
            vec![block(4096), last(16)],
            status::INVALID_SGL_SEGMENT,
        ),
        (
            descriptor(list, 16, SEGMENT),
            vec![block(4096)],
            status::INVALID_SGL_SEGMENT,
        ),
        // A segment that leads to itself.
        (
            descriptor(list, 32, SEGMENT),
            vec![block(0), descriptor(list, 32, SEGMENT)],
            status::INVALID_SGL_COUNT,
        ),
        (
            descriptor(list + 4096, 16, LAST_SEGMENT),
            vec![],
            status::DATA_TRANSFER,
        ),
    ];
    for (first, segment, expected) in cases {
        lists.raw().copy_from(0, segment.as_bytes());
        let result = driver.run(&mut queue, with_sgl(read, first));
        assert_eq!(result, Err(expected), "{first:?} {segment:?}");
    }
    let mut both = with_sgl(read, block(4096));
    both.flags = 0xc0;
    assert_eq!(driver.run(&mut queue, both), Err(status::INVALID_FIELD));
    assert_eq!(memory.raw().read::<u64>(0), 0);
    let (mut driver, mut queue) = sgl_driver(SglSupport::Dwords);
    let memory = driver.memory(8192);
    let [odd, even] = [2, 4].map(|at| descriptor(memory.address(at).0, 4096, DATA_BLOCK));
    let result = driver.run(&mut queue, with_sgl(read, odd));
    assert_eq!(result, Err(status::INVALID_SGL_GRANULARITY));
    driver
        .run(&mut queue, with_sgl(read, even))
        .expect("dwords");
    let (mut driver, mut queue) = sgl_driver(SglSupport::None);
    let result = driver.run(&mut queue, with_sgl(read, even));
    assert_eq!(result, Err(status::INVALID_FIELD));
}
