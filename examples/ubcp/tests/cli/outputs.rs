//! What the tool writes to, and what it must never write over: devices, pipes, its own source.
//! And sizes that are not to be had.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use crate::models::{entries, entry, safetensors, write, write_model};
use crate::program::{Name, Said, args, command, folder, ubcp};

#[test]
fn a_pipe_is_no_file_to_write() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("to-a-pipe");
    ubcp(args![source, name.arg()]).well();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo starts").success());
    ubcp(args![name.arg(), pipe]).failed(4, &["pipe"]);
    let kept = std::fs::symlink_metadata(&pipe).expect("it is still there");
    assert!(kept.file_type().is_fifo());
    ubcp(args![name.arg(), "/dev/null"]).failed(4, &["/dev/null", "device"]);
    let kept = std::fs::symlink_metadata("/dev/null").expect("it is still there");
    assert!(kept.file_type().is_char_device());
}

#[test]
fn a_trace_is_not_written_over_the_source() {
    let folder = folder();
    let source = folder.path().join("model.safetensors");
    let bytes = safetensors(&entries());
    write(&source, &bytes);
    let hard = folder.path().join("hard");
    std::fs::hard_link(&source, &hard).expect("link");
    let soft = folder.path().join("soft");
    std::os::unix::fs::symlink(&source, &soft).expect("link");
    for trace in [&source, &hard, &soft] {
        ubcp(args![source, "host:", "--trace", trace]).failed(2, &["--trace"]);
        assert!(
            std::fs::read(&source).expect("read") == bytes,
            "{}",
            trace.display()
        );
    }
    ubcp(args![source, "host:", "--trace", "/dev/null", "--quiet"]).well();
}

#[test]
fn a_trace_is_not_written_over_an_index() {
    let folder = folder();
    let shard = folder.path().join("model-00001-of-00001.safetensors");
    write(&shard, &safetensors(&[entry("a", "U8", 1, &[3])]));
    let index = folder.path().join("model.safetensors.index.json");
    let text = format!(
        r#"{{"metadata":{{}},"weight_map":{{"a":"{}"}}}}"#,
        shard.file_name().expect("a name").display()
    );
    write(&index, text.as_bytes());
    let hard = folder.path().join("hard");
    std::fs::hard_link(&index, &hard).expect("link");
    for source in [folder.path(), &index] {
        for trace in [&index, &hard] {
            ubcp(args![source, "host:", "--trace", trace]).failed(2, &["--trace"]);
            assert_eq!(std::fs::read_to_string(&index).expect("read"), text);
        }
        ubcp(args![source, "host:", "--quiet"]).well();
    }
}

#[test]
fn a_trace_waits_for_no_reader_and_an_older_one_stays_until_there_is_a_new_one() {
    let folder = folder();
    let source = write_model(folder.path());
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo starts").success());
    ubcp(args![source, "host:", "--trace", pipe]).failed(1, &["--trace"]);
    let older = folder.path().join("older.json");
    let text = r#"{"displayTimeUnit":"ms","traceEvents":["#.to_owned() + &" ".repeat(4_000_000);
    write(&older, text.as_bytes());
    let broken = folder.path().join("broken.safetensors");
    write(&broken, &[0; 8]);
    ubcp(args![broken, "host:", "--trace", older]).failed(3, &[]);
    // Refused when everything is open already.
    let none = folder.path().join("none.json");
    for trace in [&older, &none] {
        let refused = args![source, "host:", "--strict", "--no-uring", "--trace", trace];
        ubcp(refused).failed(5, &[]);
    }
    assert!(!none.exists());
    let link = folder.path().join("to-none.json");
    std::os::unix::fs::symlink(&none, &link).expect("link");
    let refused = args![source, "host:", "--strict", "--no-uring", "--trace", link];
    ubcp(refused).failed(5, &[]);
    assert!(link.is_symlink());
    assert!(std::fs::read_to_string(&older).expect("read") == text);
    ubcp(args![source, "host:", "--quiet", "--trace", older]).well();
    let new = std::fs::read(&older).expect("read");
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&new);
    assert!(parsed.is_ok() && new.len() < text.len());
}

