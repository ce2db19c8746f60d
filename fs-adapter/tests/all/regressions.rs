//! Seeds, and inputs that once broke something (`tests/found`), through the fuzzers' checks.

#[path = "../../fuzz/src/lib.rs"]
#[expect(
    unreachable_pub,
    reason = "a library's root in the fuzz workspace, a module here"
)]
mod invariants;

use std::path::Path;

/// Every file below `folder`.
fn check_all(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            count += check_all(&path);
            continue;
        }
        let bytes = std::fs::read(&path).expect("a file");
        // Every parser sees every input: what broke one may break another.
        invariants::safetensors(&bytes);
        invariants::gguf(&bytes);
        invariants::index(&bytes);
        count += 1;
    }
    count
}

#[test]
fn seeds_and_found_inputs_keep_the_promises() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(check_all(&root.join("fuzz/seeds")) > 0);
    check_all(&root.join("tests/found"));
}
