//! The emulator as a thread: many queues at once, interrupts as the only way to hear of an
//! end, and resets in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvme::device::Device;
use nvme_emulator::fault::ControllerFault;
use nvme_emulator::{Config, Delay, Emulator, Match, Plan, Scatter, Script};
use nvme_sys::opcode::nvm;
use nvme_sys::register::{CC, CSTS};
use nvme_sys::sqe::SubmissionEntry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::driver::{Driver, Queue, at, blocks, config, pattern};

const COMMANDS: u16 = 3000;
const DEPTH: u16 = 32;

fn sleep_until_raised(device: &dyn Device, vector: u16) {
    let eventfd = device.interrupt(vector).expect("a vector");
    let mut polled = [PollFd::new(&*eventfd, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let ready = poll(&mut polled, Some(&limit)).expect("polls");
    assert_eq!(ready, 1, "no interrupt");
    let _count = rustix::io::read(&*eventfd, &mut [0; 8]).expect("reads");
}

/// Reads at a depth and checks every byte; sleeps on the queue's interrupt.
fn load(device: &dyn Device, queue: &mut Queue, memory: &nvme::device::Mapping) {
    let disk = pattern(1 << 20);
    let (mut sent, mut ended) = (0, 0);
    let mut free: Vec<u16> = (0..DEPTH).collect();
    let mut lbas = [0; DEPTH as usize];
    while ended < COMMANDS {
        while sent < COMMANDS
            && let Some(slot) = free.pop()
        {
            let lba = (u64::from(sent) * 37 + u64::from(queue.id) * 11) % 2047;
            lbas[usize::from(slot)] = lba;
            let address = memory.address(u64::from(slot) * 4096 + 512).0;
            queue.submit(
                device,
                SubmissionEntry {
                    command_id: slot.into(),
                    ..at(blocks(nvm::READ, lba, 1), address, 0)
                },
            );
            sent += 1;
        }
        sleep_until_raised(device, queue.id);
        while let Some(end) = queue.poll(device) {
            assert_eq!(end.status(), 0);
            let slot = end.command_id.get();
            let mut bytes = [0; 512];
            memory
                .raw()
                .copy_to(u64::from(slot) * 4096 + 512, &mut bytes);
            let lba = usize::try_from(lbas[usize::from(slot)]).expect("small");
            assert!(bytes[..] == disk[lba * 512..lba * 512 + 512], "block {lba}");
            free.push(slot);
            ended += 1;
        }
    }
}

#[test]
fn four_queues_at_depth_sleep_on_interrupts_and_lose_nothing() {
    let mut driver = Driver::threaded(Config {
        scatter: Scatter::Pages,
        ..config(1 << 20, 512)
    });
    let loads: Vec<_> = (1..=4)
        .map(|id| (driver.queue(id, 64), driver.memory(u64::from(DEPTH) * 4096)))
        .collect();
    std::thread::scope(|scope| {
        for (mut queue, memory) in loads {
            let device = Arc::clone(&driver.device);
            scope.spawn(move || load(&*device, &mut queue, &memory));
        }
    });
    let counters = driver.emulator.counters();
    assert_eq!(
        counters.io_commands[usize::from(nvm::READ)],
        4 * u64::from(COMMANDS)
    );
    assert_eq!(counters.dma_write_bytes, 4 * u64::from(COMMANDS) * 512);
    assert!(
        counters.interrupts < counters.completions,
        "some came together"
    );
    assert_eq!(counters.iommu_faults, 0);
}

#[test]
fn time_passes_by_itself_and_an_idle_thread_sleeps() {
    let mut driver = Driver::threaded(config(1 << 20, 512));
    let mut queue = driver.queue(1, 16);
    let late = Plan {
        delay: Delay::time(Duration::from_millis(30)),
        ..Plan::default()
    };
    driver
        .emulator
        .set_faults(Script::new().always(Match::io(nvm::FLUSH), late));
    let start = Instant::now();
    driver
        .run(&mut queue, blocks(nvm::FLUSH, 0, 1))
        .expect("flushed");
    assert!(start.elapsed() >= Duration::from_millis(30));
    let before = processor_times();
    std::thread::sleep(Duration::from_millis(300));
    let after = processor_times();
    // Threads of other tests may work meanwhile: the idlest is ours, or one like it.
    let spent = before
        .iter()
        .filter_map(|(task, before)| Some(*after.get(task)? - *before));
    let spent = spent.min().expect("our thread");
    assert!(spent < Duration::from_millis(100), "{spent:?} while idle");
}

/// How long each thread of an emulator in this process has worked or wanted to.
fn processor_times() -> HashMap<String, Duration> {
    let mut times = HashMap::new();
    for task in std::fs::read_dir("/proc/self/task")
        .expect("reads")
        .flatten()
    {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        // Time on a processor, and time waiting for one.
        let spent = stat.split(' ').take(2).map(str::parse::<u64>);
        let spent = spent.sum::<Result<u64, _>>().ok();
        if let (true, Some(spent)) = (name.trim() == "nvme-emulator", spent) {
            let task = task.file_name().to_string_lossy().into_owned();
            times.insert(task, Duration::from_nanos(spent));
        }
    }
    times
}

#[test]
fn resets_and_removal_in_the_middle_of_work() {
    let mut driver = Driver::threaded(config(1 << 20, 512));
    let memory = driver.memory(1 << 20);
    let prps = driver.prps(&memory, 0, 1 << 20);
    for round in 0..20 {
        let mut queue = driver.queue(1, 64);
        for id in 0..40_u16 {
            queue.submit(
                &*driver.device,
                SubmissionEntry {
                    command_id: id.into(),
                    ..at(blocks(nvm::READ, 0, 2048), prps.prp1, prps.prp2)
                },
            );
        }
        std::thread::sleep(Duration::from_micros(100 * round));
        driver.reset();
        // Acknowledged: from here on nothing may land.
        memory.raw().zero(0, 1 << 20);
        std::thread::sleep(Duration::from_micros(300));
        let mut bytes = vec![0; 1 << 20];
        memory.raw().copy_to(0, &mut bytes);
        assert!(bytes == vec![0; 1 << 20], "round {round}");
    }
    driver.emulator.inject(ControllerFault::Gone);
    assert_eq!(driver.device.read_u32(CSTS), u32::MAX);
}

#[test]
fn unmapping_takes_effect_at_once() {
    let mut driver = Driver::threaded(config(1 << 20, 512));
    let mut queue = driver.queue(1, 64);
    for _ in 0..50 {
        let pages = Arc::new(nvme::memory::Pages::new(1 << 20).expect("memory"));
        let memory = nvme::device::Mapping::new(&driver.device, pages.clone()).expect("maps");
        let raw = memory.raw();
        let prps = driver.prps(&memory, 0, 1 << 20);
        let id = driver.id();
        queue.submit(
            &*driver.device,
            SubmissionEntry {
                command_id: id.into(),
                ..at(blocks(nvm::READ, 0, 2048), prps.prp1, prps.prp2)
            },
        );
        drop(memory);
        raw.zero(0, 1 << 20);
        let end = driver.wait(&mut queue);
        assert!([0, nvme_emulator::status::DATA_TRANSFER].contains(&end.status()));
        let mut bytes = vec![0; 1 << 20];
        raw.copy_to(0, &mut bytes);
        assert!(bytes == vec![0; 1 << 20]);
        drop(pages);
    }
}

#[test]
fn dropping_it_ends_its_thread_whoever_still_rings() {
    let driver = Driver::threaded(config(1 << 20, 512));
    let stop = Arc::new(AtomicBool::new(false));
    let rings = {
        let (device, stop) = (Arc::clone(&driver.device), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                device.write_u32(0x1000, 1);
                device.write_u32(CC, 0);
            }
        })
    };
    std::thread::sleep(Duration::from_millis(20));
    drop(driver);
    stop.store(true, Ordering::Relaxed);
    rings.join().expect("no panic");
    // And one that nobody ever used.
    drop(Emulator::threaded(config(1 << 20, 512)).expect("an emulator"));
}
