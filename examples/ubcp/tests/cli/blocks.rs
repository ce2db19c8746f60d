//! Blocks of a namespace as a source, over a controller emulated in the program: what arrives,
//! what is reported, what is refused.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::program::{Name, args, folder, ubcp};

/// A disk image of `len` bytes that look random.
fn image(folder: &Path, len: usize) -> (PathBuf, Vec<u8>) {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
    .take(len)
    .collect();
    let path = folder.join("disk.img");
    std::fs::write(&path, &bytes).expect("room");
    (path, bytes)
}

fn emulated(path: &Path, query: &str) -> String {
    format!("nvme:emulated?file={}{query}", path.display())
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").expect("a string takes it");
    }
    text
}

#[test]
fn every_way_brings_the_same_bytes() {
    let folder = folder();
    let (path, bytes) = image(folder.path(), (3 << 20) + 777);
    let source = emulated(&path, "");
    let wanted = sha256(&bytes);
    for options in [
        &[][..],
        &["--via=ub", "--window-size=64K", "--windows=3"],
        &["--via=in-place"],
        &["--poll"],
        &["--prp", "--queues=4"],
        &["--strict", "--verify"],
        &["--repeat=3"],
    ] {
        let mut all = args![source, "host:", "--digest=sha256", "--json"].to_vec();
        all.extend(options.iter().map(std::ffi::OsString::from));
        let said = ubcp(all).well().json();
        let said = said.as_array().map_or(&said, |runs| &runs[0]);
        assert_eq!(said["digest"], wanted, "{options:?}");
        assert_eq!(said["bytes"], bytes.len());
        assert_eq!(said["route_bytes"]["emulated"], bytes.len(), "{options:?}");
        assert_eq!(said["route_bytes"]["direct"], 0);
        assert_eq!(said["format"], "raw");
        let reader = said["explain"]["reader"].as_str().expect("a reader");
        assert!(reader.starts_with("emulated"), "{reader}");
        assert_eq!(
            reader.contains("polling"),
            options.contains(&"--poll"),
            "{reader}"
        );
        assert_eq!(
            reader.contains("PRP"),
            options.contains(&"--prp"),
            "{reader}"
        );
    }
}

#[test]
fn a_part_is_a_part() {
    let folder = folder();
    let (path, bytes) = image(folder.path(), 100_000);
    for (query, range) in [
        ("&offset=0&len=1", 0..1),
        ("&offset=99999", 99_999..100_000),
        ("&len=4K", 0..4096),
        ("&offset=4095&len=8194&block=4096", 4095..12_289),
    ] {
        let source = emulated(&path, query);
        let said = ubcp(args![source, "host:", "--digest=sha256", "--json"]).well();
        assert_eq!(said.json()["digest"], sha256(&bytes[range]), "{query}");
    }
}

#[test]
fn options_of_drives_are_for_drives() {
    let folder = folder();
    let (path, _) = image(folder.path(), 100);
    for option in ["--timeout=5", "--poll", "--queues=2", "--prp"] {
        let shown = option.split('=').next().expect("a name");
        let words = &[shown, "blocks of a namespace only"];
        ubcp(args![path, "host:", option]).failed(2, words);
        ubcp(args![path, "--list", option]).failed(2, words);
    }
    for option in ["--queues=2", "--prp"] {
        let shown = option.split('=').next().expect("a name");
        let said = ubcp(args!["nvme:/dev/ng0n1", "host:", option]);
        said.failed(2, &[shown, "where the kernel has the queues"]);
    }
}

#[test]
fn a_named_result_holds_the_bytes_and_gives_away_no_rights() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let (path, bytes) = image(folder.path(), 300_001);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
    let name = Name::new("blocks");
    ubcp(args![emulated(&path, ""), name.arg()]).well();
    let result = std::fs::read(name.path()).expect("published");
    assert!(result == bytes);
    let mode = std::fs::metadata(name.path())
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn the_summary_names_route_and_source() {
    let folder = folder();
    let (path, _) = image(folder.path(), 50_000);
    let said = ubcp(args![emulated(&path, ""), "host:"]).well();
    for word in [
        "routes  emulated",
        "50000",
        "host memory is filled through windows",
    ] {
        assert!(said.out.contains(word), "{word}: {}", said.out);
    }
}

