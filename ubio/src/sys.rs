//! The kernel's side: memory maps, residency, limits. All `unsafe` of the crate that is not
//! named elsewhere lives under here.

pub(crate) mod claim;
pub mod lease;
pub mod memory;
pub(crate) mod parallel;
pub(crate) mod stream;
pub(crate) mod thread;
