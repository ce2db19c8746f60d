//! Opening an engine: its settings, what is probed and chosen, and the words for it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ubio_core::{Limits, Nanos, Setting};

use crate::driver::{Control, Parts};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::inbox::Inbox;
use crate::limits::{
    DEFAULT_WINDOW_BYTES, DEFAULT_WINDOWS, DIRECT_DEPTH, FIRST_COMMAND_BYTES, FIRST_DEPTH,
    FIRST_IN_PLACE_COMMAND_BYTES, FIRST_IN_PLACE_DEPTH, MAX_COMMAND_BYTES, STREAMS, TICKETS,
};
use crate::pairing::Pair;
use crate::source::file::FileSource;
use crate::source::nvme::{NamespaceInfo, NvmeAddress, NvmeOptions, NvmeSource};
use crate::source::{Reader, Source};
use crate::stats::Reason;
use crate::sys::memory::{MemoryKind, Pages, Region};
use crate::topology::{self, Verdict};
use crate::vram::Vram;
use crate::vram::bar::BarMemory;
use crate::vram::mapped::MappedVram;
use crate::window::WindowMemory;
use crate::workers::Workers;

/// Settings of an engine; every one has a default that fits.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) windows: u16,
    pub(crate) window_bytes: u32,
    pub(crate) huge_pages: bool,
    pub(crate) io_uring: bool,
    pub(crate) traced: bool,
    pub(crate) command_bytes: Option<u32>,
    pub(crate) depth: Option<u16>,
    pub(crate) adaptive: bool,
    pub(crate) workers: usize,
    pub(crate) nvme: Option<Blocks>,
    pub(crate) bar: Option<Arc<BarMemory>>,
    pub(crate) windows_in_bar: bool,
}

/// The namespace that is to be read.
#[derive(Clone)]
pub(crate) struct Blocks {
    open: Arc<dyn Fn() -> Result<NvmeSource> + Send + Sync>,
    deadline: Duration,
    /// For topology, where that is known.
    address: Option<NvmeAddress>,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("deadline", &self.deadline)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            windows: DEFAULT_WINDOWS,
            window_bytes: DEFAULT_WINDOW_BYTES,
            huge_pages: true,
            io_uring: true,
            traced: false,
            command_bytes: None,
            depth: None,
            adaptive: true,
            workers: topology::copy_workers(),
            nvme: None,
            bar: None,
            windows_in_bar: false,
        }
    }
}

impl Builder {
    /// How many windows, up to [`MAX_WINDOWS`](crate::limits::MAX_WINDOWS).
    #[must_use]
    pub fn windows(mut self, windows: u16) -> Self {
        self.windows = windows;
        self
    }

