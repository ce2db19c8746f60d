//! What must hold when a run is over: what the machine, the transport and the controller counted
//! fits what was asked for and injected, and a driver that is gone leaves a controller that
//! writes nowhere.

use std::time::Duration;

use ubio::source::{Source, Wait};

use super::faults;
use super::watched;
use super::world::World;

/// The opcode of the admin command.
const ABORT: usize = 0x08;
/// The opcode of the I/O command.
const READ: usize = 0x02;

/// What the machine's counters must say.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) commands: u64,
    pub(crate) retries: u64,
    pub(crate) short: u64,
    pub(crate) flushes: u64,
    pub(crate) lends: u64,
    pub(crate) scrubs: u64,
    /// Commands that a status ended.
    pub(crate) failed: u64,
}

impl World {
    /// The controller wrote nowhere but where it may.
    pub(crate) fn check_writes(&self) {
        let wrong = watched::lock(&self.ledger).wrong.take();
        if let Some(wrong) = wrong {
            panic!("{wrong}");
        }
    }

    /// Ends the driver, with whatever is in flight; what it leaves behind writes nothing more.
    pub(crate) fn drop_source(&mut self) {
        self.source = None;
        self.transport = None;
        watched::lock(&self.ledger).close();
    }

    pub(crate) fn check_end(&mut self) {
        if self.source.is_some() {
            self.settle();
            self.check_machine();
            self.check_transport();
            self.drop_source();
        }
        for _ in 0..3 {
            self.emulator.advance(Duration::from_secs(1));
            self.emulator.run();
        }
        self.check_writes();
        let faults = self.emulator.iommu_faults();
        assert!(faults.is_empty(), "I2: {:?}", faults.first());
        self.tally.writes = watched::lock(&self.ledger).writes;
        let injected = faults::lock(&self.injected).tally;
        self.tally.add_faults(&injected);
    }

    /// Lets everything happen that is still to come.
    fn settle(&mut self) {
        let mut completions = Vec::new();
        for round in 0..100 {
            if round < 3 {
                self.emulator.advance(Duration::from_millis(100));
            }
            let steps = self.emulator.run();
            let source = self.source.as_mut().expect("not dropped");
            let polled = source.poll(Wait::No, &mut completions);
            assert!(
                polled.is_ok() && completions.is_empty(),
                "I3: after the end"
            );
            if round >= 3 && steps == 0 {
                break;
            }
        }
        assert_eq!(
            watched::lock(&self.ledger).in_flight(),
            0,
            "I3: commands left"
        );
    }

    fn check_machine(&self) {
        self.core.check();
        let (stats, counted) = (self.core.stats(), &self.counted);
        let foreign = stats.stale_completions
            + stats.duplicate_completions
            + stats.unknown_completions
            + stats.overlong_completions
            + stats.stale_reports;
        let outcomes = [
            stats.streams_complete,
            stats.streams_cancelled,
            stats.streams_failed,
        ];
        for (what, found, expected) in [
            ("commands", stats.commands, counted.commands),
            ("retries", stats.retries, counted.retries),
            ("short reads", stats.short_reads, counted.short),
            ("flushes", stats.flushes, counted.flushes),
            ("lends", stats.lends, counted.lends),
            ("scrubs", stats.scrubs, counted.scrubs),
            ("completions and reports dropped", foreign, 0),
        ] {
            assert_eq!(found, expected, "I6: {what} counted");
        }
        assert_eq!(outcomes, self.tally.outcomes, "outcomes counted");
        assert!(
            self.tasks.is_empty() && self.submitted.is_empty(),
            "work after the end"
        );
    }

    fn check_transport(&mut self) {
        let source = self.source.as_ref().expect("not dropped");
        let (incidents, counters) = (source.incidents(), self.emulator.counters());
        let resets = counters.resets - self.resets_before;
        let aborts = counters.admin_commands[ABORT];
        let injected = faults::lock(&self.injected);
        let ledger = watched::lock(&self.ledger);
        let (reads, failed) = (counters.io_commands[READ], self.counted.failed);
        let causes = self.requests + injected.controller + incidents.overdue;
        for (what, holds) in [
            ("strays", incidents.strays <= injected.strays),
            ("overdue", incidents.overdue <= ledger.long),
            (
                "aborts",
                aborts <= incidents.aborts && incidents.aborts <= incidents.overdue,
            ),
            ("finished resets", incidents.resets <= resets),
            ("resets without a cause", resets <= causes),
            ("lost completions", injected.lost <= ledger.given_up),
            ("failed commands", failed <= injected.failed),
            ("commands", reads <= ledger.ended),
            ("events: a doorbell that is none", incidents.events == 0),
        ] {
            assert!(
                holds,
                "I6: {what}: {incidents:?}, {resets} resets of the controller, {aborts} aborts, \
                 {injected:?}, {} long, {} given up",
                ledger.long, ledger.given_up
            );
        }
        // Where nothing was cut short, every number is known.
        if resets == 0 && self.requests == 0 && injected.controller == 0 {
            assert_eq!(incidents.strays, injected.strays, "I6: strays counted");
            assert_eq!(incidents.aborts, aborts, "I6: aborts counted");
            assert_eq!((ledger.given_up, injected.lost), (0, 0), "ended by nothing");
            assert_eq!(failed, injected.failed, "I6: failed commands");
            assert_eq!(reads, ledger.ended, "I3: commands sent once");
            let sure = ledger.surely_long;
            assert!(
                incidents.overdue >= sure,
                "I6: {sure} commands were overdue"
            );
        }
        self.tally.incidents = [
            incidents.overdue,
            incidents.aborts,
            incidents.resets,
            incidents.strays,
        ];
    }
}
