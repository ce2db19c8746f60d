//! The address space that the emulated controller sees: bus addresses to this process's memory.
//! Every access is looked up; what is not mapped is a fault and touches nothing. Knows no
//! commands.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::atomic::Ordering;

use nvme::dma::{DmaRun, Iova};
use nvme::memory::{PAGE_BYTES, Pages, RawMemory, TargetMemory};
use nvme::{Error, ErrorKind, Result};
use zerocopy::FromBytes;

use crate::config::{Config, Scatter};
use crate::fault::Random;

/// An access to an address that is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IommuFault {
    /// The first address that is not mapped.
    pub address: Iova,
    /// Whether it was to be written.
    pub write: bool,
    /// The submission queue of the command.
    pub queue: u16,
    /// The command; `None` where the controller itself needed the memory (queues, doorbells).
    pub command_id: Option<u16>,
}

/// Memory in the order of a transfer.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    memory: Vec<RawMemory>,
    addresses: Vec<u64>,
    len_bytes: u64,
}

impl Pieces {
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
        self.addresses.clear();
        self.len_bytes = 0;
    }

    fn push(&mut self, address: u64, memory: RawMemory) {
        self.addresses.push(address);
        self.len_bytes += memory.len_bytes();
        self.memory.push(memory);
    }

    /// Forgets what is beyond `len_bytes`.
    pub(crate) fn cut(&mut self, len_bytes: u64) {
        while self.len_bytes > len_bytes {
            let (Some(last), Some(address)) = (self.memory.pop(), self.addresses.pop()) else {
                return;
            };
            self.len_bytes -= last.len_bytes();
            if self.len_bytes < len_bytes {
                self.push(address, last.part(0, len_bytes - self.len_bytes));
            }
        }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(crate) fn memory(&self) -> &[RawMemory] {
        &self.memory
    }

    /// Bus addresses and lengths.
    pub(crate) fn runs(&self) -> impl Iterator<Item = DmaRun> {
        let lengths = self.memory.iter().map(RawMemory::len_bytes);
        (self.addresses.iter().zip(lengths)).map(|(&start, len_bytes)| DmaRun {
            start: Iova(start),
            len_bytes,
        })
    }

    pub(crate) fn copy_from(&self, mut bytes: &[u8]) {
        for memory in &self.memory {
            let len =
                usize::try_from(memory.len_bytes()).map_or(bytes.len(), |l| l.min(bytes.len()));
            let (now, later) = bytes.split_at(len);
            memory.copy_from(0, now);
            bytes = later;
        }
    }

    pub(crate) fn copy_to(&self, mut bytes: &mut [u8]) {
        for memory in &self.memory {
            let len =
                usize::try_from(memory.len_bytes()).map_or(bytes.len(), |l| l.min(bytes.len()));
            let (now, later) = bytes.split_at_mut(len);
            memory.copy_to(0, now);
            bytes = later;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    memory: RawMemory,
    black_hole: bool,
}

/// The address of the first access that had no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmapped(pub(crate) u64);

const FIRST_ADDRESS: u64 = 1 << 32;
/// 48 bits, as IOMMUs have at least.
const END_ADDRESS: u64 = 1 << 48;
/// Where black holes lead to.
const SINK_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Iommu {
    entries: BTreeMap<u64, Entry>,
    black_holes: Vec<RawMemory>,
    sink: Pages,
    next: u64,
    scatter: Scatter,
    scatter_from_bytes: u64,
    random: Random,
}

impl Iommu {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        Ok(Self {
            entries: BTreeMap::new(),
            black_holes: Vec::new(),
            sink: Pages::new(SINK_BYTES)?,
            next: FIRST_ADDRESS,
            scatter: config.scatter,
            scatter_from_bytes: config.scatter_from_bytes,
            random: Random(config.seed),
        })
    }

    pub(crate) fn map(&mut self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        let (start, len_bytes) = (memory.start().as_ptr().addr(), memory.len_bytes());
        let page = usize::try_from(PAGE_BYTES).expect("small");
        if len_bytes == 0 || !len_bytes.is_multiple_of(PAGE_BYTES) || !start.is_multiple_of(page) {
            let what = format!("{len_bytes} bytes at {start:#x} are not whole pages");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let starts = self.place(len_bytes)?;
        let chunk = self.chunk_bytes(len_bytes);
        let runs: Vec<_> = (0..)
            .zip(&starts)
            .map(|(index, &start)| DmaRun {
                start: Iova(start),
                len_bytes: chunk.min(len_bytes - index * chunk),
            })
            .collect();
        let mut offset = 0;
        for run in &runs {
            let memory = memory.part(offset, run.len_bytes);
            let black_hole = (self.black_holes.iter()).any(|hole| overlap(*hole, memory));
            self.entries
                .insert(run.start.0, Entry { memory, black_hole });
            offset += run.len_bytes;
        }
        Ok(runs)
    }

    fn chunk_bytes(&self, len_bytes: u64) -> u64 {
        match self.scatter {
            _ if len_bytes < self.scatter_from_bytes => len_bytes,
            Scatter::Contiguous => len_bytes,
            Scatter::Pages => PAGE_BYTES,
            Scatter::HugePages => 2 << 20,
        }
    }

    /// Bus addresses of each chunk, in the order of the memory. None is ever given twice, so
    /// that whoever keeps one too long meets a fault.
    fn place(&mut self, len_bytes: u64) -> Result<Vec<u64>> {
        let chunk = self.chunk_bytes(len_bytes);
        let alignment = chunk.next_power_of_two().min(2 << 20);
        let mut next = self.next;
        let mut starts = Vec::new();
        for _ in 0..len_bytes.div_ceil(chunk) {
            let start = next.next_multiple_of(alignment);
            starts.push(start);
            // At least a page between any two.
            let gap = 1 + self.random.below(3) as u64;
            next = start.saturating_add(chunk).saturating_add(gap * PAGE_BYTES);
        }
        if next > END_ADDRESS {
            return Err(Error::new(ErrorKind::NoSpace, "no bus addresses left"));
        }
        self.next = next;
        for at in (1..starts.len()).rev() {
            starts.swap(at, self.random.below(at + 1));
        }
        Ok(starts)
    }

    pub(crate) fn unmap(&mut self, runs: &[DmaRun]) {
        for run in runs {
            self.entries.remove(&run.start.0);
        }
    }

    /// What is or will be mapped of this memory is a black hole.
    pub(crate) fn black_hole(&mut self, memory: RawMemory) {
        self.black_holes.push(memory);
        for entry in self.entries.values_mut() {
            entry.black_hole |= overlap(memory, entry.memory);
        }
    }

    /// Memory from an address on, at most `len_bytes` of it.
    fn find(&self, address: u64, len_bytes: u64) -> Option<RawMemory> {
        let (&start, entry) = self.entries.range(..=address).next_back()?;
        let offset = address - start;
        let left = entry.memory.len_bytes().checked_sub(offset)?;
        let len_bytes = left.min(len_bytes);
        if len_bytes == 0 {
            return None;
        }
        Some(if entry.black_hole {
            // The same place in its page, for whoever wants words.
            let within = address % PAGE_BYTES;
            let len_bytes = len_bytes.min(SINK_BYTES - within);
            self.sink.raw().part(within, len_bytes)
        } else {
            entry.memory.part(offset, len_bytes)
        })
    }

    /// Adds memory to a transfer.
    pub(crate) fn gather(
        &self,
        mut address: u64,
        mut len_bytes: u64,
        pieces: &mut Pieces,
    ) -> Result<(), Unmapped> {
        while len_bytes > 0 {
            let memory = self.find(address, len_bytes).ok_or(Unmapped(address))?;
            pieces.push(address, memory);
            len_bytes -= memory.len_bytes();
            // Beyond the last address there is nothing mapped.
            address = address.saturating_add(memory.len_bytes());
        }
        Ok(())
    }

    fn whole(&self, address: u64, len_bytes: u64) -> Result<RawMemory, Unmapped> {
        let found = self.find(address, len_bytes);
        found
            .filter(|memory| memory.len_bytes() == len_bytes)
            .ok_or(Unmapped(address))
    }

    /// Reads a value that lies in one page.
    pub(crate) fn read<T: FromBytes + Copy>(&self, address: u64) -> Result<T, Unmapped> {
        Ok(self.whole(address, size_of::<T>() as u64)?.read(0))
    }

    /// Reads a word after which others are read.
    pub(crate) fn load(&self, address: u64) -> Result<u32, Unmapped> {
        Ok(self.whole(address, 4)?.load(0, Ordering::Acquire))
    }

    /// Writes a word.
    pub(crate) fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        self.whole(address, 4)?.store(0, value, Ordering::Release);
        Ok(())
    }

    /// Writes four words of one page, the last of them after the others.
    pub(crate) fn store_entry(&self, address: u64, words: [u32; 4]) -> Result<(), Unmapped> {
        let memory = self.whole(address, 16)?;
        for (offset, word) in [0, 4, 8].into_iter().zip(words) {
            memory.store(offset, word, Ordering::Relaxed);
        }
        memory.store(12, words[3], Ordering::Release);
        Ok(())
    }

    /// Copies bytes out; all of them or none.
    pub(crate) fn copy_to(&self, address: u64, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let (mut at, mut address) = (0, address);
        while at < bytes.len() {
            let memory =
                (self.find(address, (bytes.len() - at) as u64)).ok_or(Unmapped(address))?;
            let len = usize::try_from(memory.len_bytes()).expect("at most the slice");
            memory.copy_to(0, &mut bytes[at..at + len]);
            at += len;
            address = address.saturating_add(len as u64);
        }
        Ok(())
    }
}

fn overlap(one: RawMemory, other: RawMemory) -> bool {
    let span = |memory: RawMemory| {
        let start = memory.start().as_ptr().addr() as u64;
        (start, start + memory.len_bytes())
    };
    let ((one, one_end), (other, other_end)) = (span(one), span(other));
    one < other_end && other < one_end
}
