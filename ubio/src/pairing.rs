//! Which drive can write into which memory: what topology says before anything is tried, and
//! the canary that decides. `ARCHITECTURE.md` has the table of source and memory kinds.

use ubio_core::Landing;

use crate::canary::{Prober, Subject, prove};
use crate::driver::Driver;
use crate::error::{Error, ErrorKind, Result};
use crate::source::MemoryId;
use crate::source::nvme::NvmeAddress;
use crate::topology::{PciAddress, Topology};
use crate::topology::{PeerMemory, Verdict, p2p_verdict};
use crate::vram::bar::BarMemory;
use crate::window::WindowMemory;

/// What topology says of a drive and a function's memory; `None` where it cannot be asked: an
/// emulated side, or memory that somebody else mapped.
///
/// # Errors
/// The drive or the function cannot be looked at.
pub(crate) fn verdict(
    topology: &Topology,
    drive: &NvmeAddress,
    memory: &BarMemory,
) -> Result<Option<Verdict>> {
    let Some(location) = memory.location() else {
        return Ok(None);
    };
    let controllers: Vec<PciAddress> = match drive {
        NvmeAddress::Emulated { .. } => return Ok(None),
        NvmeAddress::Passthrough(node) => topology.functions_of_node(node)?,
        NvmeAddress::Vfio { function, .. } => vec![*function],
    };
    let peer = topology.function(location.address)?;
    let memory = PeerMemory {
        function: &peer,
        part: location.part,
        len_bytes: memory.region().len_bytes(),
    };
    // Of a drive with several ports any may be used: the worst counts.
    let mut worst = None;
    for controller in controllers {
        let verdict = p2p_verdict(&topology.function(controller)?, &memory);
        if worst
            .as_ref()
            .is_none_or(|worst| rank(&verdict) > rank(worst))
        {
            worst = Some(verdict);
        }
    }
    Ok(worst)
}

fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Possible => 0,
        Verdict::Unknown(_) => 1,
        Verdict::Unlikely(_) => 2,
        Verdict::Impossible(_) => 3,
    }
}

/// A drive and the memory of a function, in one engine.
#[derive(Debug)]
pub(crate) struct Pair {
    verdict: Verdict,
    /// Both names.
    what: String,
}

impl Pair {
    /// What topology says of them; `None` where it cannot be asked.
    ///
    /// # Errors
    /// As [`verdict`].
    pub(crate) fn of(drive: &NvmeAddress, memory: &BarMemory) -> Result<Option<Self>> {
        let verdict = verdict(&Topology::system(), drive, memory)?;
        let what = || format!("{drive} cannot write into {}", memory.name());
        Ok(verdict.map(|verdict| Self {
            verdict,
            what: what(),
        }))
    }

    /// Refuses a pair that cannot work.
    ///
    /// # Errors
    /// Unsupported: it cannot.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.verdict {
            Verdict::Impossible(reason) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{}: {reason}", self.what),
            )
            .remedy(reason.remedy())),
            _ => Ok(()),
        }
    }
}

impl Driver {
    /// Proves that the source reaches memory that is a device's, with the first read of a plan
    /// that lands there.
    ///
    /// # Errors
    /// It does not: the pair is refused and named.
    pub(crate) fn prove_pair(
        &mut self,
        subject: Subject,
        memory: (MemoryId, &WindowMemory),
    ) -> Result<()> {
        let mut prober = Prober {
            source: &mut *self.parts.source,
            others: &mut self.completions,
        };
        prove(&mut prober, subject, memory).map_err(|error| match &self.parts.pair {
            Some(pair) if error.kind() == ErrorKind::Unsupported => match pair.verdict.reason() {
                Some(reason) => {
                    let what = format!("{} ({reason})", error.what());
                    let named = Error::new(error.kind(), what).remedy(reason.remedy());
                    match std::error::Error::source(&error) {
                        Some(cause) => named.because(cause.to_string()),
                        None => named,
                    }
                }
                None => error,
            },
            _ => error,
        })
    }
}

/// Whether a fill of this landing goes through a window.
pub(crate) fn needs_window(landing: Landing) -> bool {
    matches!(landing, Landing::Window | Landing::Lent)
}
