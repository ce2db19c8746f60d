//! Runs that are ended, race each other, or whose source changes under them: nothing half
//! done ever has a name, and no memory stays behind.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::models::{noise, write, write_sparse};
use crate::program::{Name, Said, alone, args, command, folder, ubcp};

/// However early or late a signal comes: one object, or what the run was to print.
#[test]
fn an_interrupted_run_prints_one_object() {
    let folder = folder();
    let source = folder.path().join("model.safetensors");
    write_sparse(&source, 64 << 20);
    let mut interrupted = 0;
    for attempt in 0..40 {
        let name = Name::new("interrupted-json");
        let child = command(args![source, name.arg(), "--json", "--digest=sha256"])
            .spawn()
            .expect("ubcp starts");
        std::thread::sleep(Duration::from_millis(2 + 4 * attempt));
        let pid = i32::try_from(child.id()).expect("a process id");
        kill_process(Pid::from_raw(pid).expect("a process id"), Signal::INT).expect("kill");
        let said: Said = child.wait_with_output().expect("it ends").into();
        // Before it listens a signal ends it by default.
        if said.code.is_none() {
            continue;
        }
        let object = said.json();
        if said.code == Some(130) {
            interrupted += 1;
            assert_eq!(object["error"]["kind"], "interrupted", "{object}");
        }
    }
    assert!(interrupted > 5, "{interrupted}");
}

/// The slowest way there is, so that something can happen meanwhile.
const SLOW: [&str; 8] = [
    "--via=ub",
    "--route=direct",
    "--windows=1",
    "--window-size=4K",
    "--command-size=4K",
    "--depth=1",
    "--no-huge",
    "--progress=always",
];

fn slow(source: &Path, destination: &str) -> Vec<OsString> {
    let mut args = args![source, destination].to_vec();
    args.extend(SLOW.iter().map(Into::into));
    args
}

/// A load under way: all of its memory is reserved, some of its bytes are there.
struct Running {
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Running {
    fn start(args: &[OsString]) -> Self {
        let mut child = command(args).spawn().expect("ubcp starts");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("a line");
        assert!(line.contains('%'), "the load did not begin: {line}");
        Self { child, errors }
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        kill_process(Pid::from_raw(pid).expect("a process id"), signal).expect("kill");
    }

    /// Waits for its end; progress is taken out of what it said.
    fn end(mut self) -> Said {
        let mut err = String::new();
        self.errors.read_to_string(&mut err).expect("errors");
        let output = self.child.wait_with_output().expect("it ends");
        let errors: Vec<&str> = err.lines().filter(|line| !line.contains('%')).collect();
        Said {
            err: errors.join("\n"),
            ..Said::from(output)
        }
    }
}

#[test]
fn a_signal_in_the_middle_leaves_nothing() {
    let folder = folder();
    let path = folder.path().join("big.safetensors");
    write_sparse(&path, 1 << 30);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let name = Name::new("signal");
        let running = Running::start(&slow(&path, &name.arg()));
        let sent = Instant::now();
        running.send(signal);
        running.end().failed(code, &["nothing was published"]);
        assert!(sent.elapsed() < Duration::from_secs(5), "it took too long");
        name.assert_nothing();
    }
    let name = Name::new("killed");
    let running = Running::start(&slow(&path, &name.arg()));
    running.send(Signal::KILL);
    assert_eq!(running.end().code, None);
    name.assert_nothing();
}

/// A thread that is stuck in the kernel must not be the one that is given a signal.
#[test]
fn one_thread_takes_the_signals() {
    let folder = folder();
    let path = folder.path().join("big.safetensors");
    write_sparse(&path, 1 << 30);
    let running = Running::start(&slow(&path, "host:"));
    let threads = format!("/proc/{}/task", running.child.id());
    let ending = (1u64 << (Signal::INT.as_raw() - 1)) | (1 << (Signal::TERM.as_raw() - 1));
    let takes = |status: &&String| {
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = u64::from_str_radix(blocked.expect("a mask").trim(), 16).expect("hex");
        blocked & ending != ending
    };
    let entries = std::fs::read_dir(threads).expect("threads").flatten();
    // Some may have ended meanwhile.
    let status = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("status"));
    let all: Vec<String> = entries.filter_map(|thread| status(thread).ok()).collect();
    let taking = all.iter().filter(takes).count();
    running.send(Signal::INT);
    running.end().failed(130, &[]);
    assert!(all.len() > 2 && taking == 1, "{taking} of {}", all.len());
}

#[test]
fn a_killed_run_gives_its_memory_back() {
    let folder = folder();
    let path = folder.path().join("big.safetensors");
    write_sparse(&path, 1 << 30);
    let script = r#"
        set -e
        mount -t tmpfs -o size=3g none /dev/shm
        used() { df -k --output=used /dev/shm | tail -n 1 | tr -d " "; }
        for signal in INT TERM KILL; do
            mkfifo /dev/shm/said
            # A job in the background of a script would ignore SIGINT from birth.
            env --default-signal=INT "$UBCP" "$SRC" shm:name $SLOW 2>/dev/shm/said &
            pid=$!
            exec 3</dev/shm/said
            read -r line <&3
            before=$(used)
            kill -$signal $pid
            code=0; wait $pid || code=$?
            exec 3<&-
            rm /dev/shm/said
            # The kernel tears a ring down, and lets its memory go, a little after the exit.
            for _ in $(seq 100); do
                [ "$(used)" = 0 ] || sleep 0.1
            done
            echo "$signal $code $((before >= 1048576)) $(used) $(ls -A /dev/shm | wc -l)"
        done
    "#;
    let slow = SLOW.join(" ");
    let env = [("SRC", path.as_os_str()), ("SLOW", slow.as_ref())];
    let Some(said) = alone(script, &env) else {
        return;
    };
    assert_eq!(
        said.out, "INT 130 1 0 0\nTERM 143 1 0 0\nKILL 137 1 0 0\n",
        "signal, code, whether it had the memory, what is in use and named after\n{}",
        said.err
    );
}

