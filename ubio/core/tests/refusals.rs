//! Both sides of every bound: what a machine and a stream may be, and the error of each way to
//! be wrong.

use std::sync::Arc;

use ubio_core::limits::{
    MAX_DEPTH, MAX_STREAMS, MAX_TICKETS, MAX_WINDOW_BYTES, MAX_WINDOWS, MIN_WINDOW_BYTES,
};
use ubio_core::{
    Action, Core, FillPlan, ItemIndex, Landing, Limits, LimitsError, Nanos, ObjectId, OpenError,
    Outcome, Piece, Route, StreamPlan,
};

const NOW: Nanos = Nanos(0);

const LIMITS: Limits = Limits {
    windows: 2,
    window_bytes: 64 << 10,
    tickets: 2,
    depth: 4,
    command_bytes: 16 << 10,
    alignment: 4096,
    streams: 2,
};

fn made(change: impl Fn(&mut Limits)) -> Result<(), LimitsError> {
    let mut limits = LIMITS;
    change(&mut limits);
    Core::new(limits).map(drop)
}

#[test]
fn limits_have_two_sides() {
    assert_eq!(made(|_| ()), Ok(()));
    for (at_bound, beyond) in [(1, 0), (MAX_WINDOWS, MAX_WINDOWS + 1)] {
        assert_eq!(made(|limits| limits.windows = at_bound), Ok(()));
        let refused = made(|limits| limits.windows = beyond);
        assert_eq!(refused, Err(LimitsError::Windows));
    }
    for (at_bound, beyond) in [(1, 0), (MAX_TICKETS, MAX_TICKETS + 1)] {
        assert_eq!(made(|limits| limits.tickets = at_bound), Ok(()));
        let refused = made(|limits| limits.tickets = beyond);
        assert_eq!(refused, Err(LimitsError::Tickets));
    }
    for (at_bound, beyond) in [(1, 0), (MAX_DEPTH, MAX_DEPTH + 1)] {
        assert_eq!(made(|limits| limits.depth = at_bound), Ok(()));
        let refused = made(|limits| limits.depth = beyond);
        assert_eq!(refused, Err(LimitsError::Depth));
    }
    for (at_bound, beyond) in [(1, 0), (MAX_STREAMS, MAX_STREAMS + 1)] {
        assert_eq!(made(|limits| limits.streams = at_bound), Ok(()));
        let refused = made(|limits| limits.streams = beyond);
        assert_eq!(refused, Err(LimitsError::Streams));
    }
    let least = MIN_WINDOW_BYTES;
    for (at_bound, beyond) in [
        (least, least - 4096),
        (MAX_WINDOW_BYTES, MAX_WINDOW_BYTES + 4096),
    ] {
        assert_eq!(made(|limits| limits.window_bytes = at_bound), Ok(()));
        let refused = made(|limits| limits.window_bytes = beyond);
        assert_eq!(refused, Err(LimitsError::WindowBytes));
    }
    for (at_bound, beyond) in [(4096, 0), (MAX_WINDOW_BYTES, MAX_WINDOW_BYTES + 4096)] {
        assert_eq!(made(|limits| limits.command_bytes = at_bound), Ok(()));
        let refused = made(|limits| limits.command_bytes = beyond);
        assert_eq!(refused, Err(LimitsError::CommandBytes));
    }
    for alignment in [0, 3, 8192] {
        let refused = made(|limits| limits.alignment = alignment);
        assert_eq!(refused, Err(LimitsError::Alignment));
    }
    let refused = made(|limits| limits.window_bytes = (64 << 10) + 512);
    assert_eq!(refused, Err(LimitsError::WindowBytesUnaligned));
    let refused = made(|limits| limits.command_bytes = 4096 + 512);
    assert_eq!(refused, Err(LimitsError::CommandBytesUnaligned));
}

/// Two fills of a window, two items in each, the last fill's end short of its last command.
fn plan() -> StreamPlan {
    let fill = |offset, pieces, expected| FillPlan {
        object: ObjectId(0),
        offset,
        len: 64 << 10,
        expected,
        route: Route::Cached,
        landing: Landing::Window,
        otherwise: None,
        pieces,
    };
    let piece = |item, fill_offset, len| Piece {
        fill_offset,
        len,
        destination: u64::from(item) << 15,
        item: ItemIndex(item),
    };
    let (half, short) = (32 << 10, (32 << 10) - 1);
    StreamPlan {
        fills: vec![fill(0, 0..2, 64 << 10), fill(1 << 16, 2..4, half + short)],
        pieces: vec![
            piece(0, 0, half),
            piece(1, half, half),
            piece(2, 0, half),
            piece(3, half, short),
        ],
        items: 4,
        ..StreamPlan::default()
    }
}

