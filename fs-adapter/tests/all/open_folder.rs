//! What a name stands for: files, shards, folders, splits, and what is missing or doubtful.
//!
//! long: tables of cases, one row each.

use crate::build::{Folder, Gguf, open, refused, safetensors, safetensors_of};
use fs_adapter::{DType, ErrorKind, Format, Model, OpenOptions};

const INDEX: &str = "model.safetensors.index.json";

fn names(model: &Model) -> Vec<&str> {
    model
        .tensors()
        .as_slice()
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect()
}

/// Two shards and their index.
fn sharded(folder: &Folder) {
    folder.write(
        "model-00001-of-00002.safetensors",
        safetensors_of(&["a", "b"]),
    );
    folder.write("model-00002-of-00002.safetensors", safetensors_of(&["c"]));
    folder.write(INDEX, sharded_index());
}

fn sharded_index() -> &'static str {
    r#"{"metadata":{"total_size":3},"weight_map":{"a":"model-00001-of-00002.safetensors",
        "b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}}"#
}

/// Part `number` (from one) of `count`.
fn part(number: u16, count: u16, tensors: i32, name: &str) -> Vec<u8> {
    Gguf::small()
        .u16("split.no", number - 1)
        .u16("split.count", count)
        .pair("split.tensors.count", 5, &tensors.to_le_bytes())
        .tensor(name, &[8], 0, 32)
        .data(64)
        .build()
        .into_iter()
        .collect::<Vec<u8>>()
        .replace_first(
            b"\x01\0\0\0\0\0\0\0t",
            &[&[1, 0, 0, 0, 0, 0, 0, 0], &name.as_bytes()[..1]].concat(),
        )
}

trait ReplaceFirst {
    fn replace_first(self, from: &[u8], to: &[u8]) -> Self;
}

impl ReplaceFirst for Vec<u8> {
    fn replace_first(mut self, from: &[u8], to: &[u8]) -> Self {
        assert_eq!(from.len(), to.len());
        let at = self
            .windows(from.len())
            .position(|window| window == from)
            .expect("it is there");
        self[at..at + to.len()].copy_from_slice(to);
        self
    }
}

#[test]
fn single_files_are_told_by_content() {
    let folder = Folder::new();
    let gguf = Gguf::small().build();
    for (name, bytes, format) in [
        (
            "model.safetensors",
            safetensors_of(&["a"]),
            Format::Safetensors,
        ),
        (
            "blob-without-extension",
            safetensors_of(&["a"]),
            Format::Safetensors,
        ),
        ("named.bin", safetensors_of(&["a"]), Format::Safetensors),
        ("model.gguf", gguf.clone(), Format::Gguf),
        ("0123456789abcdef", gguf.clone(), Format::Gguf),
        ("wrong.safetensors", gguf, Format::Gguf),
        ("raw.bin", vec![1, 2, 3], Format::Raw),
        ("config.json", b"{\"hidden_size\": 1}".to_vec(), Format::Raw),
        ("one byte", vec![0], Format::Raw),
    ] {
        let model =
            open(folder.write(name, bytes)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.format(), format, "{name}");
        model.check_unchanged().expect(name);
    }
}

#[test]
fn a_raw_file_is_one_tensor_of_bytes() {
    let folder = Folder::new();
    let model = open(folder.write("data.bin", [7; 10])).expect("raw");
    let tensor = &model.tensors().as_slice()[0];
    assert_eq!(
        (tensor.name.as_str(), tensor.dtype, tensor.len),
        ("data.bin", DType::U8, 10)
    );
    assert_eq!(model.payload_bytes(), 10);
    let raw = OpenOptions::default().format(Format::Raw);
    let path = folder.write("model.safetensors", safetensors_of(&["a"]));
    assert_eq!(
        Model::open(path, &raw).expect("forced").format(),
        Format::Raw
    );
}

