//! Whose turn it is: streams among each other, fills within a stream, flushes by need, and what
//! the consumer's pace and the knobs allow.

use std::sync::Arc;

use ubio_core::{
    Action, Core, FillError, FillErrorKind, FillPlan, ItemIndex, Landing, Lease, Limits, Nanos,
    ObjectId, Outcome, Piece, Route, Setting, Stall, StreamId, StreamPlan, Token,
};

const NOW: Nanos = Nanos(0);
const WINDOW_BYTES: u32 = 16 << 10;

fn limits(windows: u16, tickets: u16) -> Limits {
    Limits {
        windows,
        window_bytes: WINDOW_BYTES,
        tickets,
        depth: 64,
        command_bytes: WINDOW_BYTES,
        alignment: 4096,
        streams: 8,
    }
}

/// Fills of a whole window each, an item each.
fn plan(landings: &[Landing]) -> StreamPlan {
    let mut plan = StreamPlan::default();
    for (fill, landing) in (0..).zip(landings) {
        plan.fills.push(FillPlan {
            object: ObjectId(0),
            offset: u64::from(fill * WINDOW_BYTES),
            len: WINDOW_BYTES,
            expected: WINDOW_BYTES,
            route: Route::Direct,
            landing: *landing,
            otherwise: None,
            pieces: fill..fill + 1,
        });
        plan.pieces.push(Piece {
            fill_offset: 0,
            len: WINDOW_BYTES,
            destination: u64::from(fill * WINDOW_BYTES),
            item: ItemIndex(fill),
        });
        plan.items += 1;
    }
    plan
}

fn open(core: &mut Core, plan: StreamPlan) -> StreamId {
    core.open_stream(Arc::new(plan), NOW).unwrap()
}

/// Everything that is asked for now.
fn asked(core: &mut Core) -> Vec<Action> {
    let actions = std::iter::from_fn(|| core.next_action(NOW)).collect();
    core.check();
    actions
}

/// Streams and fills of the commands among actions.
fn commands(actions: &[Action]) -> Vec<(StreamId, u32)> {
    let command = |action: &Action| match *action {
        Action::Fill { stream, fill, .. } => Some((stream, fill)),
        _ => None,
    };
    actions.iter().filter_map(command).collect()
}

fn land_all(core: &mut Core, actions: &[Action]) {
    for action in actions {
        if let Action::Fill { token, len, .. } = *action {
            core.on_fill(token, Ok(len), NOW);
        }
    }
}

fn flushes(actions: &[Action]) -> Vec<(Lease, StreamId)> {
    let flush = |action: &Action| match *action {
        Action::Flush { lease, stream, .. } => Some((lease, stream)),
        _ => None,
    };
    actions.iter().filter_map(flush).collect()
}

#[test]
fn windows_go_round() {
    let mut core = Core::new(limits(6, 1)).unwrap();
    let streams = [(); 3].map(|()| open(&mut core, plan(&[Landing::Window; 9])));
    let mut order = Vec::new();
    while order.len() < 27 {
        let actions = asked(&mut core);
        order.extend(commands(&actions).iter().map(|(stream, _)| *stream));
        land_all(&mut core, &actions);
        for (lease, _) in flushes(&actions) {
            core.on_flushed(lease, Ok(()), NOW);
        }
    }
    for turn in order.chunks(3) {
        assert_eq!(turn, streams);
    }
}

#[test]
fn a_stream_that_comes_late_waits_for_one_window() {
    let mut core = Core::new(limits(2, 1)).unwrap();
    let early = open(&mut core, plan(&[Landing::Window; 9]));
    let first = asked(&mut core);
    assert_eq!(commands(&first), [(early, 0), (early, 1)]);
    let late = open(&mut core, plan(&[Landing::Window; 2]));
    land_all(&mut core, &first);
    for (lease, _) in flushes(&asked(&mut core)) {
        core.on_flushed(lease, Ok(()), NOW);
    }
    assert_eq!(commands(&asked(&mut core)), [(early, 2), (late, 0)]);
}

#[test]
fn tickets_go_round() {
    let mut core = Core::new(limits(1, 4)).unwrap();
    let streams = [(); 2].map(|()| open(&mut core, plan(&[Landing::Scatter; 4])));
    let [a, b] = streams;
    let actions = asked(&mut core);
    assert_eq!(commands(&actions), [(a, 0), (b, 0), (a, 1), (b, 1)]);
}

