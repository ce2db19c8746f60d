//! Whether the machine's books agree with each other: every lease, command and stream is in
//! exactly the queues and counts its state says. Slow; for tests and the simulator.
//!
//! long: one rule after the other, each read on its own.

use core::cmp::Reverse;

use crate::commands::Place;
use crate::core::Core;
use crate::plan::Landing;
use crate::stream::{Phase, Stream};
use crate::window_table::{Kind, NO_LEASE, State};

impl Core {
    /// Panics, naming what is wrong, when the machine's books do not agree. Takes time in the
    /// square of leases and commands.
    pub fn check(&self) {
        let mut windows_in_use = 0;
        let mut tickets_in_use = 0;
        for id in 0..self.table.len() {
            self.check_lease(id);
            if self.table[id].state != State::Free {
                let window = self.table.is_window(id);
                *(if window {
                    &mut windows_in_use
                } else {
                    &mut tickets_in_use
                }) += 1;
            }
        }
        assert_eq!(
            windows_in_use,
            self.table.in_use(Kind::Window),
            "windows in use"
        );
        assert_eq!(
            tickets_in_use,
            self.table.in_use(Kind::Ticket),
            "tickets in use"
        );
        self.check_commands();
        for slot in 0..self.limits.streams {
            self.check_stream(slot);
        }
        if !self.stirred {
            self.check_nothing_but_commands();
        }
    }

    /// Panics when the machine, which just asked for nothing, has room for a command and a
    /// window to be had for one.
    pub fn check_idle(&self) {
        let room = self.stats.in_flight.now < self.knobs.now.depth
            && self.commands.used() < usize::from(self.commands.len());
        let wanted = |stream: &Stream| stream.wants() == Some(Kind::Window);
        let overlooked = room
            && self.armed.front().is_none()
            && self.table.has_free(Kind::Window)
            && self.streams.iter().flatten().any(wanted);
        assert!(!overlooked, "a window overlooked");
    }

    /// A machine that looks at commands alone must have nothing else to ask for.
    fn check_nothing_but_commands(&self) {
        let queues = [
            &self.announcing,
            &self.over,
            &self.to_lend,
            &self.to_scrub,
            &self.to_prepare,
        ];
        let queued: usize = queues.iter().map(|queue| queue.len()).sum();
        assert_eq!(queued + self.to_flush.len(), 0, "actions overlooked");
        let wanted = |stream: &Stream| stream.wants() == Some(Kind::Ticket);
        let overlooked =
            self.table.has_free(Kind::Ticket) && self.streams.iter().flatten().any(wanted);
        assert!(!overlooked, "a ticket overlooked");
    }