#[test]
fn a_trace_is_neither_the_result_nor_among_the_report() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("traced");
    let path = name.path();
    let other_way = Path::new("/dev/shm/../shm").join(path.file_name().expect("a name"));
    for trace in [&path, &other_way] {
        ubcp(args![source, name.arg(), "--trace", trace]).failed(2, &["--trace"]);
        name.assert_nothing();
    }
    // By links, to a name that there is not yet, and to what older readers have mapped.
    let soft = folder.path().join("soft");
    std::os::unix::fs::symlink(&path, &soft).expect("link");
    let softer = folder.path().join("softer");
    std::os::unix::fs::symlink("soft", &softer).expect("link");
    for trace in [&soft, &softer] {
        ubcp(args![source, name.arg(), "--trace", trace]).failed(2, &["--trace"]);
        name.assert_nothing();
    }
    ubcp(args![source, name.arg()]).well();
    let hard = path.with_added_extension("hard");
    std::fs::hard_link(&path, &hard).expect("link");
    for trace in [&path, &other_way, &soft, &softer, &hard] {
        ubcp(args![source, name.arg(), "--trace", trace]).failed(2, &["--trace"]);
        assert!(name.read() == safetensors(&entries()));
    }
    for report in ["--json", "--progress=never"] {
        let args = args![source, "host:", report, "--trace", "/dev/stdout"];
        ubcp(args).failed(2, &["--trace"]);
    }
    let alone = ubcp(args![source, "host:", "-q", "--trace", "/dev/stdout"]).well();
    assert!(alone.json()["traceEvents"].is_array());
}

#[test]
fn a_trace_is_not_written_over_what_is_none() {
    let folder = folder();
    let source = write_model(folder.path());
    let other = folder.path().join("other.safetensors");
    write(&other, b"something else");
    for (trace, text) in [
        (other.as_path(), "other than a trace"),
        (Path::new("-"), "-"),
    ] {
        ubcp(args![source, "host:", "--trace", trace]).failed(2, &["--trace", text]);
    }
    assert!(std::fs::read(&other).expect("read") == b"something else");
    let empty = folder.path().join("empty");
    write(&empty, b"");
    for _again in 0..2 {
        ubcp(args![source, "host:", "--quiet", "--trace", empty]).well();
    }
}

#[test]
fn an_export_does_not_replace_links_to_what_is_no_file() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("linked");
    ubcp(args![source, name.arg()]).well();
    let link = folder.path().join("link");
    for target in ["/dev/null", "/proc/self/fd/1"] {
        std::os::unix::fs::symlink(target, &link).expect("link");
        // A pipe there, and then a file.
        ubcp(args![name.arg(), link]).failed(4, &["link"]);
        let file = std::fs::File::create(folder.path().join("out")).expect("a file");
        let said = command(args![name.arg(), link]).stdout(file).output();
        Said::from(said.expect("ubcp starts")).failed(4, &["link"]);
        assert!(link.is_symlink(), "{target}");
        std::fs::remove_file(&link).expect("remove");
    }
    std::os::unix::fs::symlink(&source, &link).expect("link");
    ubcp(args![name.arg(), link]).well();
    assert!(!link.is_symlink());
}

#[test]
fn a_result_gives_nobody_more_rights_than_its_source_or_what_it_replaces() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("rights");
    let to = folder.path().join("file");
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").mode() & 0o777;
    let load = || ubcp(args![source, name.arg(), "--quiet"]).well();
    let export = || ubcp(args![name.arg(), to, "--quiet"]).well();
    chmod(&source, 0o600);
    load();
    export();
    assert_eq!((mode(&name.path()), mode(&to)), (0o600, 0o600));
    // A source that all may read does not open what was closed.
    chmod(&source, 0o644);
    load();
    assert_eq!(mode(&name.path()), 0o600);
    chmod(&name.path(), 0o644);
    export();
    assert_eq!(mode(&to), 0o600);
    std::fs::remove_file(&to).expect("remove");
    load();
    export();
    // By now only the umask is in the way.
    assert_eq!(mode(&name.path()), mode(&to));
    assert_ne!((mode(&to), umask() & 0o044), (0o600, 0));
}

#[test]
fn what_cannot_be_printed_is_one_line() {
    let folder = folder();
    let source = write_model(folder.path());
    let missing = folder.path().join("missing");
    for (path, code) in [(&source, 1), (&missing, 3)] {
        into_a_full_disk(args![path, "host:", "--json"]).failed(code, &[]);
    }
}

#[test]
fn a_folder_that_has_the_name_is_an_error_before_the_load() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("a-folder");
    std::fs::create_dir(name.path()).expect("a folder");
    let said = ubcp(args![source, name.arg()]);
    std::fs::remove_dir(name.path()).expect("it is still there, and empty");
    said.failed(4, &["folder", "another name"]);
}

