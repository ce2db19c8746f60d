//! Whether what the machine asks for is what the rules allow now. Each action is held against
//! the model, then handed to the driver that is to answer it.

use ubio_core::{Action, ItemIndex, Landing, Lease, ObjectId, Outcome, Route, StreamId, Token};

use super::model::{At, Command, Held, Progress, Tries, on_window, pieces};
use super::world::{Task, World};

/// An [`Action::Fill`].
#[derive(Clone, Copy, Debug)]
struct Fill {
    token: Token,
    lease: Lease,
    stream: usize,
    fill: usize,
    object: ObjectId,
    offset: u64,
    lease_offset: u32,
    len: u32,
    route: Route,
    landing: Landing,
}

/// How often another stream may be given a window while one waits for its own: once before
/// it in the queue, and once more where that one was armed before the wait began.
const MAX_OVERTAKEN: u32 = 2;

impl World {
    pub(crate) fn asked(&mut self, action: Action) {
        match action {
            Action::Prepare {
                lease,
                stream,
                fill,
            } => {
                let stream = self.stream_of(stream);
                self.lease_anew(lease, stream, fill as usize, At::Preparing);
                let held = self.held(lease, At::Preparing);
                assert_eq!(held.landing, Landing::Destination, "prepared for nothing");
                self.tasks.push((Task::Prepare, lease));
            }
            Action::Fill {
                token,
                lease,
                stream,
                fill,
                object,
                offset,
                lease_offset,
                len,
                route,
                landing,
            } => {
                let stream = self.stream_of(stream);
                let fill = fill as usize;
                self.submitted(Fill {
                    token,
                    lease,
                    stream,
                    fill,
                    object,
                    offset,
                    lease_offset,
                    len,
                    route,
                    landing,
                });
            }
            Action::Flush {
                lease,
                stream,
                fill,
            } => {
                self.counted.flushes += 1;
                let stream = self.stream_of(stream);
                self.hand_out(lease, stream, fill as usize, Landing::Window);
                self.check_flush_order(lease);
                self.held(lease, At::Landed).at = At::Flushing;
                self.tasks.push((Task::Flush, lease));
            }
            Action::Lend {
                lease,
                stream,
                fill,
            } => {
                self.counted.lends += 1;
                let stream = self.stream_of(stream);
                self.hand_out(lease, stream, fill as usize, Landing::Lent);
                self.held(lease, At::Landed).at = At::Lent;
                self.lent_in_order(stream, fill as usize);
                self.streams[stream].deliver(fill as usize);
                self.tasks.push((Task::Return, lease));
            }
            Action::Scrub { lease } => self.scrub_asked(lease),
            Action::Visible { stream, from, to } => self.visible(stream, from, to),
            Action::Finished {
                stream,
                outcome,
                fallbacks,
            } => self.finished(stream, outcome, fallbacks),
        }
    }

    /// The stream of an action; it is not over.
    fn stream_of(&self, id: StreamId) -> usize {
        let index = *self
            .by_id
            .get(&id)
            .expect("an action for a stream never opened");
        assert!(
            !self.streams[index].finished,
            "I3: an action for stream {index}, which is over"
        );
        index
    }

    /// The lease of a slot, which must be this one, in this state.
    pub(crate) fn held(&mut self, lease: Lease, at: At) -> &mut Held {
        let held = self.slots[usize::from(lease.id.0)].held.as_mut();
        let held = held.unwrap_or_else(|| panic!("{lease:?} is not held"));
        assert_eq!((held.lease, held.at), (lease, at), "not in turn");
        held
    }

    /// A lease is seen for the first time: with it, its slot must be free, and without a trace
    /// of a stream that failed.
    fn lease_anew(&mut self, lease: Lease, stream: usize, fill: usize, at: At) {
        assert!(
            self.streams[stream].is_running(),
            "a lease for stream {stream}, which ended"
        );
        let id = usize::from(lease.id.0);
        let windows = usize::from(self.scenario.limits.windows);
        let slot = &mut self.slots[id];
        assert!(
            lease.generation.0 > slot.generation,
            "I2: a generation used twice"
        );
        slot.generation = lease.generation.0;
        let rearmed = match slot.held.take() {
            None => false,
            Some(held) => {
                assert_eq!(
                    held.at,
                    At::Rearm,
                    "I2: {lease:?} given while in use: {held:?}"
                );
                assert_eq!(
                    (held.stream, held.fill),
                    (stream, fill),
                    "I2: given to another"
                );
                true
            }
        };
        if slot.zeroed {
            assert!(
                slot.bytes.iter().all(|byte| *byte == 0),
                "I4: bytes in a scrubbed window"
            );
        }
        slot.zeroed = false;
        let of = &mut self.streams[stream];
        let second_way = rearmed || of.fills[fill] == Progress::Redo;
        if !rearmed {
            let todo = matches!(of.fills[fill], Progress::Todo | Progress::Redo);
            assert!(todo, "I3: fill {fill} of stream {stream} leased twice");
            assert!(of.is_allowed(fill), "fill {fill} is beyond the lookahead");
        }
        of.fills[fill] = Progress::Held;
        let (_, landing) = of.way(fill, second_way);
        assert_eq!(on_window(landing), id < windows, "the wrong kind of lease");
        let shape = of.shape(fill);
        let alignment = self.scenario.limits.alignment;
        self.slots[id].held = Some(Held {
            lease,
            stream,
            fill,
            second_way,
            landing,
            at,
            next: 0,
            end: shape.expected.next_multiple_of(alignment),
            in_flight: 0,
            retries: Vec::new(),
            redo: false,
            ready: (0, 0),
        });
        if on_window(landing) && !rearmed {
            self.check_fair(stream);
        }
    }

