//! PCI functions as the kernel shows them in sysfs. Knows nothing of what the functions do.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::devices::text;

/// Where a function sits, such as `0000:00:05.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address(String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits =
            |part: &str, count| part.len() == count && part.chars().all(|c| c.is_ascii_hexdigit());
        let parts: Vec<&str> = text.split([':', '.']).collect();
        match parts[..] {
            [domain, bus, slot, function]
                if digits(domain, 4)
                    && digits(bus, 2)
                    && digits(slot, 2)
                    && digits(function, 1) =>
            {
                Ok(Self(text.into()))
            }
            _ => bail!("`{text}` is no PCI address such as 0000:00:05.0"),
        }
    }
}

impl Address {
    /// Its folder in sysfs.
    pub(crate) fn folder(&self) -> PathBuf {
        Path::new("/sys/bus/pci/devices").join(&self.0)
    }

    /// Whether there is such a function now.
    pub(crate) fn is_there(&self) -> bool {
        self.folder().exists()
    }

    /// The bridges above it, from the root port down.
    pub(crate) fn bridges(&self) -> Result<Vec<Self>> {
        let path = fs::canonicalize(self.folder())
            .with_context(|| format!("there is no PCI function {self}"))?;
        let above = path.parent().unwrap_or(&path).components();
        let names = above.map(|part| part.as_os_str().to_string_lossy().into_owned());
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// The number of its IOMMU group, if it is in one.
    pub(crate) fn iommu_group(&self) -> Option<String> {
        let target = fs::read_link(self.folder().join("iommu_group")).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Size of a BAR, as the kernel has mapped it; 0 where there is none.
    pub(crate) fn bar_bytes(&self, index: u32) -> Result<u64> {
        let table = text(&self.folder().join("resource"))?;
        let line = table
            .lines()
            .nth(index as usize)
            .with_context(|| format!("{self} has no BAR {index}"))?;
        bar_bytes(line).with_context(|| format!("{self} describes BAR {index} as `{line}`"))
    }

    /// Turns its memory on, which a function without a driver has off.
    pub(crate) fn enable(&self) -> Result<()> {
        let path = self.folder().join("enable");
        fs::write(&path, "1").with_context(|| format!("cannot write {}", path.display()))
    }

    /// The file through which a BAR is mapped.
    pub(crate) fn bar_path(&self, index: u32) -> PathBuf {
        self.folder().join(format!("resource{index}"))
    }
}

/// From a line of sysfs' `resource`: first byte, last byte, flags.
fn bar_bytes(line: &str) -> Option<u64> {
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut words = line.split_whitespace().map(hex);
    let (first, last) = (words.next()??, words.next()??);
    if last == 0 {
        return Some(0);
    }
    last.checked_sub(first)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(
            "0000:00:05.0".parse::<Address>().unwrap().to_string(),
            "0000:00:05.0"
        );
        for wrong in ["", "0:0:5.0", "0000:00:05", "pci0000:00", "0000:00:0g.0"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bars_size_is_last_minus_first_and_one() {
        let line = "0x00000000fe000000 0x00000000fe000fff 0x0000000000040200";
        assert_eq!(bar_bytes(line), Some(4096));
        assert_eq!(bar_bytes("0x0 0x0 0x0"), Some(0));
        assert_eq!(bar_bytes("0x2 0x1 0x0"), None);
        assert_eq!(bar_bytes("nothing"), None);
    }
}
