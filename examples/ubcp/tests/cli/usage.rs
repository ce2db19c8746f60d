//! The command line itself: what is refused and in which words, help, lists, JSON's keys.
//!
//! long: tables of cases, one row each.

use std::ffi::OsString;

use crate::models::{Gguf, entries, write, write_model};
use crate::program::{Name, UBCP, args, folder, ubcp};

#[test]
fn what_does_not_go_together_is_refused_with_a_remedy() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let other = folder.path().join("other");
    let name = Name::new("refused");
    let shm = OsString::from(name.arg());
    let host = OsString::from("host:");
    let cases: &[(&OsString, &OsString, &[&str], &[&str])] = &[
        (&path, &OsString::from(&other), &[], &["use cp"]),
        (&path, &"-".into(), &[], &["DST"]),
        (&path, &"".into(), &[], &["DST"]),
        (&"".into(), &host, &[], &["SRC"]),
        (&"-".into(), &host, &[], &["source"]),
        (&host, &host, &[], &["source", "shm:NAME"]),
        (&path, &"host:x".into(), &[], &["host: takes no name"]),
        (&path, &"shm:".into(), &[], &["name"]),
        (&path, &"shm:a/b".into(), &[], &["a/b"]),
        (&path, &host, &["--via=no"], &["in-place"]),
        (
            &path,
            &host,
            &["--via=in-place", "--order=layer"],
            &["--order"],
        ),
        (
            &path,
            &host,
            &["--via=in-place", "--align=256"],
            &["--align"],
        ),
        (
            &path,
            &host,
            &["--via=in-place", "--tensors=*"],
            &["--tensors"],
        ),
        (&path, &shm, &["--via=map"], &["host:"]),
        (&path, &shm, &["--prefault"], &["--prefault"]),
        (&path, &host, &["--via=map", "--prefault"], &["--prefault"]),
        (&path, &host, &["--via=map", "--align=256"], &["--align"]),
        (&path, &host, &["--via=map", "--route=direct"], &["--route"]),
        (&path, &host, &["--via=map", "--trace=t"], &["--trace"]),
        (&path, &host, &["--align=48"], &["power of two"]),
        (&path, &host, &["--align=32M"], &["16 MiB"]),
        (&path, &shm, &["--align=1G"], &["16 MiB"]),
        (&path, &shm, &["--align=3"], &["power of two"]),
        (&path, &host, &["--align=4X"], &["4MiB"]),
        (&path, &host, &["--align", "-1"], &["4MiB"]),
        (&path, &host, &["--window-size", "-1"], &["whole number"]),
        (&path, &host, &["--repeat", "-1"], &["1..=100000"]),
        (&path, &shm, &["--align=4096"], &["no gaps", "host:"]),
        (&path, &host, &["--windows=0"], &["--windows", "4096"]),
        (&path, &host, &["--windows=4097"], &["--windows", "4096"]),
        (&path, &host, &["--window-size=5000"], &["4 KiB"]),
        (&path, &host, &["--window-size=256M"], &["128 MiB"]),
        (&path, &host, &["--window-size=99999999999G"], &["16 EiB"]),
        (&path, &host, &["--depth=0"], &["--depth"]),
        (&path, &host, &["--command-size=8M"], &["4 MiB"]),
        (&path, &host, &["--repeat=0"], &["--repeat"]),
        (&path, &host, &["--no-such-option"], &["--no-such-option"]),
        (&path, &host, &["--list"], &["--list"]),
    ];
    for (source, destination, more, words) in cases {
        eprintln!("{source:?} {destination:?} {more:?}");
        let mut args = args![source, destination].to_vec();
        args.extend(more.iter().map(Into::into));
        ubcp(&args).failed(2, words);
        name.assert_nothing();
        args.push("--json".into());
        let said = ubcp(&args).failed(2, words).json();
        assert_eq!(said["error"]["exit_code"], 2, "{said}");
    }
    assert!(!other.exists());
    // 512 GiB: some machines have them.
    let memory = rustix::system::sysinfo();
    if memory.totalram.saturating_mul(memory.mem_unit.into()) < 1 << 39 {
        let args = args![path, host, "--windows=4096", "--window-size=128M"];
        ubcp(args).failed(2, &["memory"]);
    }
    ubcp(Vec::<OsString>::new()).failed(2, &["SRC"]);
    ubcp(args![path]).failed(2, &["DST"]);
}

#[test]
fn help_man_and_completions_tell_the_exit_codes_and_options() {
    for args in [&["--help"][..], &["-h"], &["--man"]] {
        let said = ubcp(args).well();
        let text = said.out.to_lowercase();
        for word in ["exit ", "130", "examples", "via"] {
            assert!(text.contains(word), "{word} in {args:?}");
        }
    }
    assert!(ubcp(["--version"]).well().out.starts_with("ubcp "));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = ubcp(["--completions", shell]).well();
        assert!(said.out.contains("window-size"), "{shell}");
    }
}