#[test]
fn addresses_and_options_that_make_no_sense_are_refused() {
    let folder = folder();
    let (path, _) = image(folder.path(), 50_000);
    let good = emulated(&path, "");
    let missing = emulated(&folder.path().join("missing"), "");
    let is_folder = emulated(folder.path(), "");
    type Case<'a> = (&'a str, &'a str, &'a [&'a str], i32, &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        ("nvme:", "host:", &[], 2, &["nvme:/dev/ng0n1"]),
        ("nvme:ng0n1", "host:", &[], 2, &["path of a device"]),
        (
            "nvme:/dev/no-such-node",
            "host:",
            &[],
            3,
            &["/dev/no-such-node"],
        ),
        ("nvme:/dev/null", "host:", &[], 2, &["/dev/null"]),
        ("nvme:emulated", "host:", &[], 2, &["file="]),
        (&missing, "host:", &[], 3, &["missing"]),
        (&is_folder, "host:", &[], 3, &["disk image"]),
        ("vfio:0000:00:05.0/0", "host:", &[], 2, &["namespace"]),
        ("vfio:nonsense", "host:", &[], 2, &["nonsense"]),
        (&good, "bar:nonsense", &[], 2, &["bar:0000:00:06.0/2"]),
        (&good, "bar:ffff:ff:1f.7/0", &[], 4, &["ffff:ff:1f.7"]),
        (&good, "out.bin", &[], 2, &["dd"]),
        (&good, "host:", &["--tensors=*"], 2, &["--tensors"]),
        (&good, "host:", &["--order=layer"], 2, &["--order"]),
        (&good, "host:", &["--align=512"], 2, &["--align"]),
        (&good, "host:", &["--cold"], 2, &["--cold"]),
        (&good, "host:", &["--route=direct"], 2, &["--route"]),
        (&good, "host:", &["--via=map"], 2, &["--via map"]),
        (&good, "host:", &["--no-uring"], 2, &["--no-uring"]),
        (&good, "host:", &["--timeout=0"], 2, &["--timeout"]),
        (&good, "host:", &["--queues=0"], 2, &["--queues"]),
    ];
    for (source, destination, options, code, words) in cases {
        let mut all = args![source, destination].to_vec();
        all.extend(options.iter().map(std::ffi::OsString::from));
        ubcp(all).failed(*code, words);
    }
    for (query, words) in [
        ("&offset=50001", &["50001", "offset="][..]),
        ("&offset=1&len=50000", &["50000", "offset="]),
        ("&len=x", &["len=x"]),
        ("&offset=50000", &["no bytes", "offset="]),
        ("&len=0", &["no bytes", "len="]),
        ("&len=1T", &["1099511627776", "len="]),
        ("&len=1&len=2", &["twice"]),
        ("&size=5", &["size"]),
        ("&block=1000", &["512 and 4096"]),
    ] {
        ubcp(args![emulated(&path, query), "host:"]).failed(2, words);
    }
    ubcp(args!["bar:0000:00:06.0/2", "host:"]).failed(2, &["cannot be a source"]);
    ubcp(args![
        emulated(&path, "&offset=512"),
        "host:",
        "--via=in-place"
    ])
    .failed(2, &["4096", "windows"]);
    ubcp(args![good, "--list"]).failed(2, &["--list"]);
    for drive in [&*good, "nvme:/dev/ng0n1", "vfio:0000:00:05.0/1"] {
        ubcp(args![path, drive]).failed(2, &["source only"]);
    }
}

#[test]
fn a_trace_of_blocks_is_one_and_not_written_over_the_image() {
    let folder = folder();
    let (path, bytes) = image(folder.path(), 200_000);
    let trace = folder.path().join("trace.json");
    let mut option = std::ffi::OsString::from("--trace=");
    option.push(&trace);
    ubcp(args![emulated(&path, ""), "host:", option]).well();
    let text = std::fs::read_to_string(&trace).expect("written");
    let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(!parsed["traceEvents"].as_array().expect("events").is_empty());
    let mut option = std::ffi::OsString::from("--trace=");
    option.push(&path);
    ubcp(args![emulated(&path, ""), "host:", option]).failed(2, &["is the source"]);
    assert!(std::fs::read(&path).expect("there") == bytes);
}
