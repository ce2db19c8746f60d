//! Commands that come back short, late, twice, wrong or not at all as asked: what is tried
//! again, how often, when, and what is dropped.

use std::sync::Arc;

use ubio_core::limits::{MAX_TRIES_DEVICE, MAX_TRIES_TRANSIENT};
use ubio_core::{
    Action, Core, FillError, FillErrorKind, FillPlan, ItemIndex, Landing, Lease, Limits, Nanos,
    ObjectId, Outcome, Piece, Route, StreamId, StreamPlan, Token,
};

const WINDOW_BYTES: u32 = 64 << 10;
const DEVICE: FillError = FillError {
    kind: FillErrorKind::Device,
    code: -5,
};

fn transient(delay: u64) -> FillError {
    FillError {
        kind: FillErrorKind::Transient {
            delay: Nanos(delay),
        },
        code: -11,
    }
}

/// A command as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    token: Token,
    at: u32,
    len: u32,
}

/// One window, one stream of one fill, one command at a time unless told otherwise.
struct Bed {
    core: Core,
    stream: StreamId,
    now: Nanos,
}

impl Bed {
    fn new(expected: u32, command_bytes: u32, depth: u16) -> Bed {
        let limits = Limits {
            windows: 1,
            window_bytes: WINDOW_BYTES,
            tickets: 1,
            depth,
            command_bytes,
            alignment: 4096,
            streams: 2,
        };
        let plan = StreamPlan {
            fills: vec![FillPlan {
                object: ObjectId(3),
                offset: 1 << 20,
                len: WINDOW_BYTES,
                expected,
                route: Route::Direct,
                landing: Landing::Window,
                otherwise: None,
                pieces: 0..1,
            }],
            pieces: vec![Piece {
                fill_offset: 0,
                len: expected,
                destination: 0,
                item: ItemIndex(0),
            }],
            items: 1,
            ..StreamPlan::default()
        };
        let mut core = Core::new(limits).unwrap();
        let stream = core.open_stream(Arc::new(plan), Nanos(0)).unwrap();
        Bed {
            core,
            stream,
            now: Nanos(0),
        }
    }

    fn next(&mut self) -> Option<Action> {
        let action = self.core.next_action(self.now);
        self.core.check();
        action
    }

    fn command(&mut self) -> Asked {
        match self.next() {
            Some(Action::Fill {
                token,
                lease_offset,
                len,
                offset,
                object,
                ..
            }) => {
                assert_eq!(offset, (1 << 20) + u64::from(lease_offset));
                assert_eq!(object, ObjectId(3));
                Asked {
                    token,
                    at: lease_offset,
                    len,
                }
            }
            other => panic!("no command, but {other:?}"),
        }
    }

    fn answer(&mut self, asked: Asked, result: Result<u32, FillError>) {
        self.core.on_fill(asked.token, result, self.now);
        self.core.check();
    }

    fn flush(&mut self) -> Lease {
        match self.next() {
            Some(Action::Flush { lease, .. }) => lease,
            other => panic!("no flush, but {other:?}"),
        }
    }

    /// Runs a failed stream to its end; gives what it failed of and after how many tries.
    fn failure(&mut self) -> (FillError, u8) {
        match self.next() {
            Some(Action::Scrub { lease }) => self.core.on_scrubbed(lease, self.now),
            other => panic!("bytes left in the window: {other:?}"),
        }
        match self.next() {
            Some(Action::Finished {
                stream,
                outcome: Outcome::Failed(failure),
                ..
            }) => {
                assert_eq!(stream, self.stream);
                assert_eq!((failure.fill, failure.object), (0, ObjectId(3)));
                assert_eq!(self.next(), None);
                (failure.error, failure.tries)
            }
            other => panic!("not failed, but {other:?}"),
        }
    }

    fn complete(&mut self) {
        let lease = self.flush();
        self.core.on_flushed(lease, Ok(()), self.now);
        assert!(matches!(self.next(), Some(Action::Visible { .. })));
        let end = Action::Finished {
            stream: self.stream,
            outcome: Outcome::Complete,
            fallbacks: 0,
        };
        assert_eq!(self.next(), Some(end));
    }
}

