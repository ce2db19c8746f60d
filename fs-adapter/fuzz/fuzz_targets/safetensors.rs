#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fs_adapter_fuzz::safetensors(bytes));
