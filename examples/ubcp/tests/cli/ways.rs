//! Every way, order and kind of source gives the same bytes: what is published is read by
//! other programs' parsers, and one model has one digest.

use std::collections::BTreeMap;
use std::path::Path;

use crate::models::{Entry, Gguf, entries, noise, safetensors, write, write_model, write_shards};
use crate::program::{Name, args, folder, ubcp};
use safetensors::SafeTensors;
use sha2::Digest as _;

fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = sha2::Sha256::new();
    parts.into_iter().for_each(|part| hasher.update(part));
    let hex: Vec<String> = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{}", hex.concat())
}

/// The published file through the reference parser: the same tensors, each aligned to its
/// elements in memory that is mapped from the start.
fn check_published(name: &Name, entries: &[Entry], aligned: bool) {
    let bytes = name.read();
    let read = SafeTensors::deserialize(&bytes).expect("a valid safetensors file");
    assert_eq!(read.len(), entries.len());
    for entry in entries {
        let tensor = read.tensor(&entry.name).expect("the tensor is there");
        let shape: Vec<u64> = tensor.shape().iter().map(|&dim| dim as u64).collect();
        assert_eq!(shape, entry.shape, "{}", entry.name);
        assert!(tensor.data() == entry.bytes, "{} differs", entry.name);
        let at = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
        let element = tensor.dtype().bitsize().div_ceil(8);
        assert!(!aligned || at.is_multiple_of(element), "{}", entry.name);
    }
}

/// Loads `source` into memory without a name by some ways; each is verified and digested.
fn check_host(source: &Path, ways: &[[&str; 3]], bytes: &[u64; 2], digest: &str) {
    for [via, route, more] in ways {
        let args = args![
            source,
            "host:",
            "--json",
            "--verify",
            "--digest=sha256",
            "--windows=3",
            "--window-size=128K",
            "--via",
            via,
            "--route",
            route,
            more
        ];
        let said = ubcp(&args).well().json();
        assert_eq!(said["digest"], digest, "{args:?}");
        assert_eq!(said["verified"], true);
        // On its own the tool keeps the files' layout where nothing speaks against it, on
        // whichever way.
        let image = match *via {
            "auto" => *more != "--order=layer",
            via => via == "in-place",
        };
        assert_eq!(said["bytes"], bytes[usize::from(image)], "{args:?}");
    }
}

/// The ways that differ most.
const WAYS: &[[&str; 3]] = &[
    ["auto", "auto", "--cold"],
    ["ub", "direct", "--order=layer"],
    ["ub", "cached", "--no-uring"],
    ["in-place", "direct", "--no-huge"],
    ["in-place", "traditional", "--order=file"],
    ["map", "auto", "--order=layer"],
];

/// Every way there is.
fn all_ways() -> Vec<[&'static str; 3]> {
    let mut ways = Vec::new();
    for via in ["ub", "in-place", "auto"] {
        for route in ["auto", "direct", "cached", "traditional"] {
            for more in [
                "--order=file",
                "--order=layer",
                "--no-uring",
                "--command-size=8K",
            ] {
                if (via, more) != ("in-place", "--order=layer") {
                    ways.push([via, route, more]);
                }
            }
        }
    }
    ways
}

#[test]
fn one_file_by_every_way() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let entries = entries();
    let file = safetensors(&entries);
    write(&path, &file);
    let digest = sha256(entries.iter().map(|entry| entry.bytes.as_slice()));
    let payload: usize = entries.iter().map(|entry| entry.bytes.len()).sum();
    check_host(
        &path,
        &all_ways(),
        &[payload as u64, file.len() as u64],
        &digest,
    );

    let name = Name::new("one-file");
    for way in ["auto", "in-place"] {
        ubcp(args![path, name.arg(), "--via", way, "--verify"]).well();
        assert!(name.read() == file, "in place the file stays as it is");
    }
    for more in ["--order=file", "--order=layer", "--align=1", "--no-uring"] {
        ubcp(args![path, name.arg(), "--via=ub", "--verify", more]).well();
        check_published(&name, &entries, true);
    }
    // What was published is a source itself, also for its own name.
    let said = ubcp(args![
        name.arg(),
        name.arg(),
        "--json",
        "--digest=sha256",
        "--verify"
    ]);
    assert_eq!(said.well().json()["via"], "in-place");
    check_published(&name, &entries, true);
}

