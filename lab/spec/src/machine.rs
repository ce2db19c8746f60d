//! What a lab machine is made of: processors, drives, namespaces, one PCI BAR that the host sees.
//!
//! Names and sizes only. How QEMU is told lies in `xtask/src/lab/`, how a guest finds its
//! devices in `lab/guest/`; neither is known here.

use crate::pattern::Seed;

/// The PCI address of the device whose BAR stands in for VRAM.
pub const BAR_ADDRESS: &str = "0000:00:06.0";
/// Which of its BARs has the memory.
pub const BAR_INDEX: u32 = 2;
const MIB: u64 = 1 << 20;

/// A machine. Start from [`Machine::standard`] and change what the suite is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Whether there is a virtual IOMMU, and the kernel uses it.
    pub iommu: bool,
    /// Guest memory.
    pub memory_mib: u64,
    /// Guest processors.
    pub cores: u32,
    /// All NVMe controllers.
    pub drives: Vec<Drive>,
    /// Size of the BAR.
    pub bar_mib: u64,
    /// Whether the guest's clock counts instructions, a nanosecond each, instead of time: for
    /// one processor only.
    pub counts_instructions: bool,
    /// More words for the kernel's command line; `module.NAME=a=1,b=2` are parameters of a
    /// module that the guest's init loads.
    pub kernel_arguments: Vec<&'static str>,
}

/// An NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// What host and guest call it: a word in lower case.
    pub name: &'static str,
    /// Where it sits.
    pub place: Place,
    /// Its controller memory buffer, which the kernel publishes as p2pmem.
    pub cmb_mib: Option<u64>,
    /// The largest transfer as the spec's power of two of pages, 0 for none; QEMU's own is 7.
    pub mdts: Option<u8>,
    /// Whether the host can limit its transfers while they are in flight.
    pub throttled: bool,
    /// Namespaces 1, 2, … in order.
    pub namespaces: Vec<Namespace>,
}

/// Where a controller sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Below the one PCIe switch.
    Switch,
    /// Below a root port of its own.
    Port,
    /// On the root bus at a fixed slot: always the same PCI address, but never unplugged.
    Slot(u8),
    /// One of several functions of a slot, which share an IOMMU group. There is a function 0.
    Function(u8, u8),
}

/// A namespace, filled with the pattern of its [`Seed`] unless its content says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Size of its image on the host.
    pub size_mib: u64,
    /// Logical block size.
    pub block_bytes: u64,
    /// Metadata for each block, and the protection information type in it.
    pub metadata: Option<(u16, u8)>,
    /// What fails.
    pub faults: Vec<Fault>,
    /// What is on it.
    pub content: Content,
}

/// What is on a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The pattern of its seed, everywhere.
    Pattern,
    /// A model file from its first byte on, and zeros after it.
    Model,
    /// An ext4 file system with these files in its root folder.
    Ext4(Vec<Stored>),
}

/// A file: bytes of the pattern of its namespace's seed, so that files differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub name: &'static str,
    /// Where in the pattern its first byte is.
    pub offset: u64,
    /// Bytes.
    pub len_bytes: u64,
}

/// A block that cannot be transferred: the device reports an error, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In units of 512 bytes, whatever the block size.
    pub sector: u64,
    /// Which direction fails.
    pub transfer: Transfer,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// From the drive.
    Read,
    /// To the drive.
    Write,
}

impl Machine {
    /// Two processors and four drives: `cmb` (with 64 MiB of controller memory) and `peer` below
    /// one switch, `outside` below a port of its own, `vfio` at a fixed address.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            iommu: false,
            memory_mib: 1024,
            cores: 2,
            drives: vec![
                Drive::new("cmb", Place::Switch).cmb(64),
                Drive::new("peer", Place::Switch),
                Drive::new("outside", Place::Port),
                Drive::new("vfio", Place::Slot(5)),
            ],
            bar_mib: 64,
            counts_instructions: false,
            kernel_arguments: Vec::new(),
        }
    }

    /// The same machine with a virtual IOMMU.
    #[must_use]
    pub fn iommu(mut self) -> Self {
        self.iommu = true;
        self
    }

    /// The same machine with one of its drives changed.
    ///
    /// # Panics
    /// Where there is no such drive.
    #[must_use]
    pub fn with(mut self, name: &str, change: impl FnOnce(Drive) -> Drive) -> Self {
        let index = self.drives.iter().position(|drive| drive.name == name);
        let index = index.expect("the table names a drive that its machine has");
        let changed = change(self.drives[index].clone());
        self.drives[index] = changed;
        self
    }

    /// The same machine with one drive more.
    #[must_use]
    pub fn also(mut self, drive: Drive) -> Self {
        self.drives.push(drive);
        self
    }

    /// The same machine with these drives only.
    #[must_use]
    pub fn only(mut self, drives: Vec<Drive>) -> Self {
        self.drives = drives;
        self
    }

    /// The same machine with these words for the kernel, too.
    #[must_use]
    pub fn arguments(mut self, words: &[&'static str]) -> Self {
        self.kernel_arguments.extend(words);
        self
    }

    /// The same machine with one processor and a clock that counts its instructions.
    #[must_use]
    pub fn counting(mut self) -> Self {
        self.counts_instructions = true;
        self.cores = 1;
        self
    }

    /// The same machine with a BAR of another size: a power of two.
    #[must_use]
    pub fn bar(mut self, size_mib: u64) -> Self {
        self.bar_mib = size_mib;
        self
    }

    /// The drive of that name.
    #[must_use]
    pub fn drive(&self, name: &str) -> Option<&Drive> {
        self.drives.iter().find(|drive| drive.name == name)
    }

    /// The seed of a namespace's pattern, if there is such a namespace.
    #[must_use]
    pub fn seed(&self, drive: &str, namespace: u32) -> Option<Seed> {
        let index = self.drives.iter().position(|found| found.name == drive)?;
        let count = u32::try_from(self.drives[index].namespaces.len()).ok()?;
        let known = (1..=count).contains(&namespace);
        let drive = u16::try_from(index + 1).ok()?;
        let seed = drive << 8 | u16::try_from(namespace).ok()?;
        known.then_some(Seed(seed))
    }

    /// Whether one of its namespaces holds the model file.
    #[must_use]
    pub fn has_model(&self) -> bool {
        let mut namespaces = self.drives.iter().flat_map(|drive| &drive.namespaces);
        namespaces.any(|namespace| namespace.content == Content::Model)
    }

    /// Size of the BAR.
    #[must_use]
    pub fn bar_bytes(&self) -> u64 {
        self.bar_mib * MIB
    }
}

