//! Benches of single parts: planning and flushing (criterion), and single transfers against
//! the traditional path (`cargo run --release -p ubio-benches --bin transfer`).