#[test]
fn transient_errors_are_tried_so_often() {
    for recovers in [true, false] {
        let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
        for _ in 1..MAX_TRIES_TRANSIENT {
            let asked = bed.command();
            bed.answer(asked, Err(transient(0)));
        }
        let last = bed.command();
        assert_eq!(bed.core.stats().retries, u64::from(MAX_TRIES_TRANSIENT) - 1);
        if recovers {
            bed.answer(last, Ok(WINDOW_BYTES));
            bed.complete();
        } else {
            bed.answer(last, Err(transient(0)));
            assert_eq!(bed.failure(), (transient(0), MAX_TRIES_TRANSIENT));
        }
    }
}

#[test]
fn device_errors_are_tried_so_often_and_counted_apart() {
    let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
    let asked = bed.command();
    bed.answer(asked, Err(transient(0)));
    for _ in 0..MAX_TRIES_DEVICE {
        let asked = bed.command();
        bed.answer(asked, Err(DEVICE));
    }
    assert_eq!(bed.failure(), (DEVICE, MAX_TRIES_DEVICE + 1));
}

#[test]
fn a_delayed_retry_waits_and_goes_first() {
    let mut bed = Bed::new(WINDOW_BYTES, 16 << 10, 1);
    let late = bed.command();
    bed.answer(late, Err(transient(500)));
    assert_eq!(bed.core.next_wakeup(), Some(Nanos(500)));
    // It holds nothing up: others go before its time has come.
    let second = bed.command();
    assert_eq!(second.at, 16 << 10);
    assert_eq!(bed.core.next_wakeup(), None, "a completion comes first");
    bed.now = Nanos(499);
    bed.answer(second, Ok(second.len));
    let third = bed.command();
    assert_eq!(third.at, 32 << 10);
    bed.now = Nanos(500);
    bed.answer(third, Ok(third.len));
    let again = bed.command();
    assert_eq!((again.at, again.len), (late.at, late.len));
    assert_ne!(again.token, late.token);
    assert_eq!(bed.core.next_wakeup(), None);
}

#[test]
fn delays_do_not_overflow() {
    let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
    bed.now = Nanos(5);
    let asked = bed.command();
    bed.answer(asked, Err(transient(u64::MAX)));
    assert_eq!(bed.core.next_wakeup(), Some(Nanos(u64::MAX)));
    // Cancelled meanwhile, nothing of it is left.
    bed.core.cancel(bed.stream, bed.now);
    assert_eq!(bed.core.next_wakeup(), None);
    assert!(matches!(bed.next(), Some(Action::Scrub { .. })));
}

#[test]
fn the_rest_of_a_short_read_is_asked_for() {
    let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
    let first = bed.command();
    // Progress counts in whole units.
    bed.answer(first, Ok(3 * 4096 + 17));
    let rest = bed.command();
    assert_eq!((rest.at, rest.len), (3 * 4096, WINDOW_BYTES - 3 * 4096));
    bed.answer(rest, Ok(rest.len - 1));
    let last = bed.command();
    assert_eq!((last.at, last.len), (WINDOW_BYTES - 4096, 4096));
    bed.answer(last, Ok(4096));
    assert_eq!(
        (bed.core.stats().short_reads, bed.core.stats().retries),
        (2, 0)
    );
    bed.complete();
}

#[test]
fn no_progress_is_tried_again_and_is_then_the_end_of_the_object() {
    let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
    for _ in 0..MAX_TRIES_TRANSIENT {
        let asked = bed.command();
        assert_eq!((asked.at, asked.len), (0, WINDOW_BYTES));
        bed.answer(asked, Ok(4095));
    }
    let truncated = FillError {
        kind: FillErrorKind::Truncated,
        code: 0,
    };
    assert_eq!(bed.failure(), (truncated, MAX_TRIES_TRANSIENT));
}

#[test]
fn no_bytes_are_the_end_of_the_object() {
    let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
    let asked = bed.command();
    bed.answer(asked, Ok(0));
    assert_eq!(
        bed.failure(),
        (
            FillError {
                kind: FillErrorKind::Truncated,
                code: 0
            },
            1
        )
    );
}

