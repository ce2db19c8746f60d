//! Drives a controller that answers with arbitrary completions, data and registers; what must
//! hold then is in the crate's driver.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ends = nvme_fuzz::driver::driver_completions(bytes);
});