#[test]
fn lack_of_one_kind_holds_up_no_other() {
    let mut core = Core::new(limits(1, 1)).unwrap();
    let in_windows = open(&mut core, plan(&[Landing::Window; 2]));
    let in_place = open(&mut core, plan(&[Landing::Scatter; 3]));
    let first = asked(&mut core);
    assert_eq!(commands(&first).len(), 2);
    // The window stays out; tickets go on.
    for fill in 1..3 {
        let of = |actions: &[Action]| {
            let own = |action: &&Action| matches!(action, Action::Fill { stream, .. } if *stream == in_place);
            actions.iter().filter(own).copied().collect::<Vec<_>>()
        };
        let last = if fill == 1 { first.clone() } else { vec![] };
        land_all(&mut core, &of(&last));
        let actions = asked(&mut core);
        assert_eq!(commands(&actions), [(in_place, fill)]);
        land_all(&mut core, &actions);
    }
    let end = asked(&mut core);
    assert!(matches!(end.last(), Some(Action::Finished { stream, .. }) if *stream == in_place));
    assert_eq!(core.stall(), Stall::Source);
    core.cancel(in_windows, NOW);
}

#[test]
fn flushes_go_by_need_then_by_arrival() {
    let mut core = Core::new(limits(8, 1)).unwrap();
    let needed = |at: Option<u64>| StreamPlan {
        needed_by: at.map(Nanos),
        ..plan(&[Landing::Window; 2])
    };
    let whenever = open(&mut core, needed(None));
    let later = open(&mut core, needed(Some(9)));
    let soon = open(&mut core, needed(Some(5)));
    let changed = open(&mut core, needed(Some(1)));
    core.set_needed_by(changed, Some(Nanos(7)));
    let actions = asked(&mut core);
    land_all(&mut core, &actions);
    let order: Vec<_> = flushes(&asked(&mut core))
        .iter()
        .map(|(_, stream)| *stream)
        .collect();
    assert_eq!(
        order,
        [
            soon, soon, changed, changed, later, later, whenever, whenever
        ]
    );
}

#[test]
fn the_consumer_sets_the_pace() {
    let mut core = Core::new(limits(8, 1)).unwrap();
    // Two items and a byte: the third item is allowed whole.
    let bytes = 2 * u64::from(WINDOW_BYTES) + 1;
    let stream = open(
        &mut core,
        StreamPlan {
            lookahead_bytes: Some(bytes),
            ..plan(&[Landing::Window; 5])
        },
    );
    let actions = asked(&mut core);
    assert_eq!(commands(&actions), [(stream, 0), (stream, 1), (stream, 2)]);
    land_all(&mut core, &actions);
    // Nothing is visible yet, so nothing can have been consumed.
    core.consumed(stream, ItemIndex(5), NOW);
    let out = asked(&mut core);
    assert_eq!((commands(&out).len(), flushes(&out).len()), (0, 3));
    for (lease, _) in flushes(&out) {
        core.on_flushed(lease, Ok(()), NOW);
    }
    let visible = Action::Visible {
        stream,
        from: ItemIndex(0),
        to: ItemIndex(3),
    };
    assert_eq!(asked(&mut core), [visible]);
    assert_eq!(core.stall(), Stall::Compute);
    core.consumed(stream, ItemIndex(1), NOW);
    assert_eq!(commands(&asked(&mut core)), [(stream, 3)]);
    // Back is not forward; all is all that is visible.
    core.consumed(stream, ItemIndex(0), NOW);
    assert_eq!(asked(&mut core), []);
    core.consumed(stream, ItemIndex(u32::MAX), NOW);
    assert_eq!(commands(&asked(&mut core)), [(stream, 4)]);
}

#[test]
fn an_item_whose_first_byte_is_not_allowed_waits() {
    for (more, fills) in [(0, 2), (1, 3)] {
        let mut core = Core::new(limits(8, 1)).unwrap();
        let bytes = 2 * u64::from(WINDOW_BYTES) + more;
        let shape = StreamPlan {
            lookahead_bytes: Some(bytes),
            ..plan(&[Landing::Window; 5])
        };
        open(&mut core, shape);
        assert_eq!(commands(&asked(&mut core)).len(), fills);
    }
}

