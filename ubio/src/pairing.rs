//! Which drive can write into which memory: what topology says before anything is tried. The
//! canary decides. `ARCHITECTURE.md` has the table of source and memory kinds.

use crate::error::{Error, ErrorKind, Result};
use crate::source::nvme::NvmeAddress;
use crate::topology::{P2pReason, PciAddress, PeerMemory, Topology, Verdict, p2p_verdict};
use crate::vram::bar::BarMemory;

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
        // It is had already: what is left of it does not matter.
        len_bytes: 0,
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

/// A drive, or files, and the memory of a function, in one engine.
#[derive(Debug)]
pub(crate) struct Pair {
    /// `None` for files, which may lie anywhere.
    drive: Option<String>,
    memory: String,
    /// `None` where topology cannot be asked.
    verdict: Option<Verdict>,
}

impl Pair {
    /// What topology says of them.
    ///
    /// # Errors
    /// As [`verdict`].
    pub(crate) fn of(drive: Option<&NvmeAddress>, memory: &BarMemory) -> Result<Self> {
        let known = drive.map(|drive| verdict(&Topology::system(), drive, memory));
        Ok(Self {
            drive: drive.map(ToString::to_string),
            memory: memory.name().to_owned(),
            verdict: known.transpose()?.flatten(),
        })
    }

    /// What topology said.
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Refuses a pair that cannot work.
    ///
    /// # Errors
    /// Unsupported: it cannot.
    pub(crate) fn check(&self) -> Result<()> {
        let (Some(drive), Some(Verdict::Impossible(reason))) = (&self.drive, &self.verdict) else {
            return Ok(());
        };
        let what = format!("{drive} cannot write into {}: {reason}", self.memory);
        Err(Error::new(ErrorKind::Unsupported, what).remedy(reason.remedy()))
    }

    /// An error of the canary with the memory's name, and with what topology knew before.
    pub(crate) fn named(&self, error: &Error) -> Error {
        let reason = self.verdict.as_ref().and_then(Verdict::reason);
        let what = match reason {
            Some(reason) => format!("{}: {} ({reason})", self.memory, error.what()),
            None => format!("{}: {}", self.memory, error.what()),
        };
        let mut named = Error::new(error.kind(), what);
        if let Some(remedy) = reason.map(P2pReason::remedy).or(error.advice()) {
            named = named.remedy(remedy);
        }
        match std::error::Error::source(error) {
            Some(cause) => named.because(cause.to_string()),
            None => named,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tree::{ENDPOINT, Space, Tree};

    #[test]
    fn only_what_cannot_work_is_refused_before_it_is_tried() {
        let pair = |verdict| Pair {
            drive: Some("nvme:/dev/ng0n1".into()),
            memory: "bar:0000:00:06.0/2".into(),
            verdict,
        };
        let reason = P2pReason::NoPages;
        let error = pair(Some(Verdict::Impossible(reason.clone())))
            .check()
            .expect_err("no");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for word in [
            "nvme:/dev/ng0n1 cannot write into bar:0000:00:06.0/2",
            reason.remedy(),
        ] {
            assert!(error.to_string().contains(word), "{error}");
        }
        let others = [
            None,
            Some(Verdict::Possible),
            Some(Verdict::Unlikely(reason)),
        ];
        assert!(
            others
                .into_iter()
                .all(|verdict| pair(verdict).check().is_ok())
        );
    }

    #[test]
    fn a_refusal_names_the_memory_and_what_was_known_before() {
        let found = Error::new(ErrorKind::Unsupported, "it did not land").remedy("move it");
        let mut pair = Pair {
            drive: Some("nvme:/dev/ng0n1".into()),
            memory: "bar:0000:00:06.0/2".into(),
            verdict: None,
        };
        let said = pair.named(&found).to_string();
        assert_eq!(said, "bar:0000:00:06.0/2: it did not land; move it");
        let reason = P2pReason::IommuTranslates;
        pair.verdict = Some(Verdict::Unknown(reason.clone()));
        let named = pair.named(&found.because("errno"));
        assert_eq!(named.kind(), ErrorKind::Unsupported);
        let said = named.to_string();
        assert!(said.contains("did not land (an IOMMU translates"), "{said}");
        assert!(
            said.ends_with(&format!(": errno; {}", reason.remedy())),
            "{said}"
        );
    }

    #[test]
    fn memory_that_an_engine_has_need_not_be_free_any_more() {
        const OWNER: &str = "pci0000:00/0000:00:06.0";
        let tree = Tree::new();
        tree.function(OWNER, Space::of(ENDPOINT));
        tree.nvme(OWNER, 0, "owner");
        tree.write(&format!("{OWNER}/p2pmem/allocate"), vec![0; 1 << 20]);
        tree.function("pci0000:00/0000:00:07.0", Space::of(ENDPOINT));
        let location = "bar:0000:00:06.0/p2pmem".parse().expect("a name");
        let memory = BarMemory::open_in(&tree.topology(), &location, Some(1 << 20));
        let memory = memory.expect("p2pmem");
        tree.write(&format!("{OWNER}/p2pmem/available"), "0\n");
        let drive = NvmeAddress::Vfio {
            function: "0000:00:07.0".parse().expect("an address"),
            namespace: 1,
        };
        let found = verdict(&tree.topology(), &drive, &memory).expect("both are there");
        let found = found.expect("topology knows both");
        assert!(found.is_worth_a_try(), "{found}");
    }
}