    /// Bytes of each window: a multiple of 4 KiB up to 128 MiB.
    #[must_use]
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.window_bytes = bytes;
        self
    }

    /// Whether windows may stand on huge pages.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether io_uring may be used; without it reads go through a pool of threads.
    #[must_use]
    pub fn io_uring(mut self, io_uring: bool) -> Self {
        self.io_uring = io_uring;
        self
    }

    /// Whether to record a [`Trace`](crate::trace::Trace).
    #[must_use]
    pub fn traced(mut self, traced: bool) -> Self {
        self.traced = traced;
        self
    }

    /// Largest direct read, bytes. With [`adaptive`](Self::adaptive), what it begins with.
    #[must_use]
    pub fn command_bytes(mut self, bytes: u32) -> Self {
        self.command_bytes = Some(bytes);
        self
    }

    /// Direct reads in flight. With [`adaptive`](Self::adaptive), what it begins with.
    #[must_use]
    pub fn depth(mut self, depth: u16) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Whether size and number of direct reads adapt to what the device does best with, once
    /// enough has been read. They do by default.
    #[must_use]
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.adaptive = adaptive;
        self
    }

    /// How many threads copy.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Reads a namespace instead of files, see [`Engine::read_raw`].
    #[must_use]
    pub fn nvme(mut self, address: NvmeAddress, options: NvmeOptions) -> Self {
        let known = address.clone();
        self.nvme = Some(Blocks {
            open: Arc::new(move || address.open(&options)),
            deadline: options.deadline,
            address: Some(known),
        });
        self
    }

    /// Reads a namespace through a source that `open` makes, on the ring thread: for
    /// transports and devices of one's own. A load waits `deadline` for each command.
    #[must_use]
    pub fn nvme_source(
        mut self,
        open: impl Fn() -> Result<NvmeSource> + Send + Sync + 'static,
        deadline: Duration,
    ) -> Self {
        self.nvme = Some(Blocks {
            open: Arc::new(open),
            deadline,
            address: None,
        });
        self
    }

    /// Memory of a PCI function that loads will go to: whether the drive reaches it is judged at
    /// open, and windows may lie there ([`windows_in_bar`](Self::windows_in_bar)).
    #[must_use]
    pub fn bar(mut self, memory: Arc<BarMemory>) -> Self {
        self.bar = Some(memory);
        self
    }

    /// Windows lie in the memory given to [`bar`](Self::bar) too.
    #[must_use]
    pub fn windows_in_bar(mut self, windows: bool) -> Self {
        self.windows_in_bar = windows;
        self
    }

    /// Opens the engine: makes the windows, probes the kernel, starts the ring thread.
    ///
    /// # Errors
    /// InvalidInput (settings), NoSpace (no memory for the windows), Permission or Io (no
    /// thread or descriptor). Of a drive: InvalidInput (there is none), Permission, Busy, Device
    /// or Timeout (it does not come up), Unsupported (it cannot be read so, or cannot write into
    /// the function's memory that windows are to lie in). Missing io_uring, huge pages or memlock are no errors: they
    /// are reasons in [`Engine::explain`] and in every report.
    pub fn open(self) -> Result<Engine> {
        Engine::open(&self)
    }

    /// Size and number of direct reads to begin with: through windows, and in place.
    pub(crate) fn first_settings(&self) -> [Setting; 2] {
        [
            (FIRST_COMMAND_BYTES, FIRST_DEPTH),
            (FIRST_IN_PLACE_COMMAND_BYTES, FIRST_IN_PLACE_DEPTH),
        ]
        .map(|(bytes, depth)| Setting {
            command_bytes: self.command_bytes.unwrap_or(bytes),
            depth: self.depth.unwrap_or(depth),
        })
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            windows: self.windows,
            window_bytes: self.window_bytes,
            tickets: TICKETS,
            depth: DIRECT_DEPTH,
            command_bytes: MAX_COMMAND_BYTES,
            alignment: 4096,
            streams: STREAMS,
        }
    }
}

/// What was found and chosen at open.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// How direct reads are done.
    pub reader: Reader,
    /// What the windows are made of.
    pub window_kind: MemoryKind,
    /// What pages they stand on.
    pub window_pages: Pages,
    /// What is not the best way, and why.
    pub reasons: Vec<Reason>,
    /// Threads that copy.
    pub workers: usize,
    /// What topology says of the drive writing into the function's memory itself; `None` where
    /// there is no such pair, or topology cannot be asked.
    pub peer: Option<Verdict>,
}

impl Explanation {
    /// The namespace that is read; `None` for files.
    pub fn namespace(&self) -> Option<&NamespaceInfo> {
        match &self.reader {
            Reader::Nvme(info) => Some(info),
            _ => None,
        }
    }
}