#[test]
fn items_become_visible_in_order_and_together() {
    let mut core = Core::new(limits(4, 1)).unwrap();
    let mut shape = plan(&[Landing::Window; 4]);
    // Items 2 and 5 have no pieces, item 1 has two.
    for (piece, item) in [(0, 0), (1, 1), (2, 1), (3, 3)] {
        shape.pieces[piece].item = ItemIndex(item);
    }
    shape.items = 6;
    let stream = open(&mut core, shape);
    let actions = asked(&mut core);
    land_all(&mut core, &actions);
    let leases: Vec<_> = flushes(&asked(&mut core))
        .iter()
        .map(|(lease, _)| *lease)
        .collect();
    let visible = |from, to| Action::Visible {
        stream,
        from: ItemIndex(from),
        to: ItemIndex(to),
    };
    core.on_flushed(leases[3], Ok(()), NOW);
    core.on_flushed(leases[1], Ok(()), NOW);
    assert_eq!(asked(&mut core), []);
    core.on_flushed(leases[0], Ok(()), NOW);
    assert_eq!(asked(&mut core), [visible(0, 1)]);
    core.on_flushed(leases[2], Ok(()), NOW);
    let end = Action::Finished {
        stream,
        outcome: Outcome::Complete,
        fallbacks: 0,
    };
    assert_eq!(asked(&mut core), [visible(1, 6), end]);
}

