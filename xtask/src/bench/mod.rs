//! `cargo xtask bench`: every contender in the same state, interleaved, in random order.
//!
//! Before each run the page cache is put into its state, and a primer process touches and
//! frees as much memory as the run will need. Numbers come with the interval of the median
//! ratio over pairs of the same round.

pub(crate) mod contender;
mod floor;
mod goals;
mod machine;
mod peers;
mod report;
mod roster;
mod rounds;
mod stats;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use self::roster::{
    BUFFERED, Contender, FLOORS_COLD, FLOORS_RESERVED, FLOORS_WARM, How, MEMCPY, Subject,
    UBCP_COLD, UBCP_RESERVED, UBCP_WARM,
};
use self::rounds::{Plan, Results, State};
use crate::{cache, fio, model, ubcp};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask bench --cold --rounds 15          against fio, about 15 minutes (root)\n  \
    cargo xtask bench --warm --peers              against other loaders, files in memory\n  \
    cargo xtask bench --cold --only ub,fio        some contenders only\n  \
    cargo xtask bench --transfer --write          the table of single transfers\n\n\
    15 rounds or more are needed before a goal counts as reached.")]
pub(crate) struct Args {
    /// Storage to memory: caches are dropped before every run (needs root)
    #[arg(long)]
    cold: bool,

    /// Page cache to memory; both states when neither is asked for
    #[arg(long)]
    warm: bool,

    /// Include other loaders, installed into .xtask/peers-venv (about 3 GB)
    #[arg(long)]
    peers: bool,

    /// Latency and bandwidth of single transfers of 8 KiB to 16 MiB, instead of whole models
    #[arg(long)]
    transfer: bool,

    /// How often each contender runs
    #[arg(long, default_value_t = 15, value_name = "N")]
    rounds: usize,

    /// Only contenders whose name contains one of these
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,

    /// Load this file or folder instead of the generated 2 GiB model
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,

    /// Order of the runs; the same seed gives the same order
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Write every sample and all ratios to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Put the tables into BENCHMARKS.md, between their markers; of a clean tree only
    #[arg(long)]
    write: bool,
}

impl Args {
    /// Whether `--only` leaves this contender in.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(args.rounds > 0, "--rounds 0 measures nothing");
    ensure!(
        !(args.write && machine::is_dirty()),
        "--write puts figures beside a commit, and the tree has changes: commit them first, \
         or measure without --write"
    );
    if args.transfer {
        transfer::run(args.json.as_deref(), args.write)?;
        return Ok(ExitCode::SUCCESS);
    }
    let states = states(args)?;
    let subject = subject(args)?;
    let peers = if args.peers {
        peers::prepare(&subject)?
    } else {
        peers::Peers::default()
    };
    let mut all = Vec::new();
    for state in states {
        let plan = plan(args, state, &subject, &peers)?;
        let results = rounds::run(&plan, &subject)?;
        all.push(results);
        keep(args, &all)?;
        if let Some(mut second) = peers.second(state, args.rounds, args.seed) {
            second
                .contenders
                .retain(|contender| args.wants(&contender.name));
            let results = rounds::run(&second, &peers.gguf_subject(&subject)?)?;
            all.push(results);
            keep(args, &all)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the last results, and keeps them at once: a run that is stopped has lost only what it
/// was at.
fn keep(args: &Args, all: &[Results]) -> Result<()> {
    let Some(last) = all.last() else {
        return Ok(());
    };
    let text = report::text(last);
    print!("{text}");
    if let Some(path) = &args.json {
        report::write_json(path, all)?;
    }
    if args.write {
        report::write_markdown(&last.title, &text)?;
    }
    Ok(())
}

fn states(args: &Args) -> Result<Vec<State>> {
    let can_cool = cache::cooling() == cache::Cooling::DropCaches;
    if args.cold && !can_cool {
        bail!(
            "--cold drops the page cache before every run, which needs root: run as root \
             (`sudo --preserve-env=PATH cargo xtask bench --cold`), or measure --warm"
        );
    }
    Ok(match (args.cold, args.warm) {
        (true, false) => vec![State::Cold],
        (false, true) => vec![State::Warm],
        _ if can_cool => vec![State::Cold, State::Warm],
        _ => {
            println!("not root: no cold runs");
            vec![State::Warm]
        }
    })
}

fn subject(args: &Args) -> Result<Subject> {
    println!("building ubcp (release)");
    let ubcp = ubcp::build()?;
    let source = match &args.model {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("cannot open {}", path.display()))?,
        // Other loaders take aligned tensors of common types only.
        None if args.peers => model::ensure(model::Kind::Aligned)?.folder,
        None => model::ensure(model::Kind::Odd)?.folder,
    };
    let files = roster::files_of(&source)?;
    let bytes = files
        .iter()
        .map(|path| std::fs::metadata(path).map(|meta| meta.len()))
        .sum::<std::io::Result<u64>>()?;
    Ok(Subject {
        ubcp,
        source,
        files,
        bytes,
    })
}

/// Who runs in this state.
fn plan(args: &Args, state: State, subject: &Subject, peers: &peers::Peers) -> Result<Plan> {
    let ours: &[(&str, &'static [&'static str])] = match state {
        State::Cold => &UBCP_COLD,
        State::Warm => &UBCP_WARM,
    };
    let mut contenders: Vec<Contender> = ours
        .iter()
        .map(|(name, options)| Contender::new(*name, How::Ubcp(options)))
        .collect();
    if state == State::Cold && fio::can_reserve_huge_pages() {
        let reserved =
            UBCP_RESERVED.map(|(name, options)| Contender::new(name, How::UbcpReserved(options)));
        contenders.extend(reserved);
        let floors =
            FLOORS_RESERVED.map(|(name, words)| Contender::new(name, How::OwnReserved(words)));
        contenders.extend(floors);
    }
    contenders.push(Contender::new(BUFFERED, How::Own(&["buffered-read"])));
    let floors = match state {
        State::Cold => FLOORS_COLD,
        State::Warm => FLOORS_WARM,
    };
    let floors = floors.map(|(name, words)| Contender::new(name, How::Own(words)));
    contenders.extend(floors);
    if state == State::Cold {
        let (name, words) = MEMCPY;
        contenders.push(Contender::new(name, How::Own(words)));
    }
    contenders.extend(peers.contenders.iter().cloned());
    contenders.retain(|contender| args.wants(&contender.name));
    if state == State::Cold && args.wants("fio") {
        if fio::is_installed() {
            let best = rounds::fio_candidates(subject, args.seed, subject.bytes)?;
            contenders.extend(best.into_iter().map(Contender::fio));
        } else {
            println!(
                "fio is not installed (Debian: apt-get install fio): no disk limit to compare"
            );
        }
    }
    ensure!(
        !contenders.is_empty(),
        "--only {} leaves no contender",
        args.only.join(",")
    );
    Ok(Plan {
        title: format!("{state}, safetensors"),
        state,
        contenders,
        rounds: args.rounds,
        seed: args.seed,
        // Some peers hold the file twice; everyone is primed as if they did.
        primer_bytes: if args.peers {
            subject.bytes * 2
        } else {
            subject.bytes
        } + (128 << 20),
    })
}
