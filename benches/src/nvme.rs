//! The NVMe driver over a controller that is only registers and memory: writing a register is
//! a store, and completions are written when the bench says so, out of what is counted. Moves
//! no data, knows no time.
//!
//! unsafe: implements the unsafe method of a device, and submits commands.
#![expect(
    unsafe_code,
    reason = "implements the unsafe method of a device; nobody reads or writes the targets"
)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::Device;
use nvme::dma::{DmaRun, Iova};
use nvme::lba::{BlockCount, Lba};
use nvme::memory::{Pages, RawMemory};
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Direction, Done, Io, MemoryId, Transport};
use nvme::{Error, ErrorKind, Result};
use nvme_sys::cqe::CompletionEntry;
use nvme_sys::opcode::admin;
use nvme_sys::register::{ACQ, ASQ, CC, CSTS, DOORBELLS};
use nvme_sys::sqe::SubmissionEntry;
use ubio::source::nvme::{NamespaceInfo, NvmeSource};
use ubio::source::{Completion, FillCommand, Object, Source, Target, Wait};
use ubio::sys::memory::Region;
use ubio::window::WindowMemory;
use ubio_core::{ObjectId, Route, Token};

/// Commands in flight.
pub const DEPTH: u32 = 32;
const BLOCK_BYTES: u32 = 4096;
const BLOCKS: u64 = 1 << 20;
/// Up to the doorbells of one I/O queue pair.
const REGISTERS: usize = 0x1010 / 4;
const MAX_COMMAND_BYTES: u32 = 128 << 10;

/// A queue pair as the controller knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    submissions: u64,
    completions: u64,
    entries: u32,
    head: u32,
    at: u32,
    is_odd_lap: bool,
}

#[derive(Debug, Default)]
struct Inner {
    maps: Vec<RawMemory>,
    queues: [Queue; 2],
}

/// The controller.
#[derive(Debug)]
pub struct Registers {
    registers: [AtomicU32; REGISTERS],
    sgl: bool,
    inner: Mutex<Inner>,
}

impl Registers {
    fn new(sgl: bool) -> Self {
        Self {
            registers: std::array::from_fn(|_| AtomicU32::new(0)),
            sgl,
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic")
    }

    fn get(&self, offset: u64) -> u32 {
        let index = usize::try_from(offset / 4).expect("small");
        self.registers[index].load(Ordering::Relaxed)
    }

    fn wide(&self, offset: u64) -> u64 {
        u64::from(self.get(offset)) | u64::from(self.get(offset + 4)) << 32
    }

    /// Answers every command that it was told of; how many there were.
    #[inline(never)]
    pub fn answer(&self) -> u32 {
        let mut inner = self.inner();
        if self.get(CC) & 1 == 0 {
            inner.queues = [Queue::default(); 2];
            return 0;
        }
        if inner.queues[0].entries == 0 {
            inner.queues[0] = Queue {
                submissions: self.wide(ASQ),
                completions: self.wide(ACQ),
                entries: 32,
                ..Queue::default()
            };
        }
        let mut count = 0;
        for id in 0..2 {
            let tail = self.get(DOORBELLS + id as u64 * 8);
            while inner.queues[id].head != tail {
                inner.answer_next(id, self.sgl);
                count += 1;
            }
        }
        count
    }
}

impl Inner {
    fn memory(&self, address: u64) -> (RawMemory, u64) {
        let inside = |of: &&RawMemory| {
            let start = of.start().as_ptr().addr() as u64;
            (start..start + of.len_bytes()).contains(&address)
        };
        let found = self.maps.iter().find(inside).expect("a mapped address");
        (*found, address - found.start().as_ptr().addr() as u64)
    }

