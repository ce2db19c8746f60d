//! The fixture for the NVMe source over an emulated controller: objects are ranges of one large
//! sparse namespace.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::memory::{Pages, RawMemory, TargetMemory};
use nvme::transport::Transport;
use nvme::transport::user::{Options, UserTransport};
use nvme_emulator::{Config, Disk, Emulator, MemoryDisk, Namespace, Scatter, SglSupport};
use ubio::source::nvme::{NamespaceInfo, NvmeSource};
use ubio::source::{Object, Source};
use ubio_core::Route;

use super::{Made, Shape, SourceFixture};

/// Bytes of the namespace.
const NAMESPACE_BYTES: u64 = 1 << 40;
/// Objects begin at multiples of this.
const OBJECT_STEP: u64 = 1 << 20;

/// One kind of controller.
#[derive(Clone, Debug)]
pub struct EmulatedFixture {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// How memory is spread over bus addresses.
    pub scatter: Scatter,
    /// Whether the controller takes SGLs.
    pub sgl: bool,
    /// Whether completions raise interrupts.
    pub interrupts: bool,
    /// What the namespace holds.
    pub objects: Objects,
}

/// The namespace's bytes, and where the next object begins.
#[derive(Clone, Debug)]
pub struct Objects {
    disk: Shared,
    next: Arc<AtomicU64>,
}

impl EmulatedFixture {
    /// Blocks of `block_bytes`, contiguous addresses, PRP lists, interrupts.
    #[must_use]
    pub fn new(block_bytes: u32) -> Self {
        Self {
            block_bytes,
            scatter: Scatter::Contiguous,
            sgl: false,
            interrupts: true,
            objects: Objects {
                disk: Shared(Arc::new(Mutex::new(MemoryDisk::new(NAMESPACE_BYTES)))),
                next: Arc::default(),
            },
        }
    }
}

/// A disk whose bytes are put in place while the controller runs.
#[derive(Clone)]
struct Shared(Arc<Mutex<MemoryDisk>>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut MemoryDisk) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Disk for Shared {
    fn len_bytes(&self) -> u64 {
        NAMESPACE_BYTES
    }

    fn read(&mut self, offset: u64, to: &[RawMemory]) -> io::Result<()> {
        self.with(|disk| disk.read(offset, to))
    }

    fn write(&mut self, offset: u64, from: &[RawMemory]) -> io::Result<()> {
        self.with(|disk| disk.write(offset, from))
    }

    fn zero(&mut self, offset: u64, len_bytes: u64) -> io::Result<()> {
        self.with(|disk| disk.zero(offset, len_bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SourceFixture for EmulatedFixture {
    fn open(&self) -> Box<dyn Source> {
        let mut config = Config::new(Namespace::new(self.objects.disk.clone(), self.block_bytes));
        config.scatter = self.scatter;
        if self.sgl {
            config.sgl = SglSupport::Bytes;
        }
        let emulator = Emulator::threaded(config).expect("an emulator");
        let source = emulated_source(Arc::new(emulator), self.interrupts);
        Box::new(source.expect("a source"))
    }

    fn make(&self, shape: &Shape) -> Option<Made> {
        const PART_BYTES: u64 = 1 << 20;
        let room = (shape.len_bytes + 1).next_multiple_of(OBJECT_STEP);
        let start = self.objects.next.fetch_add(room, Ordering::Relaxed);
        let pages = Pages::new(PART_BYTES).expect("memory");
        for range in &shape.data {
            let mut at = range.start;
            while at < range.end {
                let len = PART_BYTES.min(range.end - at);
                pages.raw().copy_from(0, &shape.bytes(at, len));
                let part = pages.raw().part(0, len);
                let written = self
                    .objects
                    .disk
                    .with(|disk| disk.write(start + at, &[part]));
                written.expect("memory takes it");
                at += len;
            }
        }
        Some(Made {
            object: Object::Namespace {
                offset: start,
                len_bytes: shape.len_bytes,
            },
            keep: Box::new(()),
        })
    }

    fn route(&self) -> Route {
        Route::Emulated
    }
}

/// A source over the first namespace of an emulated controller.
///
/// # Errors
/// The controller does not come up.
pub fn emulated_source(emulator: Arc<Emulator>, interrupts: bool) -> ubio::Result<NvmeSource> {
    let mut settings = Settings::new(NamespaceId(1));
    settings.interrupts = interrupts;
    let transport = UserTransport::open(emulator, Options::new(settings));
    let transport = transport.map_err(|error| {
        ubio::Error::new(ubio::ErrorKind::Device, "the emulated controller").because(error)
    })?;
    let info = NamespaceInfo {
        name: "emulated".to_owned(),
        model: transport.identity().model.clone(),
        len_bytes: transport.namespace().len_bytes(),
        block_bytes: transport.namespace().block.bytes(),
        route: Route::Emulated,
        how: String::new(),
    };
    NvmeSource::new(Box::new(transport), info)
}
