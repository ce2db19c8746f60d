//! Checks on folders that look like sysfs.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const NVME: &str = "0000:05:00.0";
const VGA: &str = "0000:06:00.0";

struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folders");
        fs::write(path, text).expect("written");
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folders");
        symlink(target, path).expect("linked");
    }

    /// A function with its class, and with a driver and a group where those are not empty.
    fn function(&self, address: &str, class: &str, driver: &str, group: &str) {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/class"), &format!("{class}\n"));
        if !driver.is_empty() {
            let target = format!("../../../bus/pci/drivers/{driver}");
            self.link(&format!("{folder}/driver"), &target);
        }
        if !group.is_empty() {
            let target = format!("../../../kernel/iommu_groups/{group}");
            self.link(&format!("{folder}/iommu_group"), &target);
            let member = format!("sys/kernel/iommu_groups/{group}/devices/{address}");
            self.link(&member, "../../../../devices/pci0000:00");
        }
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.0.path())
    }

    fn refusal(&self, address: &str, role: Role) -> (ErrorKind, String) {
        let error = self.sysfs().check(address, role).expect_err("refused");
        assert!(error.advice().is_some(), "no remedy: {error}");
        (error.kind(), error.to_string())
    }
}

#[test]
fn a_controller_that_can_be_opened_gives_its_group() {
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "vfio-pci", "17");
    assert_eq!(tree.sysfs().check(NVME, Role::Controller).expect("17"), 17);
}

#[test]
fn memory_may_be_of_any_class() {
    let tree = Tree::new();
    tree.function(VGA, "0x030000", "vfio-pci", "3");
    assert_eq!(tree.sysfs().check(VGA, Role::Memory).expect("3"), 3);
    let (kind, text) = tree.refusal(VGA, Role::Controller);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert_eq!(
        text,
        "0000:06:00.0 is no NVMe controller: its class is 0x030000, not 0x010802; \
         lspci -D -d ::0108 lists controllers"
    );
}

#[test]
fn what_is_no_address_never_becomes_a_path() {
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "vfio-pci", "17");
    let odd = [
        "",
        ".",
        "..",
        "05:00.0",
        "0000:05:00",
        "../0000:05:00.0",
        "0000:05:00.0/",
        "0000:05:00.+",
        "0000:+5:00.0",
        "000000:05:00.0",
    ];
    for address in odd {
        let (kind, text) = tree.refusal(address, Role::Controller);
        assert_eq!(kind, ErrorKind::InvalidInput, "{address}");
        assert!(text.contains("lspci -D"), "{text}");
    }
    for address in ["0000:ff:1f.7", "10000:e1:00.0"] {
        assert!(is_address(address), "{address}");
        assert_eq!(
            tree.refusal(address, Role::Controller).0,
            ErrorKind::NotFound
        );
    }
}

#[test]
fn without_a_group_the_iommu_is_named() {
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "vfio-pci", "");
    let (kind, text) = tree.refusal(NVME, Role::Controller);
    assert_eq!(kind, ErrorKind::Unsupported);
    for part in [
        "no IOMMU group",
        "intel_iommu=on",
        "amd_iommu=on",
        "virtual machine",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn another_driver_is_named_with_the_commands_to_change_it() {
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "nvme", "17");
    let (kind, text) = tree.refusal(NVME, Role::Controller);
    assert_eq!(kind, ErrorKind::Busy);
    assert_eq!(
        text,
        "0000:05:00.0 is bound to nvme; as root, give it to vfio-pci: modprobe vfio-pci && \
         echo vfio-pci > /sys/bus/pci/devices/0000:05:00.0/driver_override && \
         echo 0000:05:00.0 > /sys/bus/pci/devices/0000:05:00.0/driver/unbind && \
         echo 0000:05:00.0 > /sys/bus/pci/drivers_probe"
    );
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "", "17");
    let (kind, text) = tree.refusal(NVME, Role::Controller);
    assert_eq!(kind, ErrorKind::Busy);
    assert!(
        text.starts_with("0000:05:00.0 is bound to no driver; "),
        "{text}"
    );
    assert!(!text.contains("unbind"), "{text}");
}