    fn answer_next(&mut self, id: usize, sgl: bool) {
        let queue = self.queues[id];
        let (memory, offset) = self.memory(queue.submissions + u64::from(queue.head) * 64);
        let entry: SubmissionEntry = memory.read(offset);
        let queue = &mut self.queues[id];
        queue.head = (queue.head + 1) % queue.entries;
        let result = match id {
            0 => self.admin_command(&entry, sgl),
            _ => Some(0),
        };
        let Some(result) = result else {
            return;
        };
        let queue = self.queues[id];
        let completion = CompletionEntry {
            result: result.into(),
            sq_id: u16::try_from(id).expect("two").into(),
            command_id: entry.command_id,
            status_phase: u16::from(!queue.is_odd_lap).into(),
            ..CompletionEntry::default()
        };
        let (memory, offset) = self.memory(queue.completions + u64::from(queue.at) * 16);
        memory.write(offset, completion);
        let queue = &mut self.queues[id];
        queue.at = (queue.at + 1) % queue.entries;
        queue.is_odd_lap ^= queue.at == 0;
    }

    /// The result; `None` for no answer.
    fn admin_command(&mut self, entry: &SubmissionEntry, sgl: bool) -> Option<u32> {
        let entries = (entry.cdw10.get() >> 16) + 1;
        match entry.opcode {
            admin::IDENTIFY => {
                let (memory, offset) = self.memory(entry.data1.get());
                memory.zero(offset, 4096);
                if entry.cdw10.get() & 0xff == 1 {
                    memory.copy_from(offset + 4, b"BENCH");
                    memory.copy_from(offset + 536, &[u8::from(sgl)]);
                } else {
                    memory.copy_from(offset, &BLOCKS.to_le_bytes());
                    memory.copy_from(offset + 130, &[12]);
                }
                Some(0)
            }
            admin::CREATE_CQ => {
                self.queues[1].completions = entry.data1.get();
                Some(0)
            }
            admin::CREATE_SQ => {
                self.queues[1].submissions = entry.data1.get();
                self.queues[1].entries = entries;
                Some(0)
            }
            admin::ASYNC_EVENT => None,
            _ => Some(0),
        }
    }
}

impl Device for Registers {
    fn name(&self) -> &'static str {
        "bench"
    }

    #[inline]
    fn read_u32(&self, offset: u64) -> u32 {
        match offset {
            // 1024 entries, ten seconds, the NVM command set.
            0 => 0x1400_03ff,
            4 => 1 << 5,
            // Ready when enabled, shut down when told.
            CSTS => self.get(CC) & 1 | (self.get(CC) >> 14 & 1) << 3,
            _ => self.get(offset),
        }
    }

    #[inline]
    fn write_u32(&self, offset: u64, value: u32) {
        let index = usize::try_from(offset / 4).expect("small");
        self.registers[index].store(value, Ordering::Release);
    }

    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        self.inner().maps.push(memory);
        Ok(vec![DmaRun {
            start: Iova(memory.start().as_ptr().addr() as u64),
            len_bytes: memory.len_bytes(),
        }])
    }

    fn unmap(&self, runs: &[DmaRun]) -> Result<()> {
        let start = runs[0].start.0;
        self.inner()
            .maps
            .retain(|map| map.start().as_ptr().addr() as u64 != start);
        Ok(())
    }

    fn vectors(&self) -> u16 {
        0
    }

    fn interrupt(&self, _vector: u16) -> Result<Arc<OwnedFd>> {
        Err(Error::new(ErrorKind::Unsupported, "no interrupts"))
    }

    fn quiesce(&self) -> Result<()> {
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn pause(&self, _span: Duration) {
        self.answer();
    }
}

/// What is counted or timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a command.
    pub command_bytes: u32,
    /// Data is named by SGLs where that takes a list otherwise.
    pub sgl: bool,
    /// Through the engine's source.
    pub source: bool,
}

/// A driver with a full queue to be submitted.
pub struct Loop {
    device: Arc<Registers>,
    shape: Shape,
    way: Way,
    lists: RawMemory,
}

enum Way {
    Transport {
        transport: Box<UserTransport>,
        memory: MemoryId,
        done: Vec<Done>,
    },
    Source {
        source: Box<NvmeSource>,
        memory: ubio::source::MemoryId,
        object: ObjectId,
        done: Vec<Completion>,
    },
}

