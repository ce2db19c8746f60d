//! Places and limits: file systems without direct I/O, full and read-only destinations, few
//! descriptors, no locked memory. Whatever the place, the result is whole or an error.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::models::{entries, entry, noise, safetensors, write, write_model, write_sparse};
use crate::program::{Name, Said, UBCP, alone, args, folder, ubcp};

/// Runs a program that runs ours.
fn through(program: &str, args: &[&OsStr]) -> Said {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
        .into()
}

fn is_there(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\"", program])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Mounts something over `$MNT` by a script and loads `$MNT/model.safetensors` from there,
/// every way, while nobody else sees the mount.
fn load_from_mount(what: &str, mount: &str) {
    let folder = folder();
    let source = folder.path().join("source");
    let mnt = folder.path().join("mnt");
    for path in [&source, &mnt] {
        std::fs::create_dir(path).expect("folder");
    }
    write(&source.join("model.safetensors"), &safetensors(&entries()));
    let script = format!(
        r#"
        cd "$DIR"
        mount_it() {{ {mount}
        }}
        {{ mount_it && mountpoint -q "$MNT"; }} >said 2>&1 ||
            {{ echo "skipped: $(cat said)"; exit 0; }}
        mount -t tmpfs none /dev/shm
        cmp "$SRC/model.safetensors" "$MNT/model.safetensors" || exit 1
        for dst in host: shm:name; do
            for options in "--via=ub" "--via=ub --route=direct" "--via=in-place" \
                "--via=in-place --route=direct --no-uring" "--route=cached --strict"; do
                "$UBCP" "$MNT/model.safetensors" $dst $options --verify --json || exit 1
            done
        done
        "$UBCP" shm:name "$DIR/back" --verify --quiet && cmp "$DIR/back" "$SRC/model.safetensors"
        code=$?
        umount -l "$MNT"
        exit $code
        "#
    );
    let env = [
        ("DIR", folder.path().as_os_str()),
        ("SRC", source.as_os_str()),
        ("MNT", mnt.as_os_str()),
    ];
    let Some(said) = alone(&script, &env) else {
        return;
    };
    if said.out.starts_with("skipped") {
        eprintln!("{what}: {}", said.out.trim());
        return;
    }
    let said = said.well();
    for line in said.out.lines() {
        let run: serde_json::Value = serde_json::from_str(line).expect("JSON");
        eprintln!("{what}: {} {}", run["route_bytes"], run["fallbacks"]);
        assert_eq!(run["verified"], true);
    }
    assert_eq!(said.out.lines().count(), 10);
}

#[test]
fn from_tmpfs() {
    load_from_mount(
        "tmpfs",
        r#"mount -t tmpfs none "$MNT" && cp "$SRC"/* "$MNT""#,
    );
    // And without the right to mount: shared memory itself.
    let path = Path::new("/dev/shm").join(format!("ubcp-test-{}.bin", std::process::id()));
    write(&path, &noise(5_000_001, 4));
    let name = Name::new("tmpfs");
    let said = ubcp(args![path, name.arg(), "--verify"]);
    std::fs::remove_file(&path).expect("remove");
    said.well();
    assert!(name.read() == noise(5_000_001, 4));
}

#[test]
fn from_overlay() {
    load_from_mount(
        "overlay",
        r#"mkdir upper work &&
        mount -t overlay -o lowerdir="$SRC",upperdir=upper,workdir=work none "$MNT""#,
    );
}

#[test]
fn from_squashfs() {
    if is_there("mksquashfs") {
        load_from_mount(
            "squashfs",
            r#"mksquashfs "$SRC" image -quiet -no-progress && mount -o loop image "$MNT""#,
        );
    }
}

