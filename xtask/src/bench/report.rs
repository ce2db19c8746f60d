//! The comparison as a table, as JSON, and as a block in BENCHMARKS.md.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::roster::{OURS, Sample};
use super::rounds::{Results, Row};
use super::stats::{Ratio, quantile};
use super::{goals, machine, rounds};
use crate::repo;
use crate::table::Table;

/// Markdown: where it was measured, the table, the goals.
pub(crate) fn text(results: &Results) -> String {
    let mut out = format!("\n## {}\n\n", results.title);
    let rounds = results.rows.first().map_or(0, |row| row.samples.len());
    let baseline = results.baseline();
    let _ = writeln!(
        out,
        "`{}` at {}, {}.",
        machine::command(),
        machine::commit(),
        machine::day()
    );
    let _ = writeln!(out, "{}.", machine::described());
    let _ = writeln!(
        out,
        "{}, {rounds} interleaved rounds in random order (seed {}), {} before every run. \
         Times are the loads' own, without start-up and imports. Ratios are medians over \
         pairs of a round, with their 95 % interval; the other side is {}.\n",
        repo::mib(results.bytes),
        results.seed,
        rounds::primer_note(results),
        baseline.map_or("missing", |row| &row.name),
    );
    let mut table = Table::new(&[
        "contender",
        ">GiB/s",
        ">10-90 %",
        ">CPU s/GiB",
        ">peak MiB",
        ">process s",
        ">rate ratio",
        ">auto to it",
    ]);
    let ours = results.row(OURS);
    for row in sorted(results) {
        table.row(cells(results, row, baseline, ours));
    }
    let _ = write!(out, "{table}");
    for row in results.rows.iter().filter(|row| row.error.is_some()) {
        let _ = writeln!(
            out,
            "\n{} is missing: {}",
            row.name,
            row.error.as_deref().unwrap_or("?")
        );
    }
    let standings = goals::standings(results);
    if !standings.is_empty() {
        let mut table = Table::new(&["goal", ">at least", ">is", "so"]);
        for standing in standings {
            table.row([
                standing.what,
                format!("{:.2}", standing.goal),
                shown(Some(standing.ratio)),
                standing.ratio.reaches(standing.goal).to_string(),
            ]);
        }
        let _ = write!(out, "\n{table}");
    }
    out
}

/// Fastest first; those that never ran are left out.
fn sorted(results: &Results) -> Vec<&Row> {
    let mut rows: Vec<&Row> = results
        .rows
        .iter()
        .filter(|row| row.samples.iter().any(Option::is_some))
        .collect();
    rows.sort_by(|a, b| b.median(Sample::rate).total_cmp(&a.median(Sample::rate)));
    rows
}

fn cells(results: &Results, row: &Row, baseline: Option<&Row>, ours: Option<&Row>) -> Vec<String> {
    let rates = row.values(Sample::rate);
    let mib = |bytes: u64| repo::float(bytes) / repo::float(1 << 20);
    let against = |under: Option<&Row>, over: Option<&Row>| match (over, under) {
        (Some(over), Some(under)) if over.name != under.name => {
            shown(goals::rate(results, over, under))
        }
        _ => "-".into(),
    };
    vec![
        row.name.clone(),
        format!("{:.2}", row.median(Sample::rate)),
        format!("{:.2}-{:.2}", quantile(&rates, 0.1), quantile(&rates, 0.9)),
        format!("{:.2}", row.median(Sample::cpu_s_per_gib)),
        format!("{:.0}", row.median(|sample| mib(sample.peak_rss_bytes))),
        format!("{:.2}", row.median(|sample| sample.process_seconds)),
        against(baseline, Some(row)),
        against(Some(row), ours),
    ]
}

fn shown(ratio: Option<Ratio>) -> String {
    match ratio {
        Some(ratio) => format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high),
        None => "-".into(),
    }
}

