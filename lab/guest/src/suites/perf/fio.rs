//! The same reads by fio's `io_uring_cmd`. Knows its options and its report.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Job, KERNELS, Measured};
use crate::lab::Lab;

pub(super) fn measure(lab: &Lab, job: Job, fixed: bool, millis: u64) -> Result<Measured> {
    let path = lab.node(KERNELS, 1)?;
    let mut fio = Command::new("fio");
    fio.args([
        "--name=read",
        "--ioengine=io_uring_cmd",
        "--cmd_type=nvme",
        "--readonly",
        "--time_based",
        "--thread",
        "--output-format=json",
    ])
    .arg(format!("--filename={}", path.display()))
    .arg(format!(
        "--rw={}",
        if job.random { "randread" } else { "read" }
    ))
    .arg(format!("--bs={}", job.block_bytes))
    .arg(format!("--iodepth={}", job.depth))
    .arg(format!("--runtime={millis}ms"));
    if fixed {
        fio.args(["--fixedbufs", "--registerfiles"]);
    }
    let output = fio
        .output()
        .context("fio does not start; is it in this run's initrd?")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}{said}", output.status);
    report(&said)
}

/// From fio's JSON, which notes may precede.
fn report(text: &str) -> Result<Measured> {
    let json = text.find('{').and_then(|at| text.get(at..));
    let json = json.context("fio printed no JSON")?;
    let value: Value = serde_json::from_str(json).context("fio's JSON cannot be read")?;
    let job = &value["jobs"][0];
    let error = job["error"].as_i64();
    ensure!(error == Some(0), "fio reports error {error:?}");
    let number = |value: &Value| value.as_f64().context("fio's JSON lacks a number");
    let count = job["read"]["total_ios"].as_u64();
    let seconds = number(&job["read"]["runtime"])? / 1e3;
    let used = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
    Ok(Measured {
        count: count.context("fio's JSON lacks a count")?,
        seconds,
        cpu_seconds: Some(used / 100.0 * seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_json() {
        let text = "note\n{\"jobs\":[{\"error\":0,\"usr_cpu\":20.0,\"sys_cpu\":30.0,\
            \"read\":{\"total_ios\":500,\"runtime\":250}}]}";
        let measured = report(text).unwrap();
        assert!((measured.per_s() - 2000.0).abs() < 1e-9);
        assert!((measured.cpu_micros().unwrap() - 250.0).abs() < 1e-9);
        assert!(report(&text.replace("\"error\":0", "\"error\":22")).is_err());
        assert!(report("nothing").is_err());
    }
}
