//! The end of DMA: after an unmap, and after a quiesce, nothing a controller was told before
//! reaches memory.
//!
//! unsafe: maps memory without a guard that keeps it.
#![expect(
    unsafe_code,
    reason = "undoes mappings while the controller still knows their addresses, which is the point"
)]

use std::process::Command;
use std::thread::sleep;
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
use crate::suites::refusal::by_nvme;
use crate::target::Target;
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("stop/unmap", unmap),
        Case::new("stop/quiesce", quiesce),
        Case::new("stop/quiesce-in-the-middle", quiesce_midway),
    ]
}

fn unmap(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")?;
    let mut admin = Admin::new(&device)?;
    let pages = Arc::new(Pages::new(PAGE)?);
    let target = Target::of(Arc::clone(&pages) as _);
    let left = device.container().mappings_left()?;
    // SAFETY: unmapped below, before the memory goes.
    let runs = unsafe { device.map(pages.raw()) }?;
    let fewer = device.container().mappings_left()?;
    ensure!(left == fewer.map(|now| now + 1), "{left:?} then {fewer:?}");
    admin.identify(runs[0].start.0)?;
    ensure!(serial(pages.raw(), 0) == lab.drive("vfio")?.serial());
    device.unmap(&runs)?;
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
    by_nvme(
        device.unmap(&runs),
        ErrorKind::InvalidInput,
        &["cannot unmap"],
    )?;
    // The address is free again, and the controller goes on.
    // SAFETY: as above.
    let again = unsafe { device.map(pages.raw()) }?;
    ensure!(again == runs, "not the address that was given back");
    admin.start()?;
    admin.identify(again[0].start.0)?;
    Ok(device.unmap(&again)?)
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

fn quiesce_midway(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")?;
    let mut admin = Admin::new(&device)?;
    let pages = Arc::new(Pages::new(8 * PAGE)?);
    let target = Target::of(Arc::clone(&pages) as _);
    let mapping = Mapping::new(&admin.device, pages)?;
    for page in 0..8 {
        admin.send_identify(mapping.address(page * PAGE).0);
    }
    device.quiesce()?;
    target.poison(0, 8 * PAGE);
    sleep(Duration::from_millis(300));
    target.untouched_but(0, 0)
}
