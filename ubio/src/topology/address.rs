//! Names for PCI functions and for their memory, as people write them. Knows no machine: what
//! has a name need not be there.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// The address of a PCI function: `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// An address; `None` where a device is beyond 31 or a function beyond 7.
    pub fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        (device < 32 && function < 8).then_some(Self {
            domain,
            bus,
            device,
            function,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// Hex digits, and nothing that the standard parser would take beside them.
pub(super) fn hex(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

fn parse(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    // Domains beyond four digits are real (Intel VMD makes 10000 and up).
    let whole = (domain.len() == 4 || (domain.len() > 4 && !domain.starts_with('0')))
        && (bus.len(), device.len(), function.len()) == (2, 2, 1);
    let short = |text: &str| u8::try_from(hex(text)?).ok();
    whole
        .then(|| PciAddress::new(hex(domain)?, short(bus)?, short(device)?, short(function)?))
        .flatten()
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            let what = format!("{text:?} is no PCI address");
            Error::new(ErrorKind::InvalidInput, what)
                .remedy("write it as domain:bus:device.function, as lspci -D does: 0000:01:00.0")
        })
    }
}

/// Which memory of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryPart {
    /// The BAR of this number, 0 to 5.
    Bar(u8),
    /// What its driver gave to the kernel as peer-to-peer memory.
    P2pmem,
}

impl fmt::Display for MemoryPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bar(number) => write!(f, "BAR {number}"),
            Self::P2pmem => f.write_str("p2pmem"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_they_are_written_and_no_other_way() {
        for text in [
            "0000:00:06.0",
            "ffff:ff:1f.7",
            "10000:e1:00.0",
            "0001:0a:00.1",
        ] {
            assert_eq!(text.parse::<PciAddress>().expect(text).to_string(), text);
        }
        let upper: PciAddress = "00AB:0C:1F.3".parse().expect("upper case");
        assert_eq!(upper.to_string(), "00ab:0c:1f.3");
        for text in [
            "",
            "00:06.0",
            "0000:00:06",
            "0000:00:20.0",
            "0000:00:06.8",
            "0000:100:06.0",
            "0000:0:06.0",
            "0000:00:6.0",
            "000:00:06.0",
            "00000:00:06.0",
            "+000:00:06.0",
            "0000:+0:06.0",
            "0000:00:06.0 ",
            " 0000:00:06.0",
            "0000:00:06.0/2",
            "100000000:00:06.0",
            "0000.00.06:0",
        ] {
            let error = text.parse::<PciAddress>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(PciAddress::new(0, 0, 32, 0), None);
        assert_eq!(PciAddress::new(0, 0, 0, 8), None);
    }
}
