//! The transport suite of `ubio-testkit` as cases, for the suites that have a transport. Knows
//! none itself.

use std::sync::Arc;

use anyhow::Result;
use nvme::transport::Transport;
use ubio::sys::memory::Region;
use ubio_lab_spec::pattern::{self, Seed};
use ubio_testkit::transport::{CASES, TransportFixture};

use crate::case::Case;
use crate::lab::Lab;

/// Where blocks may be written: behind all that the suites read.
const SCRATCH: u64 = 40 << 20;

type Open = Box<dyn Fn() -> Box<dyn Transport>>;
type Memory = Box<dyn Fn(u64) -> Arc<Region>>;

/// A namespace full of its pattern, behind a transport.
pub(super) struct Fixture {
    pub(super) open: Open,
    /// Where it reads to; host memory if nobody says otherwise.
    pub(super) memory: Option<Memory>,
    pub(super) seed: Seed,
}

impl TransportFixture for Fixture {
    fn open(&self) -> Box<dyn Transport> {
        (self.open)()
    }

    fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).expect("64-bit")];
        pattern::fill(self.seed, offset, &mut bytes);
        bytes
    }

    fn scratch(&self) -> Option<u64> {
        Some(SCRATCH)
    }

    fn memory(&self, len_bytes: u64) -> Arc<Region> {
        match &self.memory {
            Some(memory) => memory(len_bytes),
            None => Arc::new(Region::anonymous(len_bytes, false).expect("memory")),
        }
    }

    fn registers(&self) -> bool {
        self.memory.is_none()
    }
}

/// All of its cases, each with a fixture of its own; `after` looks when one is over.
pub(super) fn cases(
    prefix: &str,
    fixture: fn(&mut Lab) -> Result<Fixture>,
    after: fn(&mut Lab) -> Result<()>,
) -> Vec<Case> {
    CASES
        .iter()
        .map(|(name, case)| {
            Case::new(format!("{prefix}/{name}"), move |lab| {
                case(&fixture(lab)?);
                after(lab)
            })
        })
        .collect()
}
