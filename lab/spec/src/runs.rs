//! The table of runs: each is one boot of one machine, with one suite inside.
//!
//! To add a boot, add a line here; to add a suite, also a file in `lab/guest/src/suites/` and a
//! line in the table there. `lab/README.md` shows it.

use crate::machine::{Drive, Machine, Namespace, Place, Stored, Transfer};

/// One boot.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its name, in one word; cases are called `NAME/CASE`.
    pub name: &'static str,
    /// Which suite runs inside.
    pub suite: &'static str,
    /// For people.
    pub about: &'static str,
    /// On what.
    pub machine: Machine,
    /// Whether fio is to be in the guest (80 MiB more to boot).
    pub fio: bool,
    /// After so long without a word from the guest it hangs.
    pub silence_s: u64,
    /// After so long in all it hangs, whatever it says.
    pub limit_s: u64,
    /// The same for the whole matrix.
    pub full_limit_s: u64,
}

impl Run {
    fn new(name: &'static str, suite: &'static str, machine: Machine) -> Self {
        Self {
            name,
            suite,
            about: "",
            machine,
            fio: false,
            silence_s: 60,
            limit_s: 300,
            full_limit_s: 900,
        }
    }

    fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    fn with_fio(mut self) -> Self {
        self.fio = true;
        self
    }

    /// For a run whose whole matrix takes longer than others'.
    fn full_limit(mut self, limit_s: u64) -> Self {
        self.full_limit_s = limit_s;
        self
    }

    /// After so long in all it hangs; the flag asks for the whole matrix.
    #[must_use]
    pub fn limit_s(&self, full: bool) -> u64 {
        if full {
            self.full_limit_s
        } else {
            self.limit_s
        }
    }
}

/// All runs, in the order in which they are booted.
#[must_use]
pub fn runs() -> Vec<Run> {
    vec![
        Run::new(
            "boot",
            "boot",
            Machine::standard().with("vfio", Drive::throttled),
        )
        .about("the machine is as described: drives, pattern, p2pmem, BAR, host actions"),
        Run::new("boot-iommu", "boot", boot_iommu())
            .about("the same behind an IOMMU, with other block sizes, namespaces and faults"),
        Run::new("faults", "faults", faults())
            .about("drives that fail, stall, are reset or removed; over passthrough and VFIO"),
        Run::new("ubcp", "ubcp", ubcp())
            .about("the program ubcp: a model from a drive into a BAR and into memory"),
        Run::new("perf", "perf", perf())
            .with_fio()
            .full_limit(1800)
            .about("our transports against fio, round by round"),
        Run::new("perf-count", "perf", perf().counting())
            .with_fio()
            .about("instructions for each command, on a machine whose clock counts them"),
        Run::new("vfio", "vfio", vfio())
            .about("queues of our own behind the IOMMU, into host memory and the BAR"),
        Run::new("vfio-off", "vfio", Machine::standard()).about("VFIO without an IOMMU is refused"),
        Run::new("passthrough", "passthrough", passthrough())
            .about("commands through the kernel, into host memory and another controller's"),
        Run::new("canary", "canary", pairs().iommu())
            .about("drives and device memory behind the IOMMU: refused by name"),
        Run::new("canary-off", "canary", pairs())
            .about("the same pairs without it: those on one switch are taken"),
    ]
}

/// The run of that name.
#[must_use]
pub fn find(name: &str) -> Option<Run> {
    runs().into_iter().find(|run| run.name == name)
}

fn boot_iommu() -> Machine {
    let small = Namespace::new(16);
    let namespaces = [
        small.clone().blocks(4096),
        small.clone(),
        small.clone().metadata(8, 1),
    ];
    let faulty = small
        .fault(2048, Transfer::Read)
        .fault(4096, Transfer::Write);
    Machine::standard()
        .iommu()
        .with("peer", |drive| drive.namespaces(&namespaces))
        .with("outside", |drive| drive.namespaces(&[faulty]))
        .with("vfio", |drive| {
            let blocks = Namespace::new(64).blocks(4096);
            drive.namespaces(&[blocks]).mdts(0).throttled()
        })
}

/// Two drives that fail in the same ways, one for each transport, and one to be removed.
fn faults() -> Machine {
    let faulty = Namespace::new(64).fault(80_003, Transfer::Read);
    let namespaces = [faulty, Namespace::new(16).metadata(8, 1)];
    Machine::standard()
        .iommu()
        .with("peer", |drive| drive.namespaces(&namespaces).throttled())
        .with("vfio", |drive| drive.namespaces(&namespaces).throttled())
        .with("outside", Drive::throttled)
}

/// A model on two drives, one for each transport.
fn ubcp() -> Machine {
    let model = Namespace::new(64).model();
    Machine::standard()
        .iommu()
        .with("peer", |drive| {
            drive.namespaces(std::slice::from_ref(&model))
        })
        .with("vfio", |drive| {
            drive.namespaces(std::slice::from_ref(&model))
        })
}

/// Two drives of one kind. The kernel's own DMA passes the IOMMU by, which is best for fio.
fn perf() -> Machine {
    let drives = [("kernel", 4), ("vfio", 5)];
    Machine::standard()
        .iommu()
        .only(
            drives
                .map(|(name, slot)| Drive::new(name, Place::Slot(slot)))
                .into(),
        )
        .arguments(&["iommu=pt"])
}

/// A namespace of each block size.
fn both_block_sizes() -> [Namespace; 2] {
    [Namespace::new(64), Namespace::new(64).blocks(4096)]
}

/// `vfio` without MDTS, `outside` with as much as QEMU can map at once, `small` with 16 KiB;
/// `left` and `right` are functions of one device.
fn vfio() -> Machine {
    Machine::standard()
        .iommu()
        .bar(16)
        .with("vfio", |drive| {
            let drive = drive.mdts(0).throttled();
            drive.namespaces(&both_block_sizes())
        })
        .with("outside", |drive| drive.mdts(10))
        .also(Drive::new("small", Place::Port).mdts(2))
        .also(Drive::new("left", Place::Function(8, 0)))
        .also(Drive::new("right", Place::Function(8, 1)))
}

/// Pairs of drives and device memory, and drives with file systems: one below the switch, one
/// below a port of its own.
fn pairs() -> Machine {
    let with = |name| {
        let file = Stored {
            name,
            offset: 512,
            len_bytes: (3 << 20) + 777,
        };
        [Namespace::new(16).ext4(&[file])]
    };
    Machine::standard()
        .bar(16)
        .also(Drive::new("disk", Place::Switch).namespaces(&with("model.bin")))
        .also(Drive::new("far", Place::Port).namespaces(&with("other.bin")))
}

fn passthrough() -> Machine {
    pairs()
        .with("peer", |drive| {
            drive.mdts(0).namespaces(&both_block_sizes())
        })
        .arguments(&["module.nvme=poll_queues=1"])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_words_and_no_two_runs_share_one() {
        let mut seen = BTreeSet::new();
        for run in runs() {
            for word in [run.name, run.suite] {
                let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
                assert!(!word.is_empty() && word.chars().all(is_word), "{word}");
            }
            assert!(
                !run.about.is_empty(),
                "{} says nothing about itself",
                run.name
            );
            assert!(seen.insert(run.name), "two runs are called {}", run.name);
        }
    }

    #[test]
    fn kernel_arguments_fit_a_command_line() {
        for run in runs() {
            let length: usize = run
                .machine
                .kernel_arguments
                .iter()
                .map(|word| word.len() + 1)
                .sum();
            assert!(length < 1500, "{}", run.name);
        }
    }
}
