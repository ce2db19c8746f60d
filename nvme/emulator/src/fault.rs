//! What goes wrong, decided in one place: the controller asks [`Faults`] about each command and
//! follows the [`Plan`]. Knows no queues and no memory.

use std::ops::Range;
use std::time::Duration;

/// A command as the hook sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The submission queue; 0 is the admin queue.
    pub queue: u16,
    /// The command's identifier.
    pub command_id: u16,
    /// The opcode; numbers are apart for the admin queue.
    pub opcode: u8,
    /// The namespace named.
    pub namespace: u32,
    /// First block; 0 for commands without blocks.
    pub lba: u64,
    /// Blocks; 0 for commands without.
    pub blocks: u32,
    /// The controller's time.
    pub now: Duration,
}

/// How long something takes: both have to pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Steps of the controller.
    pub steps: u64,
    /// Time.
    pub time: Duration,
}

impl Delay {
    /// None.
    pub const NONE: Self = Self::steps(0);
    /// Until an abort, the deletion of the queue or a reset.
    pub const FOREVER: Self = Self::steps(u64::MAX);

    /// So many steps.
    #[must_use]
    pub const fn steps(steps: u64) -> Self {
        let time = Duration::ZERO;
        Self { steps, time }
    }

    /// So much time.
    #[must_use]
    pub const fn time(time: Duration) -> Self {
        Self { steps: 0, time }
    }
}

/// What is done with a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deed {
    /// What it asks for.
    #[default]
    Execute,
    /// Nothing; it fails with this status field (15 bits).
    Fail(u16),
    /// Only so many bytes of its data move, then it fails with this status field.
    Short {
        /// Bytes that move.
        len_bytes: u64,
        /// The status field.
        status: u16,
    },
}

/// What is told of a command's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// One completion.
    #[default]
    Once,
    /// None: it is lost, and an abort does not find the command any more.
    Never,
    /// The same one twice.
    Twice,
    /// One that names another command; the right one is lost.
    CommandId(u16),
    /// One that names another submission queue; the right one is lost.
    Queue(u16),
    /// One that names another command, and then the right one.
    Stray(u16),
}

/// What happens to the controller as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerFault {
    /// CSTS.CFS: nothing moves until a reset.
    Fatal,
    /// Nothing moves until a reset, and nothing says so.
    Stall,
    /// Removed: registers read as all ones, for good.
    Gone,
    /// The next time it is enabled, it takes so long to be ready.
    SlowReady(Duration),
}

/// What happens to a command. The default: it is executed at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Before any data moves.
    pub delay: Delay,
    /// Between the data and the completion.
    pub linger: Delay,
    /// What is done.
    pub deed: Deed,
    /// What is told.
    pub ending: Ending,
    /// An abort, and the deletion of its queue, find it too late to stop it: it moves data and
    /// ends when it would have.
    pub ignores_abort: bool,
    /// **A violation, for tests of checkers only**: the data move once more so long after the
    /// completion, even after a reset. No controller may do that.
    pub dma_after_completion: Option<Delay>,
    /// Happens when the command is fetched.
    pub controller: Option<ControllerFault>,
}

/// Decides what goes wrong.
pub trait Faults: Send {
    /// A command was fetched.
    fn command(&mut self, seen: &Seen) -> Plan;

    /// It ended with this status field; `planned` is what the plan said.
    fn ending(&mut self, _seen: &Seen, _status: u16, planned: Ending) -> Ending {
        planned
    }

    /// Whether [`pick`](Self::pick) is to be asked; else the oldest that is due goes first.
    fn reorders(&self) -> bool {
        false
    }

    /// Which of so many due commands goes next, 0 being the oldest.
    fn pick(&mut self, _due: usize) -> usize {
        0
    }
}

/// Nothing goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn command(&mut self, _seen: &Seen) -> Plan {
        Plan::default()
    }
}

/// Which commands a rule is about; `None` is any.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// The admin queue's commands, or those of others.
    pub admin: bool,
    /// The opcode.
    pub opcode: Option<u8>,
    /// The submission queue.
    pub queue: Option<u16>,
    /// The identifier.
    pub command_id: Option<u16>,
    /// The namespace.
    pub namespace: Option<u32>,
    /// Any block of these.
    pub lbas: Option<Range<u64>>,
}

impl Match {
    /// I/O commands of an opcode.
    #[must_use]
    pub fn io(opcode: u8) -> Self {
        Self {
            opcode: Some(opcode),
            ..Self::default()
        }
    }

