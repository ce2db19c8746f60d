//! Benches of single parts (`cargo bench -p ubio-benches --bench NAME`), and what they share.

pub mod cycle;
