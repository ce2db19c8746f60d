//! Conformance suites: what any source and any VRAM backend must do, callable from any
//! crate that implements one. Knows the traits only, no implementation's insides.

mod guarded;
pub mod sim;
pub mod source;
pub mod vram;