#[test]
fn a_list_needs_no_destination() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let table = ubcp(args![path, "--list"]).well().out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 1 + entries().len());
    assert!(lines[0].starts_with("NAME"), "{table}");
    assert!(lines[1].contains("[300,1001]"), "{table}");
    let list = ubcp(args![
        path,
        "--list",
        "--json",
        "--tensors=*.weight",
        "--order=layer"
    ]);
    let list = list.well().json();
    let names: Vec<_> = list
        .as_array()
        .expect("an array")
        .iter()
        .map(|row| row["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(
        names,
        [
            "model.embed.weight",
            "model.layers.0.weight",
            "model.layers.1.weight"
        ]
    );
    for key in ["name", "dtype", "shape", "bytes", "offset", "file"] {
        assert!(!list[0][key].is_null(), "{key}");
    }
    let gguf = folder.path().join("model.gguf");
    write(&gguf, &Gguf::default().bytes());
    let list = ubcp(args![gguf, "--list"]).well().out;
    assert!(list.contains("F16") && list.contains("[3,64]"), "{list}");
}

#[test]
fn json_has_the_promised_keys() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let said = ubcp(args![path, "host:", "--json", "--via=ub", "--route=direct"]);
    let said = said.well().json();
    for (key, parts) in [
        ("bytes", &[][..]),
        ("tensors", &[]),
        ("seconds", &[]),
        ("gib_per_s", &[]),
        ("cpu_seconds", &["user", "sys"]),
        ("peak_rss_bytes", &[]),
        ("via", &[]),
        ("layout", &[]),
        ("route_bytes", &["direct", "cached", "traditional"]),
        ("fallbacks", &[]),
        ("windows", &["count", "size", "switches", "peak_in_use"]),
        ("in_flight", &["mean", "max"]),
        ("stalls_s", &["source", "window", "copy", "compute"]),
        ("fill_latency_us", &["p50", "p99", "max"]),
        ("flush_latency_us", &["p50", "p99", "max"]),
        ("digest", &[]),
        ("verified", &[]),
        ("format", &[]),
        ("source", &[]),
        ("destination", &[]),
        (
            "drive",
            &["strays", "overdue", "aborts", "resets", "events"],
        ),
        ("explain", &["reader", "window_pages"]),
    ] {
        let value = said.get(key).unwrap_or_else(|| panic!("{key} in {said}"));
        for part in parts {
            assert!(!value[part].is_null(), "{key}.{part} in {said}");
        }
    }
    assert!(
        said["seconds"]
            .as_f64()
            .is_some_and(|seconds| seconds > 0.0)
    );
    assert!(
        said["peak_rss_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 1 << 20)
    );
    assert!(
        said["windows"]["switches"]
            .as_u64()
            .is_some_and(|count| count > 0)
    );
}

#[test]
fn a_summary_is_for_people_and_quiet_is_quiet() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let said = ubcp(args![path, "host:", "--verify", "--digest=blake3"]).well();
    for word in ["loaded", "GiB/s", "via", "auto:", "verified", "blake3:"] {
        assert!(said.out.contains(word), "{word} in {}", said.out);
    }
    let said = ubcp(args![path, "host:", "--quiet"]).well();
    assert_eq!((said.out.as_str(), said.err.as_str()), ("", ""));
    let said = ubcp(args![path, "host:", "--quiet", "--progress=always"]).well();
    assert!(said.err.contains("100%"), "{}", said.err);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    for options in ["host:", "host: --json", "--list", "--list --json"] {
        let script = format!(
            r#"{{ "$0" "$1" {options}; echo "code $?" >&2; }} | {{ exec <&-; sleep 0.2; }}"#
        );
        let said = std::process::Command::new("sh")
            .args(["-c", &script, UBCP])
            .arg(&path)
            .output()
            .expect("sh starts");
        let err = String::from_utf8(said.stderr).expect("UTF-8");
        assert_eq!(err, "code 0\n", "{options}");
    }
}

#[test]
fn a_map_says_whether_the_file_is_held() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let said = ubcp(args![path, "host:", "--via=map", "--json"])
        .well()
        .json();
    let lease = said["explain"]["lease"].as_str().expect("a word");
    assert!(lease == "held" || lease.starts_with("none: "), "{lease}");
    let writer = std::fs::File::options().append(true).open(&path);
    let said = ubcp(args![path, "host:", "--via=map"]).well();
    assert!(said.out.contains("none: "), "{}", said.out);
    ubcp(args![path, "host:", "--via=map", "--strict"]).failed(5, &["lease"]);
    drop(writer);
}

#[test]
fn a_trace_is_json_with_fills_and_flushes() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let trace = folder.path().join("trace.json");
    let args = args![
        path,
        "host:",
        "--via=ub",
        "--route=direct",
        "--trace",
        trace
    ];
    ubcp(&args).well();
    let text = std::fs::read_to_string(&trace).expect("the trace");
    let trace: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    for name in ["fill", "flush"] {
        assert!(events.iter().any(|event| event["name"] == name), "{name}");
    }
    let nowhere = folder.path().join("no").join("trace.json");
    let args = args![path, "host:", "--trace", nowhere];
    ubcp(&args).failed(1, &["trace.json"]);
}

#[test]
fn strict_makes_a_fallback_an_error() {
    let folder = folder();
    let path = write_model(folder.path()).into_os_string();
    let name = Name::new("strict");
    ubcp(args![path, name.arg(), "--strict", "--no-uring"]).failed(5, &["no_io_uring"]);
    name.assert_nothing();
    let said = ubcp(args![path, "host:", "--no-uring", "--json"])
        .well()
        .json();
    assert_eq!(said["fallbacks"][0]["reason"], "no_io_uring");
    assert!(
        said["fallbacks"][0]["count"]
            .as_u64()
            .is_some_and(|count| count > 0)
    );
}
