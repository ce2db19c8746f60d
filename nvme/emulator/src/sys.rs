//! System calls that take raw memory.

pub(crate) mod file;
