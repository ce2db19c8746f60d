//! Commands of the NVM command set: NVM 3. Blocks and memory are checked before either moves.

use nvme_sys::opcode::nvm;
use nvme_sys::sqe::{
    ALL_NAMESPACES, CDW11_DEALLOCATE, CDW12_FORCE_UNIT_ACCESS, DatasetRange, MAX_DATASET_RANGES,
};
use zerocopy::FromBytes;

use crate::config::Namespace;
use crate::controller::{Controller, Did, Done, Job};
use crate::status;
use crate::transfer::is_fused;

/// Blocks of a namespace that are there.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Index of the namespace.
    namespace: usize,
    offset_bytes: u64,
    len_bytes: u64,
}

impl Controller {
    pub(crate) fn execute_io(&mut self, job: &Job) -> Did {
        if is_fused(&job.entry) {
            return Err(status::INVALID_FIELD);
        }
        let did = match job.entry.opcode {
            nvm::READ => self.read_blocks(job),
            nvm::WRITE => self.write_blocks(job),
            nvm::COMPARE => self.compare_blocks(job),
            nvm::WRITE_ZEROES => self.zero_blocks(job),
            nvm::FLUSH => self.flush(job),
            nvm::DATASET_MANAGEMENT => self.manage(job),
            _ => Err(status::INVALID_OPCODE),
        };
        did.map(|()| Done::Ended(0))
    }

    fn namespace(&self, job: &Job) -> Result<usize, u16> {
        let id = usize::try_from(job.entry.namespace_id.get()).unwrap_or(0);
        let found = id
            .checked_sub(1)
            .filter(|&at| at < self.config.namespaces.len());
        found.ok_or(status::INVALID_NAMESPACE)
    }

    fn extent(&self, job: &Job) -> Result<Extent, u16> {
        let namespace = self.namespace(job)?;
        let first = u64::from(job.entry.cdw10.get()) | u64::from(job.entry.cdw11.get()) << 32;
        let blocks = u64::from(job.entry.cdw12.get() & 0xffff) + 1;
        of_blocks(&self.config.namespaces[namespace], namespace, first, blocks)
    }

    /// As [`Self::extent`], for commands whose data is as long.
    fn transfer(&self, job: &Job) -> Result<Extent, u16> {
        let extent = self.extent(job)?;
        let limit = self.config.max_data_transfer;
        if limit != 0 && extent.len_bytes > self.registers.min_page_bytes() << limit {
            return Err(status::INVALID_FIELD);
        }
        Ok(extent)
    }

    fn writable(&mut self, namespace: usize) -> Result<&mut Namespace, u16> {
        let namespace = &mut self.config.namespaces[namespace];
        if namespace.disk.is_read_only() {
            return Err(status::WRITE_PROTECTED);
        }
        Ok(namespace)
    }

    fn read_blocks(&mut self, job: &Job) -> Result<(), u16> {
        let extent = self.transfer(job)?;
        self.find_memory(job, extent.len_bytes, true)?;
        let disk = &mut self.config.namespaces[extent.namespace].disk;
        let read = disk.read(extent.offset_bytes, self.pieces.memory());
        // Also where it failed: some may have arrived.
        self.note_writes(job);
        read.map_err(|_| status::UNRECOVERED_READ)
    }

    fn write_blocks(&mut self, job: &Job) -> Result<(), u16> {
        let extent = self.transfer(job)?;
        self.writable(extent.namespace)?;
        self.find_memory(job, extent.len_bytes, false)?;
        let disk = &mut self.config.namespaces[extent.namespace].disk;
        let written = disk.write(extent.offset_bytes, self.pieces.memory());
        self.counters.dma_read_bytes += self.pieces.len_bytes();
        written.map_err(|_| status::WRITE_FAULT)?;
        self.force(job, extent.namespace)
    }

    /// What has to be durable before its completion: FUA, or a write cache that is off.
    fn force(&mut self, job: &Job, namespace: usize) -> Result<(), u16> {
        let asked = job.entry.cdw12.get() & CDW12_FORCE_UNIT_ACCESS != 0;
        if asked || self.features.write_cache == Some(false) {
            let flushed = self.config.namespaces[namespace].disk.flush();
            flushed.map_err(|_| status::WRITE_FAULT)?;
        }
        Ok(())
    }

