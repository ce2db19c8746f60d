//! Finds the command size and depth a device likes, from completions alone: climbs from a hint
//! to one neighbour at a time, and goes back unless it pays. Knows no devices and no clock.

use crate::units::Nanos;

/// An epoch has at least so many completions.
const EPOCH_COMPLETIONS: u32 = 24;
/// An epoch has at least so many bytes.
const EPOCH_BYTES: u64 = 32 << 20;
/// A trial that is far worse is seen through after so many completions and bytes.
const GLANCE_COMPLETIONS: u32 = 8;
const GLANCE_BYTES: u64 = 8 << 20;
/// Smallest and largest command to try, bytes.
const COMMAND_BYTES: (u32, u32) = (256 << 10, 4 << 20);
/// Most bytes in flight to try.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
/// Fewest commands in flight: with one, the device idles between two.
const MIN_DEPTH: u16 = 2;
/// Epochs at a point before a neighbour of it is tried.
const FIRST_WAIT: u32 = 3;
/// Epochs to wait after a trial that failed; doubled by each further one.
const WAIT: u32 = 8;
const MAX_WAIT: u32 = 64;
/// Epochs remembered.
const HISTORY: usize = 7;
/// Epochs of a trial where epochs differ much from each other.
const NOISY_TRIAL: u32 = 3;
/// The end of time.
const NEVER: Nanos = Nanos(u64::MAX);
/// How often the source may idle during a trial.
const PATIENCE: u32 = 4 * EPOCH_COMPLETIONS;

/// What commands may be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunerLimits {
    /// Largest command, bytes.
    pub command_bytes_max: u32,
    /// Most commands in flight.
    pub depth_max: u16,
    /// What the size of a command must be a multiple of, bytes; a power of two.
    pub alignment: u32,
}

/// A point the tuner may be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Bytes of a command.
    pub command_bytes: u32,
    /// Commands in flight.
    pub depth: u16,
}

impl Setting {
    fn in_flight_bytes(self) -> u64 {
        u64::from(self.command_bytes) * u64::from(self.depth)
    }
}

/// The neighbours of a point: bytes in flight doubled and halved with the size of a command
/// kept, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Deeper,
    Smaller,
    Larger,
    Shallower,
}

const STEPS: [Step; 4] = [Step::Deeper, Step::Smaller, Step::Larger, Step::Shallower];

/// A neighbour being tried.
#[derive(Clone, Copy, Debug)]
struct Trial {
    setting: Setting,
    /// Epochs done, and the sum of their rates.
    epochs: u32,
    rates: u64,
    /// Whether the first part of the epoch has been looked at.
    glanced: bool,
    /// How often the source may still idle.
    patience: u32,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Tuner {
    limits: TunerLimits,
    /// The point kept.
    at: Setting,
    trial: Option<Trial>,
    /// Rates of the last epochs at the point, a ring.
    history: [u64; HISTORY],
    epochs: usize,
    /// Epochs until the next trial, and how many it will be after a failed one.
    wait: u32,
    next_wait: u32,
    /// The step to try next, into [`STEPS`].
    step: usize,
    /// The epoch so far.
    bytes: u64,
    /// When it began, later by all time that does not count.
    start: Nanos,
    /// When it is to be looked at: after so many bytes, or then.
    until_bytes: u64,
    until: Nanos,
    /// The last completion.
    clock: Nanos,
    /// The last completion that did not count: those reported with it do not either. The end
    /// of time while commands of another setting come back.
    uncounted: Nanos,
    /// Completions left of commands from before a change.
    settling: u32,
}

impl Tuner {
    /// Starts at a hint, which is kept within the limits.
    pub fn new(limits: TunerLimits, command_bytes: u32, depth: u16) -> Tuner {
        let aligned = command_bytes & !(limits.alignment - 1);
        let mut tuner = Tuner {
            limits,
            at: Setting {
                command_bytes: aligned.clamp(limits.alignment, limits.command_bytes_max),
                depth: depth.max(MIN_DEPTH).min(limits.depth_max),
            },
            trial: None,
            history: [0; HISTORY],
            epochs: 0,
            wait: FIRST_WAIT,
            next_wait: WAIT,
            step: 0,
            bytes: 0,
            start: Nanos(0),
            until_bytes: 0,
            until: NEVER,
            clock: Nanos(0),
            uncounted: NEVER,
            settling: 1,
        };
        tuner.expect_all();
        tuner
    }

