//! `--list`: the tensor table, in plan order.

use std::io::{self, Write};

use fs_adapter::plan::Plan;
use fs_adapter::{Model, Tensor};
use serde::Serialize;

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

/// Prints the tensors of `plan`, as a table or as one JSON array.
pub(crate) fn print(model: &Model, plan: &Plan, as_json: bool) -> Result<(), Failure> {
    let rows: Vec<Row<'_>> = plan
        .order
        .iter()
        .map(|&index| row(model, &model.tensors()[index]))
        .collect();
    if as_json {
        json::line(&rows)
    } else {
        output::write(|out| table(out, &rows))
    }
}

fn row<'a>(model: &Model, tensor: &'a Tensor) -> Row<'a> {
    Row {
        name: &tensor.name,
        dtype: tensor.dtype.name(),
        shape: &tensor.shape,
        bytes: tensor.len,
        offset: tensor.offset,
        file: model.file(tensor.file).path().display().to_string(),
    }
}

fn table(out: &mut dyn Write, rows: &[Row<'_>]) -> io::Result<()> {
    const HEAD: [&str; 6] = ["NAME", "DTYPE", "SHAPE", "BYTES", "OFFSET", "FILE"];
    let cells: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            [
                printable(row.name),
                row.dtype.to_owned(),
                shape(row.shape),
                row.bytes.to_string(),
                row.offset.to_string(),
                printable(&row.file),
            ]
        })
        .collect();
    /// Longer cells push their row aside rather than every row.
    const WIDEST: usize = 120;
    let mut widths = HEAD.map(str::len);
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
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
    cells
        .iter()
        .try_for_each(|row| line(row.each_ref().map(String::as_str)))
}

fn shape(shape: &[u64]) -> String {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(","))
}
