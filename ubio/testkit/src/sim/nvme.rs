//! The second simulation: the machine over its NVMe source, queues of our own and an emulated
//! controller, all real, stepped by one seed. Fake are the copy engine, the callers and what the
//! namespace holds; memory is real, and every write of the controller is held against what is in
//! flight.
//!
//! # Legal faults
//!
//! - **Commands** are executed late and in any order, and told of late. They fail with every sort
//!   of status, also after a part of their data has moved. They may ignore their abort.
//! - **Completions** get lost, come twice, and name another queue, an earlier use of their
//!   identifier, or none that there is; never one that is in flight.
//! - **The controller** reports itself dead, stops without a word, takes its time to come back or
//!   never does, fails commands of its own setup, and is removed.
//! - **The driver's owner** resets the controller at any moment, and may go while commands are in
//!   flight.
//! - **Callers** cancel, keep lent windows, consume late and turn every knob; commands may be
//!   overdue for them. Copies fail.
//! - **Objects** may end before what a plan expects of them.
//!
//! # What is asserted
//!
//! | rule | how |
//! |---|---|
//! | I1 | windows handed out, and visible items when told and in the end, hold the namespace's bytes |
//! | I2 | each write of data is into the range of a command in flight; no window is leased, flushed, lent or scrubbed while there is one; no address is used that is not mapped |
//! | I3 | commands, items and streams are told once; a run ends; so it is after a removal |
//! | I4 | a window of a stream that ended early is zeroed before anybody else has it |
//! | I6 | retries as the statuses say; overdue commands, aborts, resets and strays as injected |

mod books;
mod driver;
mod faults;
#[cfg(feature = "planted-bugs")]
mod plant;
mod scenario;
mod tally;
#[cfg(test)]
mod tests;
mod watched;
mod words;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Finding, message};

#[cfg(feature = "planted-bugs")]
pub use plant::Plant;
pub use tally::Tally;

/// How runs are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Tell every event on stderr.
    pub verbose: bool,
    /// A bug somebody is to have.
    #[cfg(feature = "planted-bugs")]
    pub plant: Option<Plant>,
}

impl Options {
    /// Tells every event.
    #[must_use]
    pub fn verbose(mut self, verbose: bool) -> Options {
        self.verbose = verbose;
        self
    }

    /// Whether the controller writes after the end of commands.
    fn violates(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.plant == Some(Plant::WriteAfterEnd);
        #[cfg(not(feature = "planted-bugs"))]
        false
    }
}

/// Runs one seed to its end. The same seed is the same run, whatever the options (but for a
/// planted bug).
pub fn run_seed(seed: u64, options: &Options) -> Result<Tally, Finding> {
    let run = || {
        #[cfg(feature = "planted-bugs")]
        let _planted = plant::Planted::new(options.plant);
        let mut world = world::World::new(seed, options);
        #[cfg(feature = "planted-bugs")]
        if let Some(Plant::Core(bug)) = options.plant {
            world.plant(bug);
        }
        world.run();
        world.tally
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Finding {
        seed,
        message: message(panic.as_ref()),
    })
}
