//! Whether a controller can write into the memory of another function, as far as topology
//! tells: pure, from what [`pci`](super::pci) read. It never says that it works, since only a
//! canary read can: what is possible here still has to prove itself.
//!
//! The kernel's own rules are in `drivers/pci/p2pdma.c`, `calc_map_type_and_dist`: with a
//! bridge in common and no ACS redirect on either side of it peers get each other's bus
//! addresses, past any IOMMU; else the traffic goes through the root complex, which the kernel
//! allows only for processors and host bridges that it knows to forward it.

use std::fmt;

use super::address::{MemoryPart, PciAddress};
use super::pci::{HostBridge, IommuDomain, PciFunction, Port};

/// Memory that a controller is to write to.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory<'a> {
    /// Whose.
    pub function: &'a PciFunction,
    /// Which of it.
    pub part: MemoryPart,
    /// Bytes that are needed.
    pub len_bytes: u64,
}

/// What topology says of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against it.
    Possible,
    /// It may work or not, and nothing that can be read here tells.
    Unknown(P2pReason),
    /// The kernel is expected to refuse it, or the hardware to lose it.
    Unlikely(P2pReason),
    /// It cannot work.
    Impossible(P2pReason),
}

impl Verdict {
    /// Whether a canary is worth a read.
    pub fn is_worth_a_try(&self) -> bool {
        !matches!(self, Self::Impossible(_))
    }

    /// What speaks against it.
    pub fn reason(&self) -> Option<&P2pReason> {
        match self {
            Self::Possible => None,
            Self::Unknown(reason) | Self::Unlikely(reason) | Self::Impossible(reason) => {
                Some(reason)
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, reason) = match self {
            Self::Possible => return f.write_str("possible"),
            Self::Unknown(reason) => ("unknown", reason),
            Self::Unlikely(reason) => ("unlikely", reason),
            Self::Impossible(reason) => ("impossible", reason),
        };
        write!(f, "{word}: {reason}; {}", reason.remedy())
    }
}

/// What speaks against a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum P2pReason {
    /// The memory is the controller's own. Passthrough commands of one page succeeded there and
    /// longer ones failed (QEMU 7.2, Linux 7.2), so a small canary would prove nothing.
    OwnMemory,
    /// The BAR is not implemented, or is I/O ports.
    NoSuchMemory(MemoryPart),
    /// The kernel has no peer-to-peer memory of this function.
    NoP2pmem,
    /// There is less of it than is needed.
    TooSmall {
        /// Bytes there are.
        has_bytes: u64,
        /// Bytes that are needed.
        needs_bytes: u64,
    },
    /// The function does not answer to its memory addresses.
    DecodingOff,
    /// The controller's driver takes memory with pages only, and a BAR has none.
    NoPages,
    /// The IOMMU lets nothing of the controller pass.
    IommuBlocks,
    /// The IOMMU translates the controller's addresses.
    IommuTranslates,
    /// Whether the IOMMU translates is not told.
    IommuUnknown,
    /// A port on the way sends peer traffic up to the root complex, which is not known to
    /// forward it.
    AcsRedirect(PciAddress),
    /// Whether a port on the way does so cannot be read.
    AcsUnknown(PciAddress),
    /// The two have no bridge in common below their host bridge, which is not known to
    /// forward between its ports.
    OtherRootPort,
    /// The two hang below different host bridges, which are not known to forward to each
    /// other.
    OtherHostBridge,
}

