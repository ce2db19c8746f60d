//! Which tensors to move, and in which order compute wants them. Knows names and the table,
//! neither files nor destinations.

mod layer;

use crate::error::{Error, ErrorKind, Result, quoted};
use crate::model::{Model, check_memory_for_tensors};
use crate::tensor_table::{TensorIndex, TensorTable};
use globset::{Glob, GlobSet, GlobSetBuilder};
use layer::layer_order;

/// The order of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// As in the files: by file, then by offset. Fastest to read.
    #[default]
    File,
    /// As a forward pass uses them: embeddings, then layer after layer by the number in the
    /// names (`model.layers.12.`, `blk.12.`, `h.12.`), then final norm and head. Encoders and
    /// vision towers come before the stacks they feed. File order within a layer.
    Layer,
}

/// Which tensors are wanted: all, or those whose name matches any of some glob patterns.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    patterns: Vec<String>,
    globs: Option<GlobSet>,
}

impl Selection {
    /// Every tensor.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Tensors whose whole name matches at least one pattern: `*` (any text), `?`, `[a-f]`,
    /// `{a,b}`. No pattern at all selects everything.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a pattern that is no glob.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let invalid = |error: globset::Error| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("not a tensor pattern: {error}"),
                "use *, ?, [a-f] and {a,b}; write [*] for a star itself",
            )
            .caused_by(error)
        };
        let patterns: Vec<String> = patterns
            .into_iter()
            .map(|pattern| pattern.as_ref().to_owned())
            .collect();
        if patterns.is_empty() {
            return Ok(Self::all());
        }
        let mut builder = GlobSetBuilder::new();
        for pattern in &patterns {
            builder.add(Glob::new(pattern).map_err(invalid)?);
        }
        Ok(Self {
            patterns,
            globs: Some(builder.build().map_err(invalid)?),
        })
    }

    /// Whether this is every tensor.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.globs.is_none()
    }

    /// The selected tensors in file order.
    fn select(&self, table: &TensorTable) -> Result<Vec<TensorIndex>> {
        let Some(globs) = &self.globs else {
            return Ok(table.indices().collect());
        };
        let mut used = vec![false; self.patterns.len()];
        let mut matching = Vec::new();
        let mut selected = Vec::new();
        for (index, tensor) in table.iter() {
            globs.matches_into(&tensor.name, &mut matching);
            matching.iter().for_each(|&pattern| used[pattern] = true);
            if !matching.is_empty() {
                selected.push(index);
            }
        }
        let idle: Vec<&str> = self
            .patterns
            .iter()
            .zip(&used)
            .filter_map(|(pattern, used)| (!used).then_some(pattern.as_str()))
            .collect();
        if let Some(first) = idle.first() {
            let close: Vec<String> = close_names(first, table)
                .iter()
                .map(|n| quoted(n))
                .collect();
            let hint = if close.is_empty() {
                "the model has no tensors".to_owned()
            } else {
                format!("close names: {}", close.join(", "))
            };
            return Err(Error::new(
                ErrorKind::NoMatch,
                format!("no tensor matches {} ({hint})", idle.join(", ")),
                "list the model's tensors, and mind that patterns match whole names",
            ));
        }
        Ok(selected)
    }
}

/// Up to three names that share the most letter pairs with `pattern`.
fn close_names<'a>(pattern: &str, table: &'a TensorTable) -> Vec<&'a str> {
    const SHOWN: usize = 3;
    const LOOKED_AT: usize = 20_000;
    let pairs = |text: &str| -> Vec<[u8; 2]> {
        let lower = text.to_ascii_lowercase();
        let mut pairs: Vec<[u8; 2]> = lower
            .as_bytes()
            .windows(2)
            .map(|pair| [pair[0], pair[1]])
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    };
    let wanted = pairs(pattern);
    let mut scored: Vec<(usize, &str)> = table
        .as_slice()
        .iter()
        .take(LOOKED_AT)
        .map(|tensor| {
            let own = pairs(&tensor.name);
            let shared = own
                .iter()
                .filter(|pair| wanted.binary_search(pair).is_ok())
                .count();
            // Dice's coefficient in thousandths.
            (
                2000 * shared / (own.len() + wanted.len()).max(1),
                tensor.name.as_str(),
            )
        })
        .collect();
    scored.sort_by_key(|&(score, _)| std::cmp::Reverse(score));
    scored
        .into_iter()
        .take(SHOWN)
        .map(|(_, name)| name)
        .collect()
}

/// A stream's tensors in the order compute wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The selected tensors, each once.
    pub order: Vec<TensorIndex>,
    /// Sum of their bytes.
    pub payload_bytes: u64,
}

impl Plan {
    /// The tensors of `model` that `selection` takes, in `order`.
    ///
    /// # Errors
    /// [`ErrorKind::NoMatch`] if a pattern of the selection matches no tensor;
    /// [`ErrorKind::OutOfMemory`].
    pub fn new(model: &Model, selection: &Selection, order: Order) -> Result<Self> {
        let table = model.tensors();
        check_memory_for_tensors(table.len())?;
        let mut selected = selection.select(table)?;
        if order == Order::Layer {
            layer_order(table, &mut selected);
        }
        let payload_bytes = selected.iter().map(|&index| table[index].len).sum();
        Ok(Self {
            order: selected,
            payload_bytes,
        })
    }
}
