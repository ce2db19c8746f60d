//! What one seed sets up: a controller and how it is driven, a pool of windows, the plans of
//! its streams, and how often each fault strikes. Knows nothing of how a run goes.

use std::sync::Arc;
use std::time::Duration;

use nvme::command::{NamespaceId, QueueEntries};
use nvme::controller::Settings;
use nvme::transport::user::{DataNames, Options};
use nvme_emulator::{Config, Namespace, Scatter, SglSupport};
use ubio::source::SourceLimits;
use ubio_core::{FillPlan, ItemIndex, Landing, Limits, Nanos, ObjectId, Piece, Route, StreamPlan};

use super::super::rng::Rng;
use super::words::Words;

/// Bytes of the namespace.
pub(crate) const NAMESPACE_BYTES: u64 = 1 << 30;
const PAGE: u32 = 4096;

/// A controller and its driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) block_bytes: u32,
    max_data_transfer: u8,
    scatter: Scatter,
    sgl: SglSupport,
    data: DataNames,
    shadow: bool,
    stride: u8,
    queues: u16,
    entries: u32,
    interrupts: bool,
    pub(crate) abort_after: Duration,
    reset_after: Duration,
    ready_delay: Duration,
    reset_delay: Duration,
    timeout_half_seconds: u8,
    retry_delays: [u16; 3],
    seed: u64,
}

fn millis(rng: &mut Rng, of: &[u64]) -> Duration {
    Duration::from_millis(rng.pick(of))
}

impl Geometry {
    pub(crate) fn new(rng: &mut Rng) -> Geometry {
        let most_entries = rng.pick(&[6, 65]);
        let sgl = rng.pick(&[SglSupport::None, SglSupport::Bytes, SglSupport::Dwords]);
        Geometry {
            block_bytes: rng.pick(&[512, 4096]),
            max_data_transfer: rng.pick(&[0, 0, 1, 2, 5, 11]),
            scatter: rng.pick(&[Scatter::Contiguous, Scatter::Pages, Scatter::HugePages]),
            sgl,
            data: rng.pick(&[DataNames::Auto, DataNames::Prp]),
            shadow: rng.chance(400),
            stride: rng.pick(&[0, 0, 1, 4]),
            queues: u16::try_from(rng.range(1..5)).unwrap_or(1),
            entries: rng.range(3..most_entries),
            interrupts: rng.chance(500),
            abort_after: millis(rng, &[5, 20, 60]),
            reset_after: millis(rng, &[5, 20]),
            ready_delay: millis(rng, &[0, 0, 1, 30]),
            reset_delay: millis(rng, &[0, 0, 1, 30]),
            timeout_half_seconds: rng.pick(&[1, 20]),
            retry_delays: [0, 1, rng.pick(&[0, 2, 5])],
            seed: rng.next(),
        }
    }

    pub(crate) fn config(&self, words: Words) -> Config {
        let mut config = Config::new(Namespace::new(words, self.block_bytes));
        config.max_data_transfer = self.max_data_transfer;
        config.scatter = self.scatter;
        config.sgl = self.sgl;
        config.doorbell_buffer = self.shadow;
        config.doorbell_stride = self.stride;
        config.io_queues = self.queues;
        config.vectors = 2;
        config.ready_delay = self.ready_delay;
        config.reset_delay = self.reset_delay;
        config.timeout_half_seconds = self.timeout_half_seconds;
        config.retry_delays = self.retry_delays;
        config.seed = self.seed;
        config
    }

    pub(crate) fn options(&self) -> Options {
        let mut settings = Settings::new(NamespaceId(1));
        settings.queues = self.queues;
        settings.entries = QueueEntries::new(self.entries).expect("two at least");
        settings.interrupts = self.interrupts;
        let mut options = Options::new(settings);
        options.data = self.data;
        options.abort_after = self.abort_after;
        options.reset_after = self.reset_after;
        options
    }
}

/// How often each fault strikes: in thousandths of the commands, but for those named rare, in
/// hundred-thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) reorders: bool,
    pub(crate) late: u32,
    pub(crate) linger: u32,
    pub(crate) deaf: u32,
    pub(crate) lost: u32,
    pub(crate) twice: u32,
    pub(crate) stray: u32,
    pub(crate) transient: u32,
    pub(crate) media: u32,
    pub(crate) last: u32,
    pub(crate) admin: u32,
    /// Rare, per command.
    pub(crate) fatal: u32,
    pub(crate) stall: u32,
    pub(crate) gone: u32,
    /// Rare, per event.
    pub(crate) reset: u32,
    pub(crate) strike: u32,
    pub(crate) cancel: u32,
    pub(crate) drop: u32,
    pub(crate) knobs: u32,
    /// In thousandths of copies.
    pub(crate) copy: u32,
}

