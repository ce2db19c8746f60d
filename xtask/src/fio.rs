//! fio, the other side of the comparison: its io_uring direct reads of the same files.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run;

/// How fio reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) block_kib: u64,
    pub(crate) depth: u64,
    /// `--iomem=shmhuge`: needs reserved huge pages, so root.
    pub(crate) huge: bool,
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buffers = if self.huge {
            "huge pages"
        } else {
            "small pages"
        };
        match self.block_kib {
            kib if kib >= 1024 => write!(f, "{}M x {}, {buffers}", kib / 1024, self.depth),
            kib => write!(f, "{kib}k x {}, {buffers}", self.depth),
        }
    }
}

/// Every combination of the comparison; huge-page ones only where they can be had.
pub(crate) fn configs(huge_too: bool) -> Vec<Config> {
    let mut all = Vec::new();
    for huge in [false, true].into_iter().filter(|huge| huge_too || !huge) {
        for block_kib in [128, 1024, 4096] {
            all.extend([1, 8, 32].map(|depth| Config {
                block_kib,
                depth,
                huge,
            }));
        }
    }
    all
}

/// What one fio run measured, as fio itself says: its start and set-up are not counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// From exec to exit: with its start, its set-up and its report.
    pub(crate) process_seconds: f64,
    pub(crate) cpu_user_s: f64,
    pub(crate) cpu_sys_s: f64,
    pub(crate) peak_rss_bytes: u64,
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Whether this process may reserve huge pages.
pub(crate) fn can_reserve_huge_pages() -> bool {
    std::fs::OpenOptions::new()
        .write(true)
        .open(HUGE_PAGES)
        .is_ok()
}

/// Whether fio is there.
pub(crate) fn is_installed() -> bool {
    run::which("fio").is_some()
}

/// The shell puts the reservation back however fio ends, an interrupt included.
const WITH_HUGE_PAGES: &str = r#"
before=$(cat "$1") || exit 1
trap 'echo "$before" > "$1"' EXIT
trap 'exit 130' INT TERM HUP
echo $((before + $2)) > "$1"
file=$1; shift 2
"$@"
code=$?
set -- "$file"
exit $code
"#;

/// The head of a command that runs with so many more huge pages of 2 MiB reserved.
pub(crate) fn with_huge_pages(pages: u64) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", WITH_HUGE_PAGES, "sh", HUGE_PAGES, &pages.to_string()]);
    command
}

/// Reads the files once, one after the other.
pub(crate) fn read(config: Config, files: &[PathBuf]) -> Result<Outcome> {
    let names: Vec<String> = files
        .iter()
        .map(|path| path.display().to_string().replace(':', "\\:"))
        .collect();
    let mut arguments: Vec<String> = [
        "fio",
        "--name=read",
        "--readonly",
        "--rw=read",
        "--ioengine=io_uring",
        "--direct=1",
        "--thread",
        "--file_service_type=sequential",
        "--invalidate=0",
        "--output-format=json",
    ]
    .map(String::from)
    .to_vec();
    arguments.push(format!("--bs={}k", config.block_kib));
    arguments.push(format!("--iodepth={}", config.depth));
    arguments.push(format!("--filename={}", names.join(":")));

    let mut command;
    if config.huge {
        arguments.push("--iomem=shmhuge".into());
        let pages = (config.block_kib * config.depth).div_ceil(2048) + 2;
        command = with_huge_pages(pages);
        command.args(&arguments);
    } else {
        command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
    }
    let finished = run::captured(&mut command).context("fio failed")?;
    let outcome = parse(&finished.stdout)?;
    Ok(Outcome {
        process_seconds: finished.wall.as_secs_f64(),
        peak_rss_bytes: finished.peak_rss_bytes,
        ..outcome
    })
}

fn parse(text: &str) -> Result<Outcome> {
    // fio may print notes before its JSON.
    let json = text
        .find('{')
        .map(|at| &text[at..])
        .context("fio printed no JSON")?;
    let value: Value = serde_json::from_str(json).context("fio's JSON cannot be read")?;
    let job = &value["jobs"][0];
    ensure!(
        job["error"].as_i64() == Some(0),
        "fio reports error {}",
        job["error"]
    );
    let number = |value: &Value| value.as_f64().context("fio's JSON lacks a number");
    let seconds = number(&job["read"]["runtime"])? / 1000.0;
    Ok(Outcome {
        bytes: job["read"]["io_bytes"]
            .as_u64()
            .context("fio's JSON lacks io_bytes")?,
        seconds,
        process_seconds: 0.0,
        cpu_user_s: number(&job["usr_cpu"])? / 100.0 * seconds,
        cpu_sys_s: number(&job["sys_cpu"])? / 100.0 * seconds,
        peak_rss_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighteen_configs_or_nine() {
        assert_eq!(configs(true).len(), 18);
        assert!(configs(false).iter().all(|config| !config.huge));
        let shown = Config {
            block_kib: 4096,
            depth: 8,
            huge: true,
        }
        .to_string();
        assert_eq!(shown, "4M x 8, huge pages");
    }

    #[test]
    fn reads_fios_json_and_its_errors() {
        let text = r#"note: something
            {"jobs":[{"error":0,"read":{"runtime":500,"io_bytes":1000},"usr_cpu":10.0,"sys_cpu":20.0}]}"#;
        let outcome = parse(text).unwrap();
        assert_eq!((outcome.bytes, outcome.seconds), (1000, 0.5));
        assert!((outcome.cpu_sys_s - 0.1).abs() < 1e-9);
        assert!(parse(&text.replace("\"error\":0", "\"error\":5")).is_err());
    }

    #[test]
    fn the_reservation_is_put_back_when_the_program_fails() {
        let file = std::env::temp_dir().join(format!("xtask-pages-{}", std::process::id()));
        std::fs::write(&file, "3\n").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", WITH_HUGE_PAGES, "sh"]).arg(&file);
        command
            .args(["70", "sh", "-c", "cat \"$0\"; exit 7"])
            .arg(&file);
        let finished = run::measured(&mut command).unwrap();
        assert_eq!(finished.stdout, "73\n");
        assert_eq!(finished.status.code(), Some(7));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "3\n");
        std::fs::remove_file(&file).unwrap();
    }
}
