//! The kernel's side: memory maps, residency, limits. All `unsafe` of the crate that is not
//! named elsewhere lives under here.

pub(crate) mod claim;
pub mod lease;
pub mod memory;
pub(crate) mod mmio;
pub(crate) mod parallel;
pub mod rights;
pub(crate) mod stream;
pub mod thread;
