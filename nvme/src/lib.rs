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

pub mod command;
pub mod dma;
pub mod lba;
pub mod prp;
pub mod status;