fn opened(change: impl Fn(&mut StreamPlan)) -> Result<(), OpenError> {
    let mut plan = plan();
    change(&mut plan);
    let mut core = Core::new(LIMITS).unwrap();
    let opened = core.open_stream(Arc::new(plan), NOW).map(drop);
    core.check();
    if opened.is_err() {
        assert_eq!(core.next_action(NOW), None, "something of it is left");
    }
    opened
}

#[test]
fn a_fill_has_bytes_within_a_window_and_an_object() {
    assert_eq!(opened(|_| ()), Ok(()));
    let (fill, refused) = (1, |error| Err::<(), _>(error));
    assert_eq!(
        opened(|plan| plan.fills[1].len = 0),
        refused(OpenError::FillEmpty { fill })
    );
    assert_eq!(
        opened(|plan| plan.fills[1].expected = 0),
        refused(OpenError::FillEmpty { fill })
    );
    assert_eq!(
        opened(|plan| plan.fills[1].offset = 512),
        refused(OpenError::FillUnaligned { fill })
    );
    assert_eq!(
        opened(|plan| plan.fills[1].len -= 1),
        refused(OpenError::FillUnaligned { fill })
    );
    assert_eq!(
        opened(|plan| plan.fills[1].len += 4096),
        refused(OpenError::FillTooLong { fill })
    );
    // What needs no window is not bound by one, whichever of its ways that is.
    let long = |landing: Landing, otherwise: Option<Landing>, len: u32| {
        opened(|plan| {
            plan.fills[1].len = len;
            plan.fills[1].landing = landing;
            plan.fills[1].otherwise = otherwise.map(|landing| (Route::Direct, landing));
        })
    };
    let (scatter, window) = (Landing::Scatter, Landing::Window);
    assert_eq!(long(scatter, Some(scatter), MAX_WINDOW_BYTES), Ok(()));
    for (landing, otherwise, len) in [
        (scatter, None, MAX_WINDOW_BYTES + 4096),
        (scatter, Some(window), MAX_WINDOW_BYTES),
        (window, Some(scatter), MAX_WINDOW_BYTES),
    ] {
        let said = long(landing, otherwise, len);
        assert_eq!(said, refused(OpenError::FillTooLong { fill }));
    }
    assert_eq!(
        opened(|plan| plan.fills[1].expected = (64 << 10) + 1),
        refused(OpenError::ExpectedBeyondLen { fill })
    );
    let last = u64::MAX - 0xffff;
    assert_eq!(opened(|plan| plan.fills[1].offset = last - 4096), Ok(()));
    assert_eq!(
        opened(|plan| plan.fills[1].offset = last),
        refused(OpenError::FillOverflow { fill })
    );
}

#[test]
fn pieces_lie_in_their_fill_in_order() {
    let refused = |error| Err::<(), _>(error);
    let piece = 3;
    assert_eq!(
        opened(|plan| plan.pieces[3].len = 0),
        refused(OpenError::PieceEmpty { piece })
    );
    assert_eq!(
        opened(|plan| plan.pieces[3].len += 1),
        refused(OpenError::PieceOutside { piece })
    );
    assert_eq!(
        opened(|plan| plan.pieces[3].fill_offset = u32::MAX),
        refused(OpenError::PieceOutside { piece })
    );
    assert_eq!(
        opened(|plan| plan.pieces[3].destination = u64::MAX - 4),
        refused(OpenError::DestinationOverflow { piece })
    );
    assert_eq!(
        opened(|plan| plan.items = 3),
        refused(OpenError::ItemOutOfRange { piece })
    );
    assert_eq!(
        opened(|plan| plan.pieces[3].item = ItemIndex(1)),
        refused(OpenError::ItemOrder { piece })
    );
    assert_eq!(opened(|plan| plan.pieces[3].item = ItemIndex(2)), Ok(()));
}

