//! Suite `ubcp`: the program itself, as it is shipped: a model from a drive, over VFIO into the
//! BAR and over passthrough into memory; and what it says when that cannot be.
//!
//! What landed in the BAR is compared by the host, what landed in memory by another program's
//! digest. It knows ubcp's options, and nothing of the engine.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use ubio_lab_spec::Machine;
use ubio_lab_spec::line::{Action, Line, MODEL_WORD};
use ubio_lab_spec::machine::BAR_ADDRESS;

use super::engines::bar_name;
use super::refusal::says;
use crate::binding;
use crate::case::Case;
use crate::lab::Lab;
use crate::user::NOBODY;

/// Exit codes, as ubcp's help has them.
const IO: i32 = 1;
const USAGE: i32 = 2;
const INPUT: i32 = 3;
const DESTINATION: i32 = 4;

pub(super) fn cases(_: &Machine, _: bool) -> Vec<Case> {
    vec![
        Case::new("vfio/bar", |lab| into_bar(lab, &[])),
        Case::new("vfio/bar-polled-prp", |lab| {
            into_bar(lab, &["--poll", "--prp", "--queues", "2"])
        }),
        Case::new("vfio/bar-windows", |lab| into_bar(lab, &["--via", "ub"])),
        Case::new("vfio/bar-range", ranges_into_bar),
        Case::new("vfio/host", |lab| into_host(lab, vfio)),
        Case::new("passthrough/host", |lab| into_host(lab, passthrough)),
        Case::new("passthrough/shm", into_shm),
        Case::new("passthrough/range", range_into_shm),
        Case::new("passthrough/bar", passthrough_into_bar),
        Case::new("no-such-device", no_such_device),
        Case::new("no-drive", no_drive),
        Case::new("bound-to-nvme", bound_to_nvme),
        Case::new("no-permission", no_permission),
        Case::new("does-not-fit", does_not_fit),
    ]
}

/// The model file, as the host tells.
struct Model {
    len_bytes: u64,
    sha256: String,
}

fn model() -> Result<Model> {
    let line = fs::read_to_string("/proc/cmdline")?;
    let told = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(MODEL_WORD)?.strip_prefix('='));
    let (len, sha256) = told
        .and_then(|told| told.split_once(','))
        .context("the host tells of no model")?;
    Ok(Model {
        len_bytes: len.parse()?,
        sha256: sha256.into(),
    })
}

fn vfio(lab: &Lab) -> Result<String> {
    let function = lab.address("vfio")?;
    binding::give_to(function, "vfio-pci")?;
    Ok(format!("vfio:{function}/1"))
}

fn passthrough(lab: &Lab) -> Result<String> {
    Ok(format!("nvme:{}", lab.node("peer", 1)?.display()))
}

fn ubcp(words: &[&str]) -> Command {
    let mut command = Command::new("/bin/ubcp");
    command.args(words);
    command
}

fn said(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    text.join(" ")
}

