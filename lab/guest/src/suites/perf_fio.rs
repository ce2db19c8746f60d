//! Suite `perf-fio`: what fio reaches with passthrough commands in this guest.
//!
//! Figures of a software-emulated machine mean something only as ratios within one run; this
//! suite gives the other side of such ratios. It knows nothing of our own readers.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use ubio_lab_spec::Machine;

use crate::case::Case;
use crate::lab::Lab;

/// One way to read.
#[derive(Clone, Copy, Debug)]
struct Job {
    name: &'static str,
    pattern: &'static str,
    block_kib: u64,
    depth: u64,
}

const JOBS: [Job; 2] = [
    Job {
        name: "random-4k-32",
        pattern: "randread",
        block_kib: 4,
        depth: 32,
    },
    Job {
        name: "sequential-128k-8",
        pattern: "read",
        block_kib: 128,
        depth: 8,
    },
];

pub(super) fn cases(_: &Machine, full: bool) -> Vec<Case> {
    let seconds = if full { 10 } else { 3 };
    JOBS.iter()
        .map(|job| Case::new(job.name, move |lab| measure(lab, *job, seconds)))
        .collect()
}

fn measure(lab: &mut Lab, job: Job, seconds: u64) -> Result<()> {
    let path = lab.controller("peer")?.namespace(1)?.passthrough_path();
    let mut fio = Command::new("fio");
    fio.args([
        "--name=read",
        "--ioengine=io_uring_cmd",
        "--cmd_type=nvme",
        "--readonly",
    ])
    .args(["--time_based", "--thread", "--output-format=json"])
    .arg(format!("--filename={}", path.display()))
    .arg(format!("--rw={}", job.pattern))
    .arg(format!("--bs={}k", job.block_kib))
    .arg(format!("--iodepth={}", job.depth))
    .arg(format!("--runtime={seconds}"));
    let output = fio
        .output()
        .context("fio does not start; is it in this run's initrd?")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "fio failed ({}): {errors}{said}",
        output.status
    );
    let (iops, mib_per_s) = figures(&said)?;
    ensure!(iops > 0.0, "fio read nothing");
    lab.figure(&format!("fio-{}", job.name), iops, "IOPS")?;
    lab.figure(&format!("fio-{}", job.name), mib_per_s, "MiB/s")
}

/// IOPS and MiB per second from fio's JSON, which notes may precede.
fn figures(text: &str) -> Result<(f64, f64)> {
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
    let number = |name: &str| {
        job["read"][name]
            .as_f64()
            .context("fio's JSON lacks a number")
    };
    Ok((
        number("iops")?.round(),
        (number("bw")? / 1024.0 * 10.0).round() / 10.0,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_json() {
        let text = r#"note {"jobs":[{"error":0,"read":{"iops":19000.4,"bw":76000}}]}"#;
        let text = text.replacen("note ", "note\n", 1);
        assert_eq!(figures(&text).unwrap(), (19_000.0, 74.2));
        assert!(figures(&text.replace("\"error\":0", "\"error\":22")).is_err());
        assert!(figures("nothing").is_err());
    }
}
