//! What cannot be opened, each refused by name with what to do about it. Knows no queues.

use std::sync::Arc;

use anyhow::{Result, ensure};
use nvme::ErrorKind;
use nvme::device::Device;
use nvme::device::vfio::{VfioContainer, VfioDevice};

use super::admin::{Admin, serial};
use super::{PLAIN, bar_address, device, open};
use crate::binding;
use crate::case::Case;
use crate::lab::Lab;
use crate::suites::refusal::by_nvme;
use crate::user::as_nobody;
use nvme::device::Mapping;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("open/no-function", no_function),
        Case::new("open/no-controller", no_controller),
        Case::new("open/wrong-driver", wrong_driver),
        Case::new("open/stranger-in-the-group", stranger),
        Case::new("open/two-of-a-group", two_of_a_group),
        Case::new("open/without-the-right", without_the_right),
        Case::new("open/in-use", in_use),
        Case::new("open/no-namespace", no_namespace),
        Case::new("open/again", again),
        Case::new("open/no-vector", no_vector),
    ]
}

fn no_function(_: &mut Lab) -> Result<()> {
    let container = VfioContainer::new()?;
    let there = VfioDevice::open(&container, "0000:77:05.0");
    by_nvme(there, ErrorKind::NotFound, &["no PCI function"])?;
    let path = VfioDevice::open(&container, "../../x");
    by_nvme(path, ErrorKind::InvalidInput, &["lspci"])
}

fn no_controller(_: &mut Lab) -> Result<()> {
    let container = VfioContainer::new()?;
    let opened = VfioDevice::open(&container, &bar_address()?.to_string());
    by_nvme(opened, ErrorKind::Unsupported, &["no NVMe controller"])
}

fn wrong_driver(lab: &mut Lab) -> Result<()> {
    let container = VfioContainer::new()?;
    let address = lab.address("small")?;
    binding::give_to(address, "nvme")?;
    let opened = VfioDevice::open(&container, &address.to_string());
    let words = ["bound to nvme", "driver_override", "driver/unbind"];
    by_nvme(opened, ErrorKind::Busy, &words)
}

/// One of the two stays with the kernel's driver.
fn stranger(lab: &mut Lab) -> Result<()> {
    let (ours, theirs) = (lab.address("left")?, lab.address("right")?);
    let [group, other] = [ours, theirs].map(|address| address.iommu_group());
    ensure!(group == other, "the two share no group");
    binding::give_to(ours, "vfio-pci")?;
    let opened = VfioDevice::open(&VfioContainer::new()?, &ours.to_string());
    let stranger = theirs.to_string();
    let words = ["shares IOMMU group", &stranger, "(nvme)"];
    by_nvme(opened, ErrorKind::Busy, &words)
}

fn two_of_a_group(lab: &mut Lab) -> Result<()> {
    let container = VfioContainer::new()?;
    let mut both = Vec::new();
    for drive in ["left", "right"] {
        binding::give_to(lab.address(drive)?, "vfio-pci")?;
    }
    for drive in ["left", "right"] {
        let address = lab.address(drive)?.to_string();
        let device = Arc::new(VfioDevice::open(&container, &address)?);
        let mut admin = Admin::new(&device)?;
        let page = Mapping::pages(&admin.device, 4096)?;
        admin.identify(page.address(0).0)?;
        let found = serial(page.raw(), 0);
        ensure!(found == lab.drive(drive)?.serial(), "{drive} says {found}");
        both.push((admin, page));
    }
    Ok(())
}

fn without_the_right(lab: &mut Lab) -> Result<()> {
    let address = lab.address("vfio")?;
    binding::give_to(address, "vfio-pci")?;
    let address = address.to_string();
    as_nobody(|| {
        let container = VfioContainer::new()?;
        let opened = VfioDevice::open(&container, &address);
        by_nvme(opened, ErrorKind::Permission, &["/dev/vfio/", "chown"])
    })
}

fn in_use(lab: &mut Lab) -> Result<()> {
    let first = device(lab, "vfio")?;
    let address = lab.address("vfio")?.to_string();
    let again = VfioDevice::open(first.container(), &address);
    by_nvme(again, ErrorKind::Busy, &["open in this container"])?;
    let other = VfioDevice::open(&VfioContainer::new()?, &address);
    by_nvme(other, ErrorKind::Busy, &["fuser"])
}

fn no_namespace(lab: &mut Lab) -> Result<()> {
    for namespace in [3, 77] {
        let opened = open(lab, "vfio", namespace, PLAIN);
        ensure!(opened.is_err(), "namespace {namespace} was opened");
        let said = opened.map(drop).unwrap_err().to_string();
        ensure!(said.contains("namespace"), "{said}");
    }
    open(lab, "vfio", 2, PLAIN).map(drop)
}

/// One that was left is stopped, and can be opened again.
fn again(lab: &mut Lab) -> Result<()> {
    use nvme_sys::register::{CSTS, CSTS_READY};
    for _ in 0..3 {
        let device = device(lab, "vfio")?;
        ensure!(
            device.read_u32(CSTS) & CSTS_READY == 0,
            "ready before it was enabled"
        );
        let mut admin = Admin::new(&device)?;
        let page = Mapping::pages(&admin.device, 4096)?;
        admin.identify(page.address(0).0)?;
        let found = serial(page.raw(), 0);
        ensure!(found == lab.drive("vfio")?.serial(), "it says {found}");
    }
    Ok(())
}

fn no_vector(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")?;
    let cores = u16::try_from(lab.run().machine.cores)?;
    ensure!(
        device.vectors() == cores + 1,
        "{} vectors",
        device.vectors()
    );
    by_nvme(
        device.interrupt(device.vectors()),
        ErrorKind::Unsupported,
        &["poll"],
    )
}

pub(super) fn without_iommu(lab: &mut Lab) -> Result<()> {
    let address = lab.address("vfio")?.to_string();
    let opened = VfioDevice::open(&VfioContainer::new()?, &address);
    let words = ["no IOMMU group", "intel_iommu=on"];
    by_nvme(opened, ErrorKind::Unsupported, &words)
}