/// Loads, and gives the report.
fn load(source: &str, destination: &str, options: &[&str]) -> Result<Value> {
    let words = [options, &["--json", source, destination]].concat();
    let output = ubcp(&words).output().context("ubcp does not start")?;
    let text = said(&output);
    ensure!(output.status.success(), "{}: {text}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("no JSON: {text}"))
}

/// All bytes of the load came by that route; whole pages are read.
fn by_route(report: &Value, route: &str, len_bytes: u64) -> Result<()> {
    let bytes = |name: &str| report["route_bytes"][name].as_u64().unwrap_or(0);
    let routes = report["route_bytes"].as_object().context("no routes")?;
    let all: u64 = routes.keys().map(|name| bytes(name)).sum();
    let whole = bytes(route) == len_bytes.next_multiple_of(4096) && all == bytes(route);
    ensure!(whole, "{} for {len_bytes} bytes", report["route_bytes"]);
    Ok(())
}

fn has_digest(report: &Value, model: &Model) -> Result<()> {
    let (found, wanted) = (&report["digest"], format!("sha256:{}", model.sha256));
    ensure!(
        *found == wanted.as_str(),
        "{found} is not the model's {wanted}"
    );
    Ok(())
}

fn into_bar(lab: &mut Lab, options: &[&str]) -> Result<()> {
    let (model, source, bar) = (model()?, vfio(lab)?, bar_name()?);
    let source = format!("{source}?len={}", model.len_bytes);
    let options = [options, &["--digest", "sha256"]].concat();
    let report = load(&source, &bar, &options)?;
    has_digest(&report, &model)?;
    by_route(&report, "vfio", model.len_bytes)?;
    landed(lab, "vfio", &report, 0, model.len_bytes)
}

/// From outside: the drive's bytes from the BAR's first on, and poison behind the last page of
/// the load. In place that page is read whole; through windows its rest is zeroed.
fn landed(lab: &mut Lab, drive: &str, report: &Value, offset: u64, len_bytes: u64) -> Result<()> {
    let pages = len_bytes.next_multiple_of(4096);
    let written = if report["via"] == "in-place" {
        pages
    } else {
        len_bytes
    };
    lab.expect_bar((0, written), (drive, 1), offset)?;
    if pages > written {
        lab.talk().say(&Line::Ignore {
            offset: written,
            len_bytes: pages - written,
        })?;
    }
    lab.ask(Action::CheckBar)
}

fn ranges_into_bar(lab: &mut Lab) -> Result<()> {
    let (model, drive, bar) = (model()?, vfio(lab)?, bar_name()?);
    let whole = model.len_bytes;
    for (offset, len) in [
        (4096, 1 << 20),
        (8192, 12_288),
        (1 << 20, 1),
        (12_345, 1_000_001),
        (whole - 5000, 5000),
    ] {
        let source = format!("{drive}?offset={offset}&len={len}");
        let at = || format!("{len} bytes from {offset}");
        let report = load(&source, &bar, &["--verify"]).with_context(at)?;
        ensure!(report["verified"] == true, "{}", report["verified"]);
        let wanted = if offset % 4096 == 0 { "in-place" } else { "ub" };
        ensure!(report["via"] == wanted, "{}: {}", at(), report["via"]);
        landed(lab, "vfio", &report, offset, len).with_context(at)?;
    }
    Ok(())
}

fn into_host(lab: &mut Lab, source: fn(&Lab) -> Result<String>) -> Result<()> {
    let (model, source) = (model()?, source(lab)?);
    let route = if source.starts_with("vfio:") {
        "vfio"
    } else {
        "passthrough"
    };
    let source = format!("{source}?len={}", model.len_bytes);
    for via in ["ub", "in-place"] {
        let options = ["--via", via, "--digest", "sha256", "--verify"];
        let report = load(&source, "host:", &options).with_context(|| format!("via {via}"))?;
        has_digest(&report, &model)?;
        ensure!(report["verified"] == true, "{}", report["verified"]);
        ensure!(report["via"] == via, "{}", report["via"]);
        if via == "ub" {
            by_route(&report, route, model.len_bytes)?;
        }
    }
    Ok(())
}

/// A digest that is none of ours.
fn sha256(path: &Path) -> Result<String> {
    let output = Command::new("/bin/sha256sum").arg(path).output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    Ok(text.split(' ').next().unwrap_or_default().into())
}

fn into_shm(lab: &mut Lab) -> Result<()> {
    let (model, source) = (model()?, passthrough(lab)?);
    let source = format!("{source}?len={}", model.len_bytes);
    let report = load(&source, "shm:model", &["--digest", "sha256"])?;
    has_digest(&report, &model)?;
    by_route(&report, "passthrough", model.len_bytes)?;
    let path = &result(&report)?;
    let (len, found) = (fs::metadata(path)?.len(), sha256(path)?);
    ensure!(len == model.len_bytes, "{} has {len} bytes", path.display());
    ensure!(
        found == model.sha256,
        "{} has digest {found}",
        path.display()
    );
    // It is a model: its tensors are listed from there.
    let output = ubcp(&["--list", "shm:model"]).output()?;
    ensure!(output.status.success(), "{}", said(&output));
    Ok(fs::remove_file(path)?)
}

/// The file that a name in shared memory is.
fn result(report: &Value) -> Result<PathBuf> {
    let path = report["result"].as_str().context("no result")?;
    Ok(path.into())
}

fn range_into_shm(lab: &mut Lab) -> Result<()> {
    let (model, drive) = (model()?, passthrough(lab)?);
    let source = format!("{drive}?len={}", model.len_bytes);
    let whole = result(&load(&source, "shm:whole", &[])?)?;
    let bytes = fs::read(&whole)?;
    for (offset, len) in [(0, 1), (511, 4098), (777_777, 3_333_333)] {
        let source = format!("{drive}?offset={offset}&len={len}");
        let part = result(&load(&source, "shm:part", &["--verify"])?)?;
        let found = fs::read(&part)?;
        fs::remove_file(&part)?;
        let same = found == bytes[offset..offset + len];
        ensure!(same, "{len} bytes from {offset}");
    }
    Ok(fs::remove_file(whole)?)
}

/// The kernel does not read into a BAR: host windows do for it, and in place is refused.
fn passthrough_into_bar(lab: &mut Lab) -> Result<()> {
    let (model, source, bar) = (model()?, passthrough(lab)?, bar_name()?);
    let page = format!("{source}?len=4096");
    let in_place = ubcp(&["--via", "in-place", &page, &bar]);
    refused(in_place, &[IO], &["pages", "vfio-pci", BAR_ADDRESS])?;
    // The room that it was to have is zeroed.
    lab.talk().say(&Line::Ignore {
        offset: 0,
        len_bytes: 4096,
    })?;
    lab.ask(Action::CheckBar).context("a refused load")?;
    let source = format!("{source}?len={}", model.len_bytes);
    let report = load(&source, &bar, &["--digest", "sha256"])?;
    has_digest(&report, &model)?;
    by_route(&report, "passthrough", model.len_bytes)?;
    ensure!(report["via"] == "ub", "{}", report["via"]);
    landed(lab, "peer", &report, 0, model.len_bytes)
}

/// It ends with one of these codes, and says all of these words.
fn refused(mut command: Command, codes: &[i32], words: &[&str]) -> Result<()> {
    let output = command.output().context("ubcp does not start")?;
    let (code, text) = (output.status.code(), said(&output));
    let known = code.is_some_and(|code| codes.contains(&code));
    ensure!(known, "ended with {code:?}: {text}");
    says(&text, words)?;
    let lines = text.trim().lines().count();
    ensure!(lines == 1, "{lines} lines: {text}");
    Ok(())
}

fn no_such_device(_: &mut Lab) -> Result<()> {
    for (source, word) in [
        ("vfio:0000:7f:1f.0/1", "0000:7f:1f.0"),
        ("nvme:/dev/ng99n1", "/dev/ng99n1"),
    ] {
        refused(ubcp(&[source, "host:"]), &[INPUT], &[word])?;
    }
    for source in ["vfio:nowhere/1", "vfio:0000:00:05.0/0", "nvme:ng0n1"] {
        refused(ubcp(&[source, "host:"]), &[USAGE], &["nvme:/dev/ng0n1"])?;
    }
    Ok(())
}

fn no_drive(lab: &mut Lab) -> Result<()> {
    let source = format!("vfio:{BAR_ADDRESS}/1");
    refused(
        ubcp(&[&source, "host:"]),
        &[INPUT],
        &[BAR_ADDRESS, "no NVMe"],
    )?;
    let source = vfio(lab)?.replace("/1", "/7");
    refused(ubcp(&[&source, "host:"]), &[INPUT], &["7"])?;
    let block = lab.controller("peer")?.namespace(1)?.block_path();
    let source = format!("nvme:{}", block.display());
    refused(ubcp(&[&source, "host:"]), &[USAGE], &["/dev/ng"])
}

fn bound_to_nvme(lab: &mut Lab) -> Result<()> {
    let function = lab.address("peer")?.to_string();
    let source = format!("vfio:{function}/1");
    refused(
        ubcp(&[&source, "host:"]),
        &[INPUT],
        &["bound to nvme", "vfio-pci", &function],
    )?;
    // It is still the kernel's.
    load(&format!("{}?len=4096", passthrough(lab)?), "host:", &[]).map(drop)
}

fn no_permission(lab: &mut Lab) -> Result<()> {
    let (drive, function) = (passthrough(lab)?, vfio(lab)?);
    for source in [&drive, &function] {
        let mut command = ubcp(&[source, "host:"]);
        command.uid(NOBODY).gid(NOBODY);
        refused(command, &[INPUT], &["ermission"])?;
    }
    let mut command = ubcp(&[&format!("{drive}?len=4096"), &bar_name()?]);
    command.uid(NOBODY).gid(NOBODY);
    refused(command, &[INPUT, DESTINATION], &["ermission"])
}

fn does_not_fit(lab: &mut Lab) -> Result<()> {
    let drive = vfio(lab)?;
    let end = lab.drive("vfio")?.namespaces[0].visible_bytes();
    for query in [format!("offset={end}&len=1"), format!("len={}", end + 1)] {
        let source = format!("{drive}?{query}");
        refused(ubcp(&[&source, "host:"]), &[USAGE, INPUT], &["len="])?;
    }
    // The BAR is as large as the namespace: a byte more is too much, and the BAR is untouched.
    let bar = bar_name()?;
    let small = format!("{bar}0");
    refused(
        ubcp(&[&drive, &small]),
        &[USAGE, INPUT, DESTINATION],
        &["bar:"],
    )?;
    lab.ask(Action::CheckBar)
}
