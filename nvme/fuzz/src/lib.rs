//! What must hold under any input, for the fuzz targets; the crates' tests take the same files.
//!
//! | module | who may do anything | who must stand it |
//! |---|---|---|
//! | [`emulator`] | a host | the emulated controller |
//! | [`driver`] | a controller ([`liar`]) | the driver |

pub mod driver;
pub mod emulator;
mod habits;
mod input;
pub mod liar;
