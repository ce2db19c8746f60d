//! Hosts that keep to no rule, through the fuzzer's checks.

use proptest::prelude::*;

#[path = "../../../fuzz/src/lib.rs"]
#[expect(
    unreachable_pub,
    reason = "a library's root in the fuzz workspace, a module here"
)]
mod fuzz;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_host_makes_it_panic_hang_or_write_elsewhere(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        enabled in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if enabled && bytes.len() > 40 {
            // Enabled and with a pair of queues, more often than chance would have it.
            bytes[8..16].copy_from_slice(&[5, 4, 6, 1, 15, 6, 2, 15]);
        }
        fuzz::emulator_commands(&bytes);
    }
}