    /// A stream was given a window: none that waits was overtaken by it too often.
    fn check_fair(&mut self, given: usize) {
        for (index, stream) in self.streams.iter_mut().enumerate() {
            if index == given {
                stream.waits = false;
            } else if stream.waits {
                stream.overtaken[given] += 1;
                let often = stream.overtaken[given] > MAX_OVERTAKEN;
                assert!(!often, "unfair: stream {given} overtakes stream {index}");
            }
        }
    }

    fn submitted(&mut self, asked: Fill) {
        let Fill {
            lease,
            stream,
            fill,
            ..
        } = asked;
        self.counted.commands += 1;
        let slot = &self.slots[usize::from(lease.id.0)];
        if slot.held.as_ref().is_none_or(|held| held.lease != lease) {
            self.lease_anew(lease, stream, fill, At::Filling);
            let prepared = asked.landing != Landing::Destination;
            assert!(prepared, "a command for a destination not prepared");
        }
        let setting = self.knobs.setting(&self.core);
        assert!(
            self.outstanding.len() < usize::from(setting.depth),
            "deeper than the depth"
        );
        assert!(
            self.streams[stream].is_running(),
            "a command for a stream that ended"
        );
        let (now, command_bytes) = (self.now, setting.command_bytes);
        let held = self.held(lease, At::Filling);
        assert_eq!(
            (held.stream, held.fill, held.landing),
            (stream, fill, asked.landing)
        );
        assert!(!held.redo, "a command for a way that was given up");
        let second_way = held.second_way;
        let again = held
            .retries
            .iter()
            .position(|retry| retry.offset == asked.lease_offset);
        let mut tries = Tries::default();
        if let Some(again) = again {
            let retry = held.retries.swap_remove(again);
            assert_eq!(retry.len, asked.len, "not the range that failed");
            assert!(retry.due <= now, "again before its time");
            tries = retry.tries;
        } else {
            let left = held.end - held.next;
            let most = if asked.landing == Landing::Scatter {
                left
            } else {
                command_bytes
            };
            assert_eq!(asked.lease_offset, held.next, "not the next range");
            assert_eq!(asked.len, left.min(most), "not of the command size");
            held.next += asked.len;
        }
        held.in_flight += 1;
        tries.all = tries.all.saturating_add(1);
        let shape = self.streams[stream].shape(fill);
        let offset = shape.offset + u64::from(asked.lease_offset);
        assert_eq!(
            (asked.object, asked.offset),
            (shape.object, offset),
            "not what to read"
        );
        let way = self.streams[stream].way(fill, second_way);
        assert_eq!((asked.route, asked.landing), way, "not the way to take");
        self.check_token_is_new(asked.token);
        self.outstanding.push(Command {
            token: asked.token,
            lease,
            stream,
            fill,
            offset: asked.lease_offset,
            len: asked.len,
            route: asked.route,
            landing: asked.landing,
            tries,
        });
    }

    fn check_token_is_new(&self, token: Token) {
        let mut outstanding = self.outstanding.iter();
        let known = outstanding.any(|command| command.token == token);
        assert!(
            !known && !self.old_tokens.contains(&token),
            "I3: a token used twice"
        );
    }

    /// A window is to be flushed or lent: it is whole, nothing writes into it, and what it
    /// holds is the fill's bytes and none other.
    fn hand_out(&mut self, lease: Lease, stream: usize, fill: usize, landing: Landing) {
        assert!(
            self.streams[stream].is_running(),
            "handed out after the end of stream {stream}"
        );
        let writer = self
            .outstanding
            .iter()
            .any(|command| command.lease.id == lease.id);
        assert!(
            !writer,
            "I2: {lease:?} handed out while the source writes into it"
        );
        let held = self.held(lease, At::Landed);
        assert!(held.is_whole(), "{lease:?} handed out in part");
        assert_eq!(
            (held.stream, held.fill, held.landing),
            (stream, fill, landing)
        );
        self.check_window(lease);
    }

