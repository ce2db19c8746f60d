//! What is published, read by the formats' own Python packages. They are looked for in
//! `$UBCP_TEST_PYTHON`, or else `python3`; where they are missing the tests say so and pass.

use std::path::Path;
use std::process::Command;

use crate::models::{Gguf, entries, pair, safetensors, string, write, write_shards};
use crate::program::{Name, args, folder, ubcp};

const SAFETENSORS: &str = r#"
import sys, pathlib
from safetensors import safe_open, deserialize
published, *sources = sys.argv[1:]
def table(paths):
    return {name: (t["dtype"], t["shape"], bytes(t["data"]))
            for path in paths for name, t in deserialize(pathlib.Path(path).read_bytes())}
with safe_open(published, "numpy") as file:
    keys = set(file.keys())
one, other = table(sources), table([published])
assert keys == set(one) == set(other), keys ^ set(one)
for name in one:
    assert one[name] == other[name], name
print(len(one))
"#;

const GGUF: &str = r#"
import sys
from gguf import GGUFReader
def table(path):
    return {t.name: (int(t.tensor_type), t.shape.tolist(), t.data.tobytes())
            for t in GGUFReader(path).tensors}
published, source = sys.argv[1:]
one, other = table(source), table(published)
assert one == other and one
print(len(one))
"#;

/// Whether there is a Python with this package.
fn python(package: &str) -> Option<String> {
    let python = std::env::var("UBCP_TEST_PYTHON").unwrap_or_else(|_unset| "python3".to_owned());
    let there = Command::new(&python)
        .args(["-c", &format!("import numpy, {package}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: {python} has no packages numpy and {package}");
    }
    there.then_some(python)
}

/// Runs the comparison; it says how many tensors it compared.
fn compare(python: &str, script: &str, published: &Name, sources: &[&Path]) -> usize {
    let output = Command::new(python)
        .args(["-c", script])
        .arg(published.path())
        .args(sources)
        .output()
        .expect("python starts");
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    out.trim().parse().expect("a number")
}

#[test]
fn the_safetensors_package_reads_what_was_published() {
    let Some(python) = python("safetensors") else {
        return;
    };
    let folder = folder();
    let one = folder.path().join("one.safetensors");
    write(&one, &safetensors(&entries()));
    let shards = folder.path().join("shards");
    std::fs::create_dir(&shards).expect("folder");
    write_shards(&shards);
    let name = Name::new("python-safetensors");
    for via in ["ub", "in-place"] {
        ubcp(args![one, name.arg(), "--via", via]).well();
        assert_eq!(compare(&python, SAFETENSORS, &name, &[&one]), 6);
    }
    ubcp(args![shards, name.arg()]).well();
    let parts = [1, 2].map(|part| shards.join(format!("model-0000{part}-of-00002.safetensors")));
    let parts: Vec<&Path> = parts.iter().map(AsRef::as_ref).collect();
    assert_eq!(compare(&python, SAFETENSORS, &name, &parts), 6);
}

#[test]
fn the_gguf_package_reads_what_was_published() {
    let Some(python) = python("gguf") else {
        return;
    };
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let mut gguf = Gguf::default();
    gguf.pairs.push(pair("general.name", 8, &string("test")));
    write(&path, &gguf.bytes());
    let name = Name::new("python-gguf");
    for more in [
        "--via=ub",
        "--via=in-place",
        "--align=4096",
        "--order=layer",
    ] {
        ubcp(args![path, name.arg(), more]).well();
        assert_eq!(compare(&python, GGUF, &name, &[&path]), 2, "{more}");
    }
}
