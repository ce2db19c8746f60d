//! Tables that read well on a terminal and are Markdown at the same time.

use std::fmt;

/// A table; columns whose header starts with `>` are aligned to the right.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let right = header.iter().map(|name| name.starts_with('>')).collect();
        let names = header
            .iter()
            .map(|name| name.trim_start_matches('>').to_string())
            .collect();
        Self {
            rows: vec![names],
            right,
        }
    }

    /// Adds a row; missing cells stay empty.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.right.len(), String::new());
        self.rows.push(cells);
    }

    fn width(&self, column: usize) -> usize {
        self.rows
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                if self.right[column] {
                    write!(f, "| {cell:>width$} ")?;
                } else {
                    write!(f, "| {cell:<width$} ")?;
                }
            }
            writeln!(f, "|")?;
            if number == 0 {
                for (column, right) in self.right.iter().enumerate() {
                    let dashes = "-".repeat(self.width(column) + 1);
                    write!(f, "|{dashes}{}", if *right { ":" } else { "-" })?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_markdown() {
        let mut table = Table::new(&["name", ">n"]);
        table.row(["a", "12345"]);
        let wanted = "| name |     n |\n|------|------:|\n| a    | 12345 |\n";
        assert_eq!(table.to_string(), wanted);
    }
}