#[test]
fn a_signal_at_any_time_is_an_end_or_a_result() {
    let folder = folder();
    let path = folder.path().join("some.bin");
    write(&path, &noise(8 << 20, 9));
    let mut ended = 0;
    for delay_ms in (0..100).step_by(5) {
        let name = Name::new("any-time");
        let mut child = command(args![path, name.arg(), "--quiet", "--verify"])
            .spawn()
            .expect("ubcp starts");
        std::thread::sleep(Duration::from_millis(delay_ms));
        let pid = i32::try_from(child.id()).expect("a process id");
        if child.try_wait().expect("wait").is_none() {
            let pid = Pid::from_raw(pid).expect("a process id");
            kill_process(pid, Signal::INT).expect("kill");
        }
        let said = Said::from(child.wait_with_output().expect("it ends"));
        match said.code {
            Some(0) => assert_eq!(name.read().len(), 8 << 20),
            // Before the program listens, the signal itself ends it.
            None => name.assert_nothing(),
            _ => {
                said.failed(130, &["SIGINT"]);
                name.assert_nothing();
                ended += 1;
            }
        }
    }
    assert!(ended > 0, "no signal came in time");
}

#[test]
fn a_source_that_changes_meanwhile_is_an_error() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("cut", |path| {
            let file = std::fs::File::options().write(true).open(path);
            file.expect("open").set_len(1 << 20).expect("cut");
        }),
        ("written", |path| {
            let file = std::fs::File::options().write(true).open(path);
            file.expect("open")
                .write_all_at(b"new", 200 << 20)
                .expect("write");
        }),
        ("replaced", |path| {
            let other = path.with_extension("other");
            write(&other, b"something else");
            std::fs::rename(&other, path).expect("rename");
        }),
        ("removed", |path| {
            std::fs::remove_file(path).expect("remove")
        }),
    ];
    for (what, change) in changes {
        for scheme in ["", "nvme:emulated?file="] {
            let folder = folder();
            let path = folder.path().join("big.safetensors");
            write_sparse(&path, 256 << 20);
            let source = format!("{scheme}{}", path.display());
            let name = Name::new(what);
            let mut args = slow(Path::new(&source), &name.arg());
            // Blocks have one route.
            args.retain(|arg| scheme.is_empty() || arg != "--route=direct");
            let running = Running::start(&args);
            running.send(Signal::STOP);
            change(&path);
            running.send(Signal::CONT);
            eprintln!("{scheme} {what}");
            let said = running.end().failed(7, &["big.safetensors"]);
            eprintln!("{}", said.err);
            name.assert_nothing();
        }
    }
}

#[test]
fn runs_to_one_name_at_once_end_with_one_whole_result() {
    let folder = folder();
    let files: Vec<_> = (0..3)
        .map(|seed| {
            let path = folder.path().join(format!("{seed}.bin"));
            let bytes = noise(6 << 20, seed);
            write(&path, &bytes);
            (path, bytes)
        })
        .collect();
    let name = Name::new("at-once");
    for _ in 0..4 {
        let running: Vec<_> = files
            .iter()
            .map(|(path, _)| {
                command(args![path, name.arg(), "--quiet"])
                    .spawn()
                    .expect("ubcp starts")
            })
            .collect();
        for child in running {
            Said::from(child.wait_with_output().expect("it ends")).well();
        }
        let result = name.read();
        assert!(files.iter().any(|(_, bytes)| *bytes == result));
        assert_eq!(name.traces().len(), 1, "{:?}", name.traces());
    }
}

#[test]
fn readers_keep_what_was_replaced() {
    let folder = folder();
    let path = folder.path().join("some.bin");
    let (old, new) = (noise(2 << 20, 1), noise(1 << 20, 2));
    write(&path, &old);
    let name = Name::new("replaced");
    ubcp(args![path, name.arg()]).well();
    let mut reader = std::fs::File::open(name.path()).expect("open");
    write(&path, &new);
    ubcp(args![path, name.arg()]).well();
    let mut kept = Vec::new();
    reader.read_to_end(&mut kept).expect("read");
    assert!(kept == old);
    assert!(name.read() == new);
}

#[test]
fn an_export_that_is_ended_leaves_no_file() {
    let folder = folder();
    let path = folder.path().join("big.safetensors");
    write_sparse(&path, 1 << 30);
    let name = Name::new("export");
    ubcp(args![path, name.arg(), "--via=in-place"]).well();
    std::fs::remove_file(&path).expect("remove");
    for signal in [Signal::INT, Signal::KILL] {
        let running = Running::start(&args![name.arg(), path, "--progress=always"]);
        running.send(signal);
        let said = running.end();
        if signal == Signal::INT {
            said.failed(130, &["SIGINT"]);
        }
        let left = std::fs::read_dir(folder.path()).expect("list").count();
        assert_eq!(left, 0, "{signal:?}");
    }
}
