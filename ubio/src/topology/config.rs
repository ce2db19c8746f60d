//! What a function's configuration space says of it, from as many of its bytes as the kernel
//! gives: all of them to root, the first 64 to others. What was not given is unknown, never
//! assumed. Knows bytes only, no files.
//!
//! Layouts: PCI Local Bus 3.0 §6.1 and §6.7 (header, capability list), PCI Express Base
//! §7.5.3 (PCI Express capability), §7.6.3 (extended capabilities), §7.7.11 (ACS). What the
//! kernel gives to whom is in `drivers/pci/pci-sysfs.c`, `pci_read_config`.

/// What the PCI Express capability says a function is (its device/port type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortType {
    /// An endpoint, legacy ones among them.
    Endpoint,
    /// A root port.
    RootPort,
    /// The upstream port of a switch.
    SwitchUpstream,
    /// A downstream port of a switch.
    SwitchDownstream,
    /// A bridge to or from conventional PCI.
    PciBridge,
    /// An endpoint that is part of the root complex, without a link.
    RootComplexEndpoint,
    /// A type that this code has no name for.
    Other(u8),
    /// There is no PCI Express capability: conventional PCI.
    Conventional,
    /// The configuration space could not be read far enough.
    Unknown,
}

impl PortType {
    /// The words for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::RootPort => "root port",
            Self::SwitchUpstream => "switch upstream port",
            Self::SwitchDownstream => "switch downstream port",
            Self::PciBridge => "PCI bridge",
            Self::RootComplexEndpoint => "root complex endpoint",
            Self::Other(_) => "other function",
            Self::Conventional => "conventional PCI function",
            Self::Unknown => "function of unknown type",
        }
    }
}

/// Access Control Services of a function: whether requests from one peer to another are sent
/// up to the root complex instead of straight across.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acs {
    /// The extended configuration space could not be read.
    Unknown,
    /// The function has none.
    Absent,
    /// The ACS control register.
    Control(u16),
}

/// P2P Request Redirect.
const REQUEST_REDIRECT: u16 = 1 << 2;
/// P2P Completion Redirect.
const COMPLETION_REDIRECT: u16 = 1 << 3;
/// P2P Egress Control.
const EGRESS_CONTROL: u16 = 1 << 5;

impl Acs {
    /// Whether it redirects requests or completions between peers, or filters them: the bits
    /// that the kernel looks at before it sends peer traffic across (`drivers/pci/p2pdma.c`,
    /// `pci_bridge_has_acs_redir`). `None` where that is unknown.
    pub fn redirects(self) -> Option<bool> {
        match self {
            Self::Unknown => None,
            Self::Absent => Some(false),
            Self::Control(bits) => {
                Some(bits & (REQUEST_REDIRECT | COMPLETION_REDIRECT | EGRESS_CONTROL) != 0)
            }
        }
    }
}

/// Bytes that the kernel gives to everyone: the header, and of `CardBus` bridges a little more.
const UNPRIVILEGED_BYTES: usize = 128;
/// Extended capabilities start here.
const EXTENDED_START: usize = 0x100;
/// More capabilities than a space has room for would be a loop.
const MOST_CAPABILITIES: usize = 1024;

/// The bytes of a configuration space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config<'a>(pub(super) &'a [u8]);