    /// One lease against the queues it may be in.
    fn check_lease(&self, id: u16) {
        let slot = &self.table[id];
        let state = slot.state;
        let expect = |found: usize, wanted: bool, queue: &str| {
            assert_eq!(
                found,
                usize::from(wanted),
                "lease {id} ({state:?}) in queue: {queue}"
            );
        };
        let landed = state == State::Landed;
        let left = matches!(state, State::Armed | State::Filling) && slot.next < slot.end;
        let flushes = self
            .to_flush
            .iter()
            .filter(|Reverse((_, _, other))| *other == id)
            .count();
        let lend_chain = self
            .streams
            .get(usize::from(slot.stream))
            .and_then(Option::as_ref);
        let lend_chain = lend_chain.filter(|_| landed && slot.landing == Landing::Lent);
        let chained = lend_chain.is_some_and(|stream| {
            let mut next = stream.lend_head;
            while next != NO_LEASE && next != id {
                next = self.table[next].lend_next;
            }
            next == id
        });
        expect(self.armed.count(id), left, "armed");
        expect(
            self.to_prepare.count(id),
            state == State::Prepare,
            "to prepare",
        );
        expect(self.to_scrub.count(id), state == State::Scrub, "to scrub");
        expect(
            flushes,
            landed && slot.landing == Landing::Window,
            "to flush",
        );
        expect(
            self.to_lend.count(id),
            landed && slot.landing == Landing::Lent && !chained,
            "to lend",
        );
        let commands = |place| {
            (0..self.commands.len())
                .filter(|command| self.commands[*command].place == place)
                .filter(|command| self.commands[*command].lease == id)
                .count()
        };
        assert_eq!(
            commands(Place::InFlight),
            usize::from(slot.in_flight),
            "lease {id} in flight"
        );
        assert_eq!(
            commands(Place::Waiting),
            usize::from(slot.waiting),
            "lease {id} waiting"
        );
        assert!(
            slot.next <= slot.end,
            "lease {id} asked for more than its fill"
        );
        match state {
            State::Filling => assert!(left || !slot.is_quiet(), "lease {id} has nothing to do"),
            State::Quarantined => {
                assert!(
                    slot.in_flight > 0 && slot.waiting == 0,
                    "lease {id} waits for nothing"
                );
            }
            _ => assert!(slot.is_quiet(), "lease {id} ({state:?}) has commands"),
        }
        if matches!(state, State::Landed | State::Flushing | State::Lent) {
            assert_eq!(slot.landed, slot.expected, "lease {id} landed in part");
        }
        if state != State::Free {
            let stream = self.streams[usize::from(slot.stream)].as_ref();
            let stream = stream.unwrap_or_else(|| panic!("lease {id} ({state:?}) of no stream"));
            let working = matches!(
                state,
                State::Prepare | State::Armed | State::Filling | State::Landed
            );
            if working {
                assert_eq!(
                    stream.phase,
                    Phase::Running,
                    "lease {id} works for an ended stream"
                );
            }
            if state == State::Quarantined {
                assert_ne!(
                    stream.phase,
                    Phase::Running,
                    "lease {id} quarantined for no reason"
                );
            }
        }
    }

    /// The command slab against the retry queue and the gauge.
    fn check_commands(&self) {
        let count = |place| {
            (0..self.commands.len())
                .filter(|command| self.commands[*command].place == place)
                .count()
        };
        let in_flight = usize::from(self.stats.in_flight.now);
        assert_eq!(count(Place::InFlight), in_flight, "commands in flight");
        assert_eq!(
            count(Place::Waiting),
            self.retries.len(),
            "commands waiting"
        );
        assert_eq!(
            count(Place::InFlight) + count(Place::Waiting),
            self.commands.used()
        );
        assert!(
            self.stats.in_flight.max <= self.limits.depth,
            "deeper than the limit"
        );
    }

    /// One stream slot against the leases and queues.
    fn check_stream(&self, slot: u16) {
        let Some(stream) = &self.streams[usize::from(slot)] else {
            assert_eq!(
                self.announcing.count(slot),
                0,
                "no stream {slot}, but it has news"
            );
            assert_eq!(self.over.count(slot), 0, "no stream {slot}, but it is over");
            return;
        };
        let leases = (0..self.table.len())
            .filter(|id| self.table[*id].state != State::Free && self.table[*id].stream == slot)
            .count();
        assert_eq!(
            leases,
            usize::from(stream.leases),
            "leases of stream {slot}"
        );
        if let Some(kind) = stream.wants() {
            assert!(
                self.arbiter.contains(kind, slot),
                "stream {slot} wants, and is not queued"
            );
        }
        let (announced, done, items) = stream.progress();
        assert!(announced <= done && done <= items, "items of stream {slot}");
        let announcing = usize::from(stream.announcing);
        assert_eq!(
            self.announcing.count(slot),
            announcing,
            "stream {slot} in queue: news"
        );
        if stream.phase == Phase::Running && stream.has_news() {
            assert!(
                stream.announcing,
                "stream {slot} has news, and is not queued"
            );
        }
        let over = matches!(stream.phase, Phase::Over(_));
        assert_eq!(
            self.over.count(slot),
            usize::from(over),
            "stream {slot} in queue: over"
        );
        if over {
            assert_eq!(stream.leases, 0, "stream {slot} is over and holds leases");
        }
    }
}
