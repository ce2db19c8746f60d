//! Feeds arbitrary registers, doorbells and commands to the emulated controller; what must hold
//! then is in the crate's emulator.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _counted = nvme_fuzz::emulator::emulator_commands(bytes);
});
