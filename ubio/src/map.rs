//! The page cache itself as destination: the files mapped read-only, brought in by parallel
//! readahead and mapped page by page ahead of use. No copy, no memory of its own.
//!
//! What that costs: a mapped file that is cut while it is read kills the reader with SIGBUS.
//! A read lease is taken where the kernel gives one, so that whoever wants to write the file
//! is held until the lease thread has noticed; [`Mapped::is_intact`] tells. Where there is no
//! lease ([`Mapped::unleased`]), keep others from truncating the file, or load a copy. That is
//! why to map is unsafe and to load is not. The library installs no signal handler.
//!
//! unsafe: gives out slices of file mappings.
#![expect(unsafe_code, reason = "gives out slices of read-only file mappings")]

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fs_adapter::plan::Plan;
use fs_adapter::{Model, TensorIndex};

use crate::error::{Error, ErrorKind, Result};
use crate::load::TensorView;
use crate::sys::lease::{ReadLeases, Refused};
use crate::sys::memory::Region;
use crate::sys::parallel::in_parallel;
use crate::topology;

/// What one thread brings in at a time.
const PART_BYTES: u64 = 8 << 20;

/// A model's files, mapped and in memory.
#[derive(Debug)]
pub struct Mapped {
    model: Arc<Model>,
    order: Vec<TensorIndex>,
    /// By file; `None` for empty files and for those no tensor is wanted from.
    regions: Vec<Option<Region>>,
    leases: std::result::Result<ReadLeases, Refused>,
    bytes: u64,
}

/// A stretch of one file.
struct Part {
    file: usize,
    offset: u64,
    len: u64,
}

impl Mapped {
    /// Maps what `plan` needs of the model's files and brings it in, in plan order, from as
    /// many threads as serve the device. Returns when all of it is in memory and mapped.
    ///
    /// # Errors
    /// Unsupported (a file that cannot be mapped), Truncated, Changed, Io.
    ///
    /// # Safety
    /// While the value lives nobody cuts or writes the files. A lease tells of it, and holds
    /// the writer for as long as the kernel waits for us; it cannot forbid it.
    pub unsafe fn open(model: &Arc<Model>, plan: &Plan) -> Result<Self> {
        let mut ends = vec![0; model.files().len()];
        for &index in &plan.order {
            let tensor = &model.tensors()[index];
            let end: &mut u64 = &mut ends[tensor.file.as_usize()];
            *end = (*end).max(tensor.offset + tensor.len);
        }
        let clones: std::io::Result<Vec<_>> = model
            .files()
            .iter()
            .map(|file| reopen(file.file()))
            .collect();
        let leases = match clones {
            Ok(files) => ReadLeases::take(files),
            Err(cause) => Err(Refused::Other(cause.to_string())),
        };
        let mut regions = Vec::with_capacity(ends.len());
        for (file, &end) in model.files().iter().zip(&ends) {
            // Asking for huge pages makes the kernel read ahead in 2 MiB folios, which later
            // mappings of the same file get as single entries.
            let map = || Region::of_file(file.file(), file.len_bytes(), false, true);
            let region = (end > 0).then(map).transpose().map_err(|error| {
                let error = error.at(file.path());
                match error.advice() {
                    Some(_) => error,
                    None => error.remedy("load a copy instead (through windows or in place)"),
                }
            })?;
            regions.push(region);
        }
        let parts = parts(model, plan);
        let bytes = parts.iter().map(|part| part.len).sum();
        let mapped = Self {
            model: Arc::clone(model),
            order: plan.order.clone(),
            regions,
            leases,
            bytes,
        };
        mapped.bring_in(&parts)?;
        mapped.model.check_unchanged()?;
        Ok(mapped)
    }

    /// Bytes of file that were brought in.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tensors, in plan order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.order.iter().map(|&index| {
            let tensor = &self.model.tensors()[index];
            let bytes: &[u8] = match &self.regions[tensor.file.as_usize()] {
                // SAFETY: the mapping is read-only, and nobody writes the file: promised to
                // `open`.
                Some(region) if tensor.len > 0 => unsafe {
                    region.bytes(tensor.offset, tensor.len)
                },
                _ => &[],
            };
            TensorView { tensor, bytes }
        })
    }

    /// Why the files are not held against writers, if they are not.
    pub fn unleased(&self) -> Option<&Refused> {
        self.leases.as_ref().err()
    }

    /// Whether the files are as they were opened, as far as can be told.
    pub fn is_intact(&self) -> bool {
        let broken = self.leases.as_ref().is_ok_and(ReadLeases::is_broken);
        !broken && self.model.check_unchanged().is_ok()
    }

    /// Twice as many threads as cores: half of them wait for the device.
    fn bring_in(&self, parts: &[Part]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let one = || {
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.bring_in_one(part)?;
            }
            Ok(())
        };
        let threads = (2 * topology::cores()).clamp(2, 16).min(parts.len().max(1));
        in_parallel(threads, one)
    }

    fn bring_in_one(&self, part: &Part) -> Result<()> {
        let file = &self.model.files()[part.file];
        let Some(region) = &self.regions[part.file] else {
            return Ok(());
        };
        region
            .populate_read(part.offset, part.len)
            .or_else(|cause| match cause.raw_os_error() {
                // Before Linux 5.14: the pages are mapped when they are first touched.
                Some(libc::EINVAL) => Ok(()),
                Some(libc::EFAULT) => Err(Error::new(
                    ErrorKind::Truncated,
                    "the file ended, or could not be read, while it was mapped",
                )
                .at(file.path())
                .remedy("check the drive (dmesg) and that nobody writes the file")),
                _ => Err(Error::os("bringing the file in failed", cause).at(file.path())),
            })
    }
}

/// The same file, opened once more: a lease belongs to the open file description, and a
/// duplicated descriptor would share it with every other map of the model.
fn reopen(file: &std::fs::File) -> std::io::Result<std::fs::File> {
    std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What to bring in: the plan's bytes, neighbours together, cut to parts.
fn parts(model: &Model, plan: &Plan) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for &index in &plan.order {
        let tensor = &model.tensors()[index];
        let page = crate::sys::memory::PAGE_BYTES;
        let mut at = tensor.offset / page * page;
        let end = tensor.offset + tensor.len;
        if tensor.len == 0 {
            continue;
        }
        if let Some(last) = parts.last_mut()
            && last.file == tensor.file.as_usize()
            && (last.offset..=last.offset + last.len).contains(&at)
        {
            let to = (last.offset + PART_BYTES)
                .min(end)
                .max(last.offset + last.len);
            last.len = to - last.offset;
            at = to;
        }
        while at < end {
            let len = PART_BYTES.min(end - at);
            parts.push(Part {
                file: tensor.file.as_usize(),
                offset: at,
                len,
            });
            at += len;
        }
    }
    parts
}