impl Drive {
    /// A drive with one namespace of 64 MiB in blocks of 512 bytes.
    #[must_use]
    pub fn new(name: &'static str, place: Place) -> Self {
        Self {
            name,
            place,
            cmb_mib: None,
            mdts: None,
            throttled: false,
            namespaces: vec![Namespace::new(64)],
        }
    }

    /// With a controller memory buffer.
    #[must_use]
    pub fn cmb(mut self, size_mib: u64) -> Self {
        self.cmb_mib = Some(size_mib);
        self
    }

    /// With a largest transfer.
    #[must_use]
    pub fn mdts(mut self, power: u8) -> Self {
        self.mdts = Some(power);
        self
    }

    /// With limits that the host can set.
    #[must_use]
    pub fn throttled(mut self) -> Self {
        self.throttled = true;
        self
    }

    /// With these namespaces.
    #[must_use]
    pub fn namespaces(mut self, namespaces: &[Namespace]) -> Self {
        self.namespaces = namespaces.to_vec();
        self
    }

    /// Its serial number.
    #[must_use]
    pub fn serial(&self) -> String {
        format!("LAB-{}", self.name.to_uppercase())
    }

    /// Namespaces with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &Namespace)> {
        (1..).zip(&self.namespaces)
    }

    /// Its PCI address, where that is fixed.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        match self.place {
            Place::Slot(slot) => Some(format!("0000:00:{slot:02x}.0")),
            Place::Function(slot, function) => Some(format!("0000:00:{slot:02x}.{function}")),
            Place::Switch | Place::Port => None,
        }
    }
}

impl Namespace {
    /// So large, in blocks of 512 bytes, without faults.
    #[must_use]
    pub fn new(size_mib: u64) -> Self {
        Self {
            size_mib,
            block_bytes: 512,
            metadata: None,
            faults: Vec::new(),
            content: Content::Pattern,
        }
    }

    /// With a model file.
    #[must_use]
    pub fn model(mut self) -> Self {
        self.content = Content::Model;
        self
    }

    /// With a file system that holds these files.
    #[must_use]
    pub fn ext4(mut self, files: &[Stored]) -> Self {
        self.content = Content::Ext4(files.to_vec());
        self
    }

    /// With another block size.
    #[must_use]
    pub fn blocks(mut self, block_bytes: u64) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// With metadata for each block and a type of protection information.
    #[must_use]
    pub fn metadata(mut self, bytes: u16, protection: u8) -> Self {
        self.metadata = Some((bytes, protection));
        self
    }

    /// With a sector that cannot be transferred.
    #[must_use]
    pub fn fault(mut self, sector: u64, transfer: Transfer) -> Self {
        self.faults.push(Fault { sector, transfer });
        self
    }

    /// Size of its image on the host.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.size_mib * MIB
    }

    /// What of it the guest sees: metadata takes its share of the image.
    #[must_use]
    pub fn visible_bytes(&self) -> u64 {
        let metadata = self.metadata.map_or(0, |(bytes, _)| u64::from(bytes));
        self.image_bytes() / (self.block_bytes + metadata) * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_a_seed_of_its_own() {
        let two = [Namespace::new(1), Namespace::new(1)];
        let machine = Machine::standard().with("peer", |drive| drive.namespaces(&two));
        let mut seeds: Vec<u16> = machine
            .drives
            .iter()
            .flat_map(|drive| drive.numbered().map(|(number, _)| (drive.name, number)))
            .map(|(drive, number)| machine.seed(drive, number).unwrap().0)
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 5);
        assert_eq!(machine.seed("peer", 3), None);
        assert_eq!(machine.seed("peer", 0), None);
        assert_eq!(machine.seed("tape", 1), None);
    }

    #[test]
    fn metadata_takes_its_share() {
        assert_eq!(Namespace::new(1).visible_bytes(), 1 << 20);
        let with = Namespace::new(1).metadata(8, 1);
        assert_eq!(with.visible_bytes(), (1 << 20) / 520 * 512);
    }

    #[test]
    fn a_fixed_slot_is_an_address() {
        let machine = Machine::standard();
        assert_eq!(
            machine.drive("vfio").unwrap().address().unwrap(),
            "0000:00:05.0"
        );
        assert_eq!(machine.drive("peer").unwrap().address(), None);
    }
}
