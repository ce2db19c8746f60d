//! Controllers that keep to no rule, through the fuzzer's checks; and its seeds, which reach
//! every way that a command ends.

use std::path::Path;

use proptest::prelude::*;

#[path = "../../fuzz/src/driver.rs"]
#[expect(
    unreachable_pub,
    reason = "a module of a library in the fuzz workspace, of a test here"
)]
mod driver;
#[path = "../../fuzz/src/habits.rs"]
mod habits;
#[path = "../../fuzz/src/input.rs"]
mod input;
#[path = "../../fuzz/src/liar.rs"]
#[expect(
    unreachable_pub,
    reason = "a module of a library in the fuzz workspace, of a test here"
)]
mod liar;

use driver::driver_completions;

/// The driver's calls and what the controller says, byte by byte in turn.
fn interleaved(driver: &[u8], liar: &[u8]) -> Vec<u8> {
    let at = |of: &[u8], index: usize| of.get(index).copied().unwrap_or(0);
    (0..driver.len().max(liar.len()))
        .flat_map(|index| [at(driver, index), at(liar, index)])
        .collect()
}

#[test]
fn seeds_reach_what_they_are_named_after() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/driver_completions");
    let of = |name: &str| driver_completions(&std::fs::read(root.join(name)).expect("a seed"));
    assert!(of("aborts").aborts > 1);
    let controller = of("controller");
    assert!(controller.resets > 0 && controller.good > 1);
    assert!(of("events").events > 1);
    let gone = of("gone");
    assert!(gone.gone > 0 && gone.good > 0 && !gone.broken);
    let resets = of("resets");
    assert!(resets.resets > 1 && resets.aborted > 3);
    assert!(of("statuses").failed > 1);
    assert!(of("strays").strays > 2);
    assert!(of("stuck").broken);
}

#[test]
fn an_event_for_every_request_keeps_nobody_in_a_poll() {
    // 8: a storm of events.
    let ends = driver_completions(&interleaved(&[1], &[0, 0, 0, 8]));
    assert!(ends.opened && ends.good > 0 && ends.events > 0, "{ends:?}");
}

#[test]
fn doorbells_beyond_the_registers_are_never_rung() {
    // Two pages of registers; doorbells are 4 << stride bytes apart.
    let with = |stride| driver_completions(&interleaved(&[3], &[0, 2, 160, 63, 0, stride]));
    // Four pairs, two (of which one is the admin queue's), and one alone.
    for (stride, opened) in [(7, true), (8, true), (9, false), (15, false)] {
        assert_eq!(with(stride).opened, opened, "{stride}");
    }
}

#[test]
fn after_a_controller_was_given_up_commands_are_refused() {
    // Over and over: ten milliseconds, a command (of nine bytes), a poll. The controller cannot
    // be quiesced, and is gone in the middle of that.
    let round = [&[6, 1][..], &[0; 11], &[15]].concat();
    let driver = [&[1, 0, 0][..], &round.repeat(60)].concat();
    let liar = [&[0, 0, 0, 0x30][..], &[0; 200], &[250; 200]].concat();
    let ends = driver_completions(&interleaved(&driver, &liar));
    assert!(ends.opened && ends.broken && ends.gone > 0, "{ends:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_controller_makes_it_panic_hang_or_lose_a_command(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        plain in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if plain && bytes.len() > 60 {
            // One that comes up, more often than chance would have it.
            for at in (1..60).step_by(2) {
                bytes[at] = 0;
            }
        }
        let _ends = driver_completions(&bytes);
    }
}
