//! NVMe: from a byte run of a namespace to commands, and from commands to completions.
//! Refuses to know files, windows and GPUs: memory is bus addresses here.
//!
//! | module | what |
//! |---|---|
//! | [`lba`] | block numbers and counts, and how lengths become counts |
//! | [`dma`] | bus addresses and runs of them |
//! | [`prp`] | runs to PRP entries and list pages |
//! | [`sgl`] | a run to an SGL descriptor |
//! | [`command`] | typed commands |
//! | [`ring`], [`queue_pair`] | entries and doorbells; command identifiers and what is in flight |
//! | [`controller`] | reset, enable, identify, queues, events |
//! | [`status`] | how a command ended |
//! | [`namespace`] | geometry; a byte run to legal commands |
//! | [`memory`] | this process's memory that devices write |
//! | [`device`] | a controller's function: registers, DMA, interrupts |
//! | [`transport`] | the joint: commands in, ends out |

pub mod command;
pub mod controller;
pub mod device;
pub mod dma;
pub mod error;
pub mod lba;
pub mod memory;
pub mod namespace;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
pub mod prp;
pub mod queue_pair;
pub mod ring;
pub mod sgl;
pub mod status;
pub mod transport;

pub use error::{Error, ErrorKind, Result};
