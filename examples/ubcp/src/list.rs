//! `--list`: the tensor table, in plan order.

use std::io::{self, Write};

use fs_adapter::Model;
use fs_adapter::plan::Plan;
use serde::{Serialize, Serializer};

use crate::exit::{Failure, printable};
use crate::json;
use crate::output;

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [u64],
    bytes: u64,
    offset: u64,
    file: String,
}

/// Prints the tensors of `plan`, as a table or as one JSON array. Keeps no row: there may be
/// a million.
pub(crate) fn print(model: &Model, plan: &Plan, as_json: bool) -> Result<(), Failure> {
    if as_json {
        json::line(&Rows { model, plan })
    } else {
        output::write(|out| table(out, model, plan))
    }
}

struct Rows<'a> {
    model: &'a Model,
    plan: &'a Plan,
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(rows(self.model, self.plan))
    }
}

fn rows<'a>(model: &'a Model, plan: &'a Plan) -> impl Iterator<Item = Row<'a>> {
    plan.order.iter().map(|&index| {
        let tensor = &model.tensors()[index];
        Row {
            name: &tensor.name,
            dtype: tensor.dtype.name(),
            shape: &tensor.shape,
            bytes: tensor.len,
            offset: tensor.offset,
            file: model.file(tensor.file).path().display().to_string(),
        }
    })
}

fn table(out: &mut dyn Write, model: &Model, plan: &Plan) -> io::Result<()> {
    const HEAD: [&str; 6] = ["NAME", "DTYPE", "SHAPE", "BYTES", "OFFSET", "FILE"];
    /// Longer cells push their row aside rather than every row.
    const WIDEST: usize = 120;
    let mut widths = HEAD.map(str::len);
    for row in rows(model, plan) {
        for (width, cell) in widths.iter_mut().zip(&cells(&row)) {
            *width = (*width).max(cell.chars().count().min(WIDEST));
        }
    }
    let [name, dtype, dims, bytes, offset, _] = widths;
    let mut line = |cells: [&str; 6]| {
        writeln!(
            out,
            "{:name$}  {:dtype$}  {:dims$}  {:>bytes$}  {:>offset$}  {}",
            cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]
        )
    };
    line(HEAD)?;
    rows(model, plan).try_for_each(|row| line(cells(&row).each_ref().map(String::as_str)))
}

fn cells(row: &Row<'_>) -> [String; 6] {
    [
        printable(row.name),
        row.dtype.to_owned(),
        shape(row.shape),
        row.bytes.to_string(),
        row.offset.to_string(),
        printable(&row.file),
    ]
}

fn shape(shape: &[u64]) -> String {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(","))
}