/// The source that the settings ask for, what it is, and what of it is not the best way.
fn open_source(
    settings: &Builder,
    limits: &Limits,
    workers: &Arc<Workers>,
) -> Result<(Box<dyn Source>, Reader, Vec<Reason>)> {
    if let Some(blocks) = &settings.nvme {
        let source = (blocks.open)()?;
        let reader = Reader::Nvme(source.info().clone());
        return Ok((Box::new(source), reader, Vec::new()));
    }
    let source = FileSource::open(
        Arc::clone(workers),
        limits.tickets.into(),
        settings.io_uring,
    )?;
    let reader = source.reader().clone();
    let threads = matches!(reader, Reader::Threads { .. });
    let reasons = threads.then_some(Reason::NoIoUring).into_iter().collect();
    Ok((Box::new(source), reader, reasons))
}

/// The memory that windows are made of.
fn window_memory(settings: &Builder) -> Result<WindowMemory> {
    let (count, bytes) = (settings.windows.into(), settings.window_bytes.into());
    match &settings.bar {
        Some(memory) if settings.windows_in_bar => memory.windows(count, bytes),
        _ => {
            let region = Region::anonymous(count * bytes, settings.huge_pages)?;
            Ok(WindowMemory::host(Arc::new(region), bytes))
        }
    }
}

/// Makes everything an engine is made of, on the thread that is to run it.
pub(crate) fn open_parts(
    settings: &Builder,
    control: Inbox<Control>,
    broken: Arc<OnceLock<Error>>,
) -> Result<(Parts, Explanation)> {
    let mut limits = settings.limits();
    // Checked by the core once more; here so that a wrong size never reaches the allocator.
    limits.check().map_err(|cause| {
        Error::new(ErrorKind::InvalidInput, "engine settings")
            .because(cause)
            .remedy("keep within the bounds that Builder's methods name")
    })?;
    let leases = usize::from(limits.windows) + usize::from(limits.tickets);
    let workers = Workers::start(
        "ubio-copy",
        settings.workers,
        2 * leases + usize::from(limits.depth),
    )?;
    let (mut source, reader, mut reasons) = open_source(settings, &limits, &workers)?;
    limits.depth = limits.depth.min(source.limits().depth);
    limits.command_bytes = limits.command_bytes.min(source.limits().command_bytes);
    let drive = settings.nvme.as_ref();
    let drive = drive.and_then(|blocks| blocks.address.as_ref());
    let pair = settings.bar.as_ref();
    let pair = pair.map(|memory| Pair::of(drive, memory)).transpose()?;
    // Through host windows any drive's bytes reach any memory; without them, a load is refused.
    if let Some(pair) = &pair
        && settings.windows_in_bar
    {
        pair.check()?;
    }
    let windows = window_memory(settings)?;
    let on_host = windows.kind() == MemoryKind::Host;
    let window_memory = source.attach(&windows, on_host)?;
    reasons.extend(source.take_fallbacks());
    // Only the first window is faulted in: its pages stand for all of the pool's, and the
    // others' need not be waited for.
    let region = windows.region();
    region.populate(0, settings.window_bytes.into())?;
    let small = || region.huge_bytes().is_none_or(|huge| huge == 0);
    if on_host && region.pages() != Pages::HugeTlb && small() {
        reasons.push(Reason::WindowsNotHuge);
    }
    let (capacity, waker) = (2 * leases, source.waker());
    let mut vram = MappedVram::new(Arc::clone(&workers), capacity, waker);
    let vram_windows = vram.attach(&windows)?;
    let explanation = Explanation {
        reader,
        window_kind: windows.kind(),
        window_pages: region.pages(),
        reasons: reasons.clone(),
        workers: workers.count(),
        peer: pair.as_ref().and_then(|pair| pair.verdict().cloned()),
    };
    let parts = Parts {
        source,
        vram: Box::new(vram),
        windows,
        window_memory,
        vram_windows,
        workers,
        limits,
        control,
        broken,
        traced: settings.traced,
        reasons,
        pair,
        deadline: settings
            .nvme
            .as_ref()
            .map(|blocks| Nanos(u64::try_from(blocks.deadline.as_nanos()).unwrap_or(u64::MAX))),
    };
    Ok((parts, explanation))
}
