//! What a load reports when it is over: bytes by route, fallbacks with their reasons, what
//! was waited for, latencies. Knows no units but bytes and seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
pub use nvme::transport::Incidents;
use ubio_core::Stall;

/// Why something did not go the best way. Each has a fixed word for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// io_uring is missing or forbidden: reads go through a pool of threads.
    NoIoUring,
    /// The file takes no direct I/O: it was read through the page cache.
    NoDirectIo,
    /// Bytes taken to be in the page cache were not there when they were to be copied.
    PageCacheLost,
    /// The windows could not be registered with the kernel (usually the memlock limit).
    WindowsNotRegistered,
    /// The windows do not stand on huge pages.
    WindowsNotHuge,
    /// The destination does not stand on huge pages.
    DestinationNotHuge,
}

impl Reason {
    /// The word used in reports.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoIoUring => "no_io_uring",
            Self::NoDirectIo => "no_direct_io",
            Self::PageCacheLost => "page_cache_lost",
            Self::WindowsNotRegistered => "windows_not_registered",
            Self::WindowsNotHuge => "windows_not_huge",
            Self::DestinationNotHuge => "destination_not_huge",
        }
    }

    /// What it means and what can be done, in one sentence.
    pub fn explain(self) -> &'static str {
        match self {
            Self::NoIoUring => {
                "io_uring is switched off by the caller, missing or forbidden, or may lock no \
                 memory; allow it in the container's seccomp profile, set \
                 kernel.io_uring_disabled=0, or raise the memlock limit (ulimit -l)"
            }
            Self::NoDirectIo => {
                "the file system refuses direct I/O for this file, so it was read through the \
                 page cache; keep models on ext4, xfs or btrfs"
            }
            Self::PageCacheLost => {
                "bytes taken to be in the page cache were not there when they were to be copied, \
                 and were read from storage; load when nothing else needs the memory, or as the \
                 file's owner, whom the kernel tells what is there"
            }
            Self::WindowsNotRegistered => {
                "the kernel would not register the windows; raise the memlock limit (ulimit -l)"
            }
            Self::WindowsNotHuge => {
                "the windows stand on 4 KiB pages; unless the caller wanted it so, reserve huge \
                 pages (vm.nr_hugepages) or set transparent_hugepage/enabled to madvise"
            }
            Self::DestinationNotHuge => {
                "the destination stands on 4 KiB pages; set transparent_hugepage/enabled to \
                 madvise, for shm: mount -o remount,huge=advise /dev/shm"
            }
        }
    }
}

/// Median, tail and worst of a latency, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Largest.
    pub max_us: u64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            max_us: histogram.max(),
        }
    }
}

/// How long the ring thread had nothing to do, by what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Commands were with the source.
    pub source: Duration,
    /// No window was free, because of quarantine or scrubbing.
    pub window: Duration,
    /// The copy engine had the windows.
    pub copy: Duration,
    /// The consumer held what it was given.
    pub compute: Duration,
}

impl Stalls {
    pub(crate) fn add(&mut self, stall: Stall, span: Duration) {
        match stall {
            Stall::Source => self.source += span,
            Stall::Window => self.window += span,
            Stall::Copy => self.copy += span,
            Stall::Compute => self.compute += span,
            Stall::Idle => {}
        }
    }
}

/// The pool of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowUse {
    /// How many there are.
    pub count: u64,
    /// Bytes of each.
    pub size_bytes: u64,
    /// How often one was given a new destination range.
    pub switches: u64,
    /// Most in use at once.
    pub peak_in_use: u64,
}

/// Commands with the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InFlight {
    /// Mean while any was.
    pub mean: f64,
    /// Most.
    pub max: u64,
}

/// What the engine did since it was opened or last asked.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Bytes that landed, by route name.
    pub route_bytes: BTreeMap<&'static str, u64>,
    /// How often something did not go the best way, by reason.
    pub fallbacks: BTreeMap<Reason, u64>,
    /// The windows.
    pub windows: WindowUse,
    /// The commands.
    pub in_flight: InFlight,
    /// What was waited for.
    pub stalls: Stalls,
    /// From submission to completion, per command.
    pub fill_latency: Latency,
    /// From landed to visible, per window.
    pub flush_latency: Latency,
    /// Completions that named nothing known, dropped.
    pub stale_completions: u64,
    /// Commands submitted again after an error.
    pub retries: u64,
    /// What happened to the drive beside the commands: nothing where files are read.
    pub drive: Incidents,
}
