//! What goes wrong on the controller's side: late, lost, doubled and foreign completions,
//! failures, resets, removal. Stepped, with the emulator's clock: the same each time.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the test's own"
)]

use std::sync::Arc;
use std::time::Duration;

use nvme::ErrorKind;
use nvme::device::Device;
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, RawMemory, TargetMemory};
use nvme::transport::user::UserTransport;
use nvme::transport::{Direction, Done, Io, IoError, MemoryId, Transport};
use nvme_emulator::fault::ControllerFault;
use nvme_emulator::{Deed, Delay, Emulator, Ending, Match, Plan, Script};
use nvme_sys::opcode::{admin, nvm};

use super::{Fixture, PATIENCE};

struct Bench {
    emulator: Arc<Emulator>,
    transport: UserTransport,
    memory: RawMemory,
    id: MemoryId,
    _pages: Arc<Pages>,
    next_token: u64,
    ended: Vec<Done>,
}

impl Bench {
    fn new(fixture: &Fixture, script: Script) -> Self {
        let emulator = Arc::new(Emulator::stepped(fixture.config()).expect("an emulator"));
        let device: Arc<dyn Device> = Arc::clone(&emulator) as _;
        let mut transport = UserTransport::open(device, fixture.options()).expect("a controller");
        let pages = Arc::new(Pages::new(1 << 20).expect("memory"));
        let memory = pages.raw();
        let id = transport.attach(Arc::clone(&pages) as _, true);
        emulator.set_faults(script);
        Self {
            id: id.expect("room"),
            emulator,
            transport,
            memory,
            _pages: pages,
            next_token: 0,
            ended: Vec::new(),
        }
    }

    fn plain(script: Script) -> Self {
        Self::new(&Fixture::PLAIN, script)
    }

    /// Reads 8 blocks from `lba` into page `page`; gives the token.
    fn read(&mut self, lba: u64, page: u64) -> u64 {
        self.next_token += 1;
        let io = Io {
            token: self.next_token,
            direction: Direction::Read,
            lba: Lba(lba),
            blocks: BlockCount::new(8).expect("a count"),
            memory: self.id,
            offset: page * 4096,
        };
        // SAFETY: each read of a test has a page of its own.
        assert!(unsafe { self.transport.submit(io) }.is_ok(), "no room");
        self.next_token
    }

    fn poll(&mut self) {
        self.transport.poll(&mut self.ended).expect("not broken");
    }

    /// Lets `span` of the emulator's time pass, polling on the way.
    fn pass(&mut self, span: Duration) {
        let step = span / 100;
        for _ in 0..100 {
            self.poll();
            self.emulator.pause(step);
            self.poll();
        }
    }

    /// Lets time pass until nothing is in flight.
    fn finish(&mut self) -> Vec<Done> {
        let mut passed = Duration::ZERO;
        while self.transport.in_flight() > 0 {
            assert!(passed < PATIENCE * 2, "never ended");
            self.pass(Duration::from_millis(100));
            passed += Duration::from_millis(100);
        }
        std::mem::take(&mut self.ended)
    }

    fn is_landed(&self, lba: u64, page: u64) -> bool {
        let wanted =
            ubio_testkit::transport::TransportFixture::bytes(&Fixture::PLAIN, lba * 512, 4096);
        let mut found = vec![0; 4096];
        self.memory.copy_to(page * 4096, &mut found);
        found == wanted
    }
}

fn ok(token: u64) -> Done {
    Done {
        token,
        result: Ok(()),
    }
}

fn failed(token: u64, error: IoError) -> Done {
    Done {
        token,
        result: Err(error),
    }
}

fn read() -> Match {
    Match::io(nvm::READ)
}

#[test]
fn completions_in_any_order_are_told_apart() {
    let mut bench = Bench::plain(Script::new().shuffled(7));
    let tokens: Vec<u64> = (0..32).map(|page| bench.read(page * 8, page)).collect();
    let mut done = bench.finish();
    assert_ne!(done.iter().map(|end| end.token).collect::<Vec<_>>(), tokens);
    done.sort_by_key(|end| end.token);
    assert_eq!(
        done,
        tokens.iter().map(|&token| ok(token)).collect::<Vec<_>>()
    );
    assert!((0..32).all(|page| bench.is_landed(page * 8, page)));
}