#[test]
fn piece_ranges_follow_each_other_and_use_all_up() {
    let refused = |fill| Err::<(), _>(OpenError::PieceRanges { fill });
    assert_eq!(
        opened(|plan| plan.fills[1].pieces = 1..4),
        refused(1),
        "overlap"
    );
    assert_eq!(
        opened(|plan| plan.fills[1].pieces = 3..4),
        refused(1),
        "gap"
    );
    assert_eq!(
        opened(|plan| plan.fills[1].pieces = 2..5),
        refused(1),
        "too many"
    );
    assert_eq!(
        opened(|plan| plan.fills[1].pieces = 2..3),
        refused(2),
        "left over"
    );
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let backward = opened(|plan| plan.fills[1].pieces = 2..1);
    assert_eq!(backward, refused(1));
}

#[test]
fn what_lands_in_place_is_one_run() {
    let in_place = |plan: &mut StreamPlan| plan.fills[1].landing = Landing::Destination;
    let otherwise = |plan: &mut StreamPlan| {
        plan.fills[1].otherwise = Some((Route::Direct, Landing::Destination));
    };
    let refused = Err(OpenError::NotOneRun { fill: 1 });
    for way in [in_place, otherwise] {
        assert_eq!(opened(way), Ok(()));
        let apart = |plan: &mut StreamPlan| {
            way(plan);
            plan.pieces[3].destination += 1;
        };
        assert_eq!(opened(apart), refused, "pieces apart");
        let late = |plan: &mut StreamPlan| {
            way(plan);
            plan.pieces[2].fill_offset = 1;
            plan.pieces[2].len -= 1;
        };
        assert_eq!(opened(late), refused, "no piece at the first byte");
        let none = |plan: &mut StreamPlan| {
            way(plan);
            plan.fills[1].pieces = 2..2;
            plan.pieces.truncate(2);
        };
        assert_eq!(opened(none), refused, "no piece");
    }
}

#[test]
fn lending_is_for_both_ways_or_none() {
    let ways = |first, second| {
        opened(move |plan| {
            plan.fills[0].landing = first;
            plan.fills[0].otherwise = Some((Route::Direct, second));
        })
    };
    assert_eq!(ways(Landing::Lent, Landing::Lent), Ok(()));
    let refused = Err(OpenError::LentOneWay { fill: 0 });
    assert_eq!(ways(Landing::Lent, Landing::Window), refused);
    assert_eq!(ways(Landing::Scatter, Landing::Lent), refused);
}

#[test]
fn a_lookahead_lets_something_start() {
    let with = |bytes| opened(move |plan| plan.lookahead_bytes = bytes);
    assert_eq!(with(Some(1)), Ok(()));
    assert_eq!(with(Some(0)), Err(OpenError::LookaheadZero));
}

#[test]
fn plans_are_bounded() {
    let items = |items| opened(move |plan| plan.items = items);
    assert_eq!(items(ubio_core::limits::MAX_ITEMS), Ok(()));
    assert_eq!(
        items(ubio_core::limits::MAX_ITEMS + 1),
        Err(OpenError::TooLarge)
    );
}

#[test]
fn full_is_busy_and_passes() {
    let mut core = Core::new(LIMITS).unwrap();
    let empty = Arc::new(StreamPlan {
        items: 3,
        ..StreamPlan::default()
    });
    let first = core.open_stream(empty.clone(), NOW).unwrap();
    core.open_stream(empty.clone(), NOW).unwrap();
    let refused = core.open_stream(empty.clone(), NOW).unwrap_err();
    assert!(refused.is_busy());
    // An empty stream tells its items, then its end.
    let told = Action::Visible {
        stream: first,
        from: ItemIndex(0),
        to: ItemIndex(3),
    };
    assert_eq!(core.next_action(NOW), Some(told));
    while let Some(action) = core.next_action(NOW) {
        if let Action::Finished { outcome, .. } = action {
            assert_eq!(outcome, Outcome::Complete);
        }
    }
    let third = core.open_stream(empty, NOW).unwrap();
    assert_ne!(third, first, "an id given twice");
}

#[test]
fn every_refusal_reads_as_a_sentence() {
    for error in [
        OpenError::Busy,
        OpenError::IdsExhausted,
        OpenError::TooLarge,
        OpenError::LookaheadZero,
        OpenError::FillTooLong { fill: 7 },
        OpenError::PieceOutside { piece: 7 },
    ] {
        assert!(error.to_string().len() > 10, "{error:?}");
    }
    assert!(LimitsError::Depth.to_string().contains("4096"));
}
