//! Which kernel driver has a PCI function, and giving it to another one, through sysfs.
//!
//! Knows no drives: a function that is bound to vfio-pci has no serial number to find it by.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::pci::Address;

const BUS: &str = "/sys/bus/pci";

/// The driver that has a function, if one has.
pub(crate) fn driver_of(address: &Address) -> Option<String> {
    let target = fs::canonicalize(address.folder().join("driver")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Gives a function to a driver; nothing is done where that has it.
pub(crate) fn give_to(address: &Address, driver: &str) -> Result<()> {
    let before = driver_of(address);
    if before.as_deref() == Some(driver) {
        return Ok(());
    }
    let folder = address.folder();
    write(&folder.join("driver_override"), driver)?;
    if before.is_some() {
        write(&folder.join("driver/unbind"), &address.to_string())?;
    }
    write(&Path::new(BUS).join("drivers_probe"), &address.to_string())?;
    let after = driver_of(address);
    ensure!(
        after.as_deref() == Some(driver),
        "{address} is with {after:?} and not with {driver}"
    );
    Ok(())
}

/// Writes an attribute.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
}
