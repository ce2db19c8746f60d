//! The simulator: drives [`ubio_core::Core`] with a fake source, a fake copy engine and fake
//! callers over real bytes, all decided by one seed, and holds every action against the rules.
//!
//! # Legal faults
//!
//! What the drivers may do to the machine, and all they do:
//!
//! - **The source** completes commands in any order and after any time, also long after their
//!   stream ended; it writes when it completes, wherever the window is by then. It may bring
//!   fewer bytes than asked for, none at all, or claim more than was asked for. It may fail a
//!   command in every way [`ubio_core::FillErrorKind`] names. What a command did not bring in
//!   its own range is undefined: after a short read or an error there may be garbage. It never
//!   writes outside the range of a command it holds.
//! - **Completions** may come twice, under tokens of an earlier use of a slot, and under tokens
//!   never given out. Those write nothing.
//! - **Objects** may be cut at any moment; what they hold never changes.
//! - **The copy engine** reads the window and writes the destination when it reports. A flush or
//!   a preparation may fail; a scrub may not.
//! - **Reports** on leases may come twice, late, of leases that never were, or in a state they do
//!   not fit.
//! - **Callers** cancel at any moment, give lent windows back at any moment, also after the end
//!   of their stream, say what they consumed late, twice, or beyond what they were given, and
//!   turn every knob at any moment. Every lent window comes back in the end.
//! - **Time** never steps back.
//!
//! # What is asserted
//!
//! | rule | how |
//! |---|---|
//! | I1 | visible items equal their object when told, and when their stream and the run end |
//! | I2 | no lease is given, flushed, lent or scrubbed while the source has a command into it |
//! | I3 | commands, leases, items and streams are told once, and end once, as the model says |
//! | I4 | a window that leaves holds its fill's bytes alone; one of a failed stream is zeroed |
//! | I6 | fallbacks, retries, short reads and strays are counted exactly |
//! | order | depth, command size, lookahead, flush, lend and round-robin order |
//! | progress | a run ends; the stall named is the one there is |

mod answers;
mod asked;
mod knobs;
mod model;
pub mod nvme;
mod rng;
mod scenario;
mod strays;
mod tally;
#[cfg(test)]
mod tests;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use tally::Tally;

/// How runs are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Tell every event on stderr, and check the machine's books after each.
    pub verbose: bool,
    /// A bug the machine is to have.
    #[cfg(feature = "planted-bugs")]
    pub plant: Option<ubio_core::PlantedBug>,
}

impl Options {
    /// Tells every event.
    #[must_use]
    pub fn verbose(mut self, verbose: bool) -> Options {
        self.verbose = verbose;
        self
    }
}

/// Counts of runs.
pub trait Sum: Default + std::fmt::Display {
    /// Adds the counts of another run; the order of runs does not matter.
    fn add(&mut self, other: &Self);
}

/// What was wrong with a run.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The run's seed.
    pub seed: u64,
    /// The assertion that did not hold.
    pub message: String,
}

/// Runs one seed to its end. The same seed is the same run, whatever the options (but for a
/// planted bug).
pub fn run_seed(seed: u64, options: &Options) -> Result<Tally, Finding> {
    let run = || {
        let mut world = world::World::new(seed, options);
        world.run();
        world.tally
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Finding {
        seed,
        message: message(panic.as_ref()),
    })
}

/// The text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
