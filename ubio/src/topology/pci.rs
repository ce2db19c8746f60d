//! PCI functions as sysfs shows them: where they hang, who drives them, what their memory is.
//! Reads files below a root that may be a captured tree; knows no udev, writes nothing, and
//! draws no conclusions ([`p2p`](super::p2p) does).
//!
//! Files: Linux `Documentation/ABI/testing/sysfs-bus-pci` and `sysfs-kernel-iommu_groups`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::address::{PciAddress, hex};
use super::config::{Acs, Config, PortType};
use crate::error::{Error, ErrorKind, Result};

/// A base address register that is implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// It is I/O ports, not memory.
    pub is_io: bool,
    /// It takes two registers.
    pub is_64_bit: bool,
    /// Reads have no side effects, so it may be mapped write-combining.
    pub is_prefetchable: bool,
}

/// Peer-to-peer memory that a driver gave to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pmem {
    /// Bytes of all of it.
    pub size_bytes: u64,
    /// Bytes that nobody has.
    pub available_bytes: u64,
    /// Other drivers may take it.
    pub is_published: bool,
}

/// A link as negotiated, or at its best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Millions of transfers a second: 16,000 is Gen4.
    pub speed_mts: u32,
    /// Lanes.
    pub width: u8,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenth) = (self.speed_mts / 1000, self.speed_mts % 1000 / 100);
        write!(f, "x{} {whole}.{tenth} GT/s", self.width)
    }
}

/// How an IOMMU group's DMA is treated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IommuDomain {
    /// Translated, unmapped at once.
    Dma,
    /// Translated, unmapped in batches.
    DmaFq,
    /// Addresses pass as they are.
    Identity,
    /// Nothing passes.
    Blocked,
    /// Another type, by the kernel's word.
    Other(String),
    /// The kernel does not say.
    Unknown,
}

impl IommuDomain {
    /// Whether addresses are translated; `None` where that is unknown.
    pub fn translates(&self) -> Option<bool> {
        match self {
            Self::Identity => Some(false),
            Self::Unknown => None,
            Self::Dma | Self::DmaFq | Self::Blocked | Self::Other(_) => Some(true),
        }
    }

    /// The kernel's word for it.
    pub fn name(&self) -> &str {
        match self {
            Self::Dma => "DMA",
            Self::DmaFq => "DMA-FQ",
            Self::Identity => "identity",
            Self::Blocked => "blocked",
            Self::Other(word) => word,
            Self::Unknown => "of unknown type",
        }
    }
}

/// The functions that the IOMMU cannot tell from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuGroup {
    /// The kernel's number for it.
    pub number: u32,
    /// How its DMA is treated by default; with VFIO the user's own mappings come on top.
    pub domain: IommuDomain,
    /// All of its functions, this one among them.
    pub members: Vec<PciAddress>,
}

/// A function as a step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Which.
    pub address: PciAddress,
    /// What it is.
    pub port: PortType,
    /// Whether it sends peer traffic up.
    pub acs: Acs,
}

/// The root of a path: one host bridge, by the kernel's name for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBridge {
    /// `pci0000:00`.
    pub name: String,
    /// Vendor and device of the function 00.0 on its bus, by which the kernel knows it.
    pub id: Option<(u16, u16)>,
    /// The processor is of a kind whose host bridges all forward between peers; `None` where
    /// that is unknown.
    pub cpu_forwards: Option<bool>,
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciFunction {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class, subclass and programming interface, 8 bits each.
    pub class: u32,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The memory node it is near to.
    pub numa_node: Option<u32>,
    /// The root of its path.
    pub host_bridge: HostBridge,
    /// The bridges on the way, from the root complex on.
    pub bridges: Vec<Port>,
    /// Itself, as the end of its path.
    pub own: Port,
    /// Its group, where an IOMMU has it.
    pub iommu: Option<IommuGroup>,
    /// Its BARs by number; `None` for those that are not implemented.
    pub bars: [Option<Bar>; 6],
    /// Whether it answers to its memory BARs; `None` where that is unknown.
    pub memory_decoding: Option<bool>,
    /// Its peer-to-peer memory, where a driver gave any.
    pub p2pmem: Option<P2pmem>,
    /// Its link as negotiated.
    pub link: Option<Link>,
    /// Its link at its best.
    pub max_link: Option<Link>,
}