impl std::fmt::Debug for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loop")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Loop {
    /// Opened, and memory attached whose PRP lists are erased: commands have to get along
    /// without writing them again.
    ///
    /// # Panics
    /// If the driver does not come up.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let device = Arc::new(Registers::new(shape.sgl));
        let mut settings = Settings::new(NamespaceId(1));
        settings.interrupts = false;
        let opened = UserTransport::open(Arc::clone(&device) as _, Options::new(settings));
        let mut transport = opened.expect("a controller");
        let len_bytes = u64::from(DEPTH * MAX_COMMAND_BYTES);
        let way = if shape.source {
            let info = NamespaceInfo {
                name: "bench".into(),
                model: "bench".into(),
                len_bytes: transport.namespace().len_bytes(),
                block_bytes: BLOCK_BYTES,
                route: Route::Vfio,
                how: String::new(),
            };
            let mut source = NvmeSource::new(Box::new(transport), info).expect("a source");
            let region = Region::anonymous(len_bytes, false).expect("memory");
            let window = WindowMemory::host(Arc::new(region), len_bytes);
            let object = Object::Namespace {
                offset: 0,
                len_bytes: BLOCKS * u64::from(BLOCK_BYTES),
            };
            Way::Source {
                memory: source.attach(&window, true).expect("room"),
                object: source.add_object(object).expect("room"),
                source: Box::new(source),
                done: Vec::with_capacity(DEPTH as usize),
            }
        } else {
            let pages = Arc::new(Pages::new(len_bytes).expect("memory"));
            Way::Transport {
                memory: transport.attach(pages, true).expect("room"),
                transport: Box::new(transport),
                done: Vec::with_capacity(DEPTH as usize),
            }
        };
        // The request for an event, which is never answered.
        device.answer();
        // Mapped last.
        let lists = *device.inner().maps.last().expect("lists");
        assert_ne!(lists.read::<u64>(0), 0, "the first page's address");
        lists.zero(0, lists.len_bytes());
        Self {
            device,
            shape,
            way,
            lists,
        }
    }

    /// The controller.
    #[must_use]
    pub fn device(&self) -> &Registers {
        &self.device
    }

    /// Submits a full depth and tells the controller.
    ///
    /// # Panics
    /// If a command is not taken.
    pub fn submit(&mut self) {
        let bytes = self.shape.command_bytes;
        for index in 0..DEPTH {
            let offset = u64::from(index) * u64::from(bytes);
            match &mut self.way {
                Way::Transport {
                    transport, memory, ..
                } => {
                    let io = Io {
                        token: index.into(),
                        direction: Direction::Read,
                        lba: Lba(offset / u64::from(BLOCK_BYTES)),
                        blocks: BlockCount::new(bytes / BLOCK_BYTES).expect("blocks"),
                        memory: *memory,
                        offset,
                    };
                    // SAFETY: the controller moves no data, and nobody looks for any.
                    assert!(unsafe { transport.submit(io) }.is_ok(), "no room");
                }
                Way::Source {
                    source,
                    memory,
                    object,
                    ..
                } => {
                    let command = FillCommand {
                        token: Token(index.into()),
                        object: *object,
                        offset,
                        len: bytes,
                        route: Route::Vfio,
                        target: Target::Memory {
                            memory: *memory,
                            offset,
                        },
                    };
                    // SAFETY: as above.
                    assert!(unsafe { source.submit(command) }.is_ok(), "no room");
                }
            }
        }
        assert_eq!(self.poll(), 0, "nothing has been answered");
    }

    /// Takes what has ended; how many.
    ///
    /// # Panics
    /// If a command failed.
    pub fn poll(&mut self) -> usize {
        match &mut self.way {
            Way::Transport {
                transport, done, ..
            } => {
                transport.poll(done).expect("not broken");
                assert!(
                    done.iter().all(|end| end.result.is_ok()),
                    "a command failed"
                );
                done.drain(..).count()
            }
            Way::Source { source, done, .. } => {
                source.poll(Wait::No, done).expect("not broken");
                assert!(
                    done.iter().all(|end| end.result.is_ok()),
                    "a command failed"
                );
                done.drain(..).count()
            }
        }
    }

    /// Whether PRP lists were written since they were erased.
    #[must_use]
    pub fn lists_were_written(&self) -> bool {
        (0..self.lists.len_bytes() / 8).any(|slot| self.lists.read::<u64>(slot * 8) != 0)
    }
}
