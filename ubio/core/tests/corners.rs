//! Corners of the rules, each a sentence: what ends early, goes its second way or waits.

use std::sync::Arc;

use ubio_core::{
    Action, Core, FillError, FillErrorKind, FillPlan, ItemIndex, Landing, Lease, Limits, Nanos,
    ObjectId, Piece, Route, Stall, StreamId, StreamPlan, Token,
};

const NOW: Nanos = Nanos(0);
const WINDOW_BYTES: u32 = 16 << 10;
const NOT_RESIDENT: FillError = FillError {
    kind: FillErrorKind::NotResident,
    code: 0,
};

/// Fills of a whole window each, an item each.
fn plan(landings: &[Landing], otherwise: Option<Landing>) -> StreamPlan {
    let mut plan = StreamPlan::default();
    for (fill, landing) in (0..).zip(landings) {
        plan.fills.push(FillPlan {
            object: ObjectId(0),
            offset: u64::from(fill * WINDOW_BYTES),
            len: WINDOW_BYTES,
            expected: WINDOW_BYTES,
            route: Route::Direct,
            landing: *landing,
            otherwise: otherwise.map(|landing| (Route::Direct, landing)),
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

/// A machine with one stream.
fn machine(windows: u16, plan: StreamPlan) -> (Core, StreamId) {
    let mut core = Core::new(Limits {
        windows,
        window_bytes: WINDOW_BYTES,
        tickets: 1,
        depth: 4,
        command_bytes: WINDOW_BYTES,
        alignment: 4096,
        streams: 1,
    })
    .unwrap();
    let stream = core.open_stream(Arc::new(plan), NOW).unwrap();
    (core, stream)
}

fn command(core: &mut Core) -> (Token, Lease) {
    match core.next_action(NOW) {
        Some(Action::Fill { token, lease, .. }) => (token, lease),
        other => panic!("no command, but {other:?}"),
    }
}

#[test]
fn a_claim_of_too_many_bytes_is_counted() {
    let (mut core, _) = machine(1, plan(&[Landing::Window], None));
    let (token, _) = command(&mut core);
    core.on_fill(token, Ok(WINDOW_BYTES + 1), NOW);
    assert_eq!(core.stats().overlong_completions, 1);
}

#[test]
fn a_window_on_its_second_way_is_scrubbed_for_the_first() {
    let (mut core, stream) = machine(1, plan(&[Landing::Window], Some(Landing::Window)));
    let (token, first) = command(&mut core);
    core.on_fill(token, Err(NOT_RESIDENT), NOW);
    // Leased anew to the same fill, and no command of that lease was given out yet.
    core.cancel(stream, NOW);
    match core.next_action(NOW) {
        Some(Action::Scrub { lease }) => assert_eq!(lease.id, first.id),
        other => panic!("bytes of the first way left in the window: {other:?}"),
    }
}

#[test]
fn windows_that_wait_to_be_lent_wait_for_the_source() {
    let (mut core, _) = machine(3, plan(&[Landing::Lent; 4], None));
    let tokens = [(); 3].map(|()| command(&mut core).0);
    core.on_fill(tokens[1], Ok(WINDOW_BYTES), NOW);
    core.on_fill(tokens[2], Ok(WINDOW_BYTES), NOW);
    assert_eq!(core.next_action(NOW), None);
    assert_eq!(core.stall(), Stall::Source);
}

#[test]
fn a_destination_is_prepared_before_the_window_ahead_of_it_is_read() {
    let landings = [Landing::Window, Landing::Window, Landing::Destination];
    let (mut core, _) = machine(2, plan(&landings, None));
    core.set_depth(2);
    command(&mut core);
    let action = core.next_action(NOW);
    assert!(
        matches!(action, Some(Action::Prepare { fill: 2, .. })),
        "{action:?}"
    );
}
