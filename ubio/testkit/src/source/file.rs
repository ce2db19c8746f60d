//! The fixture for the file source: files of known content in a folder, in or out of the
//! page cache, read by io_uring or by threads, by one route.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Advice;
use ubio::source::file::FileSource;
use ubio::source::file::probe::probe;
use ubio::source::file::residency::{Residency, residency};
use ubio::source::{Object, Source};
use ubio::sys::memory::Region;
use ubio::vram::bar::EmulatedBar;
use ubio::workers::Workers;
use ubio_core::Route;

use super::{Made, Shape, SourceFixture};

/// How direct reads are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By io_uring.
    Uring,
    /// By a pool of threads.
    Threads,
}

/// Whether the files are in the page cache when the source gets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// All of their data.
    Hot,
    /// Nothing.
    Cold,
}

/// Files in a folder.
#[derive(Clone, Debug)]
pub struct FileFixture {
    /// Where the files are made; they have no names for long.
    pub folder: PathBuf,
    /// Who reads.
    pub reading: Reading,
    /// The route of every command.
    pub route: Route,
    /// What of the files is in the page cache.
    pub cache: Cache,
    /// Whether the memory to fill is (emulated) p2pmem instead of the host's.
    pub p2pmem: bool,
}

impl FileFixture {
    /// Files in `folder`.
    pub fn new(folder: impl AsRef<Path>, reading: Reading, route: Route, cache: Cache) -> Self {
        Self {
            folder: folder.as_ref().to_owned(),
            reading,
            route,
            cache,
            p2pmem: false,
        }
    }

    /// The same, into emulated p2pmem.
    #[must_use]
    pub fn into_p2pmem(mut self) -> Self {
        self.p2pmem = true;
        self
    }
}

impl SourceFixture for FileFixture {
    fn open(&self) -> Box<dyn Source> {
        let workers = Workers::start("testkit", 2, 4096).expect("threads");
        let uring = self.reading == Reading::Uring;
        let source = FileSource::open(workers, 32, uring).expect("a source");
        Box::new(source)
    }

    fn make(&self, shape: &Shape) -> Option<Made> {
        let file = tempfile::tempfile_in(&self.folder).expect("a temporary file");
        write(&file, shape).expect("room for a small file");
        if self.cache == Cache::Cold {
            file.sync_all().expect("sync");
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
            if shape.len_bytes > 0 && self.route == Route::Cached {
                let found = residency(&file, 0, shape.len_bytes);
                assert!(
                    matches!(found, Residency::Cold | Residency::Unknown),
                    "the file could not be dropped from the page cache: {found:?}"
                );
            }
        }
        let probed = probe(&file).expect("descriptors");
        assert!(
            self.route != Route::Direct || probed.object.direct.is_some(),
            "no direct I/O in {}: {:?}",
            self.folder.display(),
            probed.direct_io
        );
        Some(Made {
            object: Object::File(probed.object),
            keep: Box::new(file),
        })
    }

    fn route(&self) -> Route {
        self.route
    }

    fn scatters(&self) -> bool {
        matches!(self.route, Route::Cached | Route::Buffered)
    }

    fn takes_unaligned(&self) -> bool {
        matches!(self.route, Route::Cached | Route::Buffered)
    }

    fn window_region(&self, len_bytes: u64) -> Arc<Region> {
        if !self.p2pmem {
            return Arc::new(Region::anonymous(len_bytes, false).expect("memory"));
        }
        let bar = EmulatedBar::p2pmem(len_bytes).expect("emulated p2pmem");
        bar.memory().allocate(len_bytes).expect("all of it")
    }
}

fn write(mut file: &File, shape: &Shape) -> std::io::Result<()> {
    const PART_BYTES: u64 = 1 << 20;
    file.set_len(shape.len_bytes)?;
    for range in &shape.data {
        let mut at = range.start;
        file.seek(SeekFrom::Start(at))?;
        while at < range.end {
            let to = range.end.min(at + PART_BYTES);
            file.write_all(&shape.bytes(at, to - at))?;
            at = to;
        }
    }
    Ok(())
}