impl Rates {
    pub(crate) fn new(rng: &mut Rng) -> Rates {
        if rng.chance(100) {
            return Rates::default();
        }
        let mut rate = |often: &[u32]| if rng.chance(400) { rng.pick(often) } else { 0 };
        Rates {
            reorders: rate(&[1]) > 0,
            late: rate(&[20, 200, 900]),
            linger: rate(&[20, 200]),
            deaf: rate(&[100, 1000]),
            lost: rate(&[5, 30]),
            twice: rate(&[20, 300]),
            stray: rate(&[20, 200]),
            transient: rate(&[10, 100]),
            media: rate(&[5, 50]),
            last: rate(&[2, 10]),
            admin: rate(&[20, 200]),
            fatal: rate(&[300, 2000]),
            stall: rate(&[300, 2000]),
            gone: rate(&[100, 300]),
            reset: rate(&[20, 200]),
            strike: rate(&[10, 50]),
            cancel: rate(&[20, 200]),
            drop: rate(&[5]),
            knobs: rate(&[500]),
            copy: rate(&[5, 50]),
        }
    }
}

/// How eagerly each party of the run acts, as weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) actions: u32,
    pub(crate) poll: u32,
    pub(crate) step: u32,
    pub(crate) clock: u32,
    pub(crate) copy: u32,
    pub(crate) give_back: u32,
    pub(crate) consume: u32,
    pub(crate) open: u32,
    /// Longest span of the clock, microseconds.
    pub(crate) span_us: u32,
    /// How long a command may take for its stream.
    pub(crate) deadline: Option<Duration>,
}

impl Pace {
    pub(crate) fn new(rng: &mut Rng) -> Pace {
        let mut weight = || rng.pick(&[3, 10, 30]);
        Pace {
            actions: weight() * 3,
            poll: weight(),
            step: weight() * 3,
            clock: weight() / 3,
            copy: weight(),
            give_back: weight(),
            consume: weight(),
            open: weight(),
            span_us: rng.pick(&[5, 100, 3000]),
            deadline: rng.chance(300).then(|| millis(rng, &[2, 15, 100])),
        }
    }
}

/// A pool of windows, and where in their memory the first begins.
pub(crate) fn pool(rng: &mut Rng, source: SourceLimits) -> (Limits, u64) {
    let alignment = source.alignment;
    let small = |rng: &mut Rng, most: u32| {
        let cut = if rng.chance(400) { most.min(2) } else { most };
        u16::try_from(rng.range(1..cut + 1)).unwrap_or(1)
    };
    // Large windows take list pages that one command chains.
    let large = rng.chance(8) && source.command_bytes >= 2 << 20;
    let window_bytes = match large {
        true => rng.pick(&[2 << 20, (2 << 20) + 64 * PAGE]),
        false => rng.pick(&[PAGE, 2 * PAGE, 2 * PAGE, 4 * PAGE, 4 * PAGE, 16 * PAGE]),
    };
    let most = source.command_bytes.min(window_bytes * 2);
    let command_bytes = match large || rng.chance(400) {
        true => most,
        false => alignment * rng.range(1..most / alignment + 1),
    };
    let limits = Limits {
        windows: if large { 1 } else { small(rng, 6) },
        window_bytes,
        tickets: small(rng, 3),
        depth: small(rng, source.depth.into()),
        command_bytes,
        alignment,
        streams: small(rng, 4),
    };
    (limits, lead(rng, alignment))
}

/// Bytes before what is of use: lists begin and end anywhere in it.
pub(crate) fn lead(rng: &mut Rng, alignment: u32) -> u64 {
    let pages = match rng.below(4) {
        0 => rng.range(240..260),
        1 => rng.range(495..513),
        _ => rng.range(0..3),
    };
    let within = if rng.chance(500) { 0 } else { alignment };
    u64::from(pages * PAGE + within)
}

/// One stream to be opened.
#[derive(Clone, Debug)]
pub(crate) struct StreamSetup {
    pub(crate) plan: Arc<StreamPlan>,
    /// Its object: first byte, and bytes.
    pub(crate) object: (u64, u64),
    /// Where its destination begins, and how long it is.
    pub(crate) destination: (u64, u64),
    /// The object ends before what the plan expects.
    pub(crate) cut: bool,
}

