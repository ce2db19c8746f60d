//! Each fault, as a driver meets it; and that what is legal stays legal: no data moves after a
//! completion or after a reset was acknowledged, but where a test asks for just that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvme::device::{Device, Mapping};
use nvme_emulator::fault::ControllerFault;
use nvme_emulator::observe::{DmaWrite, WriteKind};
use nvme_emulator::{Config, Deed, Delay, Emulator, Ending, Match, Plan, Script, status};
use nvme_sys::opcode::{admin, nvm};
use nvme_sys::register::{ACQ, AQA, ASQ, CC, CSTS, CSTS_FATAL, CSTS_READY, GONE, VS};
use nvme_sys::sqe::SubmissionEntry;

use crate::driver::{Driver, Queue, at, blocks, command, config, pattern};

/// A driver with one queue and a page for each command.
struct Bench {
    driver: Driver,
    queue: Queue,
    memory: Mapping,
    writes: Arc<Mutex<Vec<DmaWrite>>>,
}

impl Bench {
    fn new(script: Script) -> Self {
        Self::with(config(1 << 20, 512), script)
    }

    fn with(config: Config, script: Script) -> Self {
        let mut driver = Driver::stepped(config);
        let queue = driver.queue(1, 64);
        let memory = driver.memory(64 * 4096);
        driver.emulator.set_faults(script);
        let writes = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&writes);
        driver.emulator.observe(Box::new(move |write| {
            log.lock().expect("no panic").push(*write)
        }));
        Self {
            driver,
            queue,
            memory,
            writes,
        }
    }

    /// Reads block `id` into page `id`.
    fn read(&mut self, id: u16) {
        let entry = SubmissionEntry {
            command_id: id.into(),
            ..at(
                blocks(nvm::READ, id.into(), 1),
                self.memory.address(u64::from(id) * 4096).0,
                0,
            )
        };
        self.queue.submit(&*self.driver.device, entry);
    }

    fn abort(&mut self, id: u16) {
        let entry = SubmissionEntry {
            command_id: (100 + id).into(),
            ..command(admin::ABORT, u32::from(id) << 16 | 1, 0)
        };
        self.driver.admin.submit(&*self.driver.device, entry);
    }

    /// Identifiers and status fields of what has completed by the time nothing is left to do.
    fn ends(&mut self) -> Vec<(u16, u16)> {
        let ends = self.driver.drain(&mut self.queue);
        ends.iter()
            .map(|end| (end.command_id.get(), end.status()))
            .collect()
    }

    fn admin_ends(&mut self) -> Vec<u32> {
        let device = Arc::clone(&self.driver.device);
        self.driver.emulator.run();
        let ends = std::iter::from_fn(|| self.driver.admin.poll(&*device));
        ends.map(|end| end.result.get()).collect()
    }

    /// Bytes of page `id` that are the disk's, from its start on.
    fn landed(&self, id: u16) -> usize {
        let mut page = [0; 512];
        self.memory.raw().copy_to(u64::from(id) * 4096, &mut page);
        // Block 0 begins with a zero, as fresh memory does.
        assert_ne!(id, 0);
        let disk = &pattern(1 << 20)[usize::from(id) * 512..][..512];
        let same = page
            .iter()
            .zip(disk)
            .take_while(|(one, other)| one == other);
        let same = same.count();
        assert!(
            page[same..].iter().all(|byte| *byte == 0),
            "all or nothing of the rest"
        );
        same
    }

    fn violations(&self) -> usize {
        let writes = self.writes.lock().expect("no panic");
        writes
            .iter()
            .filter(|write| write.kind == WriteKind::Violation)
            .count()
    }
}

fn plan(ending: Ending) -> Plan {
    Plan {
        ending,
        ..Plan::default()
    }
}

fn delayed(delay: Delay) -> Plan {
    Plan {
        delay,
        ..Plan::default()
    }
}