impl Config<'_> {
    fn byte(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn word(self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte(at)?, self.byte(at + 1)?]))
    }

    fn double_word(self, at: usize) -> Option<u32> {
        let low = self.word(at)?;
        Some(u32::from(low) | u32::from(self.word(at + 2)?) << 16)
    }

    /// Whether the function answers to its memory BARs (command register, bit 1).
    pub(super) fn memory_decoding(self) -> Option<bool> {
        Some(self.word(0x04)? & 0x2 != 0)
    }

    /// Where the capability `id` is; `Err` where the list leaves what was given.
    fn capability(self, id: u8) -> Result<Option<usize>, ()> {
        if self.word(0x06).ok_or(())? & 0x10 == 0 {
            return Ok(None);
        }
        let mut at = usize::from(self.byte(0x34).ok_or(())? & 0xfc);
        for _ in 0..MOST_CAPABILITIES {
            if at < 0x40 {
                return Ok(None);
            }
            if self.byte(at).ok_or(())? == id {
                return Ok(Some(at));
            }
            at = usize::from(self.byte(at + 1).ok_or(())? & 0xfc);
        }
        Ok(None)
    }

    /// The device/port type.
    pub(super) fn port_type(self) -> PortType {
        let capability = match self.capability(0x10) {
            Ok(Some(at)) => at,
            Ok(None) => return PortType::Conventional,
            Err(()) => return PortType::Unknown,
        };
        let Some(flags) = self.word(capability + 2) else {
            return PortType::Unknown;
        };
        match (flags >> 4) & 0xf {
            0 | 1 => PortType::Endpoint,
            4 => PortType::RootPort,
            5 => PortType::SwitchUpstream,
            6 => PortType::SwitchDownstream,
            7 | 8 => PortType::PciBridge,
            9 => PortType::RootComplexEndpoint,
            other => PortType::Other(other.to_le_bytes()[0]),
        }
    }

    /// The ACS capability.
    pub(super) fn acs(self) -> Acs {
        if self.0.len() <= UNPRIVILEGED_BYTES {
            return Acs::Unknown;
        }
        // 256 bytes are all that such a function has, also for the kernel.
        let mut at = EXTENDED_START;
        for _ in 0..MOST_CAPABILITIES {
            let Some(header) = self.double_word(at) else {
                return Acs::Absent;
            };
            let [id_low, id_high, ..] = header.to_le_bytes();
            if u16::from_le_bytes([id_low, id_high]) == 0x000d {
                return self.word(at + 6).map_or(Acs::Unknown, Acs::Control);
            }
            at = usize::try_from(header >> 20).expect("12 bits") & !3;
            if at < EXTENDED_START {
                return Acs::Absent;
            }
        }
        Acs::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A space of `len` bytes with a PCI Express capability of this type, last in its list.
    fn space(len: usize, port: u8) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[0x04] = 0x06;
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x40;
        if len > 64 {
            bytes[0x40..0x42].copy_from_slice(&[0x01, 0x80]);
            bytes[0x80..0x84].copy_from_slice(&[0x10, 0x00, 0x02 | port << 4, 0x00]);
        }
        bytes
    }

    #[test]
    fn port_types_are_told_and_unknown_without_the_bytes() {
        for (code, port) in [
            (0, PortType::Endpoint),
            (4, PortType::RootPort),
            (5, PortType::SwitchUpstream),
            (6, PortType::SwitchDownstream),
            (9, PortType::RootComplexEndpoint),
            (12, PortType::Other(12)),
        ] {
            assert_eq!(Config(&space(256, code)).port_type(), port);
            assert_eq!(Config(&space(64, code)).port_type(), PortType::Unknown);
        }
        let mut without = space(256, 4);
        without[0x06] = 0;
        assert_eq!(Config(&without).port_type(), PortType::Conventional);
        assert_eq!(Config(&[]).port_type(), PortType::Unknown);
    }

    #[test]
    fn a_list_that_loops_ends() {
        let mut bytes = space(4096, 4);
        bytes[0x41] = 0x40;
        assert_eq!(Config(&bytes).port_type(), PortType::Conventional);
        bytes[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x100 << 20).to_le_bytes());
        assert_eq!(Config(&bytes).acs(), Acs::Absent);
    }

    #[test]
    fn redirection_is_three_bits_of_the_control_register() {
        let mut bytes = space(4096, 6);
        bytes[0x100..0x104].copy_from_slice(&(0x1_0001_u32 | 0x140 << 20).to_le_bytes());
        bytes[0x140..0x144].copy_from_slice(&0x1_000d_u32.to_le_bytes());
        for (control, redirects) in [
            (0x00, false),
            // Source validation, translation blocking, upstream forwarding, direct translated.
            (0x53, false),
            (0x04, true),
            (0x08, true),
            (0x20, true),
            (0x1d, true),
        ] {
            // The capability register in between must not be taken for it.
            bytes[0x144..0x148].copy_from_slice(&[0x7f, 0, control, 0]);
            let acs = Config(&bytes).acs();
            assert_eq!(acs, Acs::Control(control.into()));
            assert_eq!(acs.redirects(), Some(redirects), "{control:#x}");
        }
        assert_eq!(Config(&bytes[..256]).acs(), Acs::Absent);
        assert_eq!(Config(&bytes[..64]).acs().redirects(), None);
    }

    #[test]
    fn memory_decoding_is_bit_1_of_the_command_register() {
        let mut bytes = space(64, 0);
        assert_eq!(Config(&bytes).memory_decoding(), Some(true));
        bytes[0x04] = 0x05;
        assert_eq!(Config(&bytes).memory_decoding(), Some(false));
        assert_eq!(Config(&[]).memory_decoding(), None);
    }
}
