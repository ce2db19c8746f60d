//! Placeholder head; replaced by the first real commit of this crate.

fn main() {}