fn reads() -> Match {
    Match::io(nvm::READ)
}

#[test]
fn late_by_steps_by_time_and_between_data_and_completion() {
    let linger = Plan {
        linger: Delay::time(Duration::from_secs(1)),
        ..Plan::default()
    };
    let script = Script::new()
        .times(1, reads(), delayed(Delay::steps(40)))
        .times(1, reads(), delayed(Delay::time(Duration::from_secs(2))))
        .times(1, reads(), linger);
    let mut bench = Bench::new(script);
    for id in 1..=4 {
        bench.read(id);
    }
    for _ in 0..12 {
        bench.driver.emulator.step();
    }
    assert_eq!(
        bench
            .queue
            .poll(&*bench.driver.device)
            .map(|it| it.command_id.get()),
        Some(4)
    );
    assert_eq!((bench.landed(1), bench.landed(3)), (0, 512));
    assert_eq!(bench.ends(), [(1, 0)]);
    assert_eq!((bench.landed(1), bench.landed(2)), (512, 0));
    let deadline = bench.driver.emulator.deadline();
    assert_eq!(deadline, Some(Duration::from_secs(1)));
    bench.driver.emulator.advance(Duration::from_secs(1));
    assert_eq!(bench.ends(), [(3, 0)]);
    bench.driver.device.pause(Duration::from_secs(1));
    assert_eq!(bench.ends(), [(2, 0)]);
}

#[test]
fn lost_doubled_and_misnamed_completions() {
    let script = Script::new()
        .times(1, reads(), plan(Ending::Never))
        .times(1, reads(), plan(Ending::Twice))
        .times(1, reads(), plan(Ending::CommandId(900)))
        .times(1, reads(), plan(Ending::Stray(901)));
    let mut bench = Bench::new(script);
    for id in 1..=5 {
        bench.read(id);
    }
    assert_eq!(
        bench.ends(),
        [(2, 0), (2, 0), (900, 0), (901, 0), (4, 0), (5, 0)]
    );
    assert_eq!(bench.landed(1), 512, "only the completion is lost");
    bench
        .driver
        .emulator
        .set_faults(Script::new().always(reads(), plan(Ending::Queue(7))));
    bench.read(6);
    let stray = bench.driver.wait(&mut bench.queue);
    assert_eq!((stray.sq_id.get(), stray.command_id.get()), (7, 6));
    // A lost one is not found by an abort.
    bench.abort(1);
    assert_eq!(bench.admin_ends(), [1]);
}

#[test]
fn reordered_completions_keep_to_their_seed() {
    let order = |seed| {
        let mut bench = Bench::new(Script::new().shuffled(seed));
        for id in 1..=40 {
            bench.read(id);
        }
        let ends = bench.ends();
        assert!(ends.iter().all(|end| end.1 == 0) && ends.len() == 40);
        ends
    };
    let first = order(3);
    assert!(!first.is_sorted());
    assert_eq!(first, order(3));
    assert_ne!(first, order(4));
}

#[test]
fn media_errors_by_block_any_status_and_short_transfers() {
    let media = Plan {
        deed: Deed::Fail(status::UNRECOVERED_READ),
        ..Plan::default()
    };
    let short = Plan {
        deed: Deed::Short {
            len_bytes: 100,
            status: status::DATA_TRANSFER,
        },
        ..Plan::default()
    };
    let script = Script::new()
        .always(reads().lbas(3..5), media)
        .always(reads().lbas(7..8), short);
    let mut bench = Bench::new(script);
    for id in 1..=8 {
        bench.read(id);
    }
    let statuses: Vec<u16> = bench.ends().iter().map(|end| end.1).collect();
    assert_eq!(statuses, [0, 0, 0x281, 0x281, 0, 0, 4, 0]);
    let landed: Vec<usize> = (1..=8).map(|id| bench.landed(id)).collect();
    assert_eq!(landed, [512, 512, 0, 0, 512, 512, 100, 512]);
    let writes = bench.writes.lock().expect("no panic");
    let data = writes.iter().filter(|write| write.kind == WriteKind::Data);
    let lengths: Vec<_> = data
        .map(|write| (write.command_id, write.run.len_bytes))
        .collect();
    assert_eq!(
        lengths,
        [(1, 512), (2, 512), (5, 512), (6, 512), (7, 100), (8, 512)]
    );
}

