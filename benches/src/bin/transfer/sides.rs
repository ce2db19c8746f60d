//! The ways a transfer can take, each as one call that returns when the bytes are at their
//! place.
//!
//! unsafe: copies into raw memory, as every loader does in the end.
#![expect(
    unsafe_code,
    reason = "the destination is raw memory that one transfer at a time writes"
)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use fs_adapter::{FileIndex, Format, Model, OpenOptions};
use rustix::fs::Advice;
use ubio::source::file::probe::probe;
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio::{Engine, Opened, RangeRequest, Routes};

use crate::Result;

/// Bytes of the traditional path's bounce buffer, as common loaders have it.
const BOUNCE_BYTES: usize = 1 << 20;
/// Least bytes of the destination.
const DESTINATION_BYTES: u64 = 64 << 20;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One thread: buffered reads into a bounce buffer, then a copy.
    Traditional,
    /// The engine, through windows where bytes are cold.
    Windows,
    /// The engine, straight to the destination.
    InPlace,
    /// No engine: one thread reads straight to the destination, cold with `O_DIRECT`, warm
    /// through the page cache. What is left when nothing is shared, placed or checked.
    Floor,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Traditional => "traditional",
            Self::Windows => "ub",
            Self::InPlace => "in-place",
            Self::Floor => "floor",
        }
    }
}

/// Everything the ways need, opened once.
pub(crate) struct Sides {
    engine: Engine,
    opened: Opened,
    buffered: File,
    direct: Option<Arc<OwnedFd>>,
    destination: Arc<Region>,
    bounce: Vec<u8>,
    cold: bool,
}

impl Sides {
    pub(crate) fn open(path: &Path, largest: u64) -> Result<Self> {
        let options = OpenOptions::default().format(Format::Raw);
        let model = Arc::new(Model::open(path, &options)?);
        let opened = Opened::new(Arc::clone(&model))?;
        let buffered = File::open(path)?;
        let direct = probe(&buffered)?.object.direct;
        let bytes = DESTINATION_BYTES.max(4 * largest);
        let destination = Arc::new(Region::anonymous(bytes, true)?);
        destination.populate(0, bytes)?;
        Ok(Self {
            engine: Engine::builder().open()?,
            opened,
            buffered,
            direct,
            destination,
            bounce: vec![0x5a; BOUNCE_BYTES],
            cold: false,
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn file(&self) -> &File {
        &self.buffered
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.opened.model().file(FileIndex(0)).len_bytes()
    }

    pub(crate) fn destination(&self) -> &Region {
        &self.destination
    }

    /// Readahead on the traditional path's descriptor.
    pub(crate) fn set_readahead(&self, on: bool) -> Result<()> {
        let advice = if on { Advice::Normal } else { Advice::Random };
        Ok(rustix::fs::fadvise(&self.buffered, 0, None, advice)?)
    }

    /// Drops the file from the page cache.
    pub(crate) fn drop_cache(&mut self) -> Result<()> {
        rustix::fs::fadvise(&self.buffered, 0, None, Advice::DontNeed)?;
        self.cold = true;
        Ok(())
    }

    /// Brings the file into the page cache.
    pub(crate) fn warm(&mut self) -> Result<()> {
        let mut at = 0;
        loop {
            let read = self.buffered.read_at(&mut self.bounce, at)?;
            if read == 0 {
                break;
            }
            at += read as u64;
        }
        self.cold = false;
        Ok(())
    }

    /// Moves one range to a place of the destination; places follow from `index`.
    pub(crate) fn transfer(&mut self, way: Way, offset: u64, len: u64, index: u64) -> Result<()> {
        let places = self.destination.len_bytes() / len;
        let at = index % places * len;
        match way {
            Way::Traditional => self.traditional(offset, len, at),
            Way::Windows => self.by_engine(offset, len, at, false),
            Way::InPlace => self.by_engine(offset, len, at, true),
            Way::Floor => self.floor(offset, len, at),
        }
    }

    fn traditional(&mut self, offset: u64, len: u64, at: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let want = usize::try_from(len - done)?.min(BOUNCE_BYTES);
            let part = &mut self.bounce[..want];
            self.buffered.read_exact_at(part, offset + done)?;
            // SAFETY: no transfer of the engine is under way, and nobody reads the
            // destination.
            unsafe { self.destination.write(at + done, part) };
            done += want as u64;
        }
        Ok(())
    }

    fn by_engine(&self, offset: u64, len_bytes: u64, at: u64, in_place: bool) -> Result<()> {
        let request = RangeRequest {
            file: FileIndex(0),
            offset,
            len_bytes,
            to: VramBuffer::Host(Arc::clone(&self.destination)),
            at,
            routes: Routes::Auto,
            in_place,
        };
        Ok(self.engine.read_range(&self.opened, request)?.wait()?)
    }

    fn floor(&self, offset: u64, len: u64, at: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let range = (at + done, len - done);
            let file = match &self.direct {
                Some(direct) if self.cold => direct.as_fd(),
                _ => self.buffered.as_fd(),
            };
            // SAFETY: no transfer of the engine is under way, and nobody reads the
            // destination.
            let read = unsafe {
                self.destination
                    .read_file(&[range], &file, offset + done, false)
            }?;
            if read == 0 {
                return Err("the file ended while it was read".into());
            }
            done += read;
        }
        Ok(())
    }
}
