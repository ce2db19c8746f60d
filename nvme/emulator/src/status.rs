//! Status fields as this controller answers with them: Base 4.2.3, NVM 1.5. Fifteen bits each,
//! "do not retry" included where a retry cannot help. Decides nothing.

use nvme_sys::status::{DO_NOT_RETRY, SCT_SHIFT};

const fn generic(code: u16) -> u16 {
    code
}

const fn command(code: u16) -> u16 {
    1 << SCT_SHIFT | code | DO_NOT_RETRY
}

const fn media(code: u16) -> u16 {
    2 << SCT_SHIFT | code
}

/// Invalid Command Opcode.
pub const INVALID_OPCODE: u16 = generic(0x01) | DO_NOT_RETRY;
/// Invalid Field in Command.
pub const INVALID_FIELD: u16 = generic(0x02) | DO_NOT_RETRY;
/// Command ID Conflict.
pub const COMMAND_ID_CONFLICT: u16 = generic(0x03) | DO_NOT_RETRY;
/// Data Transfer Error.
pub const DATA_TRANSFER: u16 = generic(0x04);
/// Internal Error.
pub const INTERNAL: u16 = generic(0x06);
/// Command Abort Requested.
pub const ABORT_REQUESTED: u16 = generic(0x07);
/// Command Aborted due to SQ Deletion.
pub const ABORTED_SQ_DELETION: u16 = generic(0x08);
/// Invalid Namespace or Format.
pub const INVALID_NAMESPACE: u16 = generic(0x0b) | DO_NOT_RETRY;
/// Command Sequence Error.
pub const COMMAND_SEQUENCE: u16 = generic(0x0c) | DO_NOT_RETRY;
/// Invalid SGL Segment Descriptor.
pub const INVALID_SGL_SEGMENT: u16 = generic(0x0d) | DO_NOT_RETRY;
/// Invalid Number of SGL Descriptors.
pub const INVALID_SGL_COUNT: u16 = generic(0x0e) | DO_NOT_RETRY;
/// Data SGL Length Invalid.
pub const INVALID_SGL_LENGTH: u16 = generic(0x0f) | DO_NOT_RETRY;
/// SGL Descriptor Type Invalid.
pub const INVALID_SGL_TYPE: u16 = generic(0x11) | DO_NOT_RETRY;
/// PRP Offset Invalid.
pub const INVALID_PRP_OFFSET: u16 = generic(0x13) | DO_NOT_RETRY;
/// SGL Data Block Granularity Invalid.
pub const INVALID_SGL_GRANULARITY: u16 = generic(0x1e) | DO_NOT_RETRY;
/// Namespace is Write Protected.
pub const WRITE_PROTECTED: u16 = generic(0x20) | DO_NOT_RETRY;
/// LBA Out of Range.
pub const LBA_OUT_OF_RANGE: u16 = generic(0x80) | DO_NOT_RETRY;
/// Namespace Not Ready.
pub const NAMESPACE_NOT_READY: u16 = generic(0x82);
/// Completion Queue Invalid.
pub const INVALID_COMPLETION_QUEUE: u16 = command(0x00);
/// Invalid Queue Identifier.
pub const INVALID_QUEUE_ID: u16 = command(0x01);
/// Invalid Queue Size.
pub const INVALID_QUEUE_SIZE: u16 = command(0x02);
/// Abort Command Limit Exceeded.
pub const ABORT_LIMIT: u16 = command(0x03);
/// Asynchronous Event Request Limit Exceeded.
pub const ASYNC_EVENT_LIMIT: u16 = command(0x05);
/// Invalid Interrupt Vector.
pub const INVALID_VECTOR: u16 = command(0x08);
/// Invalid Log Page.
pub const INVALID_LOG_PAGE: u16 = command(0x09);
/// Invalid Queue Deletion.
pub const INVALID_QUEUE_DELETION: u16 = command(0x0c);
/// Feature Identifier Not Saveable.
pub const FEATURE_NOT_SAVEABLE: u16 = command(0x0d);
/// Feature Not Changeable.
pub const FEATURE_NOT_CHANGEABLE: u16 = command(0x0e);
/// Write Fault.
pub const WRITE_FAULT: u16 = media(0x80);
/// Unrecovered Read Error.
pub const UNRECOVERED_READ: u16 = media(0x81);
/// Compare Failure.
pub const COMPARE_FAILURE: u16 = media(0x85) | DO_NOT_RETRY;