#[test]
fn an_abort_stops_what_has_not_begun_and_says_so_where_it_is_too_late() {
    let stubborn = Plan {
        ignores_abort: true,
        ..delayed(Delay::time(Duration::from_secs(1)))
    };
    let script = Script::new()
        .times(1, reads(), delayed(Delay::FOREVER))
        .times(1, reads(), stubborn);
    let mut bench = Bench::new(script);
    bench.read(1);
    bench.read(2);
    bench.driver.emulator.run();
    bench.abort(1);
    bench.abort(2);
    bench.abort(3);
    assert_eq!(
        bench.admin_ends(),
        [1, 1, 0],
        "the first one waits for the completion"
    );
    assert_eq!(bench.ends(), [(1, status::ABORT_REQUESTED)]);
    assert_eq!((bench.landed(1), bench.landed(2)), (0, 0));
    // Legal: its completion is still owed.
    bench.driver.emulator.advance(Duration::from_secs(1));
    assert_eq!(bench.ends(), [(2, 0)]);
    assert_eq!((bench.landed(2), bench.violations()), (512, 0));
    // An abort that is not answered itself counts against the limit.
    let hung = Script::new().always(Match::admin(admin::ABORT), delayed(Delay::FOREVER));
    bench.driver.emulator.set_faults(hung);
    for id in 0..5 {
        let entry = SubmissionEntry {
            command_id: (200 + id).into(),
            ..command(admin::ABORT, 1, 0)
        };
        bench.driver.admin.submit(&*bench.driver.device, entry);
    }
    bench.driver.emulator.run();
    bench.driver.emulator.set_faults(Script::new());
    assert_eq!(
        bench.driver.run_admin(command(admin::ABORT, 1, 0)),
        Err(status::ABORT_LIMIT)
    );
}

#[test]
fn the_end_of_a_queue_ends_its_commands_first() {
    let stubborn = Plan {
        ignores_abort: true,
        ..delayed(Delay::steps(50))
    };
    let script = Script::new()
        .times(1, reads(), delayed(Delay::FOREVER))
        .times(1, reads(), stubborn);
    let mut bench = Bench::new(script);
    bench.read(1);
    bench.read(2);
    for _ in 0..4 {
        bench.driver.emulator.step();
    }
    let device = Arc::clone(&bench.driver.device);
    let delete = command(admin::DELETE_SQ, 1, 0);
    bench.driver.admin.submit(&*device, delete);
    let ended = (0..200).find(|_| {
        bench.driver.emulator.step();
        bench.driver.admin.poll(&*device).is_some()
    });
    assert!(ended.is_some());
    // Nothing is stepped any more: both completions are there already.
    let ends = std::iter::from_fn(|| bench.queue.poll(&*device));
    let ends: Vec<_> = ends
        .map(|end| (end.command_id.get(), end.status()))
        .collect();
    assert_eq!(ends, [(1, status::ABORTED_SQ_DELETION), (2, 0)]);
    assert_eq!((bench.landed(1), bench.landed(2)), (0, 512));
}

#[test]
fn a_command_identifier_that_is_in_use_is_refused() {
    let mut bench = Bench::new(Script::new().times(1, reads(), delayed(Delay::steps(30))));
    bench.read(1);
    bench.read(1);
    assert_eq!(bench.ends(), [(1, status::COMMAND_ID_CONFLICT), (1, 0)]);
}

