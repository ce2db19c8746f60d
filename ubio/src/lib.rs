//! Streams file bytes through fixed windows into GPU or host memory.

pub mod error;
pub mod limits;
pub mod source;
pub mod sys;
pub mod window;
pub mod workers;

pub use error::{Error, ErrorKind, Result};
pub use ubio_core::Route;