    /// What is to be used now.
    pub fn setting(&self) -> Setting {
        self.trial.map_or(self.at, |trial| trial.setting)
    }

    /// Takes up again where it stood when other commands took its place, of which so many are
    /// still in flight. A trial under way is left, and begun again after the next epoch:
    /// nothing was learned from it.
    pub fn resume(&mut self, in_flight: u16) {
        self.trial = None;
        self.settling = u32::from(in_flight).max(1);
        self.uncounted = NEVER;
        self.begin_epoch();
        self.expect_all();
    }

    /// A command came back whole. `saturated`: the source had as much to do as the depth
    /// allows ever since the completion before; otherwise the time tells nothing of the
    /// device, and does not count, nor do the commands that were in flight then. Whether
    /// the setting is another from now on.
    #[inline]
    pub fn on_completed(&mut self, bytes: u32, saturated: bool, now: Nanos) -> bool {
        if !saturated {
            return self.starved(now);
        }
        if now <= self.uncounted {
            self.skip(now);
            return false;
        }
        self.clock = now;
        self.bytes += u64::from(bytes);
        if self.bytes < self.until_bytes && now < self.until {
            return false;
        }
        self.look()
    }

    /// The source had too little to do for the time since the completion before to tell
    /// anything.
    #[cold]
    fn starved(&mut self, now: Nanos) -> bool {
        self.settling = self.settling.max(u32::from(self.setting().depth));
        self.skip(now);
        let Some(trial) = &mut self.trial else {
            return false;
        };
        trial.patience = trial.patience.saturating_sub(1);
        let given_up = trial.patience == 0;
        if given_up {
            self.go_back();
        }
        given_up
    }

    /// A completion that does not count, nor does the time before it.
    #[cold]
    fn skip(&mut self, now: Nanos) {
        self.settling = self.settling.saturating_sub(1);
        self.uncounted = if self.settling > 0 { NEVER } else { now };
        let gap = now.0.saturating_sub(self.clock.0);
        self.start.0 += gap;
        self.until.0 = self.until.0.saturating_add(gap);
        self.clock = now;
    }

    /// The epoch is over, or its first part is. Whether the setting changes.
    #[cold]
    fn look(&mut self) -> bool {
        // Bytes per millisecond.
        let elapsed_ns = self.clock.0.saturating_sub(self.start.0);
        let rate = self.bytes * 1_000_000 / elapsed_ns.max(1);
        let whole = self.bytes >= self.until_bytes;
        let Some(trial) = &mut self.trial else {
            self.history[self.epochs % HISTORY] = rate;
            self.epochs += 1;
            self.begin_epoch();
            self.wait = self.wait.saturating_sub(1);
            return self.wait == 0 && self.try_next();
        };
        if !whole {
            self.go_back();
            return true;
        }
        if !trial.glanced {
            trial.glanced = true;
            self.expect(EPOCH_BYTES, EPOCH_COMPLETIONS, 100);
            return false;
        }
        trial.epochs += 1;
        trial.rates += rate;
        trial.glanced = false;
        let Trial {
            setting,
            epochs,
            rates,
            ..
        } = *trial;
        let mean = rates / u64::from(epochs);
        let (base, spread) = self.base();
        if mean * 100 <= base * 105 {
            self.go_back();
            return true;
        }
        let noisy = spread * 10 > base;
        self.begin_epoch();
        if noisy && epochs < NOISY_TRIAL {
            self.begin_trial_epoch();
            return false;
        }
        // It pays: the point moves there, and the same step is the next to try.
        self.at = setting;
        self.trial = None;
        self.history[0] = mean;
        self.epochs = 1;
        self.wait = FIRST_WAIT;
        self.next_wait = WAIT;
        self.expect_all();
        false
    }

    /// The median of the last epochs at the point, and how far they lie apart.
    fn base(&self) -> (u64, u64) {
        let known = self.epochs.min(HISTORY);
        let mut rates = self.history;
        let rates = &mut rates[..known];
        rates.sort_unstable();
        match (rates.first(), rates.last()) {
            (Some(least), Some(most)) => (rates[known / 2], most - least),
            _ => (0, 0),
        }
    }

