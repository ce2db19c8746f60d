//! From a request to what the ring thread needs: the runs of each kind of placement, the files
//! looked at, and why something will not go the best way.

use fs_adapter::placement::Placement;
use fs_adapter::plan::Plan;
use fs_adapter::{Model, ModelFile, TensorIndex};

use crate::engine::Routes;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{FileWay, Run, Shape, fills};
use crate::source::Object;
use crate::source::file::probe::{DirectIo, Probed, probe};
use crate::source::file::residency::Known;
use crate::stats::Reason;
use crate::sys::memory::{Pages, Region};
use crate::tables;

/// The runs of placed tensors, in plan order.
pub(crate) fn placed_runs(model: &Model, placement: &Placement) -> Vec<Run> {
    let run = |(item, placed): (u32, &fs_adapter::placement::PlacedTensor)| {
        let tensor = &model.tensors()[placed.tensor];
        Run {
            file: tensor.file.0,
            offset: tensor.offset,
            len: tensor.len,
            destination: placed.offset,
            item,
        }
    };
    (0..)
        .zip(&placement.tensors)
        .filter(|(_, placed)| placed.len > 0)
        .map(run)
        .collect()
}

/// Bytes of each item of a load, for its progress.
pub(crate) fn item_bytes(placement: &Placement, runs: &[Run]) -> Vec<u64> {
    let mut bytes: Vec<u64> = placement.tensors.iter().map(|tensor| tensor.len).collect();
    if bytes.is_empty() && !runs.is_empty() {
        // The image of a file without tensors still has a header to bring in.
        bytes.push(0);
    }
    bytes
}

/// The runs of lent tensors: their destination is their own first byte.
pub(crate) fn lent_runs(model: &Model, plan: &Plan) -> Vec<Run> {
    let run = |(item, &index): (u32, &TensorIndex)| {
        let tensor = &model.tensors()[index];
        Run {
            file: tensor.file.0,
            offset: tensor.offset,
            len: tensor.len,
            destination: 0,
            item,
        }
    };
    (0..)
        .zip(&plan.order)
        .map(run)
        .filter(|run| run.len > 0)
        .collect()
}

/// The runs of an image: each file whole. What lies between tensors (header, padding)
/// counts to the tensor after it, what lies behind the last one to that.
pub(crate) fn image_runs(model: &Model, placement: &Placement) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for file in &placement.files {
        let first = runs.len();
        let mut at = 0;
        let inside = |(_, placed): &(u32, &fs_adapter::placement::PlacedTensor)| {
            model.tensors()[placed.tensor].file == file.file && placed.len > 0
        };
        let mut last = 0;
        for (item, placed) in (0..).zip(&placement.tensors).filter(inside) {
            let end = placed.offset - file.offset + placed.len;
            if item < last || end <= at {
                return Err(
                    Error::new(ErrorKind::InvalidInput, "an image keeps the files' order")
                        .remedy("load through windows for another order"),
                );
            }
            runs.push(Run {
                file: file.file.0,
                offset: at,
                len: end - at,
                destination: file.offset + at,
                item,
            });
            (at, last) = (end, item);
        }
        if at < file.len {
            match runs[first..].last_mut() {
                Some(run) => run.len += file.len - at,
                // A file without a byte of tensors: it rides with whatever comes first.
                None => runs.push(Run {
                    file: file.file.0,
                    offset: 0,
                    len: file.len,
                    destination: file.offset,
                    item: runs.last().map_or(0, |run| run.item),
                }),
            }
        }
    }
    Ok(runs)
}

pub(crate) fn probe_files(model: &Model, runs: &[Run]) -> Result<Vec<Probed>> {
    let used = |index: u32| runs.iter().any(|run| run.file == index);
    (0..)
        .zip(model.files())
        .map(|(index, file)| {
            if used(index) {
                probe(file.file()).map_err(|error| error.at(file.path()))
            } else {
                crate::source::file::probe::unused(file.file())
            }
        })
        .collect()
}

pub(crate) fn objects(probed: &[Probed]) -> Vec<Object> {
    probed
        .iter()
        .map(|file| Object::File(file.object.clone()))
        .collect()
}

/// Files that are not read direct although they should be: those that refuse it, unless the
/// page cache was asked for, and, where direct reads were, those in memory, for which nothing
/// is better than a copy.
pub(crate) fn direct_reasons(probed: &[Probed], routes: Routes) -> Vec<Reason> {
    let refused = |file: &&Probed| match file.direct_io {
        DirectIo::Refused(_) => routes != Routes::Cached,
        DirectIo::InMemory => routes == Routes::Direct && file.used,
        DirectIo::Aligned(_) => false,
    };
    probed
        .iter()
        .filter(refused)
        .map(|_file| Reason::NoDirectIo)
        .collect()
}

pub(crate) fn load_reasons(
    probed: &[Probed],
    region: &Region,
    in_place: bool,
    routes: Routes,
) -> Vec<Reason> {
    let mut reasons = direct_reasons(probed, routes);
    let large = region.len_bytes() >= crate::sys::memory::HUGE_PAGE_BYTES;
    if in_place && large && region.pages() == Pages::Base {
        reasons.push(Reason::DestinationNotHuge);
    }
    reasons
}

/// The fills of `runs`, whose files are indices into `files`.
///
/// # Errors
/// NoSpace: there is no memory for them.
pub(crate) fn stream_plan(
    model_files: &[ModelFile],
    runs: &[Run],
    items: u32,
    probed: &[Probed],
    shape: &Shape,
) -> Result<ubio_core::StreamPlan> {
    tables::check_plan(runs, shape)?;
    let files: Vec<_> = probed
        .iter()
        .zip(model_files)
        .map(|(probed, file)| {
            let way = match probed.direct_io {
                DirectIo::Aligned(_) if probed.resident_only => FileWay::Direct,
                DirectIo::Aligned(_) => FileWay::DirectOrWait,
                DirectIo::InMemory => FileWay::Memory,
                DirectIo::Refused(_) => FileWay::Buffered,
            };
            (way, file.len_bytes())
        })
        .collect();
    let mut ends = vec![0; probed.len()];
    for run in runs {
        let end: &mut u64 = &mut ends[run.file as usize];
        *end = (*end).max(run.offset + run.len);
    }
    let known: Vec<Known> = ends.into_iter().map(Known::new).collect();
    let resident = |file: u32, offset, len| {
        let index = file as usize;
        let file = model_files[index].file();
        known[index].residency(file, offset..offset + len, probed[index].resident_only)
    };
    Ok(fills(runs, items, &files, shape, &resident))
}