impl fmt::Display for P2pReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnMemory => f.write_str(
                "the memory is the controller's own, which it refuses in passthrough commands of \
                 more than a page (NVMe status 0x4012)",
            ),
            Self::NoSuchMemory(part) => write!(f, "the function has no memory in {part}"),
            Self::NoP2pmem => f.write_str("the kernel has no peer-to-peer memory of the function"),
            Self::TooSmall {
                has_bytes,
                needs_bytes,
            } => write!(f, "it has {has_bytes} bytes, and {needs_bytes} are needed"),
            Self::DecodingOff => f.write_str("the function does not decode memory addresses now"),
            Self::NoPages => {
                f.write_str("the kernel's NVMe driver takes memory with pages, and a BAR has none")
            }
            Self::IommuBlocks => f.write_str("the IOMMU blocks all DMA of the controller"),
            Self::IommuTranslates => f.write_str(
                "an IOMMU translates the controller's addresses: under a virtual one reads \
                 report success and nothing lands",
            ),
            Self::IommuUnknown => {
                f.write_str("whether the IOMMU translates the controller's addresses is not told")
            }
            Self::AcsRedirect(port) => write!(
                f,
                "ACS at {port} redirects peer traffic to the root complex, which is not on the \
                 kernel's list of those that forward it"
            ),
            Self::AcsUnknown(port) => {
                write!(
                    f,
                    "whether ACS at {port} redirects peer traffic cannot be read"
                )
            }
            Self::OtherRootPort => f.write_str(
                "the two hang below different root ports, and their host bridge is not on the \
                 kernel's list of those that forward between them",
            ),
            Self::OtherHostBridge => f.write_str(
                "the two hang below different host bridges, which are not on the kernel's list \
                 of those that forward to each other",
            ),
        }
    }
}

impl P2pReason {
    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::OwnMemory => "take the memory of another function behind the same switch",
            Self::NoSuchMemory(_) => "choose one of those that lspci -v shows as Memory",
            Self::NoP2pmem => {
                "it takes a kernel with CONFIG_PCI_P2PDMA and a driver that offers such memory, \
                 as nvme does for a controller memory buffer"
            }
            Self::TooSmall { .. } => {
                "use fewer or smaller windows; for a BAR, turn on Resizable BAR and above-4G \
                 decoding in the firmware's setup"
            }
            Self::DecodingOff => "bind a driver to it, or enable it: echo 1 to its enable file",
            Self::NoPages => {
                "use p2pmem or host windows, or give the controller to vfio-pci for our own queues"
            }
            Self::IommuBlocks => "set its group's type to identity or DMA, driver unbound",
            Self::IommuTranslates | Self::IommuUnknown => {
                "the canary read decides; where it fails, boot with iommu=pt, or set the \
                 controller's group to identity with its driver unbound"
            }
            Self::AcsRedirect(_) => {
                "boot with pci=disable_acs_redir= and that address, if all devices behind the \
                 switch are trusted"
            }
            Self::AcsUnknown(_) => "run as root to read it; the canary read decides",
            Self::OtherRootPort | Self::OtherHostBridge => {
                "move both behind one PCIe switch; the canary read decides"
            }
        }
    }
}

/// How traffic between two functions goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPath {
    /// Across this port, which both hang below.
    Bridge(PciAddress),
    /// Up to the root complex, since ACS at this port redirects it.
    Redirected(PciAddress),
    /// Across a port both hang below, if ACS at this one does not redirect it.
    Unreadable(PciAddress),
    /// Through the root complex: no port in common.
    Root,
}

/// How traffic between two functions goes. As in the kernel, the ports that count are the
/// memory's function and its bridges up to the common one, that included, and the
/// controller's below it.
pub fn peer_path(controller: &PciFunction, memory: &PciFunction) -> PeerPath {
    let same = |port: &&Port| {
        controller
            .upwards()
            .any(|other| other.address == port.address)
    };
    let Some(common) = memory.upwards().find(same) else {
        return PeerPath::Root;
    };
    let below = |port: &&Port| port.address != common.address;
    let ports = || {
        let theirs = memory.upwards().take_while(below);
        let ours = controller.upwards().take_while(below);
        theirs.chain(std::iter::once(common)).chain(ours)
    };
    if let Some(port) = ports().find(|port| port.acs.redirects() == Some(true)) {
        return PeerPath::Redirected(port.address);
    }
    match ports().find(|port| port.acs.redirects().is_none()) {
        Some(port) => PeerPath::Unreadable(port.address),
        None => PeerPath::Bridge(common.address),
    }
}

/// Host bridges of Intel's that the kernel lets forward between their ports, by the device
/// 00.0 on their bus, and whether also to another one of them (`pci_p2pdma_whitelist`, Linux
/// 6.12; later kernels may know more).
const FORWARDING: [(u16, bool); 10] = [
    (0x3c00, false),
    (0x3c01, false),
    (0x2f00, false),
    (0x2f01, false),
    (0x2030, true),
    (0x2031, true),
    (0x2032, true),
    (0x2033, true),
    (0x2020, true),
    (0x09a2, true),
];
const INTEL: u16 = 0x8086;