#[test]
fn files_that_are_no_models_are_refused() {
    use ErrorKind::{Empty, Malformed, NotAModel, NotFound, TooLarge, Truncated};
    let folder = Folder::new();
    let cut = &safetensors_of(&["a", "b"]);
    for (name, bytes, kind) in [
        ("empty", &[][..], Empty),
        ("empty.safetensors", &[], Empty),
        ("empty.gguf", &[], Empty),
        (INDEX, &[], Empty),
        ("seven.safetensors", &[0; 7], Truncated),
        ("zeros.safetensors", &[0; 64], Malformed),
        ("ones.safetensors", &[0xff; 64], TooLarge),
        ("page.gguf", b"<html>", NotAModel),
        ("one-short.safetensors", &cut[..cut.len() - 1], Truncated),
        (
            "one-short-without-extension",
            &cut[..cut.len() - 1],
            Truncated,
        ),
        (
            "pointer.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid",
            NotAModel,
        ),
        (
            "pointer.gguf",
            b"version https://git-lfs.github.com/spec/v1\noid",
            NotAModel,
        ),
        ("broken.safetensors.index.json", b"{}", Malformed),
    ] {
        let path = folder.write(name, bytes);
        let error = refused(name, open(&path), kind, name);
        assert_eq!(error.path(), Some(path.as_path()), "{name}");
    }
    refused("missing", open(folder.path("nothing")), NotFound, "nothing");
    refused("missing", open(folder.path("no/such")), NotFound, "no/such");
    refused(
        "file as folder",
        open(folder.path("empty/x")),
        NotFound,
        "empty/x",
    );
}

#[test]
fn forcing_a_format_refuses_the_others() {
    let folder = Folder::new();
    let path = folder.write("raw.bin", [0; 64]);
    for (format, kind) in [
        (Format::Safetensors, ErrorKind::Malformed),
        (Format::Gguf, ErrorKind::NotAModel),
    ] {
        refused(
            "forced",
            Model::open(&path, &OpenOptions::default().format(format)),
            kind,
            "",
        );
    }
}

#[test]
fn sharded_models_open_by_folder_index_and_blob() {
    let folder = Folder::new();
    sharded(&folder);
    folder.write("config.json", "{}");
    folder.write("tokenizer.json", "{}");
    folder.write("pytorch_model.bin", "x");
    folder.write(".hidden.safetensors", "x");
    folder.write("unnamed-index", sharded_index());
    for path in [
        folder.root().to_path_buf(),
        folder.path(INDEX),
        folder.path("unnamed-index"),
    ] {
        let model = open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(names(&model), ["a", "b", "c"]);
        assert_eq!((model.files().len(), model.payload_bytes()), (2, 3));
    }
    let one = open(folder.path("model-00002-of-00002.safetensors")).expect("a shard alone");
    assert_eq!(names(&one), ["c"]);
}

#[test]
fn numbered_shards_need_no_index() {
    let folder = Folder::new();
    sharded(&folder);
    std::fs::remove_file(folder.path(INDEX)).expect("remove");
    assert_eq!(
        names(&open(folder.root()).expect("complete")),
        ["a", "b", "c"]
    );
    folder.write("model-00003-of-00002.safetensors", safetensors_of(&["d"]));
    refused(
        "extra",
        open(folder.root()),
        ErrorKind::Malformed,
        "outside 1 to 2",
    );
    std::fs::remove_file(folder.path("model-00003-of-00002.safetensors")).expect("remove");
    std::fs::remove_file(folder.path("model-00001-of-00002.safetensors")).expect("remove");
    let missing = "model-00001-of-00002.safetensors";
    refused(
        "missing",
        open(folder.root()),
        ErrorKind::Incomplete,
        missing,
    );
}

#[test]
fn wider_numbers_are_shards_too() {
    let folder = Folder::new();
    folder.write("model-00001-of-000002.safetensors", safetensors_of(&["a"]));
    folder.write("model-00002-of-000002.safetensors", safetensors_of(&["b"]));
    assert_eq!(names(&open(folder.root()).expect("complete")), ["a", "b"]);
    let claims_many = Folder::new();
    claims_many.write(
        "m-1-of-18446744073709551615.safetensors",
        safetensors_of(&["a"]),
    );
    refused(
        "count",
        open(claims_many.root()),
        ErrorKind::TooLarge,
        "18446744073709551615",
    );
}

