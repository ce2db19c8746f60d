//! Memory for the tables of a load, asked for before they are made: an allocation that fails
//! later would end the program.

use fs_adapter::memory::is_available;
use ubio_core::{FillPlan, Piece};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::TABLE_BYTES_PER_TENSOR;
use crate::plan::{Run, Shape, most_fills};

/// For the ring thread's own tables: streams, windows, commands, two histograms.
///
/// # Errors
/// NoSpace.
pub(crate) fn check_engine(leases: usize) -> Result<()> {
    const FIXED_BYTES: usize = 1 << 20;
    const BYTES_PER_LEASE: usize = 512;
    check(FIXED_BYTES + leases * BYTES_PER_LEASE)
}

/// For what is kept for each of so many tensors.
///
/// # Errors
/// NoSpace.
pub(crate) fn check_tensors(count: usize) -> Result<()> {
    check(count.saturating_mul(TABLE_BYTES_PER_TENSOR))
}

/// For the plan of these runs: each growing table is moved once more before it is done.
///
/// # Errors
/// NoSpace.
pub(crate) fn check_plan(runs: &[Run], shape: &Shape) -> Result<()> {
    const GROWING: usize = 3;
    let fills = usize::try_from(most_fills(runs, shape)).unwrap_or(usize::MAX);
    let fill_bytes = fills.saturating_mul(size_of::<FillPlan>());
    let pieces = fills.saturating_add(runs.len());
    let piece_bytes = pieces.saturating_mul(size_of::<Piece>());
    check(
        fill_bytes
            .saturating_add(piece_bytes)
            .saturating_mul(GROWING),
    )
}

fn check(bytes: usize) -> Result<()> {
    if is_available(bytes) {
        return Ok(());
    }
    let what = format!("no memory for the load's tables, about {bytes} bytes");
    Err(Error::new(ErrorKind::NoSpace, what)
        .remedy("free memory, raise the address-space limit (ulimit -v), or load less"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_too_large_for_memory_are_an_error() {
        check_tensors(1000).expect("little memory");
        let error = check_tensors(usize::MAX / 2).expect_err("too much");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.advice().is_some());
    }
}
