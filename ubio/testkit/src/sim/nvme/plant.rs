//! Bugs that the simulation has to find: of the driver, of the machine below the streams, and
//! the one thing that no controller may do.

use std::fmt;

use nvme::planted::{self, PlantedBug};

/// Who has which bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The driver.
    Driver(PlantedBug),
    /// The machine.
    Core(ubio_core::PlantedBug),
    /// The controller: data move once more after the end of a command.
    WriteAfterEnd,
}

impl Plant {
    /// All bugs.
    pub const ALL: [Plant; 13] = [
        Plant::Driver(PlantedBug::DropListEntry),
        Plant::Driver(PlantedBug::BlockTooMany),
        Plant::Driver(PlantedBug::EndWhenOverdue),
        Plant::Driver(PlantedBug::EndBeforeReset),
        Plant::Driver(PlantedBug::IgnoreGeneration),
        Plant::Core(ubio_core::PlantedBug::SkipScrub),
        Plant::Core(ubio_core::PlantedBug::ReleaseOnCancel),
        Plant::Core(ubio_core::PlantedBug::ReleaseOnOverdue),
        Plant::Core(ubio_core::PlantedBug::FlushEarly),
        Plant::Core(ubio_core::PlantedBug::LostRetry),
        Plant::Core(ubio_core::PlantedBug::FinishedWhileLent),
        Plant::Core(ubio_core::PlantedBug::VisibleAfterEnd),
        Plant::WriteAfterEnd,
    ];
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plant::Driver(bug) => write!(f, "{bug:?}"),
            Plant::Core(bug) => write!(f, "{bug:?}"),
            Plant::WriteAfterEnd => f.write_str("WriteAfterEnd"),
        }
    }
}

/// The calling thread's drivers have the bug for as long as this lives.
pub(super) struct Planted;

impl Planted {
    pub(super) fn new(plant: Option<Plant>) -> Planted {
        if let Some(Plant::Driver(bug)) = plant {
            planted::plant(Some(bug));
        }
        Planted
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        planted::plant(None);
    }
}