/// The streams, and bytes of all their destinations.
pub(crate) fn streams(rng: &mut Rng, limits: &Limits) -> (Vec<StreamSetup>, u64) {
    let mut at = lead(rng, limits.alignment);
    let large = limits.window_bytes >= 1 << 20;
    let count = if large { 1 } else { rng.range(1..6) };
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = stream(rng, limits, at, large);
        at += (stream.destination.1 + 1).next_multiple_of(limits.alignment.into());
        streams.push(stream);
    }
    (streams, at)
}

fn stream(rng: &mut Rng, limits: &Limits, base: u64, large: bool) -> StreamSetup {
    let unit = limits.alignment;
    let start = u64::from(rng.range(0..u32::try_from(NAMESPACE_BYTES >> 13).unwrap_or(0))) << 12;
    let landings = match rng.below(4) {
        0 => vec![Landing::Window, Landing::Lent, Landing::Destination],
        1 => vec![Landing::Window, Landing::Window, Landing::Lent],
        2 => vec![Landing::Destination],
        _ => vec![Landing::Window],
    };
    let mut plan = StreamPlan::default();
    let (mut destination, mut offset, mut end) = (0_u64, 0_u64, 0_u64);
    for _ in 0..rng.range(1..if large { 3 } else { 9 }) {
        let landing = rng.pick(&landings);
        let one_run = landing == Landing::Destination;
        let largest = limits.window_bytes * if one_run && !large { 2 } else { 1 };
        let least = if large { largest / unit } else { 1 };
        let len = unit * rng.range(least..largest / unit + 1);
        let ends = rng.chance(100);
        let expected = if ends { rng.range(1..len + 1) } else { len };
        let first_piece = plan.pieces.len();
        if one_run {
            destination = destination.next_multiple_of(unit.into());
        }
        let run = destination;
        pieces(rng, &mut plan, expected, one_run, &mut destination);
        if one_run {
            destination = run + u64::from(len);
        }
        plan.fills.push(FillPlan {
            object: ObjectId(0),
            offset,
            len,
            expected,
            route: Route::Emulated,
            landing,
            otherwise: None,
            pieces: index(first_piece)..index(plan.pieces.len()),
        });
        end = offset + u64::from(expected);
        if ends {
            break;
        }
        offset += u64::from(len) + u64::from(unit * rng.pick(&[0, 0, 1, 9]));
    }
    let last = plan.pieces.last().map_or(0, |piece| piece.item.0 + 1);
    plan.items = last + rng.pick(&[0, 0, 1]);
    pressures(rng, &mut plan);
    let cut = rng.chance(20);
    let len_bytes = if cut { end - end / 3 - 1 } else { end };
    StreamSetup {
        plan: Arc::new(plan),
        object: (start, len_bytes),
        destination: (base, destination),
        cut,
    }
}

/// Cuts a fill into pieces, from `destination` on.
fn pieces(
    rng: &mut Rng,
    plan: &mut StreamPlan,
    expected: u32,
    one_run: bool,
    destination: &mut u64,
) {
    let mut at = if one_run {
        0
    } else {
        rng.pick(&[0, 0, 1, 511])
    };
    let run = *destination;
    while at < expected {
        let left = expected - at;
        let whole = rng.chance(600);
        let len = if whole { left } else { rng.range(1..left + 1) };
        let before = plan.pieces.last().map_or(0, |piece| piece.item.0);
        plan.pieces.push(Piece {
            fill_offset: at,
            len,
            destination: if one_run {
                run + u64::from(at)
            } else {
                *destination
            },
            item: ItemIndex(before + rng.pick(&[0, 1, 1, 2])),
        });
        *destination += u64::from(len) + rng.pick(&[0, 0, 3]);
        at += len + rng.pick(&[0, 0, 0, 100]);
    }
}

/// How far a stream may run ahead of its consumer, and when it is needed.
fn pressures(rng: &mut Rng, plan: &mut StreamPlan) {
    let bytes: u64 = plan.pieces.iter().map(|piece| u64::from(piece.len)).sum();
    if rng.chance(300) {
        let bytes = u32::try_from(bytes + bytes / 2).unwrap_or(u32::MAX - 2);
        plan.lookahead_bytes = Some(u64::from(rng.range(1..bytes + 2)));
    }
    if rng.chance(300) {
        plan.needed_by = Some(Nanos(u64::from(rng.range(0..50_000_000))));
    }
}

fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
