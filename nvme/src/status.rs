//! How a command ended, decoded: Base 3.3.3.2.1. Names are the specification's.

use std::fmt;

use nvme_sys::status::{
    CRD_MASK, CRD_SHIFT, DO_NOT_RETRY, MORE, SC_MASK, SCT_MASK, SCT_SHIFT, sct,
};

/// The status field of a completion, when it is not success.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

impl Status {
    /// From the 15 bits of a completion.
    ///
    /// # Errors
    /// The status, unless it is success.
    pub fn check(field: u16) -> Result<(), Self> {
        let code = field & (SC_MASK | SCT_MASK << SCT_SHIFT);
        if code == 0 { Ok(()) } else { Err(Self(field)) }
    }

    /// SCT: the status code type.
    #[must_use]
    pub fn code_type(self) -> u8 {
        u8::try_from(self.0 >> SCT_SHIFT & SCT_MASK).expect("three bits")
    }

    /// SC: the status code.
    #[must_use]
    pub fn code(self) -> u8 {
        u8::try_from(self.0 & SC_MASK).expect("eight bits")
    }

    /// M: the error log has more.
    #[must_use]
    pub fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// CRD: which of the controller's three delays to wait before a retry; `None` for none.
    #[must_use]
    pub fn retry_delay(self) -> Option<usize> {
        let index = usize::from(self.0 >> CRD_SHIFT & CRD_MASK);
        index.checked_sub(1)
    }

    /// Whether the same command may succeed later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        self.0 & DO_NOT_RETRY == 0
    }

    /// The 15 bits.
    #[must_use]
    pub fn field(self) -> u16 {
        self.0
    }

    /// Whether it is of a state that passes: the namespace or a path is not ready, a format
    /// or sanitize goes on, the command was interrupted or aborted.
    #[must_use]
    pub fn is_transient(self) -> bool {
        match self.code_type() {
            sct::GENERIC => matches!(
                self.code(),
                0x07 | 0x08 | 0x1d | 0x21 | 0x22 | 0x24 | 0x82 | 0x84
            ),
            sct::PATH => true,
            _ => false,
        }
    }

    /// The specification's name, where it is known.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let table: &[(u8, &str)] = match self.code_type() {
            sct::GENERIC => GENERIC,
            sct::COMMAND => COMMAND,
            sct::MEDIA => MEDIA,
            sct::PATH => PATH,
            _ => &[],
        };
        let found = table.iter().find(|(code, _)| *code == self.code());
        found.map(|(_, name)| *name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => write!(
                f,
                "status code type {}, code {:#04x}",
                self.code_type(),
                self.code()
            )?,
        }
        write!(f, " ({:#05x})", self.0 & (SC_MASK | SCT_MASK << SCT_SHIFT))
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl std::error::Error for Status {}

/// Generic command status.
const GENERIC: &[(u8, &str)] = &[
    (0x01, "Invalid Command Opcode"),
    (0x02, "Invalid Field in Command"),
    (0x03, "Command ID Conflict"),
    (0x04, "Data Transfer Error"),
    (0x05, "Commands Aborted due to Power Loss Notification"),
    (0x06, "Internal Error"),
    (0x07, "Command Abort Requested"),
    (0x08, "Command Aborted due to SQ Deletion"),
    (0x09, "Command Aborted due to Failed Fused Command"),
    (0x0a, "Command Aborted due to Missing Fused Command"),
    (0x0b, "Invalid Namespace or Format"),
    (0x0c, "Command Sequence Error"),
    (0x0d, "Invalid SGL Segment Descriptor"),
    (0x0e, "Invalid Number of SGL Descriptors"),
    (0x0f, "Data SGL Length Invalid"),
    (0x10, "Metadata SGL Length Invalid"),
    (0x11, "SGL Descriptor Type Invalid"),
    (0x12, "Invalid Use of Controller Memory Buffer"),
    (0x13, "PRP Offset Invalid"),
    (0x14, "Atomic Write Unit Exceeded"),
    (0x15, "Operation Denied"),
    (0x16, "SGL Offset Invalid"),
    (0x1c, "Sanitize Failed"),
    (0x1d, "Sanitize In Progress"),
    (0x1e, "SGL Data Block Granularity Invalid"),
    (0x20, "Namespace is Write Protected"),
    (0x21, "Command Interrupted"),
    (0x22, "Transient Transport Error"),
    (0x24, "Admin Command Media Not Ready"),
    (0x80, "LBA Out of Range"),
    (0x81, "Capacity Exceeded"),
    (0x82, "Namespace Not Ready"),
    (0x83, "Reservation Conflict"),
    (0x84, "Format In Progress"),
];

/// Command specific status.
const COMMAND: &[(u8, &str)] = &[
    (0x00, "Completion Queue Invalid"),
    (0x01, "Invalid Queue Identifier"),
    (0x02, "Invalid Queue Size"),
    (0x03, "Abort Command Limit Exceeded"),
    (0x05, "Asynchronous Event Request Limit Exceeded"),
    (0x08, "Invalid Interrupt Vector"),
    (0x09, "Invalid Log Page"),
    (0x0a, "Invalid Format"),
    (0x0c, "Invalid Queue Deletion"),
    (0x0d, "Feature Identifier Not Saveable"),
    (0x0e, "Feature Not Changeable"),
    (0x80, "Conflicting Attributes"),
    (0x81, "Invalid Protection Information"),
    (0x82, "Attempted Write to Read Only Range"),
];

/// Media and data integrity errors.
const MEDIA: &[(u8, &str)] = &[
    (0x80, "Write Fault"),
    (0x81, "Unrecovered Read Error"),
    (0x82, "End-to-end Guard Check Error"),
    (0x83, "End-to-end Application Tag Check Error"),
    (0x84, "End-to-end Reference Tag Check Error"),
    (0x85, "Compare Failure"),
    (0x86, "Access Denied"),
    (0x87, "Deallocated or Unwritten Logical Block"),
];

/// Path related status.
const PATH: &[(u8, &str)] = &[
    (0x00, "Internal Path Error"),
    (0x01, "Asymmetric Access Persistent Loss"),
    (0x02, "Asymmetric Access Inaccessible"),
    (0x03, "Asymmetric Access Transition"),
    (0x60, "Controller Pathing Error"),
    (0x70, "Host Pathing Error"),
    (0x71, "Command Aborted By Host"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_told_apart() {
        assert_eq!(Status::check(0), Ok(()));
        // More, delay and retry bits alone are no error.
        assert_eq!(Status::check(MORE | DO_NOT_RETRY), Ok(()));
        let error = Status::check(0x281).expect_err("an error");
        assert_eq!((error.code_type(), error.code()), (2, 0x81));
        assert!(error.is_retryable() && !error.more() && error.retry_delay().is_none());
        assert_eq!(error.to_string(), "Unrecovered Read Error (0x281)");
        let error = Status::check(DO_NOT_RETRY | MORE | 2 << CRD_SHIFT | 0x80).expect_err("one");
        assert!(!error.is_retryable() && error.more());
        assert_eq!(error.retry_delay(), Some(1));
        assert_eq!(error.to_string(), "LBA Out of Range (0x080)");
        let unknown = Status::check(7 << SCT_SHIFT | 0x33).expect_err("one");
        assert_eq!(unknown.to_string(), "status code type 7, code 0x33 (0x733)");
    }
}
