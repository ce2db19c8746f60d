//! Inputs that once broke something, kept as files under `tests/found` and as cases here.
//! Each must be refused or accepted without a panic, and keep the parsers' promises.

use fs_adapter::format::{gguf, safetensors};
use fs_adapter::index;
use std::path::Path;

#[test]
fn found_inputs_do_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found");
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        // Every parser sees every input: what broke one may break another.
        drop(safetensors::parse_header(&bytes, bytes.len() as u64));
        drop(gguf::parse_header(&bytes, bytes.len() as u64));
        drop(index::parse(&bytes));
    }
}
