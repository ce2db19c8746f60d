//! A window's life through the public calls, one sentence of the rules a test.

use std::sync::Arc;

use ubio_core::{
    Action, Core, FillPlan, ItemIndex, Landing, Limits, Nanos, ObjectId, Outcome, Piece, Route,
    StreamPlan,
};

const NOW: Nanos = Nanos(0);

fn limits() -> Limits {
    Limits {
        windows: 4,
        window_bytes: 64 << 10,
        tickets: 2,
        depth: 4,
        command_bytes: 16 << 10,
        alignment: 4096,
        streams: 4,
    }
}

fn plan(fills: u32, landing: Landing) -> StreamPlan {
    let mut plan = StreamPlan {
        items: fills,
        ..StreamPlan::default()
    };
    for fill in 0..fills {
        plan.fills.push(FillPlan {
            object: ObjectId(0),
            offset: u64::from(fill) << 16,
            len: 64 << 10,
            expected: 64 << 10,
            route: Route::Direct,
            landing,
            otherwise: None,
            pieces: fill..fill + 1,
        });
        plan.pieces.push(Piece {
            fill_offset: 0,
            len: 64 << 10,
            destination: u64::from(fill) << 16,
            item: ItemIndex(fill),
        });
    }
    plan
}

/// Does whatever is asked, at once, until nothing is asked.
fn run(core: &mut Core) -> Vec<Action> {
    let mut log = Vec::new();
    loop {
        core.check();
        let Some(action) = core.next_action(NOW) else {
            return log;
        };
        log.push(action);
        match action {
            Action::Prepare { lease, .. } => core.on_prepared(lease, Ok(()), NOW),
            Action::Fill { token, len, .. } => core.on_fill(token, Ok(len), NOW),
            Action::Flush { lease, .. } => core.on_flushed(lease, Ok(()), NOW),
            Action::Lend { lease, .. } => core.on_returned(lease, NOW),
            Action::Scrub { lease } => core.on_scrubbed(lease, NOW),
            Action::Visible { .. } | Action::Finished { .. } => {}
        }
    }
}

#[test]
fn every_landing_runs_to_its_end() {
    for landing in [
        Landing::Window,
        Landing::Lent,
        Landing::Destination,
        Landing::Scatter,
    ] {
        let mut core = Core::new(limits()).unwrap();
        let stream = core.open_stream(Arc::new(plan(9, landing)), NOW).unwrap();
        let log = run(&mut core);
        let mut next = 0;
        for action in &log {
            if let Action::Visible { from, to, .. } = action {
                assert_eq!(from.0, next);
                next = to.0;
            }
        }
        assert_eq!(next, 9, "{landing:?}");
        let end = Action::Finished {
            stream,
            outcome: Outcome::Complete,
            fallbacks: 0,
        };
        assert_eq!(log.last(), Some(&end), "{landing:?}");
        assert_eq!(core.stats().bytes(), 9 << 16);
    }
}
