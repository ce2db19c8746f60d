//! Hosts that keep to no rule, through the fuzzer's checks; and its seeds, which reach every
//! kind of command.

use std::path::Path;

use nvme_emulator::Counters;
use nvme_sys::opcode::nvm;
use proptest::prelude::*;

#[path = "../../../fuzz/src/emulator.rs"]
#[expect(
    unreachable_pub,
    reason = "a module of a library in the fuzz workspace, of a test here"
)]
mod fuzz;
#[path = "../../../fuzz/src/input.rs"]
mod input;

/// What each file below a folder leads to.
fn of_folder(folder: &Path) -> Vec<(String, Counters)> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let counted = entries.map(|entry| {
        let bytes = std::fs::read(entry.path()).expect("reads");
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, fuzz::emulator_commands(&bytes))
    });
    counted.collect()
}

#[test]
fn seeds_reach_what_they_are_named_after() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let counted = of_folder(&root.join("../fuzz/seeds/emulator_commands"));
    let of = |name: &str| {
        let found = counted.iter().find(|(seed, _)| seed == name);
        &found.expect("a seed").1
    };
    let blocks = of("blocks");
    for opcode in [
        nvm::FLUSH,
        nvm::WRITE,
        nvm::READ,
        nvm::COMPARE,
        nvm::WRITE_ZEROES,
        nvm::DATASET_MANAGEMENT,
    ] {
        assert!(blocks.io_commands[usize::from(opcode)] > 0, "{opcode}");
    }
    assert!(blocks.dma_write_bytes > 0 && blocks.dma_read_bytes > 0);
    assert!(of("lists").list_pages > 0 && of("lists").dma_write_bytes > 0);
    assert!(of("sgl").list_pages > 0 && of("sgl").dma_write_bytes > 0);
    let admin = of("admin")
        .admin_commands
        .iter()
        .filter(|count| **count > 0);
    assert!(admin.count() >= 10);
    assert!(of("shadow").io_commands[usize::from(nvm::READ)] > 0);
    assert_eq!(of("late").resets, 1);
}

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
        let _counted = fuzz::emulator_commands(&bytes);
    }
}
