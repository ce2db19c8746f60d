//! From samples to a table for people and a document for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Turn;
use crate::sides::Way;

/// All measured transfers of one way.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    latencies: Vec<Duration>,
    cpu: Duration,
    bytes: u64,
}

impl Samples {
    pub(crate) fn add(&mut self, turn: Turn) {
        self.latencies.extend(turn.latencies);
        self.cpu += turn.cpu;
        self.bytes += turn.bytes;
    }
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    transfer_bytes: u64,
    cold: bool,
    readahead: bool,
    way: Way,
    count: usize,
    p50_us: f64,
    p99_us: f64,
    gb_per_s: f64,
    cpu_us: f64,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn new(
        transfer_bytes: u64,
        cold: bool,
        readahead: bool,
        way: Way,
        mut samples: Samples,
    ) -> Self {
        samples.latencies.sort_unstable();
        let count = samples.latencies.len();
        let at = |percent: usize| {
            let index = (count * percent / 100).min(count.saturating_sub(1));
            let latency = samples.latencies.get(index).copied();
            latency.unwrap_or_default().as_secs_f64() * 1e6
        };
        let seconds: f64 = samples.latencies.iter().map(Duration::as_secs_f64).sum();
        Self {
            transfer_bytes,
            cold,
            readahead,
            way,
            count,
            p50_us: at(50),
            p99_us: at(99),
            gb_per_s: samples.bytes as f64 / seconds / 1e9,
            cpu_us: samples.cpu.as_secs_f64() * 1e6 / count as f64,
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

fn state(cold: bool) -> &'static str {
    if cold { "cold" } else { "warm" }
}

/// How many times the traditional path's median is this row's.
fn gain(row: &Row, rows: &[Row]) -> Option<f64> {
    let base = rows.iter().find(|other| {
        other.way == Way::Traditional
            && (other.transfer_bytes, other.cold) == (row.transfer_bytes, row.cold)
    })?;
    Some(base.p50_us / row.p50_us)
}

/// The table for people.
pub(crate) fn table(facts: &[(&'static str, String)], rows: &[Row]) -> String {
    let mut out = String::new();
    for (name, value) in facts {
        out += &format!("{name:14} {value}\n");
    }
    out += "\ntransfer  state  way          median µs     p99 µs    GB/s   CPU µs  gain      n\n";
    let mut last = None;
    for row in rows {
        let group = (row.transfer_bytes, row.cold);
        let head = if last == Some(group) {
            format!("{:8}  {:5}", "", "")
        } else {
            format!("{:>8}  {:5}", size(row.transfer_bytes), state(row.cold))
        };
        last = Some(group);
        let gain = gain(row, rows).map_or_else(String::new, |gain| format!("{gain:.2}x"));
        // Writing to a string does not fail.
        let _written = writeln!(
            out,
            "{head}  {:11}  {:9.1}  {:9.1}  {:6.2}  {:7.1}  {gain:>5} {:6}",
            row.way.name(),
            row.p50_us,
            row.p99_us,
            row.gb_per_s,
            row.cpu_us,
            row.count,
        );
    }
    out += "\ntraditional: buffered pread into a bounce buffer, then a copy, one thread \
            (no readahead below 1 MiB unless asked for)\n\
            ub: the engine, cold bytes through windows, hot ones by its workers\n\
            in-place: the engine, cold bytes straight to their place\n\
            floor: one thread, pread straight to the destination (O_DIRECT where cold)\n\
            gain: traditional median / this median; CPU: all threads, per transfer\n";
    out
}

/// The document for programs.
pub(crate) fn json(facts: &[(&'static str, String)], rounds: u32, rows: &[Row]) -> Value {
    let machine: serde_json::Map<String, Value> = facts
        .iter()
        .map(|(name, value)| (name.replace([' ', '/'], "_"), value.as_str().into()))
        .collect();
    let transfers: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "bytes": row.transfer_bytes,
                "state": state(row.cold),
                "way": row.way.name(),
                "readahead": row.readahead,
                "count": row.count,
                "p50_us": row.p50_us,
                "p99_us": row.p99_us,
                "gb_per_s": row.gb_per_s,
                "cpu_us": row.cpu_us,
                "gain": gain(row, rows),
            })
        })
        .collect();
    json!({"machine": machine, "rounds": rounds, "transfers": transfers})
}
