//! Sources that lie, are cut, or are not there: each is one clear error before any byte is
//! moved, with its exit code, and nothing under the name that was asked for.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::models::{entries, entry, safetensors, with_header, write, write_shards};
use crate::program::{Name, args, command, folder, ubcp};

/// What makes the source, what it is called, and what the error has to say.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) make: fn(&Path) -> PathBuf,
    pub(crate) words: &'static [&'static str],
}

pub(crate) fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    write(&path, bytes);
    path
}

fn model(folder: &Path, bytes: &[u8]) -> PathBuf {
    file(folder, "model.safetensors", bytes)
}

/// A header with one valid tensor `a` of four bytes and `more` behind it.
fn header(folder: &Path, more: &str, payload: usize) -> PathBuf {
    let text = format!(r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}{more}}}"#);
    model(folder, &with_header(&text, &vec![7; payload]))
}

/// A file whose first eight bytes claim a header of this length.
fn claims(folder: &Path, header_len: u64, file_len: u64) -> PathBuf {
    let path = model(folder, &header_len.to_le_bytes());
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("open");
    file.set_len(file_len).expect("size");
    path
}

fn cut(folder: &Path, keep: impl Fn(usize) -> usize) -> PathBuf {
    let bytes = safetensors(&entries());
    model(folder, &bytes[..keep(bytes.len())])
}

fn index(folder: &Path, shard: &str) -> PathBuf {
    let text = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
    file(folder, "model.safetensors.index.json", text.as_bytes())
}

const SAFETENSORS: &[Case] = &[
    Case {
        name: "missing",
        make: |folder| folder.join("absent.safetensors"),
        words: &["absent.safetensors"],
    },
    Case {
        name: "empty",
        make: |folder| model(folder, b""),
        words: &["empty"],
    },
    Case {
        name: "cut-in-length",
        make: |folder| cut(folder, |_| 5),
        words: &["model.safetensors"],
    },
    Case {
        name: "cut-in-header",
        make: |folder| cut(folder, |_| 100),
        words: &["model.safetensors"],
    },
    Case {
        name: "cut-in-data",
        make: |folder| cut(folder, |len| len / 2),
        words: &["model.safetensors"],
    },
    Case {
        name: "one-byte-short",
        make: |folder| cut(folder, |len| len - 1),
        words: &["model.safetensors"],
    },
    Case {
        name: "header-length-0",
        make: |folder| claims(folder, 0, 4096),
        words: &["header"],
    },
    Case {
        name: "header-length-beyond-file",
        make: |folder| claims(folder, 5000, 4096),
        words: &["header"],
    },
    Case {
        name: "header-length-beyond-limit",
        make: |folder| claims(folder, 150_000_000, 200_000_000),
        words: &["header"],
    },
    Case {
        name: "header-length-u64-max",
        make: |folder| claims(folder, u64::MAX, 4096),
        words: &["header"],
    },
    Case {
        name: "overlapping",
        make: |folder| {
            let more = r#","b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}"#;
            header(folder, more, 6)
        },
        words: &["tensor \"b\""],
    },
    Case {
        name: "gap",
        make: |folder| {
            let more = r#","b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}"#;
            header(folder, more, 10)
        },
        words: &["tensor \"b\""],
    },
    Case {
        name: "out-of-range",
        make: |folder| {
            let more = r#","b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#;
            header(folder, more, 5)
        },
        words: &["model.safetensors"],
    },
    Case {
        name: "duplicate",
        make: |folder| {
            let more = r#","a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#;
            header(folder, more, 8)
        },
        words: &["\"a\"", "twice"],
    },
    Case {
        name: "duplicate-equal-ranges",
        make: |folder| {
            let more = r#","a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
            header(folder, more, 4)
        },
        words: &["\"a\"", "twice"],
    },
    Case {
        name: "unknown-dtype",
        make: |folder| {
            let more = r#","b":{"dtype":"Q7","shape":[4],"data_offsets":[4,8]}"#;
            header(folder, more, 8)
        },
        words: &["Q7"],
    },
    Case {
        name: "shape-overflow",
        make: |folder| {
            let more =
                r#","b":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[4,8]}"#;
            header(folder, more, 8)
        },
        words: &["tensor \"b\""],
    },
    Case {
        name: "size-is-not-that-of-the-shape",
        make: |folder| {
            let more = r#","b":{"dtype":"F32","shape":[2],"data_offsets":[4,8]}"#;
            header(folder, more, 8)
        },
        words: &["tensor \"b\""],
    },
    Case {
        name: "bad-utf8",
        make: |folder| {
            let mut bytes = safetensors(&entries());
            bytes[12] = 0xff;
            model(folder, &bytes)
        },
        words: &["model.safetensors"],
    },
    Case {
        name: "json-bomb",
        make: |folder| {
            let bomb = format!(
                r#"{{"__metadata__":{}{}}}"#,
                "[".repeat(1_000_000),
                "]".repeat(1_000_000)
            );
            model(folder, &with_header(&bomb, &[]))
        },
        words: &["model.safetensors"],
    },
    Case {
        name: "trailing-bytes",
        make: |folder| {
            let mut bytes = safetensors(&entries());
            bytes.extend_from_slice(b"more");
            model(folder, &bytes)
        },
        words: &["model.safetensors"],
    },
    Case {
        name: "nul-padded-header",
        make: |folder| {
            let text = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}\0\0\0";
            model(folder, &with_header(text, &[7; 4]))
        },
        words: &["model.safetensors"],
    },
];