#[test]
fn doubled_and_foreign_completions_are_counted_and_touch_nothing() {
    let plan = |ending| Plan {
        ending,
        ..Plan::default()
    };
    let script = Script::new()
        .times(1, read(), plan(Ending::Twice))
        .times(1, read(), plan(Ending::Stray(0x3ff)))
        .times(1, read(), plan(Ending::Stray(0xffff)));
    let mut bench = Bench::plain(script);
    for page in 0..4 {
        let token = bench.read(page * 8, page);
        assert_eq!(bench.finish(), [ok(token)]);
        assert!(bench.is_landed(page * 8, page));
    }
    bench.pass(Duration::from_millis(10));
    assert_eq!(bench.transport.incidents().strays, 3);
}

/// The slot of a completion that comes twice is in use again when it comes the second time.
#[test]
fn a_completion_of_an_earlier_use_ends_no_later_command() {
    let twice = Plan {
        ending: Ending::Twice,
        ..Plan::default()
    };
    let slow = Plan {
        delay: Delay::time(Duration::from_secs(1)),
        ..Plan::default()
    };
    let script = Script::new().times(1, read(), twice).times(1, read(), slow);
    let fixture = Fixture {
        // One slot only.
        entries: 2,
        ..Fixture::PLAIN
    };
    let mut bench = Bench::new(&fixture, script);
    let first = bench.read(0, 0);
    while bench.ended.is_empty() {
        bench.emulator.step();
        bench.poll();
    }
    let second = bench.read(8, 1);
    bench.pass(Duration::from_millis(500));
    assert_eq!(std::mem::take(&mut bench.ended), [ok(first)]);
    assert_eq!(bench.transport.in_flight(), 1, "ended by a stray");
    assert_eq!(bench.finish(), [ok(second)]);
    assert_eq!(bench.transport.incidents().strays, 1);
}

/// Each queue raises a vector of its own, besides the admin queue, which always has one.
#[test]
fn completions_raise_interrupts_where_they_are_to() {
    for (interrupts, vectors) in [(true, 3), (false, 1)] {
        let fixture = Fixture {
            queues: 2,
            interrupts,
            ..Fixture::PLAIN
        };
        let mut bench = Bench::new(&fixture, Script::new());
        for page in 0..2 {
            bench.read(0, page);
        }
        assert_eq!(bench.finish().len(), 2);
        let raised = (0..4).filter(|&vector| {
            let event = bench.emulator.interrupt(vector).expect("a vector");
            rustix::io::read(&*event, &mut [0; 8]).is_ok()
        });
        assert_eq!(raised.count(), vectors);
    }
}

#[test]
fn statuses_come_through() {
    let fail = |status| Plan {
        deed: Deed::Fail(status),
        ..Plan::default()
    };
    let script = Script::new()
        .times(1, read().lbas(80..81), fail(0x281))
        .times(1, read(), fail(0x4080));
    let mut bench = Bench::plain(script);
    let (good, bad) = (bench.read(0, 0), bench.read(80, 1));
    let mut done = bench.finish();
    done.sort_by_key(|end| end.token);
    let fields: Vec<_> = done
        .iter()
        .map(|end| match end.result {
            Err(IoError::Status(status)) => (end.token, status.field(), status.is_retryable()),
            _ => panic!("{end:?}"),
        })
        .collect();
    assert_eq!(fields, [(good, 0x4080, false), (bad, 0x281, true)]);
    let again = bench.read(80, 1);
    assert_eq!(bench.finish(), [ok(again)]);
}

/// Overdue, aborted, and over only when the controller says so.
#[test]
fn a_late_command_is_aborted_in_its_time() {
    let late = Plan {
        delay: Delay::FOREVER,
        ..Plan::default()
    };
    let mut bench = Bench::plain(Script::new().times(1, read(), late));
    let (slow, fast) = (bench.read(0, 0), bench.read(8, 1));
    bench.pass(Duration::from_secs(29));
    assert_eq!(std::mem::take(&mut bench.ended), [ok(fast)]);
    bench.pass(Duration::from_secs(2));
    let done = bench.finish();
    let Err(IoError::Status(status)) = done[0].result else {
        panic!("{done:?}");
    };
    // Command Abort Requested.
    assert_eq!((done[0].token, status.field() & 0x7ff), (slow, 0x007));
    let incidents = bench.transport.incidents();
    assert_eq!(
        (incidents.overdue, incidents.aborts, incidents.resets),
        (1, 1, 0)
    );
}

