//! Captured trees for tests, made as sysfs has them, and what is read out of them. Knows no
//! real machine.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::{
    Acs, IommuDomain, MemoryPart, P2pReason, PciAddress, PciFunction, PeerMemory, PeerPath,
    PortType, Topology, Verdict, p2p_verdict, peer_path,
};
use crate::error::ErrorKind;

/// A tree in a folder that goes away.
pub(crate) struct Tree {
    root: tempfile::TempDir,
}

/// A configuration space as root reads it.
pub(crate) struct Space {
    bytes: Vec<u8>,
}

impl Space {
    /// Of a PCI Express function of this device/port type, which decodes memory.
    pub(crate) fn of(port: u8) -> Self {
        let mut bytes = vec![0; 4096];
        bytes[0x04] = 0x06;
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40..0x44].copy_from_slice(&[0x10, 0x00, 0x02 | port << 4, 0x00]);
        Self { bytes }
    }

    /// With an ACS capability of this control value.
    pub(crate) fn acs(mut self, control: u8) -> Self {
        self.bytes[0x100..0x104].copy_from_slice(&(0x1_0001_u32 | 0x148 << 20).to_le_bytes());
        self.bytes[0x148..0x150].copy_from_slice(&[0x0d, 0, 0x01, 0, 0x7f, 0, control, 0]);
        self
    }

    /// That answers to no memory address.
    pub(crate) fn without_decoding(mut self) -> Self {
        self.bytes[0x04] = 0x04;
        self
    }

    /// What others than root read of it.
    pub(crate) fn unprivileged(mut self) -> Self {
        self.bytes.truncate(64);
        self
    }
}

pub(crate) const ENDPOINT: u8 = 0;
const ROOT_PORT: u8 = 4;
const UPSTREAM: u8 = 5;
const DOWNSTREAM: u8 = 6;

impl Tree {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let tree = Self { root };
        for folder in [
            "bus/pci/devices",
            "bus/pci/drivers",
            "devices",
            "class/nvme",
        ] {
            std::fs::create_dir_all(tree.sys().join(folder)).expect("a folder");
        }
        tree
    }

    pub(crate) fn sys(&self) -> PathBuf {
        self.root.path().canonicalize().expect("there").join("sys")
    }

    pub(crate) fn topology(&self) -> Topology {
        Topology::at(self.sys())
    }

    fn folder(&self, path: &str) -> PathBuf {
        let folder = self.sys().join("devices").join(path);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.sys().join("devices").join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
        std::fs::write(path, text).expect("a small file");
    }

    pub(crate) fn link(&self, to: &Path, path: &str) {
        let path = self.sys().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
        let up = path.components().count() - self.sys().components().count() - 1;
        let inside = to.strip_prefix(self.sys()).expect("inside");
        symlink(Path::new(&"../".repeat(up)).join(inside), path).expect("a link");
    }

    /// A function at the end of `path`, as root or others see it.
    pub(crate) fn function(&self, path: &str, space: Space) {
        let folder = self.folder(path);
        let name = folder.file_name().expect("a name").to_str().expect("text");
        for (file, text) in [
            ("vendor", "0x1b36\n"),
            ("device", "0x0010\n"),
            ("class", "0x010802\n"),
            ("numa_node", "-1\n"),
            ("enable", "1\n"),
        ] {
            self.write(&format!("{path}/{file}"), text);
        }
        self.write(&format!("{path}/config"), space.bytes);
        self.link(&folder, &format!("bus/pci/devices/{name}"));
    }

    /// What an NVMe controller with 64 MiB of controller memory has beside.
    pub(crate) fn nvme(&self, path: &str, number: u32, serial: &str) {
        self.bind(path, "nvme");
        let resource = "0x00000000fe800000 0x00000000fe803fff 0x0000000000140204\n\
                        0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                        0x0000000800000000 0x0000000803ffffff 0x000000000014220c\n";
        self.write(&format!("{path}/resource"), resource);
        for (file, text) in [
            ("size", "67108864"),
            ("available", "66060288"),
            ("published", "1"),
        ] {
            self.write(&format!("{path}/p2pmem/{file}"), format!("{text}\n"));
        }
        let controller = format!("{path}/nvme/nvme{number}");
        self.write(&format!("{controller}/serial"), format!("{serial:<20}\n"));
        let folder = self.folder(&controller);
        self.link(&folder, &format!("class/nvme/nvme{number}"));
    }

    pub(crate) fn bind(&self, path: &str, driver: &str) {
        let folder = self.sys().join("bus/pci/drivers").join(driver);
        std::fs::create_dir_all(&folder).expect("a folder");
        self.link(&folder, &format!("devices/{path}/driver"));
    }

    /// Puts functions into an IOMMU group.
    fn group(&self, number: u32, kind: Option<&str>, paths: &[&str]) {
        let group = format!("kernel/iommu_groups/{number}");
        let folder = self.sys().join(&group);
        std::fs::create_dir_all(folder.join("devices")).expect("a folder");
        if let Some(kind) = kind {
            std::fs::write(folder.join("type"), format!("{kind}\n")).expect("a file");
        }
        for path in paths {
            let name = path.rsplit('/').next().expect("a name");
            let function = self.folder(path);
            self.link(&folder, &format!("devices/{path}/iommu_group"));
            self.link(&function, &format!("{group}/devices/{name}"));
        }
    }

    fn read(&self, address: &str) -> PciFunction {
        let address = address.parse().expect("an address");
        self.topology().function(address).expect("a function")
    }
}

