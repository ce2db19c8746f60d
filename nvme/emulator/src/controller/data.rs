//! Data: from a command's pointer to memory, and what is noted of it. Knows no commands.

use super::{Controller, Job};
use crate::observe::DmaWrite;
use crate::status;
use crate::transfer::{Walk, WalkError};

impl Controller {
    /// Finds the memory of a command, in `pieces`. Nothing of it is touched yet.
    pub(crate) fn find_memory(
        &mut self,
        job: &Job,
        len_bytes: u64,
        write: bool,
    ) -> Result<(), u16> {
        let mut walk = Walk {
            iommu: &self.iommu,
            page_bytes: self.registers.page_bytes(),
            sgl: self.config.sgl,
            pieces: &mut self.pieces,
            list: &mut self.list,
            list_pages: &mut self.counters.list_pages,
        };
        match walk.command(&job.entry, job.is_admin(), len_bytes) {
            Ok(()) => {
                self.pieces.cut(job.limit_bytes.unwrap_or(len_bytes));
                Ok(())
            }
            Err(WalkError::Status(status)) => Err(status),
            Err(WalkError::Unmapped(address)) => {
                self.fault(address, write, job.queue, Some(job.command_id()));
                Err(status::DATA_TRANSFER)
            }
        }
    }

    /// Memory of `pieces` was written.
    pub(crate) fn note_writes(&mut self, job: &Job) {
        self.counters.dma_write_bytes += self.pieces.len_bytes();
        if let Some(observer) = &mut self.observer {
            for run in self.pieces.runs() {
                observer(&DmaWrite {
                    run,
                    kind: job.kind,
                    queue: job.queue,
                    command_id: job.command_id(),
                });
            }
        }
    }

    /// Writes a structure to the memory of a command.
    pub(crate) fn send(&mut self, job: &Job, bytes: &[u8]) -> Result<(), u16> {
        self.find_memory(job, bytes.len() as u64, true)?;
        self.pieces.copy_from(bytes);
        self.note_writes(job);
        Ok(())
    }

    /// Reads a structure from the memory of a command.
    pub(crate) fn receive(&mut self, job: &Job, bytes: &mut [u8]) -> Result<(), u16> {
        self.find_memory(job, bytes.len() as u64, false)?;
        self.pieces.copy_to(bytes);
        self.counters.dma_read_bytes += self.pieces.len_bytes();
        Ok(())
    }
}