#[test]
fn data_after_a_completion_is_a_violation_and_named_one() {
    let violation = Plan {
        dma_after_completion: Some(Delay::time(Duration::from_secs(1))),
        ..Plan::default()
    };
    let mut bench = Bench::new(Script::new().times(1, reads(), violation));
    bench.read(1);
    assert_eq!(bench.ends(), [(1, 0)]);
    bench.memory.raw().zero(4096, 4096);
    assert_eq!(bench.violations(), 0);
    bench.driver.device.write_u32(CC, 0);
    bench.driver.wait_ready(false);
    bench.driver.emulator.advance(Duration::from_secs(1));
    bench.driver.emulator.run();
    assert_eq!((bench.landed(1), bench.violations()), (512, 1));
}

#[test]
fn a_reset_lets_data_move_until_it_is_acknowledged_and_not_after() {
    let slow = Config {
        reset_delay: Duration::from_secs(2),
        ..config(1 << 20, 512)
    };
    let script = Script::new()
        .times(1, reads(), delayed(Delay::time(Duration::from_secs(1))))
        .times(1, reads(), delayed(Delay::time(Duration::from_secs(3))));
    let mut bench = Bench::with(slow, script);
    bench.read(1);
    bench.read(2);
    bench.driver.emulator.run();
    bench.driver.device.write_u32(CC, 0);
    bench.driver.device.pause(Duration::from_secs(1));
    assert_eq!(bench.driver.device.read_u32(CSTS), CSTS_READY);
    assert_eq!(
        (bench.landed(1), bench.landed(2)),
        (512, 0),
        "still allowed"
    );
    bench.driver.device.pause(Duration::from_secs(1));
    assert_eq!(bench.driver.device.read_u32(CSTS), 0);
    bench.driver.reset();
    bench.driver.device.pause(Duration::from_secs(9));
    assert_eq!(bench.landed(2), 0);
    assert_eq!(bench.queue.poll(&*bench.driver.device), None);
}

fn with(fault: ControllerFault) -> Plan {
    Plan {
        controller: Some(fault),
        ..Plan::default()
    }
}

#[test]
fn fatal_and_stalled_controllers_need_a_reset() {
    for fault in [ControllerFault::Fatal, ControllerFault::Stall] {
        let mut bench = Bench::new(Script::new().nth(1, reads(), with(fault)));
        for id in 1..=3 {
            bench.read(id);
        }
        // The first is still under way when the second comes.
        assert_eq!(bench.ends(), []);
        let csts = bench.driver.device.read_u32(CSTS);
        assert_eq!(csts & CSTS_FATAL != 0, fault == ControllerFault::Fatal);
        assert_eq!(bench.landed(2), 0);
        bench.driver.reset();
        bench.queue = bench.driver.queue(1, 64);
        bench.read(4);
        assert_eq!(bench.ends(), [(4, 0)]);
    }
}

#[test]
fn a_controller_that_is_gone_reads_as_all_ones_and_moves_nothing() {
    let mut bench = Bench::new(Script::new().nth(1, reads(), with(ControllerFault::Gone)));
    bench.read(1);
    bench.read(2);
    assert_eq!(bench.ends(), []);
    for offset in [VS, CC, CSTS, 0x1000] {
        assert_eq!(bench.driver.device.read_u32(offset), GONE);
    }
    assert_eq!(bench.driver.device.read_u64(0), u64::MAX);
    bench.driver.device.write_u32(CC, 0);
    bench.driver.device.pause(Duration::from_secs(1));
    assert_eq!((bench.landed(1), bench.landed(2)), (0, 0));
}

