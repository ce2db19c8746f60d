//! Latency and bandwidth of single transfers: one byte range of a large file into memory
//! that exists, by the traditional path, through windows and in place. All ways in one
//! process, interleaved, cold and warm.

mod facts;
mod file;
mod report;
mod sides;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;

use report::{Row, Samples};
use sides::{Sides, Way};

/// Any error, told to a person.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Measures single transfers from a file into memory, by each way, side by side.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The file to read; made with random content beside the program if not given.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Bytes of the file that is made: a number, with K, M or G.
    #[arg(long, default_value = "1G", value_parser = bytes)]
    size: u64,
    /// Transfer sizes, bytes: numbers with K, M or G; multiples of 4K.
    #[arg(long, value_delimiter = ',', default_value = "8K,64K,1M,16M", value_parser = bytes)]
    transfers: Vec<u64>,
    /// How often every way gets its turn for every transfer size.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Bytes that one way moves in one round, at most; but 4 transfers at least, and 256 at
    /// most.
    #[arg(long, default_value = "64M", value_parser = bytes)]
    round_bytes: u64,
    /// Readahead of the traditional path's descriptor: "auto" switches it off
    /// (POSIX_FADV_RANDOM) for transfers below 1 MiB, which it would only slow.
    #[arg(long, value_enum, default_value_t = Readahead::Auto)]
    readahead: Readahead,
    /// Prints one JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Readahead {
    Auto,
    On,
    Off,
}

impl Readahead {
    fn is_on(self, transfer_bytes: u64) -> bool {
        match self {
            Self::Auto => transfer_bytes >= 1 << 20,
            Self::On => true,
            Self::Off => false,
        }
    }
}

fn bytes(text: &str) -> std::result::Result<u64, String> {
    let short = text
        .strip_suffix("iB")
        .or_else(|| text.strip_suffix('B'))
        .unwrap_or(text);
    let unit = [("K", 10), ("M", 20), ("G", 30)]
        .into_iter()
        .find_map(|(unit, shift)| Some((short.strip_suffix(unit)?, shift)));
    let (digits, shift) = unit.unwrap_or((short, 0));
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text} is no number of bytes"))?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("{text} is out of range"))
}

fn main() -> std::process::ExitCode {
    match run(&Options::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let path = match &options.file {
        Some(path) => path.clone(),
        None => file::make(options.size)?,
    };
    let largest = options.transfers.iter().copied().max().unwrap_or(4096);
    if options
        .transfers
        .iter()
        .any(|bytes| !bytes.is_multiple_of(4096))
    {
        return Err("transfer sizes are multiples of 4K".into());
    }
    let mut sides = Sides::open(&path, largest)?;
    let mut rows = Vec::new();
    for &transfer_bytes in &options.transfers {
        if sides.file_bytes() < 4 * transfer_bytes {
            return Err(format!("the file is too small for transfers of {transfer_bytes}").into());
        }
        for cold in [true, false] {
            rows.extend(measure(&mut sides, options, transfer_bytes, cold)?);
        }
    }
    let facts = facts::facts(&sides);
    if options.json {
        println!("{}", report::json(&facts, options.rounds, &rows));
    } else {
        print!("{}", report::table(&facts, &rows));
    }
    Ok(())
}

/// One transfer size, cold or warm, by every way in turn.
fn measure(
    sides: &mut Sides,
    options: &Options,
    transfer_bytes: u64,
    cold: bool,
) -> Result<Vec<Row>> {
    let readahead = options.readahead.is_on(transfer_bytes);
    sides.set_readahead(readahead)?;
    let ways: &[Way] = if cold {
        &[Way::Traditional, Way::Windows, Way::InPlace, Way::Floor]
    } else {
        // What is in the page cache goes to its place without windows: one way less.
        &[Way::Traditional, Way::Windows, Way::Floor]
    };
    let count = (options.round_bytes / transfer_bytes).clamp(4, 256);
    let mut offsets = Offsets::new(sides.file_bytes() / transfer_bytes, transfer_bytes);
    let mut samples: Vec<Samples> = ways.iter().map(|_| Samples::default()).collect();
    if !cold {
        sides.warm()?;
    }
    // The round before the first warms code, descriptors and the engine's tables.
    for round in 0..=options.rounds {
        for turn in 0..ways.len() {
            let index = (turn + round as usize) % ways.len();
            if cold {
                sides.drop_cache()?;
            }
            let turn = one_turn(sides, ways[index], &mut offsets, transfer_bytes, count)?;
            if round > 0 {
                samples[index].add(turn);
            }
        }
    }
    let rows = ways.iter().zip(samples);
    Ok(rows
        .map(|(&way, samples)| Row::new(transfer_bytes, cold, readahead, way, samples))
        .collect())
}

/// The transfers of one way in one round.
#[derive(Debug, Default)]
struct Turn {
    latencies: Vec<Duration>,
    cpu: Duration,
    bytes: u64,
}

fn one_turn(
    sides: &mut Sides,
    way: Way,
    offsets: &mut Offsets,
    transfer_bytes: u64,
    count: u64,
) -> Result<Turn> {
    let mut turn = Turn::default();
    let cpu_before = facts::cpu_time();
    for index in 0..count {
        let offset = offsets.next();
        let start = Instant::now();
        sides.transfer(way, offset, transfer_bytes, index)?;
        turn.latencies.push(start.elapsed());
        turn.bytes += transfer_bytes;
    }
    turn.cpu = facts::cpu_time().saturating_sub(cpu_before);
    Ok(turn)
}

/// All places of a file in an order without pattern, each once before any comes again.
struct Offsets {
    places: Vec<u64>,
    next: usize,
    state: u64,
}

impl Offsets {
    fn new(places: u64, transfer_bytes: u64) -> Self {
        let mut offsets = Self {
            places: (0..places).map(|place| place * transfer_bytes).collect(),
            next: 0,
            state: 0x9e37_79b9_7f4a_7c15,
        };
        offsets.shuffle();
        offsets
    }

    fn shuffle(&mut self) {
        for last in (1..self.places.len()).rev() {
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let other = (self.state >> 33) % (last as u64 + 1);
            let other = usize::try_from(other).expect("an index");
            self.places.swap(last, other);
        }
        self.next = 0;
    }

    fn next(&mut self) -> u64 {
        if self.next == self.places.len() {
            self.shuffle();
        }
        self.next += 1;
        self.places[self.next - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_comes_once_before_any_comes_again() {
        let mut offsets = Offsets::new(100, 4096);
        for _ in 0..3 {
            let mut seen: Vec<u64> = (0..100).map(|_| offsets.next()).collect();
            seen.sort_unstable();
            let all: Vec<u64> = (0..100).map(|place| place * 4096).collect();
            assert_eq!(seen, all);
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("8K"), Ok(8192));
        assert_eq!(bytes("1G"), Ok(1 << 30));
        assert_eq!(bytes("16MiB"), Ok(16 << 20));
        for wrong in ["", "K", "0", "8X", "-1", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