/// The window of a command that ignores its abort is held until the reset is over, and other
/// commands in flight end with it.
#[test]
fn what_no_abort_ends_is_ended_by_a_reset() {
    let stuck = Plan {
        delay: Delay::FOREVER,
        ignores_abort: true,
        ..Plan::default()
    };
    let mut bench = Bench::plain(Script::new().times(2, read(), stuck));
    let tokens = [bench.read(0, 0), bench.read(8, 1)];
    bench.pass(Duration::from_secs(34));
    assert!(bench.ended.is_empty(), "ended before its reset");
    let mut done = bench.finish();
    done.sort_by_key(|end| end.token);
    assert_eq!(done, tokens.map(|token| failed(token, IoError::Aborted)));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.transport.incidents().resets, 1);
    let again = bench.read(0, 0);
    assert_eq!(bench.finish(), [ok(again)]);
    assert!(bench.is_landed(0, 0));
}

/// A completion that never comes is a command that takes too long.
#[test]
fn a_lost_completion_is_recovered_by_a_reset() {
    let lost = Plan {
        ending: Ending::Never,
        ..Plan::default()
    };
    let mut bench = Bench::plain(Script::new().times(1, read(), lost));
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [failed(token, IoError::Aborted)]);
    let incidents = bench.transport.incidents();
    assert_eq!((incidents.overdue, incidents.aborts), (1, 1));
}

/// A completion that names another queue is of no command here.
#[test]
fn a_completion_of_another_queue_ends_nothing() {
    let foreign = Plan {
        ending: Ending::Queue(7),
        ..Plan::default()
    };
    let mut bench = Bench::plain(Script::new().times(1, read(), foreign));
    let token = bench.read(0, 0);
    bench.pass(Duration::from_secs(20));
    assert_eq!(bench.transport.incidents().strays, 1);
    assert!(bench.ended.is_empty(), "ended by a stray");
    assert_eq!(bench.finish(), [failed(token, IoError::Aborted)]);
}

/// A controller that was told to stop may write memory until it says that it has.
#[test]
fn memory_is_the_callers_only_when_the_reset_is_over() {
    let late = Plan {
        delay: Delay::time(Duration::from_secs(2)),
        ignores_abort: true,
        ..Plan::default()
    };
    let fixture = Fixture {
        reset_delay: Duration::from_secs(4),
        ..Fixture::PLAIN
    };
    let mut bench = Bench::new(&fixture, Script::new().times(1, read(), late));
    let token = bench.read(0, 0);
    bench.pass(Duration::from_secs(1));
    bench.transport.reset();
    bench.memory.zero(0, 4096);
    bench.pass(Duration::from_secs(2));
    assert!(
        bench.is_landed(0, 0),
        "nothing was written during the reset: no test"
    );
    assert!(bench.ended.is_empty(), "ended before the reset was over");
    assert_eq!(bench.finish(), [failed(token, IoError::Aborted)]);
}

#[test]
fn a_reset_under_full_queues_ends_every_command_once() {
    let fixture = Fixture {
        queues: 4,
        doorbell_buffer: true,
        ..Fixture::PLAIN
    };
    let late = Plan {
        delay: Delay::steps(500),
        ..Plan::default()
    };
    let mut bench = Bench::new(&fixture, Script::new().always(read(), late));
    for round in 0..20 {
        let tokens: Vec<u64> = (0..64).map(|page| bench.read(page * 8, page)).collect();
        bench.poll();
        for _ in 0..round * 40 {
            bench.emulator.step();
        }
        bench.transport.reset();
        let mut done = bench.finish();
        done.sort_by_key(|end| end.token);
        assert_eq!(done.iter().map(|end| end.token).collect::<Vec<_>>(), tokens);
        for end in &done {
            assert!(
                matches!(end.result, Ok(()) | Err(IoError::Aborted)),
                "{end:?}"
            );
        }
        bench.pass(Duration::from_millis(100));
    }
    assert_eq!(bench.transport.incidents().resets, 20);
    bench.emulator.set_faults(Script::new());
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [ok(token)]);
}

