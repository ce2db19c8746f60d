//! What the tests of the tool share: running it, models made to order, names in shared memory
//! that are gone afterwards.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program under test.
pub(crate) const UBCP: &str = env!("CARGO_BIN_EXE_ubcp");

/// A folder on a disk, removed when dropped.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the test")
}

/// What a run said.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("output is UTF-8"),
            err: String::from_utf8(output.stderr).expect("errors are UTF-8"),
        }
    }
}

impl Said {
    /// It worked, and had nothing to complain about.
    pub(crate) fn well(self) -> Self {
        assert_eq!(
            self.code,
            Some(0),
            "stdout: {}\nstderr: {}",
            self.out,
            self.err
        );
        self
    }

    /// It failed with `code`, in one line with what, where and remedy.
    pub(crate) fn failed(self, code: i32, words: &[&str]) -> Self {
        self.one_error();
        assert_eq!(self.code, Some(code), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        self
    }

    /// One error line with a remedy, no panic.
    pub(crate) fn one_error(&self) {
        let lines: Vec<&str> = self.err.lines().collect();
        assert_eq!(lines.len(), 1, "one line: {}", self.err);
        assert!(lines[0].starts_with("ubcp: error: "), "{}", self.err);
        assert!(lines[0].contains("; "), "no remedy: {}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        assert!(!self.out.contains("panicked"), "{}", self.out);
    }

    /// Standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// Arguments of whatever types: `args![path, "host:", name.arg()]`.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$(std::ffi::OsString::from(&$arg)),*] };
}
pub(crate) use args;

/// The program with these arguments, ready to be started.
pub(crate) fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(UBCP);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program.
pub(crate) fn ubcp(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Said {
    command(args).output().expect("ubcp starts").into()
}

/// A name in shared memory that no other test has; removed when dropped.
pub(crate) struct Name {
    name: String,
}

impl Name {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("test-{}-{test}", std::process::id());
        Self { name }
    }

    /// As an argument.
    pub(crate) fn arg(&self) -> String {
        format!("shm:{}", self.name)
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/dev/shm").join(format!("ubio.{}", self.name))
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        std::fs::read(self.path()).expect("the result is published")
    }

    /// Everything in shared memory that has to do with this name.
    pub(crate) fn traces(&self) -> Vec<String> {
        std::fs::read_dir("/dev/shm")
            .expect("there is shared memory")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains(&self.name))
            .collect()
    }

    pub(crate) fn assert_nothing(&self) {
        assert_eq!(self.traces(), Vec::<String>::new());
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        for left in self.traces() {
            let _gone = std::fs::remove_file(Path::new("/dev/shm").join(left));
        }
    }
}

/// Runs a shell script as root of mount points of its own: what it mounts nobody else sees.
/// `None`, and a word why, where that is not allowed. The script finds the program in `$UBCP`
/// and the rest of `env` under its names.
pub(crate) fn alone(script: &str, env: &[(&str, &OsStr)]) -> Option<Said> {
    let ways: [&[&str]; 2] = [&["--mount"], &["--mount", "--map-root-user"]];
    let allowed = |way: &&[&str]| {
        Command::new("unshare")
            .args(*way)
            .args(["sh", "-c", "mount -t tmpfs -o size=64k none /dev/shm"])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.into_iter().find(allowed) else {
        eprintln!("skipped: no mount points of our own (unshare --mount) are allowed here");
        return None;
    };
    let output = Command::new("unshare")
        .args(way)
        .args(["sh", "-c", script])
        .env("UBCP", UBCP)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("unshare starts");
    Some(output.into())
}