const SWITCH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
const CONTROLLER: &str = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";
const MEMORY: &str = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0";
const ELSEWHERE: &str = "pci0000:00/0000:00:02.0/0000:05:00.0";
const NEED: u64 = 8 << 20;

/// Two controllers behind a switch, one behind another root port; `port` makes the space of
/// each downstream port.
fn machine(port: impl Fn() -> Space) -> Tree {
    let tree = Tree::new();
    tree.function("pci0000:00/0000:00:00.0", Space::of(9));
    tree.function("pci0000:00/0000:00:01.0", Space::of(ROOT_PORT).acs(0x1d));
    tree.function("pci0000:00/0000:00:02.0", Space::of(ROOT_PORT).acs(0x1d));
    tree.function(SWITCH, Space::of(UPSTREAM));
    tree.function(&format!("{SWITCH}/0000:02:00.0"), port());
    tree.function(&format!("{SWITCH}/0000:02:01.0"), port());
    for (number, path) in (0..).zip([CONTROLLER, MEMORY, ELSEWHERE]) {
        tree.function(path, Space::of(ENDPOINT));
        tree.nvme(path, number, &format!("serial-{number}"));
    }
    tree
}

fn plain() -> Tree {
    machine(|| Space::of(DOWNSTREAM).acs(0x00))
}

fn verdict(controller: &PciFunction, function: &PciFunction, part: MemoryPart) -> Verdict {
    let memory = PeerMemory {
        function,
        part,
        len_bytes: NEED,
    };
    p2p_verdict(controller, &memory)
}

