//! Counts the core's instructions for a window, lease to visible, and the NVMe driver's for a
//! command, submitted and completed, and the allocations of both; over a bound it fails.
//! Counts come from callgrind, under which the bench runs itself again; the drivers of
//! `cycle.rs` and `nvme.rs` are counted along, a controller's work is not.
//!
//! unsafe: a global allocator that counts.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};

use ubio_benches::cycle::{Cycle, Shape};
use ubio_benches::nvme::{self, Loop};

/// Most instructions for a window of 8 commands and 1 piece.
const MAX_PER_WINDOW: u64 = 5_000;
/// Most instructions for a further command.
const MAX_PER_COMMAND: u64 = 300;
/// Most instructions for a further piece.
const MAX_PER_PIECE: u64 = 300;
/// Windows before the counting begins: every one of the pool has been used several times.
const WARM_UP: u32 = 32;
/// Windows counted.
const WINDOWS: u32 = 100;
/// Windows of the stream: it neither begins nor ends while it is counted.
const FILLS: u32 = WARM_UP + WINDOWS + 32;

/// Most instructions for an NVMe command, submit to end.
const MAX_PER_NVME_COMMAND: u64 = 600;
/// The same through the engine's source.
const MAX_PER_SOURCE_COMMAND: u64 = 900;
/// Queues full of commands, counted after as many that are not: all slots, and the rings' ends.
const ROUNDS: u32 = 50;

const BASE: Shape = Shape::BASE;
const MORE_COMMANDS: Shape = Shape {
    commands: 16,
    ..Shape::BASE
};
const MORE_PIECES: Shape = Shape {
    pieces: 9,
    ..Shape::BASE
};

/// Counts every allocation of the process.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands every call on to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is counted in a steady state. Found by callgrind by its name.
#[inline(never)]
fn counted_windows(cycle: &mut Cycle, shape: Shape) {
    cycle.advance(u64::from(WINDOWS) * u64::from(shape.pieces));
}

/// What is counted of a whole stream, opening and end included.
#[inline(never)]
fn counted_stream(cycle: &mut Cycle, shape: Shape) {
    let plan = shape.plan(FILLS);
    cycle.open(plan);
    cycle.finish();
}

/// The driver's part of so many commands. Found by callgrind by its name.
#[inline(never)]
fn counted_nvme_submit(commands: &mut Loop) {
    commands.submit();
}

/// The same.
#[inline(never)]
fn counted_nvme_poll(commands: &mut Loop) -> usize {
    commands.poll()
}

/// Full queues, one after the other; the controller answers out of what is counted.
fn nvme_rounds(commands: &mut Loop, counted: bool) {
    for _ in 0..ROUNDS {
        if counted {
            counted_nvme_submit(black_box(commands));
        } else {
            commands.submit();
        }
        assert_eq!(commands.device().answer(), nvme::DEPTH, "all were sent");
        let ended = match counted {
            true => counted_nvme_poll(black_box(commands)),
            false => commands.poll(),
        };
        assert_eq!(ended, nvme::DEPTH as usize, "all have ended");
    }
}

/// Allocations of full queues.
fn nvme_allocations(shape: nvme::Shape) -> u64 {
    let mut commands = Loop::new(shape);
    nvme_rounds(&mut commands, false);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    nvme_rounds(&mut commands, false);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(!commands.lists_were_written(), "PRP lists were made again");
    allocations
}

/// Runs what is counted.
fn run(function: &str, shape: Shape) {
    let mut cycle = Cycle::new(shape);
    if function == "counted_stream" {
        counted_stream(black_box(&mut cycle), shape);
        return;
    }
    cycle.open(shape.plan(FILLS));
    cycle.advance(u64::from(WARM_UP) * u64::from(shape.pieces));
    counted_windows(black_box(&mut cycle), shape);
}