    fn compare_blocks(&mut self, job: &Job) -> Result<(), u16> {
        let extent = self.transfer(job)?;
        self.find_memory(job, extent.len_bytes, false)?;
        self.counters.dma_read_bytes += self.pieces.len_bytes();
        let disk = &mut self.config.namespaces[extent.namespace].disk;
        let mut offset = extent.offset_bytes;
        for memory in self.pieces.memory() {
            let mut at = 0;
            while at < memory.len_bytes() {
                let len = (memory.len_bytes() - at).min(COMPARE_BYTES);
                let part = memory.part(at, len);
                let same = self.compare.is_same(disk.as_mut(), offset, part);
                match same {
                    Ok(true) => {}
                    Ok(false) => return Err(status::COMPARE_FAILURE),
                    Err(_) => return Err(status::UNRECOVERED_READ),
                }
                at += len;
                offset += len;
            }
        }
        Ok(())
    }

    fn zero_blocks(&mut self, job: &Job) -> Result<(), u16> {
        let extent = self.extent(job)?;
        let disk = &mut self.writable(extent.namespace)?.disk;
        let zeroed = disk.zero(extent.offset_bytes, extent.len_bytes);
        zeroed.map_err(|_| status::WRITE_FAULT)?;
        self.force(job, extent.namespace)
    }

    fn flush(&mut self, job: &Job) -> Result<(), u16> {
        let meant = if job.entry.namespace_id.get() == ALL_NAMESPACES {
            0..self.config.namespaces.len()
        } else {
            let namespace = self.namespace(job)?;
            namespace..namespace + 1
        };
        for namespace in &mut self.config.namespaces[meant] {
            if !namespace.disk.is_read_only() {
                namespace.disk.flush().map_err(|_| status::WRITE_FAULT)?;
            }
        }
        Ok(())
    }

    fn manage(&mut self, job: &Job) -> Result<(), u16> {
        let at = self.namespace(job)?;
        let count = usize::from(job.entry.cdw10.get().to_le_bytes()[0]) + 1;
        let mut bytes = [0; MAX_DATASET_RANGES * size_of::<DatasetRange>()];
        let bytes = &mut bytes[..count * size_of::<DatasetRange>()];
        self.receive(job, bytes)?;
        if job.entry.cdw11.get() & CDW11_DEALLOCATE == 0 {
            // The rest are hints.
            return Ok(());
        }
        let namespace = self.writable(at)?;
        let ranges = || {
            let ranges = bytes.chunks_exact(size_of::<DatasetRange>());
            ranges.map(|range| DatasetRange::read_from_bytes(range).expect("16 bytes"))
        };
        // All of them first: a command that fails deallocates nothing here.
        for range in ranges() {
            of_blocks(namespace, at, range.start.get(), range.blocks.get().into())?;
        }
        for range in ranges() {
            let extent = of_blocks(namespace, at, range.start.get(), range.blocks.get().into())?;
            let zeroed = namespace.disk.zero(extent.offset_bytes, extent.len_bytes);
            zeroed.map_err(|_| status::WRITE_FAULT)?;
        }
        Ok(())
    }
}

fn of_blocks(namespace: &Namespace, at: usize, first: u64, blocks: u64) -> Result<Extent, u16> {
    let end = first.checked_add(blocks);
    if end.is_none_or(|end| end > namespace.blocks()) {
        return Err(status::LBA_OUT_OF_RANGE);
    }
    Ok(Extent {
        namespace: at,
        offset_bytes: first << namespace.block_shift,
        len_bytes: blocks << namespace.block_shift,
    })
}

/// Bytes that are compared at once.
const COMPARE_BYTES: u64 = 64 << 10;

/// Room for comparisons: the disk's side, and a copy of the host's.
#[derive(Debug, Default)]
pub(crate) struct Compare {
    disk: Option<nvme::memory::Pages>,
    one: Vec<u8>,
    other: Vec<u8>,
}

impl Compare {
    fn is_same(
        &mut self,
        disk: &mut dyn crate::disk::Disk,
        offset: u64,
        memory: nvme::memory::RawMemory,
    ) -> std::io::Result<bool> {
        use nvme::memory::{Pages, TargetMemory};
        let pages = match self.disk.take() {
            Some(pages) => pages,
            None => Pages::new(COMPARE_BYTES).map_err(std::io::Error::other)?,
        };
        let part = pages.raw().part(0, memory.len_bytes());
        let read = disk.read(offset, &[part]);
        let len = usize::try_from(memory.len_bytes()).expect("at most COMPARE_BYTES");
        self.one.resize(len, 0);
        self.other.resize(len, 0);
        part.copy_to(0, &mut self.one);
        memory.copy_to(0, &mut self.other);
        self.disk = Some(pages);
        read?;
        Ok(self.one == self.other)
    }
}