impl PciFunction {
    /// Its address.
    pub fn address(&self) -> PciAddress {
        self.own.address
    }

    /// From itself up to the root.
    pub fn upwards(&self) -> impl Iterator<Item = &Port> {
        std::iter::once(&self.own).chain(self.bridges.iter().rev())
    }

    /// Whether its link could be faster or wider.
    pub fn is_link_degraded(&self) -> bool {
        match (self.link, self.max_link) {
            (Some(now), Some(best)) => now.width < best.width || now.speed_mts < best.speed_mts,
            _ => false,
        }
    }
}

impl fmt::Display for PciFunction {
    /// One line: what it is, its link, its path, its IOMMU group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:04x}:{:04x}",
            self.address(),
            self.vendor,
            self.device
        )?;
        let driver = self.driver.as_deref().unwrap_or("none");
        write!(f, ", driver {driver}")?;
        if let Some(node) = self.numa_node {
            write!(f, ", node {node}")?;
        }
        if let Some(link) = self.link {
            write!(f, ", link {link}")?;
            if let Some(best) = self.max_link.filter(|_| self.is_link_degraded()) {
                write!(f, " (could be {best})")?;
            }
        }
        write!(f, ", path {}", self.host_bridge.name)?;
        for bridge in &self.bridges {
            write!(f, " > {} {}", bridge.port.name(), bridge.address)?;
        }
        match &self.iommu {
            Some(group) => write!(f, ", IOMMU group {} {}", group.number, group.domain.name()),
            None => f.write_str(", no IOMMU"),
        }
    }
}

/// Where topology is read from: `/sys`, or a captured tree of the same shape.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(super) sys: PathBuf,
    cpu_forwards: Option<bool>,
}

impl Default for Topology {
    fn default() -> Self {
        Self::system()
    }
}

impl Topology {
    /// This machine.
    pub fn system() -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").ok();
        Self {
            sys: PathBuf::from("/sys"),
            cpu_forwards: cpus.map(|text| forwards(&text)),
        }
    }

    /// A captured tree; its processor is unknown.
    pub fn at(sys: impl Into<PathBuf>) -> Self {
        Self {
            sys: sys.into(),
            cpu_forwards: None,
        }
    }

    /// With a processor whose host bridges do or do not all forward between peers.
    #[must_use]
    pub fn with_cpu_forwards(mut self, forwards: bool) -> Self {
        self.cpu_forwards = Some(forwards);
        self
    }

    /// The folder of a function, by its entry on the bus.
    pub fn folder(&self, address: PciAddress) -> PathBuf {
        self.sys.join(format!("bus/pci/devices/{address}"))
    }

    /// Reads a function.
    ///
    /// # Errors
    /// InvalidInput: there is none at this address. Io: sysfs is not what it should be.
    pub fn function(&self, address: PciAddress) -> Result<PciFunction> {
        let entry = self.folder(address);
        let folder = entry.canonicalize().map_err(|cause| {
            let kind = match cause.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("no PCI function has the address {address}"))
                .at(&entry)
                .because(cause)
                .remedy("lspci -D lists those there are; in a container sysfs may show fewer")
        })?;
        let (host_bridge, bridges) = self.path(&folder, address)?;
        let odd = |name: &str| {
            let what = format!("the file {name} of a PCI function is missing or odd");
            Error::new(ErrorKind::Io, what).at(&folder)
        };
        let number = |name| identifier(&folder, name).ok_or_else(|| odd(name));
        let short = |name| u16::try_from(number(name)?).map_err(|_too_large| odd(name));
        let config = config_of(&folder);
        let config = Config(&config);
        Ok(PciFunction {
            vendor: short("vendor")?,
            device: short("device")?,
            class: number("class")?,
            driver: link_name(&folder.join("driver")),
            numa_node: read(&folder, "numa_node").and_then(|text| text.parse().ok()),
            host_bridge,
            bridges,
            own: port(address, config),
            iommu: iommu_group(&folder),
            bars: bars(&read(&folder, "resource").unwrap_or_default()),
            memory_decoding: memory_decoding(&folder, config),
            p2pmem: p2pmem(&folder.join("p2pmem")),
            link: link(&folder, "current"),
            max_link: link(&folder, "max"),
        })
    }

    /// The host bridge and the bridges on the way to `address`, whose real folder this is.
    fn path(&self, folder: &Path, address: PciAddress) -> Result<(HostBridge, Vec<Port>)> {
        let odd = || {
            let what = "the folder of a PCI function does not lie where its address says";
            Error::new(ErrorKind::Io, what).at(folder)
        };
        let mut root = None;
        let mut bridges = Vec::new();
        let mut at = PathBuf::new();
        for part in folder.components() {
            at.push(part);
            let name = part.as_os_str().to_string_lossy();
            if let Ok(address) = name.parse::<PciAddress>() {
                bridges.push(port(address, Config(&config_of(&at))));
            } else if let Some(bus) = name.strip_prefix("pci").filter(|bus| bus.contains(':')) {
                // A host bridge below another one begins anew (Intel VMD, Hyper-V): peer
                // traffic has no way past it.
                bridges.clear();
                root = Some((at.clone(), name.to_string(), format!("{bus}:00.0")));
            }
        }
        let (root, name, first) = root.ok_or_else(odd)?;
        let end = bridges.pop().ok_or_else(odd)?;
        if end.address != address {
            return Err(odd());
        }
        let id = |file| u16::try_from(identifier(&root.join(&first), file)?).ok();
        let host_bridge = HostBridge {
            name,
            id: id("vendor").zip(id("device")),
            cpu_forwards: self.cpu_forwards,
        };
        Ok((host_bridge, bridges))
    }
}