#[test]
fn shards_become_one_file() {
    let folder = folder();
    let entries = write_shards(folder.path());
    let digest = sha256(entries.iter().map(|entry| entry.bytes.as_slice()));
    let payload: u64 = entries.iter().map(|entry| entry.bytes.len() as u64).sum();
    let files: u64 = std::fs::read_dir(folder.path())
        .expect("list")
        .flatten()
        .filter(|entry| {
            entry
                .path()
                .extension()
                .is_some_and(|end| end == "safetensors")
        })
        .map(|entry| entry.metadata().expect("size").len())
        .sum();
    check_host(folder.path(), WAYS, &[payload, files], &digest);

    let name = Name::new("shards");
    let index = folder.path().join("model.safetensors.index.json");
    for source in [folder.path(), &index] {
        let said = ubcp(args![source, name.arg(), "--json", "--digest=sha256"]).well();
        assert_eq!(said.json()["digest"], digest);
        assert_eq!(said.json()["files"], 2);
        assert_eq!(
            said.json()["result"],
            name.path().to_str().expect("the path is UTF-8")
        );
        check_published(&name, &entries, true);
    }
    ubcp(args![folder.path(), name.arg(), "--via=in-place"]).failed(2, &["--via", "several"]);
}

#[test]
fn a_selection_is_a_file_of_its_own() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let mut entries = entries();
    write(&path, &safetensors(&entries));
    entries
        .retain(|entry| entry.name.starts_with("model.layers.0") || entry.name == "model.scalar");
    let name = Name::new("selection");
    let globs = ["--tensors=model.layers.0.*", "--tensors=model.scal?r"];
    let said = ubcp(args![
        path,
        name.arg(),
        globs[0],
        globs[1],
        "--json",
        "--verify"
    ]);
    let said = said.well().json();
    assert_eq!(said["tensors"], 3);
    assert_eq!(said["via"], "ub");
    check_published(&name, &entries, true);
    ubcp(args![path, "host:", "--tensors=none.*"]).failed(2, &["none.*"]);
    ubcp(args![path, "host:", "--tensors=["]).failed(2, &["pattern"]);
}

#[test]
fn gguf_stays_gguf() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let gguf = Gguf::default();
    let file = gguf.bytes();
    write(&path, &file);
    let digest = sha256([&gguf.payload[..4000], &gguf.payload[4000..4384]]);
    check_host(&path, WAYS, &[4384, file.len() as u64], &digest);
    let name = Name::new("gguf");
    ubcp(args![path, name.arg(), "--verify"]).well();
    assert!(name.read() == file);
    for more in ["--order=layer", "--align=4096", "--tensors=*"] {
        let said = ubcp(args![
            path,
            name.arg(),
            more,
            "--verify",
            "--digest=sha256",
            "--json"
        ]);
        assert_eq!(said.well().json()["digest"], digest, "{more}");
        let list = ubcp(args![name.arg(), "--list", "--json"]).well().json();
        let offsets: BTreeMap<&str, u64> = list
            .as_array()
            .expect("a list")
            .iter()
            .map(|row| {
                let name = row["name"].as_str().expect("a name");
                (name, row["offset"].as_u64().expect("an offset"))
            })
            .collect();
        let published = name.read();
        for (tensor, range) in [("blk.1.w", 0..4000), ("blk.0.w", 4000..4384)] {
            let at = usize::try_from(offsets[tensor]).expect("small");
            assert!(more != "--align=4096" || at.is_multiple_of(4096));
            assert!(published[at..at + range.len()] == gguf.payload[range]);
        }
    }
}