#[test]
fn folders_with_no_model_or_several_are_refused() {
    use ErrorKind::{Ambiguous, NotAModel};
    let whole = safetensors_of(&["a"]);
    let gguf = Gguf::small().build();
    let shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    for (what, files, kind, texts) in [
        ("nothing", vec![], NotAModel, vec!["0 entries"]),
        (
            "no weights",
            vec!["config.json"],
            NotAModel,
            vec!["1 entries"],
        ),
        (
            "pickled",
            vec!["pytorch_model.bin"],
            NotAModel,
            vec!["pytorch_model.bin", "convert"],
        ),
        (
            "subfolders",
            vec!["unet/x.safetensors", "vae/x"],
            NotAModel,
            vec!["unet, vae"],
        ),
        (
            "consolidated and sharded",
            vec!["consolidated.safetensors", shards[0], shards[1]],
            Ambiguous,
            vec![
                "2 models",
                "consolidated.safetensors",
                shards[0],
                "name one",
            ],
        ),
        (
            "consolidated and whole",
            vec!["consolidated.safetensors", "model.safetensors"],
            Ambiguous,
            vec!["consolidated.safetensors", "model.safetensors"],
        ),
        (
            "adapter and base",
            vec!["adapter_model.safetensors", "model.safetensors"],
            Ambiguous,
            vec!["adapter_model.safetensors"],
        ),
        (
            "two quantisations",
            vec!["m-Q4_0.gguf", "m-Q8_0.gguf"],
            Ambiguous,
            vec!["m-Q4_0.gguf"],
        ),
        (
            "both formats",
            vec!["m.gguf", "model.safetensors"],
            Ambiguous,
            vec!["m.gguf"],
        ),
        (
            "variants",
            vec!["m.fp16.safetensors", "m.safetensors"],
            Ambiguous,
            vec!["m.fp16.safetensors"],
        ),
        (
            "a shard missing, and one of another model",
            vec!["m.safetensors", shards[0]],
            Ambiguous,
            vec![
                "model-00001-of-00002.safetensors (shards are missing)",
                "m.safetensors;",
                "fetch what is missing",
            ],
        ),
    ] {
        let folder = Folder::new();
        for file in &files {
            folder.write(
                file,
                if file.ends_with(".gguf") {
                    &gguf
                } else {
                    &whole
                },
            );
        }
        for text in texts {
            let error = refused(what, open(folder.root()), kind, text);
            assert_eq!(error.path(), Some(folder.root()), "{what}");
        }
    }
}

#[test]
fn an_index_without_all_its_shards_says_so_among_others() {
    let folder = Folder::new();
    sharded(&folder);
    std::fs::remove_file(folder.path("model-00002-of-00002.safetensors")).expect("remove");
    folder.write("other.safetensors", safetensors_of(&["x"]));
    let shown = format!("{INDEX} (shards are missing), other.safetensors;");
    refused("both", open(folder.root()), ErrorKind::Ambiguous, &shown);
    folder.write("model-00002-of-00002.safetensors", safetensors_of(&["c"]));
    let shown = format!("{INDEX}, other.safetensors; name one");
    refused("both", open(folder.root()), ErrorKind::Ambiguous, &shown);
}

#[test]
fn a_part_missing_among_several_models_is_named_first() {
    let folder = Folder::new();
    for number in 0..7 {
        folder.write(&format!("a{number}.gguf"), Gguf::small().build());
    }
    folder.write("m-00001-of-00003.gguf", Gguf::small().build());
    let shown = "8 models: m-00001-of-00003.gguf (shards are missing), a0.gguf";
    refused("parts", open(folder.root()), ErrorKind::Ambiguous, shown);
}

#[test]
fn files_that_the_kernel_makes_up_are_refused() {
    // Of these some machines have the one, some the other.
    let groups = [
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/cpu/cgroup.procs",
    ];
    for path in ["/proc/version", "/sys/kernel/uevent_seqnum"]
        .into_iter()
        .chain(groups)
    {
        if !std::path::Path::new(path).exists() {
            continue;
        }
        refused(path, open(path), ErrorKind::NotAFile, "copy it to a disk");
    }
}

#[test]
fn names_that_no_file_can_have_are_not_found() {
    let folder = Folder::new();
    folder.write("m.safetensors", safetensors_of(&["a"]));
    for (name, text) in [
        ("m.safetensors/".to_owned(), "is a file"),
        ("m.safetensors/x".to_owned(), "is a file"),
        ("x".repeat(5000), "this long"),
    ] {
        let path = folder.path(&name);
        refused(&name, open(path), ErrorKind::NotFound, text);
    }
}

#[test]
fn an_ambiguous_folder_opens_by_format_or_name() {
    let folder = Folder::new();
    sharded(&folder);
    folder.write("consolidated.safetensors", safetensors_of(&["x"]));
    refused("both", open(folder.root()), ErrorKind::Ambiguous, INDEX);
    assert_eq!(
        names(&open(folder.path("consolidated.safetensors")).expect("named")),
        ["x"]
    );
    assert_eq!(
        names(&open(folder.path(INDEX)).expect("named")),
        ["a", "b", "c"]
    );
    std::fs::remove_file(folder.path("consolidated.safetensors")).expect("remove");
    folder.write("model.gguf", Gguf::small().build());
    for (format, expected) in [
        (Format::Gguf, vec!["t"]),
        (Format::Safetensors, vec!["a", "b", "c"]),
    ] {
        let options = OpenOptions::default().format(format);
        assert_eq!(
            names(&Model::open(folder.root(), &options).expect("forced")),
            expected
        );
    }
    let raw = OpenOptions::default().format(Format::Raw);
    refused(
        "raw folder",
        Model::open(folder.root(), &raw),
        ErrorKind::NotAFile,
        "folder",
    );
}