    /// Goes to the next neighbour there is; whether there is one.
    fn try_next(&mut self) -> bool {
        let found = (0..STEPS.len()).find_map(|turn| {
            let step = (self.step + turn) % STEPS.len();
            Some((step, self.neighbour(STEPS[step])?))
        });
        let Some((step, setting)) = found else {
            self.wait = MAX_WAIT;
            return false;
        };
        self.step = step;
        self.trial = Some(Trial {
            setting,
            epochs: 0,
            rates: 0,
            glanced: false,
            patience: PATIENCE,
        });
        self.settling = self.at.depth.into();
        self.uncounted = NEVER;
        self.begin_trial_epoch();
        true
    }

    /// The point one step away, if it may be used.
    fn neighbour(&self, step: Step) -> Option<Setting> {
        let Setting {
            command_bytes,
            depth,
        } = self.at;
        let (least, most) = COMMAND_BYTES;
        let deepest = IN_FLIGHT_BYTES / u64::from(command_bytes);
        let deepest = u16::try_from(deepest).unwrap_or(u16::MAX);
        let setting = match step {
            Step::Deeper => Setting {
                command_bytes,
                depth: depth.checked_mul(2)?.min(deepest).max(depth),
            },
            Step::Shallower => Setting {
                command_bytes,
                depth: depth / 2,
            },
            Step::Smaller => Setting {
                command_bytes: (command_bytes.next_power_of_two() / 2).max(least),
                depth: depth.checked_mul(2)?,
            },
            Step::Larger => Setting {
                command_bytes: (command_bytes + 1).next_power_of_two().max(least),
                depth: (depth / 2).max(MIN_DEPTH),
            },
        };
        let resized = setting.command_bytes != command_bytes;
        let sized = match step {
            Step::Deeper => setting.depth > depth,
            Step::Shallower => true,
            Step::Smaller => setting.command_bytes < command_bytes,
            Step::Larger => setting.command_bytes <= most,
        };
        let fits = setting.command_bytes <= self.limits.command_bytes_max
            && (!resized || setting.command_bytes.is_multiple_of(self.limits.alignment))
            && (MIN_DEPTH..=self.limits.depth_max).contains(&setting.depth);
        let grows = setting.in_flight_bytes() > self.at.in_flight_bytes();
        let bounded = !grows || setting.in_flight_bytes() <= IN_FLIGHT_BYTES;
        (sized && fits && bounded).then_some(setting)
    }

    /// Gives a trial up, and waits twice as long as the last time before the next.
    #[cold]
    fn go_back(&mut self) {
        if let Some(trial) = self.trial.take() {
            self.settling = trial.setting.depth.into();
            self.uncounted = NEVER;
        }
        self.wait = self.next_wait;
        self.next_wait = (self.next_wait * 2).min(MAX_WAIT);
        self.step = (self.step + 1) % STEPS.len();
        self.begin_epoch();
        self.expect_all();
    }

    fn begin_epoch(&mut self) {
        self.bytes = 0;
        self.start = self.clock;
    }

    /// A whole epoch, however long it takes.
    fn expect_all(&mut self) {
        self.until_bytes = self.at_least(EPOCH_BYTES, EPOCH_COMPLETIONS);
        self.until = NEVER;
    }

    /// An epoch of a trial: looked at early, and given up at once when it is far worse.
    fn begin_trial_epoch(&mut self) {
        self.begin_epoch();
        self.expect(GLANCE_BYTES, GLANCE_COMPLETIONS, 75);
    }

    /// Looks at the epoch when it has so many bytes and completions, or when they take longer
    /// than at `percent` of the point's own rate. What is in flight may come all at once.
    fn expect(&mut self, bytes: u64, completions: u32, percent: u64) {
        let bytes = self.at_least(bytes, completions);
        let bytes_due = bytes + self.setting().in_flight_bytes();
        let (base, _spread) = self.base();
        let due_ns = bytes_due.saturating_mul(100_000_000) / base.saturating_mul(percent).max(1);
        self.until_bytes = bytes;
        self.until = Nanos(self.start.0.saturating_add(due_ns));
    }

    /// So many bytes, and no less than so many completions have.
    fn at_least(&self, bytes: u64, completions: u32) -> u64 {
        bytes.max(u64::from(completions) * u64::from(self.setting().command_bytes))
    }
}

#[cfg(test)]
mod tests;
