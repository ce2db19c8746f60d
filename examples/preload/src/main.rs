//! Preloads datasets and model files into host memory, several at a time, on one
//! tokio-uring thread; the engine reads on threads of its own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;
use preload::{Preloaded, files, keep, pass};
use tokio_uring::Runtime;
use ubio::Engine;

/// Preloads files into host memory and prints the checksum and speed of each.
///
/// A path is a safetensors or GGUF file, any other file (raw bytes), or a folder, of which
/// every file is taken. The memory is held until all files are there.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Files and folders.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Files loaded at the same time.
    #[arg(long, short, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Keeps nothing: hashes each file in the windows it passes through, without a copy.
    #[arg(long)]
    pass: bool,
    /// Afterwards passes every file through windows once more and compares the checksums.
    #[arg(long, conflicts_with = "pass")]
    verify: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match Runtime::new(&tokio_uring::builder()) {
        Ok(runtime) => runtime.block_on(run(&options)),
        Err(cause) => Err(format!(
            "no io_uring for tokio-uring: {cause}; set kernel.io_uring_disabled=0, allow it in the \
             seccomp profile, or raise the memlock limit (ulimit -l); ubcp needs none of that"
        )
        .into()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("preload: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `false` if any file failed; each failure was told when it came.
async fn run(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let paths = files(&options.paths)?;
    let engine = Rc::new(Engine::builder().open()?);
    let count = paths.len();
    let start = Instant::now();
    let loaded = preload_all(&engine, paths, options.jobs, !options.pass).await;
    let took = start.elapsed();
    let bytes = loaded.iter().map(|file| file.bytes).sum();
    say(format_args!(
        "{} of {count} files, {}, {:.3} s, {:.2} GiB/s",
        loaded.len(),
        size(bytes),
        took.as_secs_f64(),
        gib_per_s(bytes, took)
    ));
    let mut well = loaded.len() == count;
    if options.verify {
        for file in &loaded {
            let again = pass(&engine, &file.path).await?;
            if again.crc32c != file.crc32c {
                eprintln!("preload: {}: the checksums differ", file.path.display());
                well = false;
            }
        }
        say(format_args!("verified: {well}"));
    }
    Ok(well)
}

/// Loads all files, `jobs` at a time; gives those that could be loaded.
async fn preload_all(
    engine: &Rc<Engine>,
    paths: Vec<PathBuf>,
    jobs: u16,
    kept: bool,
) -> Vec<Preloaded> {
    let waiting = Rc::new(RefCell::new(VecDeque::from(paths)));
    let tasks: Vec<_> = (0..jobs)
        .map(|_| {
            let (engine, waiting) = (Rc::clone(engine), Rc::clone(&waiting));
            tokio_uring::spawn(async move {
                let mut loaded = Vec::new();
                loop {
                    let next = waiting.borrow_mut().pop_front();
                    let Some(path) = next else {
                        return loaded;
                    };
                    let outcome = if kept {
                        keep(&engine, &path).await
                    } else {
                        pass(&engine, &path).await
                    };
                    match outcome {
                        Ok(file) => {
                            tell(&file);
                            loaded.push(file);
                        }
                        Err(error) => eprintln!("preload: {error}"),
                    }
                }
            })
        })
        .collect();
    let mut loaded = Vec::new();
    for task in tasks {
        loaded.extend(task.await.expect("tasks do not panic and are not aborted"));
    }
    loaded
}

fn tell(file: &Preloaded) {
    say(format_args!(
        "{:08x}  {:>10}  {:6.2} GiB/s  {:6} tensors  {}",
        file.crc32c,
        size(file.bytes),
        gib_per_s(file.bytes, file.took),
        file.tensors,
        file.path.display()
    ));
}

/// Prints a line; ends the program where nobody takes it.
fn say(line: std::fmt::Arguments<'_>) {
    if let Err(cause) = writeln!(std::io::stdout().lock(), "{line}") {
        if cause.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("preload: cannot write to standard output: {cause}");
        std::process::exit(1);
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn gib_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 30) / took.as_secs_f64().max(1e-9)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}
