//! The traditional path, kept as the A side of every comparison: one thread, a buffered read
//! into a bounce buffer, then a copy to the destination, one after the other. Never chosen
//! by the engine itself.
//!
//! unsafe: writes destination memory.
#![expect(
    unsafe_code,
    reason = "copies into raw destination memory that is this load's alone"
)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fs_adapter::Model;

use crate::error::{Error, ErrorKind, READ_AGAIN, Result};
use crate::load::Shared;
use crate::plan::Run;
use crate::sys::claim::Claim;
use crate::sys::memory::Region;

/// Bytes of the bounce buffer; what common loaders read at once.
const BOUNCE_BYTES: u64 = 1 << 20;

/// One traditional load.
pub(crate) struct Traditional {
    pub(crate) runs: Vec<Run>,
    pub(crate) items: u32,
    pub(crate) model: Arc<Model>,
    pub(crate) to: Arc<Region>,
    /// Held until the load is over.
    pub(crate) _claim: Arc<Claim>,
    pub(crate) shared: Arc<Shared>,
}

impl Traditional {
    /// Does it all, item by item, and says how it ended. Gives the bytes moved.
    pub(crate) fn run(&self) -> Result<u64> {
        let mut bounce = vec![0; usize::try_from(BOUNCE_BYTES).expect("1 MiB")];
        let mut moved = 0;
        let mut shown = 0;
        for run in &self.runs {
            if self.shared.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the load was cancelled"));
            }
            if run.item > shown {
                self.shared.show(run.item, 0);
                shown = run.item;
            }
            self.copy(run, &mut bounce)?;
            moved += run.len;
            self.shared.show(shown, run.len);
        }
        self.shared.show(self.items, 0);
        self.model.check_unchanged()?;
        Ok(moved)
    }

    fn copy(&self, run: &Run, bounce: &mut [u8]) -> Result<()> {
        let model_file = &self.model.files()[run.file as usize];
        let file: &File = model_file.file();
        let mut done = 0;
        while done < run.len {
            let want = (run.len - done).min(BOUNCE_BYTES);
            let part = &mut bounce[..usize::try_from(want).expect("at most 1 MiB")];
            file.read_exact_at(part, run.offset + done)
                .map_err(|cause| {
                    let what = format!(
                        "reading {want} bytes at offset {} failed",
                        run.offset + done
                    );
                    match cause.kind() {
                        std::io::ErrorKind::UnexpectedEof => {
                            Error::new(ErrorKind::Truncated, "the file ended while it was read")
                                .remedy("load it again when nobody writes it")
                        }
                        _ => Error::os(what, cause).remedy(READ_AGAIN),
                    }
                    .at(model_file.path())
                })?;
            // SAFETY: the destination is this load's alone, and the item is not shown yet.
            unsafe { self.to.write(run.destination + done, part) };
            self.shared.requested(want);
            done += want;
        }
        Ok(())
    }
}