#[test]
fn what_a_disk_is_used_for_is_a_reason_not_to_take_it() {
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "nvme", "17");
    let nvme = format!("sys/bus/pci/devices/{NVME}/nvme/nvme3");
    // A path of a shared namespace, whose head has the subsystem's number; and other folders.
    tree.write(&format!("{nvme}/nvme1c3n2/x"), "");
    tree.write(&format!("{nvme}/hwmon7/x"), "");
    tree.write(&format!("{nvme}/ng1n2/x"), "");
    let disk = "sys/class/block/nvme1n2";
    tree.write(&format!("{disk}/dev"), "259:1\n");
    tree.write(&format!("{disk}/queue/x"), "");
    for (part, dev) in [
        ("nvme1n2p1", "259:2"),
        ("nvme1n2p2", "259:3"),
        ("nvme1n2p3", "259:4"),
    ] {
        tree.write(&format!("{disk}/{part}/dev"), &format!("{dev}\n"));
        tree.write(&format!("{disk}/{part}/partition"), "1\n");
    }
    tree.write(&format!("{disk}/nvme1n2p3/holders/dm-0/x"), "");
    tree.write(
        "proc/self/mountinfo",
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
         25 22 259:2 / /data rw,relatime shared:9 - ext4 /dev/mapper/other rw\n\
         26 22 0:44 /@ /b rw - btrfs /dev/nvme1n2 rw\n\
         short line\n",
    );
    tree.write(
        "proc/swaps",
        "Filename\tType\tSize\tUsed\tPriority\n/dev/nvme1n2p2   partition 1 0 -2\n",
    );
    let (kind, text) = tree.refusal(NVME, Role::Controller);
    assert_eq!(kind, ErrorKind::Busy);
    let uses = "(nvme1n2 is mounted at /b, nvme1n2p1 is mounted at /data, \
                nvme1n2p2 is swap space, nvme1n2p3 is part of dm-0)";
    assert!(text.contains(uses), "{text}");
    assert!(text.contains("do not take it away"), "{text}");
}

#[test]
fn a_group_with_strangers_is_refused_and_they_are_listed() {
    let tree = Tree::new();
    tree.function(NVME, "0x010802", "vfio-pci", "17");
    tree.function("0000:05:00.1", "0x020000", "mlx5_core", "17");
    tree.function("0000:05:00.2", "0x040300", "snd_hda_intel", "17");
    tree.function("0000:05:00.3", "0x0c0330", "vfio-pci", "17");
    tree.function("0000:05:00.4", "0x0c0330", "", "17");
    tree.function("0000:04:00.0", "0x060400", "pcieport", "17");
    tree.function("0000:07:00.0", "0x020000", "e1000e", "18");
    let (kind, text) = tree.refusal(NVME, Role::Controller);
    assert_eq!(kind, ErrorKind::Busy);
    let start = "0000:05:00.0 shares IOMMU group 17 with functions that the kernel drives: \
                 0000:05:00.1 (mlx5_core), 0000:05:00.2 (snd_hda_intel); ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn windows_of_memory_are_found_and_others_left_out() {
    let tree = Tree::new();
    tree.write(
        "sys/bus/pci/devices/0000:05:00.0/resource",
        "0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n\
         0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
         0x000000000000c000 0x000000000000c03f 0x0000000000040101\n\
         0x0000000800000000 0x0000000803ffffff 0x000000000014220c\n\
         garbage\n",
    );
    tree.write("sys/bus/pci/devices/0000:05:00.1/vendor", "0x8086\n");
    let windows = tree.sysfs().memory_windows();
    assert_eq!(
        windows,
        [0xfe00_0000..=0xfe00_3fff, 0x8_0000_0000..=0x8_03ff_ffff]
    );
}