#[test]
fn lent_windows_go_out_in_order_and_hold_the_end_up() {
    let mut core = Core::new(limits(3, 1)).unwrap();
    let stream = open(&mut core, plan(&[Landing::Lent; 3]));
    let actions = asked(&mut core);
    land_all(&mut core, &actions[1..]);
    assert_eq!(asked(&mut core), [], "the first has not landed");
    land_all(&mut core, &actions[..1]);
    let out = asked(&mut core);
    let lent: Vec<_> = out
        .iter()
        .filter_map(|action| match *action {
            Action::Lend { lease, fill, .. } => Some((lease, fill)),
            _ => None,
        })
        .collect();
    assert_eq!(
        lent.iter().map(|(_, fill)| *fill).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(core.stall(), Stall::Compute);
    for (lease, _) in &lent[..2] {
        core.on_returned(*lease, NOW);
    }
    assert_eq!(asked(&mut core), []);
    // A caller that leaves still holds its window; it is scrubbed when it comes back.
    core.cancel(stream, NOW);
    assert_eq!(asked(&mut core), []);
    core.on_returned(lent[2].0, NOW);
    assert_eq!(asked(&mut core), [Action::Scrub { lease: lent[2].0 }]);
    core.on_scrubbed(lent[2].0, NOW);
    let end = Action::Finished {
        stream,
        outcome: Outcome::Cancelled,
        fallbacks: 0,
    };
    assert_eq!(asked(&mut core), [end]);
}

#[test]
fn a_fill_that_is_not_resident_is_done_first_by_its_other_way() {
    let mut core = Core::new(limits(2, 3)).unwrap();
    let mut shape = plan(&[Landing::Scatter; 6]);
    for fill in &mut shape.fills {
        fill.route = Route::Cached;
        fill.otherwise = Some((Route::Direct, Landing::Window));
    }
    let stream = open(&mut core, shape);
    let actions = asked(&mut core);
    assert_eq!(commands(&actions).len(), 3);
    let not_resident = FillError {
        kind: FillErrorKind::NotResident,
        code: 0,
    };
    for action in actions.iter().rev() {
        if let Action::Fill { token, .. } = *action {
            core.on_fill(token, Err(not_resident), NOW);
        }
    }
    // Two windows: the earliest go first, and no later fill starts before the third has one.
    let again = asked(&mut core);
    assert_eq!(commands(&again), [(stream, 0), (stream, 1)]);
    let route = |action: &Action| match action {
        Action::Fill { route, landing, .. } => (*route, *landing),
        other => panic!("{other:?}"),
    };
    assert_eq!(route(&again[0]), (Route::Direct, Landing::Window));
    assert_eq!(core.stats().fallbacks.not_resident, 3);
    land_all(&mut core, &again);
    for (lease, _) in flushes(&asked(&mut core)) {
        core.on_flushed(lease, Ok(()), NOW);
    }
    let later = commands(&asked(&mut core));
    assert!(
        later.contains(&(stream, 2)) && later.contains(&(stream, 3)),
        "{later:?}"
    );
}

/// The commands asked for now, and their lengths; destinations are prepared at once.
fn commands_in_place(core: &mut Core) -> Vec<(Token, u32)> {
    let mut commands = Vec::new();
    loop {
        let actions = asked(core);
        if actions.is_empty() {
            return commands;
        }
        for action in actions {
            match action {
                Action::Fill { token, len, .. } => commands.push((token, len)),
                Action::Prepare { lease, .. } => core.on_prepared(lease, Ok(()), NOW),
                Action::Finished { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn what_lands_in_place_has_knobs_of_its_own() {
    let mut core = Core::new(Limits {
        command_bytes: 4 * WINDOW_BYTES,
        ..limits(4, 4)
    })
    .unwrap();
    core.set_command_bytes(8192);
    core.set_depth(3);
    let in_place = Setting {
        command_bytes: 2 * WINDOW_BYTES,
        depth: 2,
    };
    core.set_in_place(in_place);
    core.tune(true);
    let windows = core.setting();
    assert_eq!((windows.command_bytes, windows.depth), (8192, 3));
    let mut large = plan(&[Landing::Destination]);
    large.fills[0].len = 4 * WINDOW_BYTES;
    large.fills[0].expected = 4 * WINDOW_BYTES;
    let stream = open(&mut core, large);
    assert_eq!(core.setting(), in_place);
    let commands = commands_in_place(&mut core);
    let lens: Vec<_> = commands.iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [2 * WINDOW_BYTES; 2]);
    // They are in use until it has ended.
    open(&mut core, plan(&[Landing::Window; 2]));
    core.cancel(stream, NOW);
    assert_eq!(core.setting(), in_place);
    for (token, len) in commands {
        core.on_fill(token, Ok(len), NOW);
    }
    let windowed = commands_in_place(&mut core);
    assert_eq!(core.setting(), windows);
    let lens: Vec<_> = windowed.iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [8192; 3]);
}

#[test]
fn knobs_stay_within_the_limits() {
    let mut core = Core::new(Limits {
        depth: 4,
        ..limits(4, 1)
    })
    .unwrap();
    open(&mut core, plan(&[Landing::Window; 4]));
    core.set_command_bytes(4096 + 4095);
    core.set_depth(0);
    let actions = asked(&mut core);
    assert!(
        matches!(actions[..], [Action::Fill { len: 4096, .. }]),
        "{actions:?}"
    );
    core.set_command_bytes(0);
    core.set_depth(2);
    let actions = asked(&mut core);
    assert!(
        matches!(actions[..], [Action::Fill { len: 4096, .. }]),
        "{actions:?}"
    );
    core.set_command_bytes(u32::MAX);
    core.set_depth(u16::MAX);
    let lens: Vec<_> = asked(&mut core)
        .iter()
        .map(|action| match action {
            Action::Fill { len, .. } => *len,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lens, [8192, WINDOW_BYTES]);
    assert_eq!(core.stats().in_flight.now, 4);
}

#[test]
fn reports_that_fit_no_lease_are_dropped() {
    let mut core = Core::new(limits(1, 1)).unwrap();
    open(&mut core, plan(&[Landing::Window; 2]));
    let actions = asked(&mut core);
    let Action::Fill { lease, .. } = actions[0] else {
        panic!("{actions:?}")
    };
    core.on_flushed(lease, Ok(()), NOW);
    core.on_prepared(lease, Ok(()), NOW);
    core.on_returned(lease, NOW);
    core.on_scrubbed(lease, NOW);
    assert_eq!(core.stats().stale_reports, 4);
    land_all(&mut core, &actions);
    core.on_flushed(lease, Ok(()), NOW);
    assert_eq!(
        core.stats().stale_reports,
        5,
        "landed, but not asked to be flushed yet"
    );
    asked(&mut core);
    core.on_flushed(lease, Ok(()), NOW);
    let next = asked(&mut core);
    assert_eq!(core.stats().window_switches, 2);
    land_all(&mut core, &next);
    asked(&mut core);
    // Of the leasing before.
    core.on_flushed(lease, Ok(()), NOW);
    assert_eq!(core.stats().stale_reports, 6);
    core.check();
}
