//! What the lab's host and guest agree on, each thing in one place.
//!
//! [`runs`] is the table of boots, [`machine`] what such a machine has, [`pattern`] what is on
//! its drives, [`line`] what is said over the serial line. Nothing here does I/O: `xtask` builds
//! the machine, `ubio-lab` looks at it from inside, and both ask these tables.

pub mod line;
pub mod machine;
pub mod pattern;
pub mod runs;

pub use self::line::{Action, Line, Verdict};
pub use self::machine::{Content, Drive, Fault, Machine, Namespace, Place, Stored, Transfer};
pub use self::runs::{Run, find, runs};
