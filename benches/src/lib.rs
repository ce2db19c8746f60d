//! Benches of single parts (`cargo bench -p ubio-benches --bench NAME`) and of single transfers
//! against the traditional path (`cargo run --release -p ubio-benches --bin transfer`), and
//! what they share.

pub mod cycle;
pub mod nvme;