#[test]
fn from_fuse() {
    if is_there("bindfs") {
        load_from_mount("bindfs", r#"bindfs "$SRC" "$MNT""#);
    }
    if is_there("fuse2fs") && is_there("mkfs.ext4") {
        load_from_mount(
            "fuse2fs",
            r#"mkfs.ext4 -q -d "$SRC" image 8M && fuse2fs image "$MNT" -o ro"#,
        );
    }
}

#[test]
fn a_full_or_read_only_destination_is_an_error_before_the_first_read() {
    let folder = folder();
    let path = folder.path().join("some.bin");
    write(&path, &noise(9 << 20, 1));
    let script = r#"
        mount -t tmpfs -o size=8m none /dev/shm
        for via in ub in-place; do
            "$UBCP" "$SRC" shm:name --json --via=$via 2>>"$DIR/errors"
            echo "$? $(ls -A /dev/shm | wc -l) $(df -k --output=used /dev/shm | tail -n 1)"
        done
        mount -t tmpfs -o ro none /dev/shm
        "$UBCP" "$SRC" shm:name --json 2>>"$DIR/errors"; echo "$?"
        cat "$DIR/errors" >&2
    "#;
    let env = [
        ("DIR", folder.path().as_os_str()),
        ("SRC", path.as_os_str()),
    ];
    let Some(said) = alone(script, &env) else {
        return;
    };
    let lines: Vec<&str> = said.out.lines().collect();
    let [full, ends, full_again, ends_again, read_only, code] = lines[..] else {
        panic!("{}\n{}", said.out, said.err);
    };
    for (line, kind) in [
        (full, "no-space"),
        (full_again, "no-space"),
        (read_only, "permission"),
    ] {
        let error: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(error["error"]["kind"], kind, "{line}");
        assert_eq!(error["error"]["path"], "/dev/shm", "{line}");
        assert!(error["error"]["remedy"].is_string(), "{line}");
    }
    for line in [ends, ends_again] {
        let ends: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(ends, ["4", "0", "0"], "code, names left, KiB left");
    }
    assert_eq!(code, "4");
    assert_eq!(said.err.lines().count(), 3, "{}", said.err);
}

#[test]
fn an_export_to_a_full_or_read_only_disk_leaves_nothing() {
    let folder = folder();
    let path = folder.path().join("some.bin");
    write(&path, &noise(9 << 20, 1));
    let script = r#"
        mount -t tmpfs none /dev/shm
        "$UBCP" "$SRC" shm:name --quiet || exit 1
        mkdir "$DIR/mnt"
        mount -t tmpfs -o size=8m none "$DIR/mnt"
        echo old >"$DIR/mnt/file"
        "$UBCP" shm:name "$DIR/mnt/file" --json
        echo "$? $(ls -A "$DIR/mnt") $(cat "$DIR/mnt/file")"
        mkdir "$DIR/ro"
        mount -t tmpfs -o ro none "$DIR/ro"
        "$UBCP" shm:name "$DIR/ro/file" --json
        echo "$? $(ls -A "$DIR/ro")"
    "#;
    let env = [
        ("DIR", folder.path().as_os_str()),
        ("SRC", path.as_os_str()),
    ];
    let Some(said) = alone(script, &env) else {
        return;
    };
    let lines: Vec<&str> = said.out.lines().collect();
    let [full, ends, read_only, ends_again] = lines[..] else {
        panic!("{}\n{}", said.out, said.err);
    };
    for (line, kind) in [(full, "no-space"), (read_only, "permission")] {
        let error: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(error["error"]["kind"], kind, "{line}");
    }
    assert_eq!([ends, ends_again], ["4 file old", "4 "]);
    assert_eq!(said.err.lines().count(), 2, "{}", said.err);
}

#[test]
fn limits_of_file_size_and_memory_are_errors_and_not_the_end() {
    if !is_there("prlimit") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("big.safetensors");
    write_sparse(&path, 64 << 20);
    let name = Name::new("limits");
    let limited = |limit: &str, args: [&OsStr; 3]| {
        let ours = [limit.as_ref(), UBCP.as_ref()].into_iter().chain(args);
        through("prlimit", &ours.collect::<Vec<_>>())
    };
    let shm = name.arg();
    limited(
        "--fsize=1000000",
        [path.as_os_str(), shm.as_ref(), "--quiet".as_ref()],
    )
    .failed(4, &["/dev/shm", "ulimit -f"]);
    name.assert_nothing();
    for what in ["--help", "--man", "--version"] {
        let script = format!(r#"ulimit -f 0; "$0" {what} >"$1""#);
        let file = folder.path().join(what);
        let args = [
            OsStr::new("-c"),
            script.as_ref(),
            UBCP.as_ref(),
            file.as_ref(),
        ];
        through("sh", &args).failed(1, &["standard output"]);
    }
    write_sparse(&path, 4 << 30);
    limited(
        "--as=2000000000",
        [path.as_os_str(), "host:".as_ref(), "--quiet".as_ref()],
    )
    .failed(4, &[]);
    write(&path, b"small again, and no model");
    std::fs::rename(&path, folder.path().join("small")).expect("rename");
    let path = folder.path().join("small");
    ubcp(args![path, name.arg()]).well();
    let file = folder.path().join("file");
    limited(
        "--fsize=10",
        [shm.as_ref(), file.as_os_str(), "--quiet".as_ref()],
    )
    .failed(4, &["file"]);
    assert!(!file.exists());
}

/// Whatever of it runs out first: memory for headers, for tables, for windows, for threads.
#[test]
fn little_address_space_is_an_error_and_not_the_end() {
    if !is_there("prlimit") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("many.safetensors");
    let many: Vec<_> = (0..20_000)
        .map(|number| entry(&format!("tensor.{number}"), "U8", 1, &[2]))
        .collect();
    write(&path, &safetensors(&many));
    // Shards without an index: no header tells of the others.
    let shards = folder.path().join("shards");
    std::fs::create_dir(&shards).expect("a folder");
    for (part, number) in many.chunks(1_000).zip(1..) {
        let name = format!("m-{number:05}-of-00020.safetensors");
        write(&shards.join(name), &safetensors(part));
    }
    let plain = folder.path().join("plain");
    write_sparse(&plain, 16 << 20);
    let through_windows = &["host:", "--via=ub", "--quiet"][..];
    let small_windows = &[through_windows, &["--window-size=4K", "--route=direct"]].concat();
    let cases = [
        (&path, through_windows),
        (&path, &["--list"]),
        (&shards, through_windows),
        (&shards, &["--list"]),
        (&plain, small_windows),
    ];
    let mut ends = [(0, 0); 5];
    for mebibytes in 12..88 {
        let limit = format!("--as={}", mebibytes << 20);
        let limited = |args: &[&str]| {
            // One arena: the allocator's reserve for each thread would be what is missing.
            let ours = ["MALLOC_ARENA_MAX=1", "prlimit", &limit, UBCP].map(OsStr::new);
            let args = args.iter().map(OsStr::new);
            through("env", &ours.into_iter().chain(args).collect::<Vec<_>>())
        };
        if limited(&["--version"]).code != Some(0) {
            continue;
        }
        for ((path, options), (worked, failed)) in cases.iter().zip(&mut ends) {
            // What is missing at the start is the same for all of them.
            if mebibytes % 4 != 0 && *path != &plain {
                continue;
            }
            let path = path.to_str().expect("UTF-8");
            let said = limited(&[&[path], *options].concat());
            let code = said.code;
            eprintln!(
                "{path} {options:?}, {mebibytes} MiB: {code:?} {}",
                said.err.trim()
            );
            if code == Some(0) {
                *worked += 1;
                continue;
            }
            said.one_error();
            // EAGAIN of a thread's stack cannot be told from too many threads.
            let expected = if said.err.contains("os error 11") {
                1
            } else {
                4
            };
            assert_eq!(code, Some(expected), "{}", said.err);
            *failed += 1;
        }
    }
    let both = |&(worked, failed): &(u32, u32)| worked > 0 && failed > 0;
    assert!(ends.iter().all(both), "{ends:?}");
}

/// A thread whose stack fits and whose signal stack does not ends the program from within:
/// between the two lie some KiB.
#[test]
fn too_little_memory_for_a_thread_is_an_error() {
    if !is_there("prlimit") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("small");
    write(&path, b"a few bytes");
    let mut ends = (0, 0);
    for kibibytes in (14 << 10..26 << 10).step_by(12) {
        let limit = format!("--as={}", kibibytes << 10);
        let ours = ["MALLOC_ARENA_MAX=1", "prlimit", &limit, UBCP].map(OsStr::new);
        let options = [path.as_os_str(), "host:".as_ref(), "--quiet".as_ref()];
        let said = through("env", &[&ours[..], &options].concat());
        // Below that the program itself does not start.
        if said.err.starts_with("ubcp: error: ") {
            said.one_error();
            ends.0 += 1;
        } else if said.code != Some(127) && said.code != Some(0) {
            let started = through("env", &[&ours[..], &["--version".as_ref()]].concat());
            assert_ne!(
                started.code,
                Some(0),
                "{kibibytes} KiB: {:?} {}",
                said.code,
                said.err
            );
        } else if said.code == Some(0) {
            ends.1 += 1;
        }
    }
    eprintln!("{} errors, {} loads", ends.0, ends.1);
    assert!(ends.0 > 0);
}

#[test]
fn few_descriptors_are_an_error_or_enough() {
    if !is_there("prlimit") {
        return;
    }
    let folder = folder();
    let path = write_model(folder.path());
    let source = Name::new("few-to-export");
    ubcp(args![path, source.arg()]).well();
    let file = folder.path().join("exported");
    let name = Name::new("descriptors");
    let (from, to) = (source.arg(), name.arg());
    let cases: [(&OsStr, &OsStr, std::path::PathBuf); 2] = [
        (path.as_ref(), to.as_ref(), name.path()),
        (from.as_ref(), file.as_ref(), file.clone()),
    ];
    for (from, to, result) in cases {
        let mut worked = 0;
        for limit in 4..24 {
            let limit = format!("--nofile={limit}");
            let options = ["--quiet", "--verify"].map(OsStr::new);
            let ours = [OsStr::new(&limit), UBCP.as_ref(), from, to];
            let said = through("prlimit", &[&ours[..], &options].concat());
            eprintln!("{limit}: {:?} {}", said.code, said.err.trim());
            if said.code == Some(0) {
                worked += 1;
                let written = std::fs::read(&result).expect("the result");
                assert!(written == safetensors(&entries()));
                std::fs::remove_file(&result).expect("remove");
                continue;
            }
            said.one_error();
            assert_eq!(said.code, Some(1), "{}", said.err);
            assert!(said.err.contains("ulimit -n"), "{}", said.err);
            assert!(!result.exists());
            name.assert_nothing();
        }
        assert!(worked > 0, "24 descriptors are enough");
    }
}

#[test]
fn no_locked_memory_is_a_fallback_with_its_reason() {
    if !is_there("prlimit") || !is_there("setpriv") {
        return;
    }
    let folder = folder();
    let path = write_model(folder.path());
    // The right to lock memory without limit is root's. Without any, some kernels give no
    // ring either.
    let limited = |bytes: u32, option: &str| {
        let memlock = format!("--memlock={bytes}:{bytes}");
        let ours = [
            memlock.as_ref(),
            "setpriv".as_ref(),
            "--bounding-set=-ipc_lock".as_ref(),
            UBCP.as_ref(),
            path.as_os_str(),
            "host:".as_ref(),
            "--json".as_ref(),
            "--via=ub".as_ref(),
            "--route=direct".as_ref(),
            option.as_ref(),
        ];
        through("prlimit", &ours)
    };
    for (bytes, expected) in [
        (0, &["no_io_uring", "windows_not_registered"][..]),
        (64 << 10, &["windows_not_registered"]),
    ] {
        let said = limited(bytes, "--verify");
        if said.err.contains("setpriv") {
            eprintln!("skipped: {}", said.err.trim());
            return;
        }
        let said = said.well().json();
        assert_eq!(said["verified"], true);
        let reasons = said["fallbacks"].as_array().expect("a list");
        assert!(
            reasons
                .iter()
                .any(|fallback| expected.iter().any(|code| fallback["reason"] == *code)),
            "{reasons:?}"
        );
        limited(bytes, "--strict").failed(5, &["ulimit -l"]);
    }
}