fn forwards(a: &HostBridge, b: &HostBridge) -> bool {
    if a.cpu_forwards == Some(true) || b.cpu_forwards == Some(true) {
        return true;
    }
    let same = a.name == b.name;
    let is_listed = |bridge: &HostBridge| {
        bridge.id.is_some_and(|(vendor, device)| {
            vendor == INTEL
                && FORWARDING
                    .iter()
                    .any(|&(listed, to_others)| listed == device && (same || to_others))
        })
    };
    is_listed(a) && is_listed(b)
}

/// Whether `controller` can write into `memory`.
pub fn p2p_verdict(controller: &PciFunction, memory: &PeerMemory<'_>) -> Verdict {
    if let Some(reason) = unusable(memory) {
        return Verdict::Impossible(reason);
    }
    // With our own queues the user's mapping is in force, whatever the group's default.
    let own_queues = controller.driver.as_deref() == Some("vfio-pci");
    let domain = controller.iommu.as_ref().map(|group| &group.domain);
    let itself = controller.address() == memory.function.address();
    if !own_queues {
        if itself {
            return Verdict::Impossible(P2pReason::OwnMemory);
        }
        if matches!(memory.part, MemoryPart::Bar(_)) {
            return Verdict::Impossible(P2pReason::NoPages);
        }
        if domain == Some(&IommuDomain::Blocked) {
            return Verdict::Impossible(P2pReason::IommuBlocks);
        }
    }
    let (ours, theirs) = (&controller.host_bridge, &memory.function.host_bridge);
    let path = peer_path(controller, memory.function);
    let by_root = !forwards(ours, theirs);
    let one_bridge = ours.name == theirs.name;
    match path {
        _ if itself => return Verdict::Unlikely(P2pReason::OwnMemory),
        PeerPath::Root if by_root && !one_bridge => {
            return Verdict::Unlikely(P2pReason::OtherHostBridge);
        }
        // Addresses that are translated anyway meet the root complex anyway: no rule of the
        // kernel's is asked there.
        _ if own_queues => return Verdict::Unknown(P2pReason::IommuTranslates),
        PeerPath::Root if by_root => return Verdict::Unlikely(P2pReason::OtherRootPort),
        PeerPath::Redirected(port) if by_root => {
            return Verdict::Unlikely(P2pReason::AcsRedirect(port));
        }
        PeerPath::Unreadable(port) if by_root => {
            return Verdict::Unknown(P2pReason::AcsUnknown(port));
        }
        PeerPath::Bridge(_)
        | PeerPath::Root
        | PeerPath::Redirected(_)
        | PeerPath::Unreadable(_) => {}
    }
    match domain.map(IommuDomain::translates) {
        None | Some(Some(false)) => Verdict::Possible,
        Some(Some(true)) => Verdict::Unknown(P2pReason::IommuTranslates),
        Some(None) => Verdict::Unknown(P2pReason::IommuUnknown),
    }
}

/// Why nobody can use the memory, whoever writes to it.
fn unusable(memory: &PeerMemory<'_>) -> Option<P2pReason> {
    let has_bytes = match memory.part {
        MemoryPart::P2pmem => match memory.function.p2pmem {
            Some(p2pmem) => p2pmem.available_bytes,
            None => return Some(P2pReason::NoP2pmem),
        },
        MemoryPart::Bar(number) => {
            let bar = memory.function.bars.get(usize::from(number));
            match bar.copied().flatten().filter(|bar| !bar.is_io) {
                Some(bar) => bar.len_bytes,
                None => return Some(P2pReason::NoSuchMemory(memory.part)),
            }
        }
    };
    if memory.function.memory_decoding == Some(false) {
        return Some(P2pReason::DecodingOff);
    }
    (has_bytes < memory.len_bytes).then_some(P2pReason::TooSmall {
        has_bytes,
        needs_bytes: memory.len_bytes,
    })
}
