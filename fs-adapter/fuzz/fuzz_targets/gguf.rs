//! Feeds arbitrary bytes to the gguf parser; what must hold then is in the crate's lib.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fs_adapter_fuzz::gguf(bytes));
