//! What one seed sets up: a machine's limits, the plans of its streams, and how often each
//! fault strikes. Knows nothing of how a run goes.

use std::sync::Arc;

use ubio_core::{FillPlan, ItemIndex, Landing, Limits, Nanos, ObjectId, Piece, Route, StreamPlan};

use super::rng::Rng;

/// Everything a seed decides before the first step.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) limits: Limits,
    pub(crate) streams: Vec<StreamSetup>,
    pub(crate) faults: Faults,
    pub(crate) pace: Pace,
}

/// One stream to be opened.
#[derive(Clone, Debug)]
pub(crate) struct StreamSetup {
    pub(crate) plan: Arc<StreamPlan>,
    /// Bytes of the stream's destination.
    pub(crate) destination_bytes: usize,
}

/// How often each fault strikes, in thousandths of what it can strike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) short: u32,
    pub(crate) zero: u32,
    pub(crate) transient: u32,
    pub(crate) device: u32,
    pub(crate) not_resident: u32,
    pub(crate) truncated: u32,
    pub(crate) fatal: u32,
    pub(crate) overlong: u32,
    pub(crate) prepare: u32,
    pub(crate) flush: u32,
    /// Per step.
    pub(crate) object_cut: u32,
    pub(crate) cancel: u32,
    pub(crate) duplicate: u32,
    pub(crate) unknown: u32,
    pub(crate) stale_report: u32,
    pub(crate) knobs: u32,
    pub(crate) overdue: u32,
}

/// How eagerly each party of the run acts, as weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) actions: u32,
    pub(crate) source: u32,
    pub(crate) copy: u32,
    pub(crate) prepare: u32,
    pub(crate) scrub: u32,
    pub(crate) give_back: u32,
    pub(crate) consume: u32,
    pub(crate) open: u32,
    pub(crate) clock: u32,
    /// Whether the source completes in the order of submission.
    pub(crate) in_order: bool,
}

/// Objects a stream may read; their numbers are its own, so no two streams' bytes are alike.
pub(crate) const OBJECTS_PER_STREAM: u32 = 4;

impl Scenario {
    pub(crate) fn new(rng: &mut Rng) -> Scenario {
        let limits = limits(rng);
        let count = rng.range(1..9);
        let streams = (0..count)
            .map(|stream| StreamSetup::new(rng, &limits, stream))
            .collect();
        Scenario {
            limits,
            streams,
            faults: Faults::new(rng),
            pace: Pace::new(rng),
        }
    }
}

fn limits(rng: &mut Rng) -> Limits {
    let alignment = rng.pick(&[512, 4096]);
    let window_bytes = rng.pick(&[4 << 10, 8 << 10, 12 << 10, 16 << 10, 64 << 10]);
    let most_units = (window_bytes / alignment + 2).min(40);
    Limits {
        windows: small(rng, 8),
        window_bytes,
        tickets: small(rng, 4),
        depth: small(rng, 32),
        command_bytes: alignment * rng.range(1..most_units),
        alignment,
        streams: small(rng, 5),
    }
}

/// 1 to `most`, small numbers often: they are where things get tight.
fn small(rng: &mut Rng, most: u16) -> u16 {
    let cut = if rng.chance(400) { most.min(3) } else { most };
    u16::try_from(rng.range(1..u32::from(cut) + 1)).unwrap_or(1)
}

impl StreamSetup {
    fn new(rng: &mut Rng, limits: &Limits, stream: u32) -> StreamSetup {
        let mut plan = StreamPlan::default();
        let mut destination = 0_u64;
        let mut item = 0;
        let mut offset = 0_u64;
        let mut object = 0;
        let mixture = Mixture::new(rng);
        let long = rng.chance(100);
        for _ in 0..rng.range(0..if long { 60 } else { 14 }) {
            let unit = limits.alignment;
            let (route, landing, otherwise) = mixture.ways(rng);
            let through = |landing| matches!(landing, Landing::Window | Landing::Lent);
            let windowed = through(landing) || otherwise.is_some_and(|(_, other)| through(other));
            // No window bounds what needs none.
            let largest = limits.window_bytes * if windowed { 1 } else { 3 };
            let len = unit * rng.range(1..largest / unit + 1);
            let ends = rng.chance(200);
            let expected = if ends { rng.range(1..len + 1) } else { len };
            let first_piece = plan.pieces.len();
            let one_run = landing == Landing::Destination
                || otherwise.is_some_and(|(_, landing)| landing == Landing::Destination);
            let base = destination;
            let mut at = if one_run {
                0
            } else {
                rng.pick(&[0, 0, 1, 7, 511])
            };
            while at < expected {
                let whole = rng.chance(500);
                let left = expected - at;
                let piece_len = if whole { left } else { rng.range(1..left + 1) };
                let to = if one_run {
                    base + u64::from(at)
                } else {
                    destination
                };
                plan.pieces.push(Piece {
                    fill_offset: at,
                    len: piece_len,
                    destination: to,
                    item: ItemIndex(item),
                });
                if !one_run {
                    destination += u64::from(piece_len) + rng.pick(&[0, 0, 3, 256]);
                }
                item += rng.pick(&[0, 1, 1, 1, 2]);
                at += piece_len + rng.pick(&[0, 0, 0, 1, 100]);
            }
            if one_run {
                destination = base + u64::from(len);
            }
            plan.fills.push(FillPlan {
                object: ObjectId(stream * OBJECTS_PER_STREAM + object),
                offset,
                len,
                expected,
                route,
                landing,
                otherwise,
                pieces: index(first_piece)..index(plan.pieces.len()),
            });
            if ends && object + 1 == OBJECTS_PER_STREAM {
                break;
            } else if ends {
                object += 1;
                offset = 0;
            } else {
                offset += u64::from(len) + u64::from(unit * rng.pick(&[0, 0, 0, 1, 9]));
            }
        }
        let last = plan.pieces.last().map_or(0, |piece| piece.item.0 + 1);
        plan.items = last + rng.pick(&[0, 0, 1, 5]);
        pressures(rng, &mut plan);
        let destination_bytes = usize::try_from(destination).unwrap_or(0);
        StreamSetup {
            plan: Arc::new(plan),
            destination_bytes,
        }
    }
}

