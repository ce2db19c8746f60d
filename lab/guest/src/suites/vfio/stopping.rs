//! The end of DMA: after an unmap, and after a quiesce, nothing a controller was told before
//! reaches memory. (`faults` has a quiesce in the middle of a read.)

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use nvme::ErrorKind;
use nvme::device::{Device, Mapping};
use nvme::memory::{Pages, TargetMemory};
use nvme_sys::register::{CC, CC_ENABLE};

use super::admin::{Admin, serial};
use super::device;
use crate::case::Case;
use crate::lab::Lab;
use crate::suites::PAGE;
use crate::suites::refusal::{refusal, says};
use crate::target::Target;
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("stop/unmap", unmap),
        Case::new("stop/quiesce", quiesce),
    ]
}

fn unmap(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")?;
    let mut admin = Admin::new(&device)?;
    let pages = Arc::new(Pages::new(PAGE)?);
    let target = Target::of(Arc::clone(&pages) as _);
    let left = device.container().mappings_left()?;
    let mapping = Mapping::new(&admin.device, Arc::clone(&pages) as _)?;
    let runs = mapping.runs().to_vec();
    let fewer = device.container().mappings_left()?;
    ensure!(left == fewer.map(|now| now + 1), "{left:?} then {fewer:?}");
    admin.identify(runs[0].start.0)?;
    ensure!(serial(pages.raw(), 0) == lab.drive("vfio")?.serial());
    drop(mapping);
    target.poison(0, PAGE);
    admin.send_identify(runs[0].start.0);
    // QEMU 7.2 reports success all the same; the IOMMU tells.
    let _status = admin.wait(Duration::from_secs(2));
    let log = Command::new("dmesg").output()?;
    let fault = format!("fault addr {:#x}", runs[0].start.0);
    let seen = String::from_utf8_lossy(&log.stdout).contains(&fault);
    ensure!(seen, "the IOMMU saw no fault at {:#x}", runs[0].start.0);
    target.untouched_but(0, 0)?;
    let now = device.container().mappings_left()?;
    ensure!(now == left, "the mapping is still counted");
    let twice = refusal(device.unmap(&runs))?;
    ensure!(twice.kind() == ErrorKind::InvalidInput, "{twice}");
    says(&twice.to_string(), &["cannot unmap"])?;
    // The address is free again, and the controller goes on.
    let again = Mapping::new(&admin.device, pages)?;
    ensure!(again.runs() == runs, "not the address that was given back");
    admin.start()?;
    admin.identify(again.address(0).0)
}

/// Not even a controller that is enabled again sends anything.
fn quiesce(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")?;
    let mut admin = Admin::new(&device)?;
    let pages = Arc::new(Pages::new(PAGE)?);
    let target = Target::of(Arc::clone(&pages) as _);
    let mapping = Mapping::new(&admin.device, pages)?;
    admin.identify(mapping.address(0).0)?;
    device.quiesce()?;
    ensure!(device.read_u32(CC) & CC_ENABLE == 0, "not reset");
    target.poison(0, PAGE);
    admin.start()?;
    admin.send_identify(mapping.address(0).0);
    let status = admin.wait(Duration::from_secs(1));
    ensure!(status.is_none(), "a completion: {status:?}");
    target.untouched_but(0, 0)?;
    Ok(device.quiesce()?)
}