#[test]
fn a_controller_takes_its_time_and_refuses_what_it_cannot_be() {
    let mut driver = Driver::stepped(Config {
        ready_delay: Duration::from_millis(700),
        ..config(1 << 20, 512)
    });
    let ready = |driver: &mut Driver| {
        let before = driver.device.now();
        driver.reset();
        driver.device.now() - before
    };
    let usual = ready(&mut driver);
    assert!(usual >= Duration::from_millis(700) && usual < Duration::from_millis(720));
    driver
        .emulator
        .inject(ControllerFault::SlowReady(Duration::from_secs(5)));
    assert!(ready(&mut driver) >= Duration::from_secs(5));
    assert!(ready(&mut driver) < Duration::from_secs(1));
    for cc in [1 | 9 << 7, 1 | 1 << 4, 1 | 1 << 11] {
        driver.device.write_u32(CC, 0);
        driver.wait_ready(false);
        driver.device.write_u32(CC, cc);
        driver.device.pause(Duration::from_secs(1));
        assert_eq!(driver.device.read_u32(CSTS), CSTS_FATAL, "{cc:#x}");
    }
    driver.reset();
}

#[test]
fn memory_pages_of_another_size_are_refused() {
    for (page_shifts, ready) in [((0, 1), true), ((0, 0), false), ((2, 3), false)] {
        let emulator = Emulator::stepped(Config {
            page_shifts,
            ..config(1 << 20, 512)
        });
        let device: Arc<dyn Device> = Arc::new(emulator.expect("an emulator"));
        let queues = Mapping::pages(&device, 16384).expect("maps");
        device.write_u32(AQA, 31 << 16 | 31);
        device.write_u64(ASQ, queues.address(0).0);
        device.write_u64(ACQ, queues.address(8192).0);
        device.write_u32(CC, 1 | 1 << 7);
        let expected = if ready { CSTS_READY } else { CSTS_FATAL };
        assert_eq!(device.read_u32(CSTS), expected, "{page_shifts:?}");
    }
}

#[test]
fn queues_that_are_not_mapped_are_fatal() {
    let mut bench = Bench::new(Script::new());
    let gone = bench.driver.unknown_queue(9, 64);
    bench.queue.sq = gone.cq;
    let device = Arc::clone(&bench.driver.device);
    // The emulator still knows the old address, which is not mapped any more.
    bench.read(1);
    bench.driver.emulator.run();
    assert_eq!(device.read_u32(CSTS) & CSTS_FATAL, CSTS_FATAL);
    let fault = bench.driver.emulator.iommu_faults()[0];
    assert_eq!(
        (fault.queue, fault.command_id, fault.write),
        (1, None, false)
    );
}

#[test]
fn quiescing_ends_all_dma_for_good() {
    let late = Plan {
        dma_after_completion: Some(Delay::steps(20)),
        ..Plan::default()
    };
    let mut bench = Bench::new(Script::new().always(reads(), late));
    bench.read(1);
    assert_eq!(bench.driver.wait(&mut bench.queue).status(), 0);
    bench.driver.device.quiesce().expect("quiet");
    bench.memory.raw().zero(0, 64 * 4096);
    bench.read(2);
    bench.driver.device.pause(Duration::from_secs(1));
    assert_eq!((bench.landed(1), bench.landed(2)), (0, 0));
    bench.driver.device.write_u32(CC, crate::driver::ENABLED);
    bench.driver.device.pause(Duration::from_secs(1));
    assert_eq!(bench.driver.device.read_u32(CSTS), 0);
}

#[test]
fn an_abort_ends_after_what_it_aborted() {
    let mut bench = Bench::new(Script::new().nth(1, reads(), delayed(Delay::FOREVER)));
    // Room for one completion, which stays unread.
    bench.queue = bench.driver.queue(2, 2);
    bench.read(1);
    bench.driver.emulator.run();
    bench.read(2);
    bench.driver.emulator.run();
    let entry = command(admin::ABORT, 2 << 16 | 2, 0);
    bench.driver.admin.submit(&*bench.driver.device, entry);
    assert_eq!(bench.admin_ends(), []);
    assert_eq!(bench.ends(), [(1, 0), (2, status::ABORT_REQUESTED)]);
    assert_eq!(bench.admin_ends(), [0]);
}