#[test]
fn a_fatal_status_is_noticed_and_reset() {
    let fatal = Plan {
        controller: Some(ControllerFault::Fatal),
        ..Plan::default()
    };
    let mut bench = Bench::plain(Script::new().times(1, read(), fatal));
    let token = bench.read(0, 0);
    // Long before it is overdue.
    bench.pass(Duration::from_secs(1));
    assert_eq!(
        std::mem::take(&mut bench.ended),
        [failed(token, IoError::Aborted)]
    );
    assert_eq!(bench.transport.incidents().resets, 1);
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [ok(token)]);
}

#[test]
fn a_controller_that_is_gone_ends_everything_and_stays_gone() {
    let mut bench = Bench::plain(Script::new());
    let tokens = [bench.read(0, 0), bench.read(8, 1)];
    bench.emulator.inject(ControllerFault::Gone);
    bench.pass(Duration::from_secs(1));
    let mut done = std::mem::take(&mut bench.ended);
    done.sort_by_key(|end| end.token);
    assert_eq!(done, tokens.map(|token| failed(token, IoError::Gone)));
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [failed(token, IoError::Gone)]);
}

#[test]
fn a_controller_that_does_not_come_back_is_given_up() {
    let stuck = Plan {
        delay: Delay::FOREVER,
        ignores_abort: true,
        ..Plan::default()
    };
    let mut bench = Bench::plain(Script::new().times(1, read(), stuck));
    let never = Duration::from_secs(100_000);
    bench.emulator.inject(ControllerFault::SlowReady(never));
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [failed(token, IoError::Aborted)]);
    // CAP.TO is ten seconds.
    bench.pass(Duration::from_secs(11));
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [failed(token, IoError::Gone)]);
}

/// While a reset goes on, commands are handed back.
#[test]
fn nothing_is_taken_during_a_reset() {
    let mut bench = Bench::plain(Script::new());
    bench.transport.reset();
    let io = Io {
        token: 1,
        direction: Direction::Read,
        lba: Lba(0),
        blocks: BlockCount::new(1).expect("one"),
        memory: bench.id,
        offset: 0,
    };
    // SAFETY: it is handed back.
    assert_eq!(unsafe { bench.transport.submit(io) }, Err(io));
    bench.pass(Duration::from_millis(10));
    let token = bench.read(0, 0);
    assert_eq!(bench.finish(), [ok(token)]);
}

#[test]
fn bring_up_failures_have_a_kind_and_a_remedy() {
    let open = |script: Script, fault: Option<ControllerFault>| {
        let emulator = Emulator::stepped(Fixture::PLAIN.config()).expect("an emulator");
        emulator.set_faults(script);
        if let Some(fault) = fault {
            emulator.inject(fault);
        }
        let opened = UserTransport::open(Arc::new(emulator), Fixture::PLAIN.options());
        let error = opened.expect_err("it cannot come up");
        assert!(
            error.advice().is_some() || error.kind() == ErrorKind::Device,
            "{error}"
        );
        error.kind()
    };
    let fail = |opcode| {
        let plan = Plan {
            deed: Deed::Fail(0x4002),
            ..Plan::default()
        };
        Script::new().always(Match::admin(opcode), plan)
    };
    for opcode in [
        admin::IDENTIFY,
        admin::SET_FEATURES,
        admin::CREATE_CQ,
        admin::CREATE_SQ,
    ] {
        assert_eq!(open(fail(opcode), None), ErrorKind::Device);
    }
    let lost = Plan {
        ending: Ending::Never,
        ..Plan::default()
    };
    let script = Script::new().always(Match::admin(admin::IDENTIFY), lost);
    assert_eq!(open(script, None), ErrorKind::Timeout);
    let slow = ControllerFault::SlowReady(Duration::from_secs(1000));
    assert_eq!(open(Script::new(), Some(slow)), ErrorKind::Timeout);
    assert_eq!(
        open(Script::new(), Some(ControllerFault::Gone)),
        ErrorKind::Gone
    );
}