#[test]
fn any_other_file_stays_as_it_is() {
    let folder = folder();
    let path = folder.path().join("some.bin");
    for len in [1, 4095, 4096, 4097, 9_000_001] {
        let bytes = noise(len, 3);
        write(&path, &bytes);
        let digest = sha256([bytes.as_slice()]);
        check_host(&path, WAYS, &[len as u64; 2], &digest);
        let name = Name::new("raw");
        for more in ["--via=ub", "--via=in-place", "--via=auto", "--align=4096"] {
            let args = args![
                path,
                name.arg(),
                more,
                "--digest=sha256",
                "--json",
                "--verify"
            ];
            assert_eq!(ubcp(args).well().json()["digest"], digest);
            assert!(name.read() == bytes, "{len} bytes {more}");
        }
    }
}

#[test]
fn models_without_bytes_are_models() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let empty = [crate::models::entry("none", "F32", 4, &[0])];
    for entries in [&[][..], &empty] {
        let file = safetensors(entries);
        write(&path, &file);
        let name = Name::new("no-bytes");
        for via in ["ub", "in-place"] {
            ubcp(args![path, "host:", "--verify", "--via", via]).well();
            ubcp(args![path, name.arg(), "--verify", "--via", via]).well();
            check_published(&name, entries, true);
        }
    }
}

#[test]
fn back_to_a_file() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let entries = entries();
    let file = safetensors(&entries);
    write(&path, &file);
    let name = Name::new("back");
    ubcp(args![path, name.arg()]).well();
    let back = folder.path().join("back.safetensors");
    write(&back, b"old");
    for algorithm in ["sha256", "blake3", "crc32c"] {
        let there = ubcp(args![path, "host:", "--json", "--digest", algorithm]).well();
        let said = ubcp(args![
            name.arg(),
            back,
            "--json",
            "--verify",
            "--digest",
            algorithm
        ]);
        let said = said.well().json();
        assert_eq!(said["digest"], there.json()["digest"]);
        assert_eq!(said["via"], "copy");
        assert!(std::fs::read(&back).expect("read") == file);
    }
    let files = std::fs::read_dir(folder.path()).expect("list").count();
    assert_eq!(files, 2, "nothing else is left");

    ubcp(args![name.arg(), folder.path()]).failed(4, &["folder"]);
    let nowhere = folder.path().join("no").join("file");
    ubcp(args![name.arg(), nowhere]).failed(4, &["no/file"]);
    ubcp(args![name.arg(), back, "--order=layer"]).failed(2, &["--order"]);
    ubcp(args!["shm:there-is-no-such-name", back]).failed(3, &["there-is-no-such-name"]);
    assert!(std::fs::read(&back).expect("read") == file);
}

#[test]
fn repetitions_are_runs_of_their_own() {
    let folder = folder();
    let path = folder.path().join("some.bin");
    write(&path, &noise(3 << 20, 1));
    let name = Name::new("repeat");
    let said = ubcp(args![path, name.arg(), "--repeat=3", "--json", "--via=ub"]).well();
    let runs = said.json();
    let runs = runs.as_array().expect("an array");
    assert_eq!(runs.len(), 3);
    for run in runs {
        let moved: u64 = run["route_bytes"]
            .as_object()
            .expect("routes")
            .values()
            .map(|bytes| bytes.as_u64().expect("bytes"))
            .sum();
        assert_eq!(moved, 3 << 20, "each run reports its own bytes: {run}");
    }
    assert!(name.read() == noise(3 << 20, 1));
}

/// To read cold bytes through the page cache is what was asked for, and no loss.
#[test]
fn cold_bytes_through_the_page_cache_are_no_fallback() {
    let folder = folder();
    let path = write_model(folder.path());
    for via in ["ub", "in-place"] {
        let said = ubcp(args![
            path,
            "host:",
            "--via",
            via,
            "--route=cached",
            "--cold",
            "--json"
        ])
        .well()
        .json();
        let fallbacks = said["fallbacks"].as_array().expect("an array");
        let lost = fallbacks
            .iter()
            .any(|fallback| fallback["reason"] == "page_cache_lost");
        assert!(!lost, "{said}");
    }
}