#[test]
fn an_export_takes_names_of_any_length_that_files_may_have() {
    let folder = folder();
    let source = folder.path().join("model.safetensors");
    let bytes = safetensors(&entries());
    write(&source, &bytes);
    let name = Name::new("long");
    ubcp(args![source, name.arg()]).well();
    let longest = folder.path().join("n".repeat(255));
    ubcp(args![name.arg(), longest]).well();
    assert!(std::fs::read(&longest).expect("the file") == bytes);
    // In characters of three bytes, one of which a hidden name would cut.
    let longest = folder.path().join("€".repeat(85));
    ubcp(args![name.arg(), longest]).well();
    let too_long = folder.path().join("n".repeat(5000));
    ubcp(args![name.arg(), too_long]).failed(4, &["shorter name"]);
    for (beside, text) in [("model.safetensors/x", "is a file"), ("new/", "folder")] {
        let args = args![name.arg(), folder.path().join(beside)];
        ubcp(args).failed(4, &[text]);
    }
}

#[test]
fn an_export_refuses_what_shapes_a_load() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("shaped");
    ubcp(args![source, name.arg()]).well();
    let to = folder.path().join("file");
    for option in [
        "--strict",
        "--route=direct",
        "--prefault",
        "--no-uring",
        "--no-huge",
        "--no-tune",
        "--windows=4",
        "--window-size=64K",
        "--command-size=64K",
        "--depth=2",
        "--workers=1",
        "--order=layer",
        "--cold",
    ] {
        let shown = option.split('=').next().expect("a name");
        ubcp(args![name.arg(), to, option]).failed(2, &[shown, "no meaning"]);
        assert!(!to.exists(), "{option}");
    }
    ubcp(args![name.arg(), to, "--windows=8", "--digest=crc32c"]).well();
}

#[test]
fn a_list_takes_names_of_any_length() {
    let folder = folder();
    let source = folder.path().join("model.safetensors");
    let long = "n".repeat(70_000);
    write(
        &source,
        &safetensors(&[entry(&long, "U8", 1, &[3]), entry("short", "U8", 1, &[1])]),
    );
    let said = ubcp(args!["--list", source]).well();
    let short = said.out.lines().find(|line| line.starts_with("short"));
    assert!(short.expect("its row").len() < 500);
}

#[test]
fn more_memory_than_there_is_is_an_error_before_the_load() {
    let folder = folder();
    let source = folder.path().join("large.bin");
    let made = std::fs::File::create(&source).and_then(|file| file.set_len(15 << 40));
    if made.is_err() {
        eprintln!("skipped: this file system has no files of 15 TiB");
        return;
    }
    for via in ["ub", "in-place"] {
        ubcp(args![source, "host:", "--via", via]).failed(4, &["needed", "available"]);
    }
}

#[test]
fn direct_by_name_where_nothing_is_direct_is_counted() {
    let folder = folder();
    let source = write_model(folder.path());
    let name = Name::new("memory");
    ubcp(args![source, name.arg()]).well();
    let reasons = |more: &[&str]| {
        let mut args = args![name.arg(), "host:", "--json"].to_vec();
        args.extend(more.iter().map(Into::into));
        let said = ubcp(&args).well().json();
        said["fallbacks"].to_string()
    };
    assert!(reasons(&["--route=direct"]).contains("no_direct_io"));
    assert!(
        !reasons(&[]).contains("no_direct_io"),
        "a copy is the best way there"
    );
}

fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    u32::from_str_radix(mask.expect("a mask").trim(), 8).expect("octal")
}

/// A run whose standard output takes nothing.
fn into_a_full_disk(args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Said {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = command(args);
    command.stdout(full.expect("there is /dev/full"));
    command.output().expect("ubcp starts").into()
}

#[test]
fn an_output_that_is_full_is_an_error_and_says_what_is_done() {
    let folder = folder();
    let source = folder.path().join("model.safetensors");
    let bytes = safetensors(&entries());
    write(&source, &bytes);
    let name = Name::new("full-output");
    for more in ["--json", "--order=file"] {
        let said = into_a_full_disk(args![source, name.arg(), more]);
        assert_eq!(said.code, Some(1), "{}", said.err);
        assert!(said.err.contains("is published"), "{}", said.err);
        assert!(name.path().exists());
    }
    into_a_full_disk(args![source, "host:"]).failed(1, &["standard output"]);
    into_a_full_disk(args![source, name.arg(), "--quiet"]).well();
    for text in ["--help", "-h", "--version", "--man"] {
        into_a_full_disk(args![text]).failed(1, &["standard output"]);
    }
}