    /// Admin commands of an opcode.
    #[must_use]
    pub fn admin(opcode: u8) -> Self {
        Self {
            admin: true,
            ..Self::io(opcode)
        }
    }

    /// Only those that touch one of these blocks.
    #[must_use]
    pub fn lbas(mut self, lbas: Range<u64>) -> Self {
        self.lbas = Some(lbas);
        self
    }

    fn is(&self, seen: &Seen) -> bool {
        fn any<T: PartialEq>(wanted: Option<&T>, value: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == value)
        }
        let end = seen.lba.saturating_add(u64::from(seen.blocks));
        self.admin == (seen.queue == 0)
            && any(self.opcode.as_ref(), &seen.opcode)
            && any(self.queue.as_ref(), &seen.queue)
            && any(self.command_id.as_ref(), &seen.command_id)
            && any(self.namespace.as_ref(), &seen.namespace)
            && (self.lbas.as_ref()).is_none_or(|lbas| seen.lba < lbas.end && lbas.start < end)
    }
}

#[derive(Clone, Debug)]
struct Rule {
    commands: Match,
    plan: Plan,
    /// Matches that pass it by first.
    skip: u32,
    /// Matches left; `None` for no end.
    left: Option<u32>,
}

/// A list of rules; the first that matches and is not used up decides.
#[derive(Clone, Debug, Default)]
pub struct Script {
    rules: Vec<Rule>,
    random: Option<Random>,
}

impl Script {
    /// No rules.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every such command.
    #[must_use]
    pub fn always(self, commands: Match, plan: Plan) -> Self {
        self.rule(commands, plan, 0, None)
    }

    /// The next `count` such commands.
    #[must_use]
    pub fn times(self, count: u32, commands: Match, plan: Plan) -> Self {
        self.rule(commands, plan, 0, Some(count))
    }

    /// One such command, after `skip` others.
    #[must_use]
    pub fn nth(self, skip: u32, commands: Match, plan: Plan) -> Self {
        self.rule(commands, plan, skip, Some(1))
    }

    /// Commands that are due go in an order drawn from `seed`.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.random = Some(Random(seed));
        self
    }

    fn rule(mut self, commands: Match, plan: Plan, skip: u32, left: Option<u32>) -> Self {
        self.rules.push(Rule {
            commands,
            plan,
            skip,
            left,
        });
        self
    }
}

impl Faults for Script {
    fn command(&mut self, seen: &Seen) -> Plan {
        for rule in &mut self.rules {
            if rule.left == Some(0) || !rule.commands.is(seen) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.left = rule.left.map(|left| left - 1);
            return rule.plan;
        }
        Plan::default()
    }

    fn reorders(&self) -> bool {
        self.random.is_some()
    }

    fn pick(&mut self, due: usize) -> usize {
        self.random.as_mut().map_or(0, |random| random.below(due))
    }
}

/// SplitMix64: the same numbers for the same seed, on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of 0 to `count` - 1; 0 where there is no other.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let drawn = self.next() % (count.max(1) as u64);
        usize::try_from(drawn).expect("below a usize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_skip_and_are_used_up() {
        let seen = |queue, opcode, lba| Seen {
            queue,
            command_id: 1,
            opcode,
            namespace: 1,
            lba,
            blocks: 8,
            now: Duration::ZERO,
        };
        let fail = |status| Plan {
            deed: Deed::Fail(status),
            ..Plan::default()
        };
        let mut script = Script::new()
            .nth(1, Match::io(2).lbas(10..11), fail(1))
            .times(1, Match::io(2), fail(2))
            .always(Match::admin(2), fail(3));
        let mut deed = |seen: Seen| script.command(&seen).deed;
        assert_eq!(deed(seen(1, 2, 3)), Deed::Fail(2)); // its block 10 is passed by once
        assert_eq!(deed(seen(1, 2, 11)), Deed::Execute);
        assert_eq!(deed(seen(1, 2, 2)), Deed::Execute); // ends with block 9
        assert_eq!(deed(seen(1, 1, 10)), Deed::Execute);
        assert_eq!(deed(seen(1, 2, 10)), Deed::Fail(1));
        assert_eq!(deed(seen(1, 2, 10)), Deed::Execute);
        assert_eq!(deed(seen(0, 2, 10)), Deed::Fail(3));
    }
}
