//! Addresses of namespaces, and opening what they name:
//!
//! - `nvme:/dev/ng0n1`: the kernel's passthrough;
//! - `vfio:0000:00:05.0/1`: queues of our own; the function, and the namespace's identifier;
//! - `nvme:emulated?file=disk.img`: a controller emulated in this process over a file.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::topology::PciAddress;

/// Where a namespace is, and by which way it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NvmeAddress {
    /// The generic character device of a namespace, `/dev/ngXnY`.
    Passthrough(PathBuf),
    /// A function that is bound to vfio-pci.
    Vfio {
        /// Which function.
        function: PciAddress,
        /// The namespace's identifier, from 1 on.
        namespace: u32,
    },
    /// A controller emulated in this process.
    Emulated {
        /// What its namespace holds; opened for reading.
        file: PathBuf,
        /// Bytes of its blocks.
        block_bytes: u32,
    },
}

/// How a namespace is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeOptions {
    /// Whether completions are polled for instead of waited for.
    pub polled: bool,
    /// Queues wanted (`vfio:` and emulated).
    pub queues: u16,
    /// Whether data is named by PRP lists even where SGLs could be had.
    pub prp_only: bool,
    /// How long a load waits for one command before it fails. The command's memory stays out
    /// of use until it comes back all the same.
    pub deadline: Duration,
}

impl Default for NvmeOptions {
    fn default() -> Self {
        Self {
            polled: false,
            queues: 1,
            prp_only: false,
            deadline: Duration::from_secs(60),
        }
    }
}

impl fmt::Display for NvmeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passthrough(path) => write!(f, "nvme:{}", path.display()),
            Self::Vfio {
                function,
                namespace,
            } => write!(f, "vfio:{function}/{namespace}"),
            Self::Emulated { file, .. } => write!(f, "nvme:emulated?file={}", file.display()),
        }
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what).remedy(
        "write nvme:/dev/ng0n1, vfio:0000:00:05.0/1 or nvme:emulated?file=disk.img, and \
         ?offset=…&len=… for a part",
    )
}

/// An address, and the rest of its query: pairs that are not the address's own.
type Parsed = (NvmeAddress, Vec<(String, String)>);

impl NvmeAddress {
    /// Parses an address with a query; what of the query is not the address's is given back.
    ///
    /// # Errors
    /// InvalidInput.
    pub fn parse(text: &str) -> Result<Parsed> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| invalid(format!("{pair:?} is not KEY=VALUE")))?;
            if pairs.iter().any(|(known, _)| known == key) {
                return Err(invalid(format!("{key} is given twice")));
            }
            pairs.push((key.to_owned(), value.to_owned()));
        }
        let mut take = |key: &str| {
            let found = pairs.iter().position(|(known, _)| known == key)?;
            Some(pairs.remove(found).1)
        };
        let address = if place == "nvme:emulated" {
            let file = take("file").filter(|file| !file.is_empty());
            let file = file.ok_or_else(|| invalid("nvme:emulated needs ?file=PATH"))?;
            let block = take("block").unwrap_or_else(|| "512".to_owned());
            let known = block
                .parse()
                .ok()
                .filter(|bytes| [512, 4096].contains(bytes));
            let block_bytes = known.ok_or_else(|| {
                invalid(format!(
                    "blocks of {block} bytes: emulated are 512 and 4096"
                ))
            })?;
            Self::Emulated {
                file: file.into(),
                block_bytes,
            }
        } else if let Some(path) = place.strip_prefix("nvme:") {
            if !path.starts_with('/') {
                return Err(invalid(format!("{path:?} is not the path of a device")));
            }
            Self::Passthrough(path.into())
        } else if let Some(place) = place.strip_prefix("vfio:") {
            let (function, namespace) = place.split_once('/').unwrap_or((place, "1"));
            let namespace = namespace.parse().ok().filter(|&id| id > 0);
            let namespace = namespace
                .ok_or_else(|| invalid(format!("{place:?} names no namespace (from 1 on)")))?;
            let function = function.parse().map_err(|cause| {
                invalid(format!("{place:?} names no PCI function")).because(cause)
            })?;
            Self::Vfio {
                function,
                namespace,
            }
        } else {
            return Err(invalid(format!("{text:?} is not an NVMe address")));
        };
        Ok((address, pairs))
    }
}

impl FromStr for NvmeAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, rest) = Self::parse(text)?;
        match rest.first() {
            None => Ok(address),
            Some((key, _)) => Err(invalid(format!("{key} is not part of an address"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in [
            "nvme:/dev/ng0n1",
            "vfio:0000:00:05.0/1",
            "nvme:emulated?file=disk.img",
        ] {
            let address: NvmeAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        let (address, rest) =
            NvmeAddress::parse("nvme:emulated?len=7&file=a&offset=5&block=4096").expect("one");
        let wanted = NvmeAddress::Emulated {
            file: "a".into(),
            block_bytes: 4096,
        };
        assert_eq!(address, wanted);
        let rest: Vec<_> = rest.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(rest, [("len", "7"), ("offset", "5")]);
    }

    #[test]
    fn what_is_no_address_is_refused_with_examples() {
        for text in [
            "",
            "nvme:",
            "nvme:ng0n1",
            "vfio:",
            "vfio:/1",
            "vfio:nonsense",
            "vfio:0000:00:05.0/0",
            "vfio:0000:00:05.0/x",
            "nvme:emulated",
            "nvme:emulated?file=",
            "nvme:emulated?file=a&file=b",
            "nvme:emulated?file=a&block=513",
            "nvme:/dev/ng0n1?x",
            "nvme:/dev/ng0n1?len=5",
            "file:x",
        ] {
            let error = text.parse::<NvmeAddress>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("nvme:/dev/ng0n1"), "{error}");
        }
    }
}