/// How far a stream may run ahead of its consumer, and when it is needed.
fn pressures(rng: &mut Rng, plan: &mut StreamPlan) {
    let bytes: u64 = plan.pieces.iter().map(|piece| u64::from(piece.len)).sum();
    if rng.chance(400) {
        let bytes = u32::try_from(bytes + bytes / 2).unwrap_or(u32::MAX - 2);
        plan.lookahead_bytes = Some(u64::from(rng.range(1..bytes + 2)));
    }
    if rng.chance(400) {
        plan.needed_by = Some(Nanos(u64::from(rng.range(0..5000))));
    }
}

fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Which ways a stream's fills go.
struct Mixture {
    landings: Vec<Landing>,
    cached: u32,
}

impl Mixture {
    fn new(rng: &mut Rng) -> Mixture {
        const ALL: [Landing; 4] = [
            Landing::Window,
            Landing::Lent,
            Landing::Destination,
            Landing::Scatter,
        ];
        let landings = match rng.below(6) {
            0 | 1 => ALL.to_vec(),
            2 => vec![Landing::Window],
            one => vec![ALL[one - 2]],
        };
        Mixture {
            landings,
            cached: rng.pick(&[0, 300, 1000]),
        }
    }

    fn ways(&self, rng: &mut Rng) -> (Route, Landing, Option<(Route, Landing)>) {
        let landing = rng.pick(&self.landings);
        if !rng.chance(self.cached) {
            return (
                rng.pick(&[Route::Direct, Route::Buffered, Route::Traditional]),
                landing,
                None,
            );
        }
        let otherwise = match landing {
            Landing::Lent => Landing::Lent,
            _ => rng.pick(&[
                Landing::Window,
                Landing::Window,
                Landing::Destination,
                Landing::Scatter,
            ]),
        };
        let route = rng.pick(&[Route::Direct, Route::Direct, Route::Buffered]);
        let otherwise = (!rng.chance(50)).then_some((route, otherwise));
        (Route::Cached, landing, otherwise)
    }
}

impl Faults {
    fn new(rng: &mut Rng) -> Faults {
        if rng.chance(150) {
            return Faults::default();
        }
        let mut rate = |often: &[u32]| if rng.chance(500) { rng.pick(often) } else { 0 };
        Faults {
            short: rate(&[10, 100, 500]),
            zero: rate(&[1, 5, 20]),
            transient: rate(&[10, 100, 400]),
            device: rate(&[5, 50, 200]),
            not_resident: rate(&[100, 500, 1000]),
            truncated: rate(&[1, 5, 20]),
            fatal: rate(&[1, 5, 20]),
            overlong: rate(&[1, 5]),
            prepare: rate(&[5, 50]),
            flush: rate(&[5, 50]),
            object_cut: rate(&[1, 3]),
            cancel: rate(&[1, 5, 50]),
            duplicate: rate(&[10, 100]),
            unknown: rate(&[10, 50]),
            stale_report: rate(&[10, 100]),
            knobs: rate(&[10, 50]),
            overdue: rate(&[1, 10]),
        }
    }
}

impl Pace {
    fn new(rng: &mut Rng) -> Pace {
        let mut weight = || rng.pick(&[1, 5, 20, 100]);
        Pace {
            actions: weight() * 4,
            source: weight() * 2,
            copy: weight(),
            prepare: weight(),
            scrub: weight(),
            give_back: weight(),
            consume: weight(),
            open: weight(),
            clock: weight(),
            in_order: rng.chance(200),
        }
    }
}
