//! What goes wrong at the controller, by a seed and its rates: only what a controller may do.
//! Counts what it decided. Knows no windows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme_emulator::fault::{ControllerFault, Seen};
use nvme_emulator::{Deed, Delay, Ending, Faults, Plan};

use super::super::rng::Rng;
use super::scenario::Rates;
use super::tally::{Fault, Tally};

/// What was decided, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Injected {
    pub(crate) tally: Tally,
    /// Completions told that name nothing in flight.
    pub(crate) strays: u64,
    /// Commands of I/O queues whose end is never told.
    pub(crate) lost: u64,
    /// Commands of I/O queues that were told to have failed.
    pub(crate) failed: u64,
    /// Times that the controller as a whole was told to fail.
    pub(crate) controller: u64,
}

/// The hook.
#[derive(Debug)]
pub(crate) struct Dice {
    pub(crate) rng: Rng,
    pub(crate) rates: Rates,
    pub(crate) injected: Arc<Mutex<Injected>>,
    /// Data move once more after the end: what no controller may do.
    pub(crate) violates: bool,
}

/// Statuses that say: try again later, without and with the delays that the controller names.
const TRANSIENT: [u16; 6] = [0x082, 0x084, 0x021, 0x0882, 0x1082, 0x1b70];
/// Statuses that say: do not try again.
const FINAL: [u16; 3] = [0x4281, 0x4080, 0x4012];
const MEDIA: [u16; 3] = [0x281, 0x004, 0x006];
/// One more than the highest slot that an identifier can name.
const NO_SLOT: u16 = 0x3ff;
/// From one generation of an identifier to the next.
const GENERATION: u16 = 1 << 10;

pub(crate) fn lock(injected: &Mutex<Injected>) -> MutexGuard<'_, Injected> {
    injected.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dice {
    fn strike(&self, fault: Fault) {
        lock(&self.injected).tally.strike(fault);
    }

    /// An identifier that is not in flight while `seen` is.
    fn foreign(&mut self, seen: &Seen) -> u16 {
        let before = seen.command_id.wrapping_sub(GENERATION);
        let pick = [before, before, NO_SLOT, 0xffff, before ^ GENERATION << 2];
        let foreign = self.rng.pick(&pick);
        if foreign == seen.command_id {
            before
        } else {
            foreign
        }
    }

    fn delay(&mut self) -> Delay {
        let steps = self.rng.pick(&[0, 1, 3, 20, 200]);
        let micros = self.rng.pick(&[0, 0, 10, 1000, 10_000, 50_000]);
        match self.rng.below(12) {
            0 => Delay::FOREVER,
            _ => Delay {
                steps,
                time: Duration::from_micros(micros),
            },
        }
    }

    fn deed(&mut self, seen: &Seen) -> Deed {
        let rates = self.rates;
        let of = [
            (rates.transient, Fault::Transient, &TRANSIENT[..]),
            (rates.media, Fault::Media, &MEDIA[..]),
            (rates.last, Fault::Final, &FINAL[..]),
        ];
        for (rate, fault, statuses) in of {
            if !self.rng.chance(rate) {
                continue;
            }
            self.strike(fault);
            let status = self.rng.pick(statuses);
            if seen.blocks > 0 && self.rng.chance(400) {
                self.strike(Fault::Short);
                let len_bytes = u64::from(self.rng.range(0..seen.blocks * 512 + 1)) / 4 * 4;
                return Deed::Short { len_bytes, status };
            }
            return Deed::Fail(status);
        }
        Deed::Execute
    }

    fn told(&mut self, seen: &Seen) -> Ending {
        let rates = self.rates;
        if self.rng.chance(rates.lost) {
            return match self.rng.below(3) {
                0 => Ending::Never,
                1 => Ending::CommandId(self.foreign(seen)),
                _ => Ending::Queue(seen.queue.wrapping_add(self.rng.pick(&[1, 7, 0x8000]))),
            };
        }
        if self.rng.chance(rates.twice) {
            return Ending::Twice;
        }
        if self.rng.chance(rates.stray) {
            return Ending::Stray(self.foreign(seen));
        }
        Ending::Once
    }

    /// Something that happens to the whole controller when a command is fetched.
    fn controller(&mut self) -> Option<ControllerFault> {
        let rates = self.rates;
        let fault = if self.rng.rare(rates.fatal) {
            ControllerFault::Fatal
        } else if self.rng.rare(rates.stall) {
            ControllerFault::Stall
        } else if self.rng.rare(rates.gone) {
            ControllerFault::Gone
        } else {
            return None;
        };
        lock(&self.injected).note(fault);
        Some(fault)
    }
}

impl Injected {
    pub(crate) fn note(&mut self, fault: ControllerFault) {
        let fault = match fault {
            ControllerFault::Fatal => Fault::Fatal,
            ControllerFault::Stall => Fault::Stall,
            ControllerFault::Gone => Fault::Gone,
            ControllerFault::SlowReady(_) => return self.tally.strike(Fault::SlowReady),
        };
        self.controller += 1;
        self.tally.strike(fault);
    }
}

impl Faults for Dice {
    fn command(&mut self, seen: &Seen) -> Plan {
        let mut plan = Plan::default();
        if seen.queue == 0 {
            // Also while a reset sets the controller up anew: it may never come back then.
            if self.rng.chance(self.rates.admin) {
                self.strike(Fault::Admin);
                plan.delay = self.delay();
                plan.ending = self.told(seen);
                plan.deed = self.deed(seen);
            }
            return plan;
        }
        if self.rng.chance(self.rates.late) {
            self.strike(Fault::Late);
            plan.delay = self.delay();
        }
        if self.rng.chance(self.rates.linger) {
            self.strike(Fault::Linger);
            plan.linger = self.delay();
        }
        if self.rng.chance(self.rates.deaf) {
            self.strike(Fault::Deaf);
            plan.ignores_abort = true;
        }
        plan.deed = self.deed(seen);
        plan.ending = self.told(seen);
        plan.controller = self.controller();
        if self.violates {
            plan.dma_after_completion = Some(Delay::steps(self.rng.pick(&[1, 5, 50])));
        }
        plan
    }

    fn ending(&mut self, seen: &Seen, status: u16, planned: Ending) -> Ending {
        let mut injected = lock(&self.injected);
        let lost = u64::from(seen.queue > 0);
        if matches!(planned, Ending::Once | Ending::Twice | Ending::Stray(_)) {
            injected.failed += u64::from(seen.queue > 0 && status != 0);
        }
        match planned {
            Ending::Once => {}
            Ending::Never => {
                injected.lost += lost;
                injected.tally.strike(Fault::Lost);
            }
            Ending::Twice => {
                injected.strays += 1;
                injected.tally.strike(Fault::Twice);
            }
            Ending::CommandId(_) | Ending::Queue(_) => {
                injected.lost += lost;
                injected.strays += 1;
                injected.tally.strike(Fault::Foreign);
            }
            Ending::Stray(_) => {
                injected.strays += 1;
                injected.tally.strike(Fault::Stray);
            }
        }
        planned
    }

    fn reorders(&self) -> bool {
        self.rates.reorders
    }

    fn pick(&mut self, due: usize) -> usize {
        let chosen = self.rng.below(due.max(1));
        if chosen > 0 {
            self.strike(Fault::Reordered);
        }
        chosen
    }
}