    /// A window holds exactly what its fill expects.
    pub(crate) fn check_window(&self, lease: Lease) {
        let slot = &self.slots[usize::from(lease.id.0)];
        let held = slot.held.as_ref().expect("held");
        let shape = self.streams[held.stream].shape(held.fill);
        let from = usize::try_from(shape.offset).unwrap_or(usize::MAX);
        let bytes = shape.expected as usize;
        let right = &self.objects[shape.object.0 as usize][from..from + bytes];
        assert!(
            slot.bytes[..bytes] == *right,
            "I1, I4: other bytes in {lease:?}"
        );
    }

    /// Of the flushes that are ready, the one needed first; of equals, the one ready first.
    fn check_flush_order(&self, lease: Lease) {
        let ready = self.slots.iter().filter_map(|slot| slot.held.as_ref());
        let ready = ready.filter(|held| held.at == At::Landed && held.landing == Landing::Window);
        let first = ready
            .min_by_key(|held| held.ready)
            .expect("it is ready itself");
        assert_eq!(first.lease, lease, "a flush out of turn");
    }

    fn lent_in_order(&mut self, stream: usize, fill: usize) {
        let stream = &mut self.streams[stream];
        let lent = |fill: &usize| stream.way(*fill, false).1 == Landing::Lent;
        let next = (stream.lend_from..stream.fills.len()).find(lent);
        assert_eq!(next, Some(fill), "lent out of order");
        stream.lend_from = fill + 1;
    }

    fn scrub_asked(&mut self, lease: Lease) {
        self.counted.scrubs += 1;
        let writer = self
            .outstanding
            .iter()
            .any(|command| command.lease.id == lease.id);
        assert!(
            !writer,
            "I2: {lease:?} scrubbed while the source writes into it"
        );
        let slot = &mut self.slots[usize::from(lease.id.0)];
        let held = slot.held.as_mut().expect("a window scrubbed that is free");
        assert_eq!(held.at, At::Scrub, "scrubbed out of turn");
        // It may have been leased once more meanwhile, without a command.
        assert!(
            lease.generation >= held.lease.generation,
            "a generation used twice"
        );
        held.lease = lease;
        held.at = At::Scrubbing;
        slot.generation = lease.generation.0;
        self.tasks.push((Task::Scrub, lease));
    }

    fn visible(&mut self, stream: StreamId, from: ItemIndex, to: ItemIndex) {
        let index = self.stream_of(stream);
        let stream = &mut self.streams[index];
        let told = matches!(stream.ending, None | Some(Outcome::Complete));
        assert!(told, "visible items of stream {index}, which ended");
        assert_eq!(from.0, stream.announced, "I3: items told twice or left out");
        assert!(
            from < to && to.0 <= stream.arrived,
            "I1: items told before they are there"
        );
        stream.announced = to.0;
        let first = stream.pieces_visible;
        let rest = &stream.plan.pieces[first..];
        stream.pieces_visible += rest.iter().take_while(|piece| piece.item < to).count();
        let range = first..stream.pieces_visible;
        self.counted.items += u64::from(to.0 - from.0);
        self.check_destination(index, range);
    }

    /// The pieces are at their destination, byte for byte; lent ones are not there.
    pub(crate) fn check_destination(&self, index: usize, range: std::ops::Range<usize>) {
        let stream = &self.streams[index];
        for fill in 0..stream.fills.len() {
            let of = pieces(&stream.plan, fill);
            let shape = stream.shape(fill);
            if shape.landing == Landing::Lent {
                continue;
            }
            let object = &self.objects[shape.object.0 as usize];
            for piece in of.start.max(range.start)..of.end.min(range.end) {
                let piece = &stream.plan.pieces[piece];
                let from = usize::try_from(shape.offset).unwrap_or(usize::MAX);
                let from = from + piece.fill_offset as usize;
                let to = usize::try_from(piece.destination).unwrap_or(usize::MAX);
                let len = piece.len as usize;
                assert!(
                    stream.destination[to..to + len] == object[from..from + len],
                    "I1: other bytes at the destination of {piece:?} of stream {index}"
                );
            }
        }
    }

    fn finished(&mut self, id: StreamId, outcome: Outcome, fallbacks: u32) {
        let index = self.stream_of(id);
        assert!(
            !self.holds_any(index),
            "I2: stream {index} is over and holds leases"
        );
        let out = self
            .outstanding
            .iter()
            .any(|command| command.stream == index);
        assert!(
            !out,
            "I2: stream {index} is over while the source writes for it"
        );
        let stream = &mut self.streams[index];
        assert_eq!(stream.ending, Some(outcome), "how stream {index} ended");
        assert_eq!(
            stream.fallbacks, fallbacks,
            "I6: fallbacks of stream {index}"
        );
        stream.finished = true;
        self.choose_knobs();
        let slot = match outcome {
            Outcome::Complete => 0,
            Outcome::Cancelled => 1,
            Outcome::Failed(_) => 2,
        };
        self.tally.outcomes[slot] += 1;
        if outcome == Outcome::Complete {
            let stream = &self.streams[index];
            assert_eq!(stream.announced, stream.plan.items, "items never told");
            let pieces = stream.plan.pieces.len();
            self.check_destination(index, 0..pieces);
        }
    }
}