/// Allocations of what is counted in the steady state.
fn allocations(shape: Shape) -> u64 {
    let mut cycle = Cycle::new(shape);
    cycle.open(shape.plan(FILLS));
    cycle.advance(u64::from(WARM_UP) * u64::from(shape.pieces));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    counted_windows(black_box(&mut cycle), shape);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Instructions of one function of the core's bench, by callgrind.
fn instructions(function: &str, shape: Shape) -> Result<u64, String> {
    let numbers = [shape.commands, shape.pieces, shape.tuned.into()];
    counted(function, numbers)
}

/// Instructions of functions by their name, by callgrind.
fn counted(function: &str, numbers: [u32; 3]) -> Result<u64, String> {
    let out = std::env::temp_dir().join(format!("ubio-instructions.{}", std::process::id()));
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(this)
        .args(["--count", function])
        .args(numbers.map(|number| number.to_string()))
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let report = std::fs::read_to_string(&out);
    // Left behind only where it could not be made.
    let _missing = std::fs::remove_file(&out);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    report
        .map_err(|error| format!("{}: {error}", out.display()))?
        .lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
        .filter(|&total| total > 0)
        .ok_or_else(|| format!("callgrind counted nothing in {function}"))
}

/// One line of the table; whether it is within its bound.
fn line(what: &str, count: u64, bound: u64) -> bool {
    let verdict = if count <= bound { "ok" } else { "OVER" };
    println!("{what:<56} {count:>8} {bound:>8}  {verdict}");
    count <= bound
}

/// Counts, prints, compares; whether every bound holds.
fn report() -> Result<bool, String> {
    let windows = u64::from(WINDOWS);
    let steady = |shape| instructions("counted_windows", shape);
    let tuned = |shape| Shape {
        tuned: true,
        ..shape
    };
    let (base, commands, pieces) = (steady(BASE)?, steady(MORE_COMMANDS)?, steady(MORE_PIECES)?);
    let (tuned_base, tuned_commands) = (steady(tuned(BASE))?, steady(tuned(MORE_COMMANDS))?);
    let stream = instructions("counted_stream", BASE)?;
    let further = |total: u64, base: u64, count: u32| {
        total
            .saturating_sub(base)
            .div_ceil(windows * u64::from(count))
    };
    let more_commands = MORE_COMMANDS.commands - BASE.commands;
    println!(
        "{:<56} {:>8} {:>8}",
        "core, 4 MiB windows, steady state", "count", "bound"
    );
    let bounds = [
        line(
            "instructions, window of 8 commands, 1 piece",
            base.div_ceil(windows),
            MAX_PER_WINDOW,
        ),
        line(
            "instructions, each further command",
            further(commands, base, more_commands),
            MAX_PER_COMMAND,
        ),
        line(
            "instructions, each further piece",
            further(pieces, base, MORE_PIECES.pieces - BASE.pieces),
            MAX_PER_PIECE,
        ),
        line(
            "instructions, window of 8 commands, 1 piece, tuner on",
            tuned_base.div_ceil(windows),
            MAX_PER_WINDOW,
        ),
        line(
            "instructions, each further command, tuner on",
            further(tuned_commands, tuned_base, more_commands),
            MAX_PER_COMMAND,
        ),
        line(
            &format!("allocations, {WINDOWS} windows of each shape"),
            [BASE, MORE_COMMANDS, MORE_PIECES, tuned(BASE)]
                .map(allocations)
                .iter()
                .sum(),
            0,
        ),
    ];
    println!(
        "totals for {WINDOWS} windows: 8 commands and 1 piece {base}, 16 and 1 {commands}, 8 and 9 {pieces}"
    );
    println!(
        "a stream of {FILLS} windows of 8 commands and 1 piece, plan, opening and end included: {stream}"
    );
    Ok(bounds.iter().all(|holds| *holds))
}

/// The same of the NVMe driver.
fn nvme_report() -> Result<bool, String> {
    println!(
        "{:<56} {:>8} {:>8}",
        "NVMe on queues of our own, depth 32", "count", "bound"
    );
    let commands = u64::from(ROUNDS * nvme::DEPTH);
    let mut holds = true;
    let mut allocations = 0;
    for (source, way, bound) in [
        (false, "transport", MAX_PER_NVME_COMMAND),
        (true, "source", MAX_PER_SOURCE_COMMAND),
    ] {
        for (command_bytes, sgl, what) in [
            (4 << 10, false, "4 KiB"),
            (128 << 10, false, "128 KiB, PRP list"),
            (128 << 10, true, "128 KiB, SGL"),
        ] {
            let shape = nvme::Shape {
                command_bytes,
                sgl,
                source,
            };
            let numbers = [command_bytes, sgl.into(), source.into()];
            let count = counted("counted_nvme", numbers)?;
            holds &= line(
                &format!("instructions, {way}, a command of {what}"),
                count.div_ceil(commands),
                bound,
            );
            allocations += nvme_allocations(shape);
        }
    }
    holds &= line(
        &format!("allocations, {commands} commands of each shape"),
        allocations,
        0,
    );
    Ok(holds)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, function, commands, pieces, tuned] = arguments.as_slice()
        && flag == "--count"
    {
        let number = |text: &str| text.parse().expect("a count");
        if function == "counted_nvme" {
            let mut commands = Loop::new(nvme::Shape {
                command_bytes: number(commands),
                sgl: number(pieces) == 1,
                source: number(tuned) == 1,
            });
            nvme_rounds(&mut commands, false);
            nvme_rounds(&mut commands, true);
            return ExitCode::SUCCESS;
        }
        let shape = Shape {
            commands: number(commands),
            pieces: number(pieces),
            tuned: number(tuned) == 1,
        };
        run(function, shape);
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    match report().and_then(|core| Ok(nvme_report()? && core)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
