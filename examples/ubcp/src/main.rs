//! `ubcp`: copies model files into memory through fixed windows, and says what that took.
//!
//! | module | what it holds |
//! |---|---|
//! | `args`, `size`, `manual` | the command line, its man page and completions |
//! | `source`, `destination`, `via` | SRC, DST, and the way between them |
//! | `run`, `placed`, `mapped` | loads: through the engine, or mapped |
//! | `bytes` | ranges of an NVMe namespace; a file into a BAR |
//! | `export` | back from shared memory to a file |
//! | `verify`, `digest`, `meter` | checks and measurements of what was loaded |
//! | `trace_file` | where `--trace` goes |
//! | `report`, `summary`, `json`, `list`, `output` | what is printed |
//! | `progress`, `signals` | while it runs |
//! | `exit` | errors and exit codes |
//!
//! No engine logic is here: what decides anything about windows and routes is in `ubio`.

mod args;
mod bytes;
mod destination;
mod digest;
mod exit;
mod export;
mod json;
mod list;
mod manual;
mod mapped;
mod meter;
mod output;
mod placed;
mod progress;
mod report;
mod run;
mod signals;
mod size;
mod source;
mod summary;
mod trace_file;
mod verify;
mod via;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::args::Args;
use crate::exit::{Failure, printable};
use crate::signals::Signals;

/// More stack than the main thread ever takes.
const STACK_BYTES: usize = 256 << 10;

/// Makes the main thread's stack as large as it will be: where memory is limited, the kernel ends a
/// program whose stack cannot grow, and does that here or nowhere.
#[inline(never)]
fn grow_stack() {
    let stack = [0_u8; STACK_BYTES];
    std::hint::black_box(&stack);
}

fn main() -> ExitCode {
    let begun = Instant::now();
    grow_stack();
    signals::survive_file_size_limit();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            let json = std::env::args_os().any(|arg| arg == "--json");
            return fail(&args::one_line(&error), json);
        }
        Err(help) => {
            if std::io::stdout().is_terminal() {
                // In colour, if that is wanted; a terminal is never full.
                let _gone = help.print();
                return ExitCode::SUCCESS;
            }
            // By `output`, which knows a closed pipe from a full disk.
            let text = help.render().to_string();
            return match output::write(|out| out.write_all(text.as_bytes())) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => fail(&failure, false),
            };
        }
    };
    let done = match (args.completions, args.man) {
        (Some(shell), _) => manual::completions(shell),
        (None, true) => manual::man(),
        (None, false) => {
            let signals = Signals::listen(args.json);
            let done = run::run(&args, &signals, begun);
            signals.answering();
            done
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, args.json),
    }
}

fn fail(failure: &Failure, json: bool) -> ExitCode {
    let line = printable(&failure.to_string());
    // Nowhere is left to complain to if these fail.
    let _closed = writeln!(std::io::stderr(), "ubcp: error: {line}");
    if json {
        let _full = json::print_failure(failure);
    }
    failure.exit.into()
}