fn address(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

/// The verdict on p2pmem of `memory`.
fn between(tree: &Tree, controller: &str, memory: &str) -> Verdict {
    let (controller, memory) = (tree.read(controller), tree.read(memory));
    verdict(&controller, &memory, MemoryPart::P2pmem)
}

#[test]
fn a_function_is_read_with_its_path() {
    let tree = plain();
    tree.write(&format!("{MEMORY}/current_link_speed"), "8.0 GT/s PCIe\n");
    tree.write(&format!("{MEMORY}/current_link_width"), "4\n");
    tree.write(&format!("{MEMORY}/max_link_speed"), "16.0 GT/s PCIe\n");
    tree.write(&format!("{MEMORY}/max_link_width"), "4\n");
    tree.write(&format!("{MEMORY}/numa_node"), "1\n");
    tree.group(7, Some("DMA-FQ"), &[CONTROLLER, MEMORY]);
    let function = tree.read("0000:04:00.0");
    assert_eq!((function.vendor, function.device), (0x1b36, 0x0010));
    assert_eq!(function.class, 0x01_0802);
    assert_eq!(function.driver.as_deref(), Some("nvme"));
    assert_eq!(function.numa_node, Some(1));
    assert_eq!(tree.read("0000:03:00.0").numa_node, None);
    let path: Vec<_> = function
        .bridges
        .iter()
        .map(|port| (port.address.to_string(), port.port))
        .collect();
    let wanted = [
        ("0000:00:01.0", PortType::RootPort),
        ("0000:01:00.0", PortType::SwitchUpstream),
        ("0000:02:01.0", PortType::SwitchDownstream),
    ];
    assert_eq!(path, wanted.map(|(name, port)| (name.to_owned(), port)));
    assert_eq!(function.own.port, PortType::Endpoint);
    assert_eq!(function.bridges[0].acs, Acs::Control(0x1d));
    assert_eq!(function.bridges[1].acs, Acs::Absent);
    assert_eq!(function.host_bridge.name, "pci0000:00");
    assert_eq!(function.host_bridge.id, Some((0x1b36, 0x0010)));
    let bar = function.bars[2].expect("BAR 2");
    assert!(bar.len_bytes == 64 << 20 && bar.is_64_bit && bar.is_prefetchable);
    let p2pmem = function.p2pmem.expect("p2pmem");
    assert_eq!(
        (p2pmem.size_bytes, p2pmem.available_bytes),
        (67_108_864, 66_060_288)
    );
    assert!(p2pmem.is_published && function.is_link_degraded());
    assert_eq!(function.link.expect("a link").speed_mts, 8000);
    let group = function.iommu.as_ref().expect("a group");
    assert_eq!((group.number, &group.domain), (7, &IommuDomain::DmaFq));
    assert_eq!(group.members, ["0000:03:00.0", "0000:04:00.0"].map(address));
    assert_eq!(
        function.to_string(),
        "0000:04:00.0 1b36:0010, driver nvme, node 1, link x4 8.0 GT/s (could be x4 16.0 GT/s), \
         path pci0000:00 > root port 0000:00:01.0 > switch upstream port 0000:01:00.0 > switch \
         downstream port 0000:02:01.0, IOMMU group 7 DMA-FQ"
    );
}

#[test]
fn what_is_not_there_is_said_so() {
    let tree = plain();
    let error = tree
        .topology()
        .function(address("0000:09:00.0"))
        .expect_err("nothing is there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("0000:09:00.0"), "{error}");
    std::fs::remove_file(tree.sys().join("devices").join(MEMORY).join("vendor")).expect("there");
    let error = tree
        .topology()
        .function(address("0000:04:00.0"))
        .expect_err("no vendor");
    assert_eq!(error.kind(), ErrorKind::Io);
}

#[test]
fn peers_behind_one_switch_reach_each_other() {
    let tree = plain();
    let (controller, memory) = (tree.read("0000:03:00.0"), tree.read("0000:04:00.0"));
    let across = PeerPath::Bridge(address("0000:01:00.0"));
    assert_eq!(peer_path(&controller, &memory), across);
    assert_eq!(peer_path(&memory, &controller), across);
    assert_eq!(
        between(&tree, "0000:03:00.0", "0000:04:00.0"),
        Verdict::Possible
    );
}

#[test]
fn across_root_ports_only_known_host_bridges_forward() {
    let tree = plain();
    let ask = |topology: Topology| {
        let function = |name| topology.function(address(name)).expect("a function");
        let (controller, memory) = (function("0000:05:00.0"), function("0000:04:00.0"));
        assert_eq!(peer_path(&controller, &memory), PeerPath::Root);
        verdict(&controller, &memory, MemoryPart::P2pmem)
    };
    let unlikely = Verdict::Unlikely(P2pReason::OtherRootPort);
    assert_eq!(ask(tree.topology()), unlikely);
    assert_eq!(ask(tree.topology().with_cpu_forwards(false)), unlikely);
    assert_eq!(
        ask(tree.topology().with_cpu_forwards(true)),
        Verdict::Possible
    );
    for (vendor, device, wanted) in [
        ("0x8086", "0x2020", Verdict::Possible),
        ("0x8086", "0x2f00", Verdict::Possible),
        ("0x8086", "0x1237", unlikely.clone()),
        ("0x1022", "0x2020", unlikely),
    ] {
        tree.write("pci0000:00/0000:00:00.0/vendor", vendor);
        tree.write("pci0000:00/0000:00:00.0/device", device);
        assert_eq!(ask(tree.topology()), wanted, "{vendor}:{device}");
    }
}

#[test]
fn across_host_bridges_both_have_to_be_known_to_forward_to_others() {
    let tree = plain();
    let far = "pci0000:80/0000:80:01.0/0000:81:00.0";
    tree.function("pci0000:80/0000:80:00.0", Space::of(9));
    tree.function("pci0000:80/0000:80:01.0", Space::of(ROOT_PORT));
    tree.function(far, Space::of(ENDPOINT));
    tree.nvme(far, 9, "far");
    let refused = Verdict::Unlikely(P2pReason::OtherHostBridge);
    let all = [
        ("0x1237", "0x1237", refused.clone()),
        ("0x2020", "0x1237", refused.clone()),
        ("0x2f00", "0x2f00", refused),
        ("0x2020", "0x2030", Verdict::Possible),
    ];
    for (near, there, wanted) in all {
        for (bus, device) in [("00", near), ("80", there)] {
            tree.write(&format!("pci0000:{bus}/0000:{bus}:00.0/vendor"), "0x8086");
            tree.write(&format!("pci0000:{bus}/0000:{bus}:00.0/device"), device);
        }
        assert_eq!(
            between(&tree, "0000:03:00.0", "0000:81:00.0"),
            wanted,
            "{near} {there}"
        );
    }
}

#[test]
fn a_host_bridge_below_another_begins_the_path_anew() {
    let tree = plain();
    let inner = "pci0000:00/0000:00:0e.0/pci10000:e0";
    tree.function("pci0000:00/0000:00:0e.0", Space::of(ENDPOINT));
    tree.function(&format!("{inner}/10000:e0:06.0"), Space::of(ROOT_PORT));
    tree.function(
        &format!("{inner}/10000:e0:06.0/10000:e1:00.0"),
        Space::of(ENDPOINT),
    );
    let function = tree.read("10000:e1:00.0");
    assert_eq!(function.host_bridge.name, "pci10000:e0");
    assert_eq!(function.bridges.len(), 1);
}

#[test]
fn acs_that_redirects_sends_peers_through_the_root_complex() {
    let tree = machine(|| Space::of(DOWNSTREAM).acs(0x1d));
    let (controller, memory) = (tree.read("0000:03:00.0"), tree.read("0000:04:00.0"));
    let port = address("0000:02:01.0");
    assert_eq!(peer_path(&controller, &memory), PeerPath::Redirected(port));
    let found = between(&tree, "0000:03:00.0", "0000:04:00.0");
    assert_eq!(found, Verdict::Unlikely(P2pReason::AcsRedirect(port)));
    assert!(
        found.to_string().contains("pci=disable_acs_redir="),
        "{found}"
    );
    let topology = tree.topology().with_cpu_forwards(true);
    let read = |name| topology.function(address(name)).expect("a function");
    let found = verdict(
        &read("0000:03:00.0"),
        &read("0000:04:00.0"),
        MemoryPart::P2pmem,
    );
    assert_eq!(found, Verdict::Possible);
}

/// ACS at the root port is above the switch, and no business of its peers; at the
/// controller's own downstream port it is.
#[test]
fn acs_counts_on_both_sides_below_the_common_port_and_not_above() {
    let tree = plain();
    let path = format!("{SWITCH}/0000:02:00.0/config");
    tree.write(&path, Space::of(DOWNSTREAM).acs(0x04).bytes);
    let found = between(&tree, "0000:03:00.0", "0000:04:00.0");
    let port = address("0000:02:00.0");
    assert_eq!(found, Verdict::Unlikely(P2pReason::AcsRedirect(port)));
}

#[test]
fn with_a_translating_iommu_only_a_canary_can_tell() {
    for (kind, wanted) in [
        (Some("DMA"), Verdict::Unknown(P2pReason::IommuTranslates)),
        (Some("DMA-FQ"), Verdict::Unknown(P2pReason::IommuTranslates)),
        (Some("identity"), Verdict::Possible),
        (Some("blocked"), Verdict::Impossible(P2pReason::IommuBlocks)),
        (None, Verdict::Unknown(P2pReason::IommuUnknown)),
    ] {
        let tree = plain();
        tree.group(3, kind, &[CONTROLLER]);
        // Who owns the memory asks for nothing: its group does not count.
        tree.group(4, Some("DMA"), &[MEMORY]);
        let found = between(&tree, "0000:03:00.0", "0000:04:00.0");
        assert_eq!(found, wanted, "{kind:?}");
    }
}

#[test]
fn its_own_memory_is_refused_by_the_controller() {
    let tree = plain();
    let found = between(&tree, "0000:03:00.0", "0000:03:00.0");
    assert_eq!(found, Verdict::Impossible(P2pReason::OwnMemory));
    assert!(found.to_string().contains("0x4012") && !found.is_worth_a_try());
}

#[test]
fn the_kernels_driver_takes_no_bar_and_our_queues_do() {
    let tree = plain();
    let (controller, memory) = (tree.read("0000:03:00.0"), tree.read("0000:04:00.0"));
    let found = verdict(&controller, &memory, MemoryPart::Bar(2));
    assert_eq!(found, Verdict::Impossible(P2pReason::NoPages));
    let ours = PciFunction {
        driver: Some("vfio-pci".to_owned()),
        ..controller
    };
    for part in [MemoryPart::Bar(2), MemoryPart::P2pmem] {
        let found = verdict(&ours, &memory, part);
        assert_eq!(found, Verdict::Unknown(P2pReason::IommuTranslates));
    }
}

#[test]
fn memory_that_nobody_could_use() {
    let tree = plain();
    let (controller, memory) = (tree.read("0000:03:00.0"), tree.read("0000:04:00.0"));
    let none = |part| Verdict::Impossible(P2pReason::NoSuchMemory(part));
    for number in [1, 5, 6, 255] {
        let part = MemoryPart::Bar(number);
        assert_eq!(verdict(&controller, &memory, part), none(part));
    }
    let small = Verdict::Impossible(P2pReason::TooSmall {
        has_bytes: 16 << 10,
        needs_bytes: NEED,
    });
    assert_eq!(verdict(&controller, &memory, MemoryPart::Bar(0)), small);
    let mut without = memory.clone();
    without.p2pmem = None;
    let found = verdict(&controller, &without, MemoryPart::P2pmem);
    assert_eq!(found, Verdict::Impossible(P2pReason::NoP2pmem));
    let mut few = memory.clone();
    few.p2pmem.as_mut().expect("p2pmem").available_bytes = NEED - 1;
    let found = verdict(&controller, &few, MemoryPart::P2pmem);
    assert!(matches!(
        found,
        Verdict::Impossible(P2pReason::TooSmall { .. })
    ));

    let space = Space::of(ENDPOINT).without_decoding();
    tree.write(&format!("{MEMORY}/config"), space.bytes);
    let off = Verdict::Impossible(P2pReason::DecodingOff);
    assert_eq!(between(&tree, "0000:03:00.0", "0000:04:00.0"), off);
    // A virtual function's register never says so.
    tree.write(&format!("{MEMORY}/physfn/vendor"), "0x1b36\n");
    assert_eq!(
        between(&tree, "0000:03:00.0", "0000:04:00.0"),
        Verdict::Possible
    );
}

#[test]
fn what_others_than_root_cannot_read_is_unknown_and_not_absent() {
    let tree = machine(|| Space::of(DOWNSTREAM).acs(0x1d).unprivileged());
    let memory = tree.read("0000:04:00.0");
    assert_eq!(memory.bridges[2].port, PortType::Unknown);
    assert_eq!(memory.bridges[2].acs, Acs::Unknown);
    assert_eq!(memory.memory_decoding, Some(true));
    let found = between(&tree, "0000:03:00.0", "0000:04:00.0");
    assert_eq!(
        found,
        Verdict::Unknown(P2pReason::AcsUnknown(address("0000:02:01.0")))
    );
    assert!(found.is_worth_a_try());
}

/// A node that every machine has, with its entry in the tree.
fn node(tree: &Tree, device: &str) -> &'static Path {
    let node = Path::new("/dev/null");
    let number = std::fs::metadata(node).expect("there").rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let folder = tree.folder(device);
    tree.link(&folder, &format!("dev/char/{major}:{minor}"));
    node
}

#[test]
fn a_node_leads_to_its_function() {
    let tree = plain();
    let node = node(&tree, &format!("{MEMORY}/nvme/nvme1/ng1n1"));
    let found = tree.topology().functions_of_node(node).expect("a function");
    assert_eq!(found, [address("0000:04:00.0")]);
    let error = Topology::at(tree.sys())
        .functions_of_node(Path::new("/dev"))
        .expect_err("a folder");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_node_of_something_else_is_refused() {
    let tree = plain();
    let node = node(&tree, "pci0000:00/0000:00:02.0/virtio1/block/vda");
    let error = tree
        .topology()
        .functions_of_node(node)
        .expect_err("no NVMe");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Subsystem 4 with two namespaces: the first is reached by two controllers, the second by
/// one of them.
fn multipath() -> Tree {
    let tree = plain();
    let subsystem = "virtual/nvme-subsystem/nvme-subsys4";
    for (number, path) in [(1, MEMORY), (2, ELSEWHERE)] {
        let controller = tree.folder(&format!("{path}/nvme/nvme{number}"));
        tree.link(&controller, &format!("devices/{subsystem}/nvme{number}"));
        let disk = tree.folder(&format!("{path}/nvme/nvme{number}/nvme4c{number}n1"));
        tree.link(&disk, &format!("class/block/nvme4c{number}n1"));
    }
    tree.folder(&format!("{ELSEWHERE}/nvme/nvme2/nvme4c2n2"));
    for head in ["nvme4n1", "nvme4n2"] {
        let folder = tree.folder(&format!("{subsystem}/{head}"));
        tree.link(&folder, &format!("class/block/{head}"));
    }
    tree
}

#[test]
fn a_multipath_name_leads_to_every_function_that_reaches_it() {
    let tree = multipath();
    let ask = |name| tree.topology().functions_of_name(name);
    let both = ["0000:04:00.0", "0000:05:00.0"].map(address);
    assert_eq!(ask("nvme4n1").expect("two"), both);
    assert_eq!(ask("nvme4n2").expect("one"), both[1..]);
    assert_eq!(ask("nvme4c1n1").expect("a path"), both[..1]);
    assert_eq!(ask("nvme4c2n1").expect("a path"), both[1..]);
    assert_eq!(
        ask("nvme0").expect("a controller"),
        [address("0000:03:00.0")]
    );
    for name in ["nvme7", "nvme4c0n1", "../nvme/nvme0", ""] {
        let error = ask(name).expect_err("no such name");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
    }
    let node = node(&tree, "virtual/nvme-subsystem/nvme-subsys4/ng4n1");
    assert_eq!(tree.topology().functions_of_node(node).expect("two"), both);
}

#[test]
fn a_drive_over_fabrics_has_no_function() {
    let tree = plain();
    let node = node(&tree, "virtual/nvme-fabrics/ctl/nvme6/nvme6n1");
    let error = tree
        .topology()
        .functions_of_node(node)
        .expect_err("fabrics");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_serial_number_leads_to_its_functions() {
    let tree = plain();
    let ask = |serial| tree.topology().functions_of_serial(serial);
    assert_eq!(ask("serial-1").expect("one"), [address("0000:04:00.0")]);
    assert_eq!(ask(" serial-2 ").expect("one"), [address("0000:05:00.0")]);
    for serial in ["serial", "serial-10", ""] {
        let error = ask(serial).expect_err("no such serial");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    tree.write(&format!("{ELSEWHERE}/nvme/nvme2/serial"), "serial-1\n");
    assert_eq!(ask("serial-1").expect("two").len(), 2);
}
