//! The project's own commands: `cargo xtask demo | test | lab | lint | bench`.
//!
//! This file only parses the command line. It knows nothing of the engine: the
//! tools it runs (`ubcp`, the benches, fio, Python) are processes to it.

mod apt;
mod bench;
mod cache;
mod demo;
mod fetch;
mod fio;
mod lab;
mod lint;
mod model;
mod python;
mod repo;
mod run;
mod suite;
mod table;
mod ubcp;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The project's own commands: see it work, test it, lint it, measure it",
    after_help = "Examples:\n  \
        cargo xtask demo                     load three real-sized models and print a table\n  \
        cargo xtask test                     everything a change must pass\n  \
        cargo xtask lab                      a real kernel against emulated drives\n  \
        cargo xtask lint                     the house rules only (seconds)\n  \
        cargo xtask bench --cold --rounds 15 the comparison with fio and plain reads\n\n\
        Everything these commands fetch or make goes to .xtask/ and may be deleted."
)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Fetch models, load each by every path, verify every byte, print a table
    Demo(demo::Args),
    /// Run every check: format, lints, tests, simulator, interoperability
    Test(suite::Args),
    /// Boot a real kernel on an emulated machine and run suites inside
    Lab(lab::Args),
    /// Check the house rules: arrows between crates, unsafe, orphans, lengths, links
    Lint(lint::Args),
    /// Compare with fio, plain reads and other loaders, interleaved
    Bench(bench::Args),
    /// Building blocks of `bench`, each a process of its own
    #[command(hide = true)]
    Contender(bench::contender::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => suite::run(&args),
        Task::Lab(args) => lab::run(&args),
        Task::Lint(args) => lint::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Contender(args) => bench::contender::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