/// Whether all host bridges of this processor forward between peers: AMD's from family 17h on
/// (`drivers/pci/p2pdma.c`, `cpu_supports_p2pdma`).
fn forwards(cpuinfo: &str) -> bool {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        })
    };
    let family = value("cpu family").and_then(|family| family.parse::<u32>().ok());
    value("vendor_id") == Some("AuthenticAMD") && family.is_some_and(|family| family >= 0x17)
}

/// A small file without the newline at its end.
pub(super) fn read(folder: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// A file such as `vendor`: `0x8086`.
fn identifier(folder: &Path, name: &str) -> Option<u32> {
    hex(read(folder, name)?.strip_prefix("0x")?)
}

/// The last part of where a link leads.
fn link_name(link: &Path) -> Option<String> {
    let target = std::fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

fn config_of(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("config")).unwrap_or_default()
}

fn port(address: PciAddress, config: Config<'_>) -> Port {
    Port {
        address,
        port: config.port_type(),
        acs: config.acs(),
    }
}

/// The command register says it, but not for a virtual function, where that bit is wired to
/// zero (SR-IOV 1.1 §3.4.1.3) and the kernel's count of who enabled it has to do.
fn memory_decoding(folder: &Path, config: Config<'_>) -> Option<bool> {
    let register = config.memory_decoding();
    if register.is_some() && !folder.join("physfn").exists() {
        return register;
    }
    let count: u32 = read(folder, "enable")?.parse().ok()?;
    Some(count > 0)
}

fn iommu_group(folder: &Path) -> Option<IommuGroup> {
    let number = link_name(&folder.join("iommu_group"))?.parse().ok()?;
    let group = folder.join("iommu_group");
    let domain = match read(&group, "type").as_deref() {
        None | Some("") => IommuDomain::Unknown,
        Some("DMA") => IommuDomain::Dma,
        Some("DMA-FQ") => IommuDomain::DmaFq,
        Some("identity") => IommuDomain::Identity,
        Some("blocked") => IommuDomain::Blocked,
        Some(other) => IommuDomain::Other(other.to_owned()),
    };
    let mut members: Vec<PciAddress> = names(&group.join("devices"))
        .filter_map(|name| name.parse().ok())
        .collect();
    members.sort_unstable();
    Some(IommuGroup {
        number,
        domain,
        members,
    })
}

/// The names in a folder, in no order; none where it cannot be read.
pub(super) fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// `include/linux/ioport.h`.
const RESOURCE_IO: u64 = 0x100;
const RESOURCE_MEMORY: u64 = 0x200;
const RESOURCE_PREFETCH: u64 = 0x2000;
const RESOURCE_64_BIT: u64 = 0x10_0000;
const RESOURCE_UNSET: u64 = 0x2000_0000;

/// The first six lines of `resource`: start, end and flags of each BAR.
fn bars(text: &str) -> [Option<Bar>; 6] {
    let mut bars = [None; 6];
    for (bar, line) in bars.iter_mut().zip(text.lines()) {
        let mut numbers = line.split_whitespace().map(|word| {
            let digits = word.strip_prefix("0x")?;
            u64::from_str_radix(digits, 16).ok()
        });
        let (Some(Some(start)), Some(Some(end)), Some(Some(flags))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            continue;
        };
        let is_there = flags & (RESOURCE_IO | RESOURCE_MEMORY) != 0 && flags & RESOURCE_UNSET == 0;
        let len_bytes = end.checked_sub(start).and_then(|len| len.checked_add(1));
        *bar = len_bytes.filter(|_| is_there).map(|len_bytes| Bar {
            start,
            len_bytes,
            is_io: flags & RESOURCE_IO != 0,
            is_64_bit: flags & RESOURCE_64_BIT != 0,
            is_prefetchable: flags & RESOURCE_PREFETCH != 0,
        });
    }
    bars
}

fn p2pmem(folder: &Path) -> Option<P2pmem> {
    let number = |name: &str| read(folder, name).and_then(|text| text.parse().ok());
    Some(P2pmem {
        size_bytes: number("size")?,
        available_bytes: number("available")?,
        is_published: number("published") == Some(1),
    })
}

/// `16.0 GT/s PCIe` and `4`; a link that is down says `Unknown` and 0.
fn link(folder: &Path, which: &str) -> Option<Link> {
    let speed = read(folder, &format!("{which}_link_speed"))?;
    let (whole, tenth) = speed.split_once(' ')?.0.split_once('.')?;
    let tenth = (tenth.len() == 1).then(|| tenth.parse::<u32>().ok())??;
    let width: u8 = read(folder, &format!("{which}_link_width"))?.parse().ok()?;
    let speed_mts = whole.parse::<u32>().ok()?.checked_mul(1000)? + tenth * 100;
    (width > 0).then_some(Link { speed_mts, width })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_those_of_the_first_six_lines() {
        let text = "0x00000000fea00000 0x00000000fea000ff 0x0000000000040200\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x0000380000000000 0x0000380003ffffff 0x000000000014220c\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x000000000000c000 0x000000000000c01f 0x0000000000040101\n\
                    0x0000000000000000 0x0000000000000fff 0x0000000020040200\n\
                    0x00000000fea40000 0x00000000fea7ffff 0x0000000000046200\n";
        let bars = bars(text);
        let small = bars[0].expect("BAR 0");
        assert_eq!((small.len_bytes, small.is_64_bit), (256, false));
        assert!(!small.is_prefetchable && !small.is_io);
        let large = bars[2].expect("BAR 2");
        assert_eq!((large.start, large.len_bytes), (0x3800 << 32, 64 << 20));
        assert!(large.is_64_bit && large.is_prefetchable);
        assert!(bars[4].expect("BAR 4").is_io);
        assert_eq!((bars[1], bars[3], bars[5]), (None, None, None));
        let odd = super::bars("0x10 0x0 0x200\nnonsense\n0x0 0xffffffffffffffff 0x200");
        assert_eq!(odd, [None; 6]);
    }

    #[test]
    fn processors_that_forward_between_peers() {
        let cpu = |vendor: &str, family: u32| {
            forwards(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 1\n"
            ))
        };
        assert!(cpu("AuthenticAMD", 0x17) && cpu("AuthenticAMD", 0x1a));
        assert!(!cpu("AuthenticAMD", 0x15) && !cpu("GenuineIntel", 0x17));
        assert!(!forwards(""));
    }
}