/// Every sample, and the ratios to the baseline.
pub(crate) fn write_json(path: &Path, all: &[Results]) -> Result<()> {
    let comparisons: Vec<_> = all.iter().map(as_json).collect();
    let value = json!({
        "command": machine::command(),
        "commit": machine::commit(),
        "day": machine::day(),
        "machine": machine::described(),
        "comparisons": comparisons,
    });
    std::fs::write(path, format!("{value:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn as_json(results: &Results) -> serde_json::Value {
    let ratio_json = |ratio: Ratio| {
        json!({
            "median": ratio.median, "low": ratio.low, "high": ratio.high,
            "pairs": ratio.pairs, "width": ratio.width(),
        })
    };
    let baseline = results.baseline();
    let rows: Vec<_> = results
        .rows
        .iter()
        .map(|row| {
            let ratio = baseline.and_then(|under| goals::rate(results, row, under));
            json!({
                "contender": row.name,
                "samples": row.samples,
                "error": row.error,
                "ratio_to_baseline": ratio.map(ratio_json),
            })
        })
        .collect();
    let goals: Vec<_> = goals::standings(results)
        .into_iter()
        .map(|standing| {
            json!({
                "what": standing.what,
                "goal": standing.goal,
                "ratio": ratio_json(standing.ratio),
                "verdict": standing.ratio.reaches(standing.goal).to_string(),
            })
        })
        .collect();
    json!({
        "title": results.title,
        "state": results.state.to_string(),
        "bytes": results.bytes,
        "seed": results.seed,
        "primer_bytes": results.primer_bytes,
        "baseline": baseline.map(|row| &row.name),
        "contenders": rows,
        "goals": goals,
    })
}

/// Replaces the block of this title in BENCHMARKS.md, or adds it at the end.
pub(crate) fn write_markdown(title: &str, block: &str) -> Result<()> {
    let path = repo::root().join("BENCHMARKS.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| "# Benchmarks\n".into());
    std::fs::write(&path, replaced(&text, title, block)).context("cannot write BENCHMARKS.md")?;
    println!("BENCHMARKS.md: `{title}` is up to date");
    Ok(())
}

fn replaced(text: &str, title: &str, block: &str) -> String {
    let begin = format!("<!-- xtask bench: {title}: begin -->");
    let end = format!("<!-- xtask bench: {title}: end -->");
    let new = format!("{begin}\n{}\n{end}", block.trim_end());
    match (text.find(&begin), text.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{new}{}", &text[..from], &text[to + end.len()..])
        }
        _ => format!("{}\n\n{new}\n", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounds::State;
    use super::*;

    #[test]
    fn a_block_is_added_once_and_then_replaced() {
        let first = replaced("# Benchmarks\n\nWords.\n", "cold", "stale");
        let second = replaced(&first, "warm", "other");
        let third = replaced(&second, "cold", "new");
        assert!(third.starts_with("# Benchmarks\n\nWords.\n"));
        assert!(third.contains("new") && third.contains("other") && !third.contains("stale"));
        assert_eq!(third, replaced(&third, "cold", "new"));
    }

    #[test]
    fn the_table_names_the_baseline_and_judges_goals() {
        let row = |name: &str, is_fio, seconds| Row {
            name: name.into(),
            is_fio,
            samples: vec![
                Some(Sample {
                    bytes: 1 << 30,
                    seconds,
                    process_seconds: seconds,
                    cpu_user_s: 0.1,
                    cpu_sys_s: 0.1,
                    peak_rss_bytes: 64 << 20,
                });
                15
            ],
            error: None,
        };
        let results = Results {
            title: "cold, test".into(),
            state: State::Cold,
            bytes: 1 << 30,
            seed: 1,
            primer_bytes: 0,
            rows: vec![
                row("fio, 1M x 8, small pages", true, 0.5),
                row("fio, 128k x 1, small pages", true, 1.0),
                row("ubcp --via ub", false, 0.5),
                row("ubcp --via in-place", false, 0.6),
            ],
        };
        let text = text(&results);
        assert!(text.contains("the other side is fio, 1M x 8"), "{text}");
        assert!(text.contains("| ubcp --via ub against fio, 1M x 8, small pages       |     0.97 | 1.00 [1.00, 1.00] | reached |"), "{text}");
        assert!(text.contains("below"), "{text}");
    }
}
