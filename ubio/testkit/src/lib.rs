//! Conformance suites: what any source, any VRAM backend and any NVMe transport must do, callable from any
//! crate that implements one. Knows the traits only, no implementation's insides.

mod guarded;
pub mod sim;
pub mod source;
pub mod transport;
pub mod vram;
