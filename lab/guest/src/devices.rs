//! NVMe controllers and namespaces as the kernel shows them, found by serial number.
//!
//! Numbers such as the 0 in `nvme0` change from boot to boot, so nobody outside asks for one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::pci::Address;

const CLASS: &str = "/sys/class/nvme";

/// A controller that the kernel's NVMe driver has.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    /// Its folder in sysfs.
    folder: PathBuf,
}

/// A namespace with a block device.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Its number on the controller.
    pub(crate) nsid: u32,
    /// Such as `nvme0n1`.
    name: String,
    /// Its folder in sysfs.
    folder: PathBuf,
}

/// The controller with that serial number, if the kernel has it and it is ready.
pub(crate) fn by_serial(serial: &str) -> Result<Option<Controller>> {
    let Ok(entries) = fs::read_dir(CLASS) else {
        return Ok(None);
    };
    for entry in entries {
        let folder = entry.context("cannot list the NVMe controllers")?.path();
        // A controller that is being added or removed lacks attributes: it is not there.
        let has = |name: &str, wanted: &str| text(&folder.join(name)).is_ok_and(|t| t == wanted);
        if has("serial", serial) && has("state", "live") {
            return Ok(Some(Controller { folder }));
        }
    }
    Ok(None)
}

impl Controller {
    /// The function it is.
    pub(crate) fn address(&self) -> Result<Address> {
        let device = self.folder.join("device");
        let target = fs::canonicalize(&device)
            .with_context(|| format!("cannot follow {}", device.display()))?;
        let name = target.file_name().context("a device without a name")?;
        name.to_string_lossy().parse()
    }

    /// The attribute that resets it when it is written.
    pub(crate) fn reset_path(&self) -> PathBuf {
        self.folder.join("reset_controller")
    }

    /// Its namespaces that have block devices.
    pub(crate) fn namespaces(&self) -> Result<Vec<Block>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)
            .with_context(|| format!("cannot list {}", self.folder.display()))?
        {
            let folder = entry?.path();
            let name = folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if !name.starts_with("nvme") || !folder.join("nsid").is_file() {
                continue;
            }
            let nsid = number(&folder.join("nsid"))?;
            let nsid = u32::try_from(nsid).context("a namespace's number is too large")?;
            found.push(Block { nsid, name, folder });
        }
        found.sort_by_key(|block| block.nsid);
        Ok(found)
    }

    /// The namespace of that number.
    pub(crate) fn namespace(&self, nsid: u32) -> Result<Block> {
        let found = self
            .namespaces()?
            .into_iter()
            .find(|block| block.nsid == nsid);
        found.with_context(|| format!("{} has no namespace {nsid}", self.folder.display()))
    }
}

impl Block {
    /// The block device, `/dev/nvmeXnY`.
    pub(crate) fn block_path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// The device for passthrough commands, `/dev/ngXnY`.
    pub(crate) fn passthrough_path(&self) -> PathBuf {
        let generic = self.name.replacen("nvme", "ng", 1);
        Path::new("/dev").join(generic)
    }

    /// Size of the block device.
    pub(crate) fn size_bytes(&self) -> Result<u64> {
        // sysfs counts in units of 512 bytes, whatever the block size.
        Ok(number(&self.folder.join("size"))? * 512)
    }

    /// A number among its queue's attributes.
    pub(crate) fn queue(&self, attribute: &str) -> Result<u64> {
        number(&self.folder.join("queue").join(attribute))
    }
}

/// A file's text, trimmed.
pub(crate) fn text(path: &Path) -> Result<String> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_string())
}

/// A file's number.
pub(crate) fn number(path: &Path) -> Result<u64> {
    let text = text(path)?;
    text.parse()
        .with_context(|| format!("{} holds `{text}`, which is no number", path.display()))
}