#[test]
fn an_object_may_end_inside_a_fill() {
    let expected = 4096 + 1;
    let mut bed = Bed::new(expected, WINDOW_BYTES, 1);
    let asked = bed.command();
    assert_eq!(
        (asked.at, asked.len),
        (0, 8192),
        "no more is asked for than there is"
    );
    bed.answer(asked, Ok(expected - 1));
    let rest = bed.command();
    assert_eq!((rest.at, rest.len), (4096, 4096));
    bed.answer(rest, Ok(1));
    assert_eq!(bed.core.stats().bytes(), u64::from(expected));
    bed.complete();
}

#[test]
fn more_bytes_than_asked_for_are_refused() {
    let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
    let asked = bed.command();
    bed.answer(asked, Ok(WINDOW_BYTES + 1));
    assert_eq!(
        bed.failure(),
        (
            FillError {
                kind: FillErrorKind::Fatal,
                code: 0
            },
            1
        )
    );
}

#[test]
fn final_errors_are_not_tried_again() {
    for kind in [
        FillErrorKind::Truncated,
        FillErrorKind::Fatal,
        FillErrorKind::Destination,
        FillErrorKind::NotResident,
    ] {
        let mut bed = Bed::new(WINDOW_BYTES, WINDOW_BYTES, 1);
        let asked = bed.command();
        bed.answer(asked, Err(FillError { kind, code: 9 }));
        assert_eq!(bed.failure(), (FillError { kind, code: 9 }, 1));
    }
}

#[test]
fn the_first_failure_is_told_once_all_are_back() {
    let mut bed = Bed::new(WINDOW_BYTES, 16 << 10, 4);
    let asked = [(); 4].map(|()| bed.command());
    bed.answer(
        asked[2],
        Err(FillError {
            kind: FillErrorKind::Fatal,
            code: 1,
        }),
    );
    bed.answer(
        asked[0],
        Err(FillError {
            kind: FillErrorKind::Fatal,
            code: 2,
        }),
    );
    bed.answer(asked[1], Ok(16 << 10));
    assert_eq!(bed.next(), None, "a command is still with the source");
    bed.answer(asked[3], Err(DEVICE));
    assert_eq!(bed.failure().0.code, 1);
}

#[test]
fn completions_of_no_command_in_flight_touch_nothing() {
    let mut bed = Bed::new(WINDOW_BYTES, 16 << 10, 1);
    let first = bed.command();
    bed.answer(first, Ok(first.len));
    bed.answer(first, Ok(first.len));
    assert_eq!(bed.core.stats().duplicate_completions, 1);
    let second = bed.command();
    bed.answer(first, Err(DEVICE));
    assert_eq!(bed.core.stats().stale_completions, 1);
    for token in [
        u64::MAX,
        1 << 20,
        second.token.0 + (1 << 32),
        second.token.0 & 0xffff_ffff,
    ] {
        bed.answer(
            Asked {
                token: Token(token),
                ..second
            },
            Ok(second.len),
        );
    }
    assert_eq!(bed.core.stats().unknown_completions, 4);
    bed.answer(second, Ok(second.len));
    assert_eq!(bed.command().at, 32 << 10);
}

#[test]
fn commands_are_counted_over_time() {
    let mut bed = Bed::new(WINDOW_BYTES, 32 << 10, 2);
    let first = bed.command();
    bed.now = Nanos(100);
    let second = bed.command();
    bed.now = Nanos(200);
    bed.answer(first, Ok(first.len));
    bed.now = Nanos(250);
    bed.answer(second, Ok(second.len));
    bed.now = Nanos(1000);
    bed.complete();
    let in_flight = bed.core.stats().in_flight;
    assert_eq!((in_flight.now, in_flight.max), (0, 2));
    assert_eq!(
        (in_flight.busy_ns, in_flight.command_ns),
        (250, 100 + 2 * 100 + 50)
    );
    assert_eq!(in_flight.mean_milli(), 1400);
}