const FOLDERS: &[Case] = &[
    Case {
        name: "folder-without-model",
        make: |folder| {
            write(&folder.join("readme.txt"), b"nothing here");
            folder.to_owned()
        },
        words: &["model"],
    },
    Case {
        name: "index-names-missing-shard",
        make: |folder| index(folder, "gone.safetensors"),
        words: &["gone.safetensors"],
    },
    Case {
        name: "index-names-parent",
        make: |folder| index(folder, "../x.safetensors"),
        words: &["../x.safetensors"],
    },
    Case {
        name: "index-names-absolute-path",
        make: |folder| index(folder, "/etc/passwd"),
        words: &["/etc/passwd"],
    },
    Case {
        name: "index-is-no-json",
        make: |folder| file(folder, "model.safetensors.index.json", b"{\"weight_map\":"),
        words: &["model.safetensors.index.json"],
    },
    Case {
        name: "index-misses-tensors",
        make: |folder| {
            let two = [entry("a", "U8", 1, &[4]), entry("b", "U8", 1, &[4])];
            write(&folder.join("s.safetensors"), &safetensors(&two));
            index(folder, "s.safetensors")
        },
        words: &["\"b\""],
    },
    Case {
        name: "index-promises-tensors",
        make: |folder| {
            let one = [entry("a", "U8", 1, &[4])];
            write(&folder.join("s.safetensors"), &safetensors(&one));
            let text = br#"{"weight_map":{"a":"s.safetensors","b":"s.safetensors"}}"#;
            file(folder, "model.safetensors.index.json", text)
        },
        words: &["\"b\""],
    },
    Case {
        name: "truncated-shard",
        make: |folder| {
            write_shards(folder);
            let shard = folder.join("model-00002-of-00002.safetensors");
            let bytes = std::fs::read(&shard).expect("read");
            write(&shard, &bytes[..bytes.len() - 1]);
            folder.to_owned()
        },
        words: &["model-00002-of-00002.safetensors"],
    },
    Case {
        name: "consolidated-and-sharded",
        make: |folder| {
            write_shards(folder);
            write(
                &folder.join("consolidated.safetensors"),
                &safetensors(&entries()),
            );
            folder.to_owned()
        },
        words: &["consolidated.safetensors"],
    },
    Case {
        name: "link-to-itself",
        make: |folder| {
            let path = folder.join("loop.safetensors");
            symlink(&path, &path).expect("link");
            path
        },
        words: &["loop.safetensors"],
    },
    Case {
        name: "pipe",
        make: |folder| {
            let path = folder.join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.expect("mkfifo starts").success());
            path
        },
        words: &["a pipe"],
    },
    Case {
        name: "device",
        make: |_| PathBuf::from("/dev/null"),
        words: &["device"],
    },
];

pub(crate) fn check(cases: &[Case]) {
    for case in cases {
        let folder = folder();
        let path = (case.make)(folder.path());
        let name = Name::new(case.name);
        eprintln!("{}: {}", case.name, path.display());
        ubcp(args![path, name.arg()]).failed(3, case.words);
        // Neither does looking at it or loading it without a name.
        ubcp(args![path, "--list"]).failed(3, case.words);
        let object = ubcp(args![path, "host:", "--json"]);
        let error = &object.failed(3, case.words).json()["error"];
        assert_eq!(error["exit_code"], 3);
        for key in ["kind", "message", "remedy"] {
            assert!(error[key].is_string(), "{key} is in {error}");
        }
        name.assert_nothing();
    }
}

#[test]
fn broken_safetensors() {
    check(SAFETENSORS);
}

#[test]
fn broken_folders_and_things_that_are_no_files() {
    check(FOLDERS);
}

#[test]
fn links_are_followed_unless_refused() {
    let folder = folder();
    let blobs = folder.path().join("blobs");
    let snapshot = folder.path().join("snapshots").join("1");
    std::fs::create_dir_all(&blobs).expect("folder");
    std::fs::create_dir_all(&snapshot).expect("folder");
    write_shards(&blobs);
    for entry in std::fs::read_dir(&blobs).expect("list").flatten() {
        let target = Path::new("../../blobs").join(entry.file_name());
        symlink(target, snapshot.join(entry.file_name())).expect("link");
    }
    let name = Name::new("links");
    ubcp(args![snapshot, name.arg(), "--no-follow"]).failed(3, &["symbolic link"]);
    name.assert_nothing();
    ubcp(args![snapshot, name.arg()]).well();
    assert!(name.path().exists());
}

#[test]
fn an_unreadable_file_is_an_error_of_its_own() {
    let folder = folder();
    let path = model(folder.path(), &safetensors(&entries()));
    let chmod = std::process::Command::new("chmod")
        .arg("000")
        .arg(&path)
        .status();
    assert!(chmod.expect("chmod starts").success());
    if std::fs::File::open(&path).is_ok() {
        eprintln!("skipped: whoever runs this may read any file");
        return;
    }
    ubcp(args![path, "host:"]).failed(1, &["ermission"]);
}

#[test]
fn names_cannot_move_the_cursor() {
    let folder = folder();
    let path = model(
        folder.path(),
        &with_header(
            r#"{"\u001b[2J\n":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}"#,
            &[0; 5],
        ),
    );
    let said = ubcp(args![path, "host:"]).failed(3, &[]);
    assert!(!said.err.contains('\u{1b}'), "{:?}", said.err);
    let strange = folder.path().join("a\n\u{1b}[2Jb");
    let said = ubcp(args![strange, "host:"]).failed(3, &[]);
    assert!(!said.err.contains('\u{1b}'), "{:?}", said.err);
    write(&strange, b"raw");
    let said = command(args![strange, "--list"]).output();
    let out = said.expect("starts").stdout;
    assert!(!out.contains(&0x1b));
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 2);
}
