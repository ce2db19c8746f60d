//! NVMe: from a byte run of a namespace to commands, and from commands to completions.
//! Refuses to know files, windows and GPUs: memory is bus addresses here.
//!
//! | module | what |
//! |---|---|
//! | [`lba`] | block numbers and counts, and how lengths become counts |
//! | [`dma`] | bus addresses and runs of them |
//! | [`prp`] | runs to PRP entries and list pages |
//! | [`command`] | typed commands |
//! | [`status`] | how a command ended |
//! | [`namespace`] | geometry; a byte run to legal commands |
//! | [`memory`] | this process's memory that devices write |
//! | [`device`] | a controller's function: registers, DMA, interrupts |
//! | [`transport`] | the joint: commands in, ends out |

pub mod command;
pub mod device;
pub mod dma;
pub mod error;
pub mod lba;
pub mod memory;
pub mod namespace;
pub mod prp;
pub mod status;
pub mod transport;

pub use error::{Error, ErrorKind, Result};