#[test]
fn index_and_shards_must_agree() {
    use ErrorKind::{Incomplete, IndexMismatch, Truncated};
    let second = "model-00002-of-00002.safetensors";
    let short = safetensors_of(&["c"]);
    type Change<'a> = &'a dyn Fn(&Folder);
    let cases: [(&str, Change<'_>, ErrorKind, &str); 6] = [
        (
            "missing shard",
            &|folder| std::fs::remove_file(folder.path(second)).expect("remove"),
            Incomplete,
            second,
        ),
        (
            "cut shard",
            &|folder| drop(folder.write(second, &short[..short.len() - 1])),
            Truncated,
            second,
        ),
        (
            "tensor not in the index",
            &|folder| drop(folder.write(second, safetensors_of(&["c", "d"]))),
            IndexMismatch,
            "not in the index",
        ),
        (
            "tensor not in its shard",
            &|folder| drop(folder.write(second, safetensors_of(&[]))),
            IndexMismatch,
            "not there",
        ),
        (
            "tensor in another shard",
            &|folder| {
                let swapped = sharded_index()
                    .replacen("model-00002", "model-00001", 1)
                    .replacen("\"b\":\"model-00001", "\"b\":\"model-00002", 1);
                folder.write(INDEX, swapped);
            },
            IndexMismatch,
            "but it is in",
        ),
        (
            "tensor in both",
            &|folder| drop(folder.write(second, safetensors_of(&["c", "a"]))),
            ErrorKind::Duplicate,
            "model-00001-of-00002.safetensors at byte",
        ),
    ];
    for (what, change, kind, text) in cases {
        let folder = Folder::new();
        sharded(&folder);
        change(&folder);
        refused(what, open(folder.root()), kind, text);
        refused(what, open(folder.path(INDEX)), kind, text);
    }
}

#[test]
fn an_index_cannot_leave_its_folder() {
    let folder = Folder::new();
    folder.write("secret.safetensors", safetensors_of(&["a"]));
    let absolute = folder.path("secret.safetensors");
    for shard in [
        "../secret.safetensors",
        "x/../../secret.safetensors",
        absolute.to_str().expect("UTF-8"),
    ] {
        let text = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
        folder.write("inner/model.safetensors.index.json", text);
        for path in ["inner", "inner/model.safetensors.index.json"] {
            refused(
                shard,
                open(folder.path(path)),
                ErrorKind::UnsafePath,
                "secret.safetensors",
            );
        }
    }
}

#[test]
fn a_split_gguf_opens_by_first_part_and_folder() {
    let folder = Folder::new();
    for (number, name) in [(1u16, "a0"), (2, "b0"), (3, "c0")] {
        folder.write(
            &format!("m-0000{number}-of-00003.gguf"),
            part(number, 3, 6, name),
        );
    }
    for path in [
        folder.root().to_path_buf(),
        folder.path("m-00001-of-00003.gguf"),
    ] {
        let model = open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(names(&model), ["a", "a0", "b", "b0", "c", "c0"]);
        assert_eq!(model.files().len(), 3);
    }
    let second = open(folder.path("m-00002-of-00003.gguf"));
    refused(
        "second part",
        second,
        ErrorKind::Incomplete,
        "m-00001-of-00003.gguf",
    );
    std::fs::copy(
        folder.path("m-00001-of-00003.gguf"),
        folder.path("renamed.gguf"),
    )
    .expect("copy");
    refused(
        "renamed",
        open(folder.path("renamed.gguf")),
        ErrorKind::Incomplete,
        "one of 3 parts",
    );
    std::fs::remove_file(folder.path("renamed.gguf")).expect("remove");
    folder.write("m-00003-of-00003.gguf", part(2, 3, 6, "c0"));
    refused(
        "wrong number",
        open(folder.root()),
        ErrorKind::IndexMismatch,
        "part 3 of 3",
    );
    folder.write("m-00003-of-00003.gguf", part(3, 3, 6, "b0"));
    refused(
        "same names",
        open(folder.root()),
        ErrorKind::Duplicate,
        "m-00002-of-00003.gguf",
    );
    std::fs::remove_file(folder.path("m-00003-of-00003.gguf")).expect("remove");
    refused(
        "missing",
        open(folder.root()),
        ErrorKind::Incomplete,
        "m-00003-of-00003.gguf",
    );
    std::fs::remove_file(folder.path("m-00001-of-00003.gguf")).expect("remove");
    refused(
        "first missing",
        open(folder.root()),
        ErrorKind::Incomplete,
        "m-00001-of-00003.gguf",
    );
}

#[test]
fn names_and_keys_of_a_split_must_agree() {
    let folder = Folder::new();
    let path = folder.write("m-00001-of-00002.gguf", part(2, 2, 5, "a0"));
    let shown = "by its name this is part 1 of 2, by its keys part 2 of 2";
    refused("number", open(&path), ErrorKind::IndexMismatch, shown);
    folder.write("m-00001-of-00002.gguf", part(1, 3, 5, "a0"));
    let shown = "part 1 of 2, by its keys part 1 of 3";
    refused("count", open(&path), ErrorKind::IndexMismatch, shown);
}

#[test]
fn shards_numbered_from_zero_are_told_so() {
    let folder = Folder::new();
    for number in 0..2 {
        let name = format!("model-0000{number}-of-00002.safetensors");
        folder.write(&name, safetensors_of(&[&number.to_string()]));
    }
    refused("zero", open(folder.root()), ErrorKind::Malformed, "from 0");
}

#[test]
fn a_split_that_promises_other_tensors_is_refused() {
    let folder = Folder::new();
    folder.write("m-00001-of-00002.gguf", part(1, 2, 5, "a0"));
    folder.write("m-00002-of-00002.gguf", part(2, 2, 5, "b0"));
    refused(
        "promise",
        open(folder.root()),
        ErrorKind::IndexMismatch,
        "promises 5",
    );
}

#[test]
fn a_changed_file_is_noticed() {
    use std::io::Write as _;
    let folder = Folder::new();
    let bytes = safetensors(
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
        4,
    );
    type Change<'a> = &'a dyn Fn(&std::path::Path);
    let cases: [(&str, Change<'_>, &str); 6] = [
        (
            "replaced",
            &|path| {
                std::fs::write(path.with_extension("new"), &bytes).expect("write");
                std::fs::rename(path.with_extension("new"), path).expect("rename");
            },
            // The old file lost its name, which changes it too.
            "changed after it was opened",
        ),
        (
            "removed",
            &|path| std::fs::remove_file(path).expect("remove"),
            "after it was opened",
        ),
        (
            "cut",
            &|path| {
                let file = std::fs::File::options()
                    .write(true)
                    .open(path)
                    .expect("open");
                file.set_len(3).expect("cut");
            },
            "to 3 bytes",
        ),
        (
            "written",
            &|path| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                let mut file = std::fs::File::options()
                    .write(true)
                    .open(path)
                    .expect("open");
                file.write_all(b"x").expect("write");
            },
            "written to",
        ),
        (
            "hidden behind another name",
            &|path| {
                // Only the name tells: a bind mount or a swapped parent leaves the file alone.
                let parent = path.parent().expect("a folder");
                std::fs::rename(parent, parent.with_extension("old")).expect("rename");
                std::fs::create_dir(parent).expect("folder");
                std::fs::write(path, &bytes).expect("write");
            },
            "replaced by another file",
        ),
        (
            "behind a file",
            &|path| {
                let parent = path.parent().expect("a folder");
                std::fs::rename(parent, parent.with_extension("old")).expect("rename");
                std::fs::write(parent, &bytes).expect("write");
            },
            "removed or renamed",
        ),
    ];
    for (at, (what, change, text)) in cases.into_iter().enumerate() {
        let path = folder.write(&format!("{at}/model.safetensors"), &bytes);
        let model = open(&path).expect(what);
        model.check_unchanged().expect(what);
        change(&path);
        let error = refused(what, model.check_unchanged(), ErrorKind::Changed, text);
        assert_eq!(error.path(), Some(path.as_path()));
    }
}

#[test]
fn a_low_file_limit_is_an_error_with_a_remedy() {
    // The limit is per process, so a real one would break tests that run beside this one:
    // only the wording is checked.
    let error = fs_adapter::Error::io(
        std::path::Path::new("shard"),
        "open",
        std::io::Error::from_raw_os_error(24),
    );
    refused("EMFILE", Err::<(), _>(error), ErrorKind::Io, "ulimit -n");
}

#[test]
fn a_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<Model>();
    shared::<fs_adapter::Error>();
    shared::<fs_adapter::placement::Placement>();
}
