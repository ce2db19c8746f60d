//! The table of single transfers: many within one process, so a bench binary measures them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{machine, report};
use crate::run;
use crate::table::Table;

const TITLE: &str = "single transfers";

/// Runs the bench, shows its rows, and keeps them where that is asked for.
pub(crate) fn run(json: Option<&Path>, write: bool) -> Result<()> {
    let mut command = run::cargo();
    command.args([
        "run",
        "--release",
        "--package",
        "ubio-benches",
        "--bin",
        "transfer",
    ]);
    println!("measuring single transfers: minutes");
    let finished = run::captured(command.args(["--", "--json"]))?;
    if let Some(path) = json {
        std::fs::write(path, &finished.stdout)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let value: Value =
        serde_json::from_str(&finished.stdout).context("the bench printed no JSON")?;
    let block = format!(
        "\n## {TITLE}\n\n`{}` at {}, {}.\n{}.\n\n{}",
        machine::command(),
        machine::commit(),
        machine::day(),
        machine::described(),
        table(&value)?
    );
    print!("{block}");
    if write {
        report::write_markdown(TITLE, &block)?;
    }
    Ok(())
}

/// A table of an array of flat objects (or of the first array in an object).
fn table(value: &Value) -> Result<Table> {
    let rows = match value {
        Value::Array(rows) => rows,
        Value::Object(fields) => fields
            .values()
            .find_map(Value::as_array)
            .context("no rows in the bench's JSON")?,
        _ => bail!("the bench's JSON holds no rows"),
    };
    let first = rows
        .first()
        .and_then(Value::as_object)
        .context("the bench measured nothing")?;
    let header: Vec<String> = first
        .iter()
        .map(|(name, value)| {
            if value.is_number() {
                format!(">{name}")
            } else {
                name.clone()
            }
        })
        .collect();
    let names: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(&names);
    for row in rows {
        table.row(first.keys().map(|name| shown(name, &row[name.as_str()])));
    }
    Ok(table)
}

/// Sizes as people say them, other numbers short.
fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if name.contains("size") || name.contains("bytes") => size(bytes),
            Some(whole) => whole.to_string(),
            None => format!("{:.2}", number.as_f64().unwrap_or_default()),
        },
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_a_table() {
        let value = serde_json::json!([
            {"state": "cold", "size_bytes": 8192, "p50_us": 12.345},
            {"state": "cold", "size_bytes": 16 << 20, "p50_us": 9.0},
        ]);
        let text = table(&value).unwrap().to_string();
        assert!(
            text.contains("8 KiB") && text.contains("16 MiB") && text.contains("12.35"),
            "{text}"
        );
        assert!(table(&serde_json::json!([])).is_err());
    }
}
