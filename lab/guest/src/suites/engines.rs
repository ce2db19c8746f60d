//! Loads by a whole engine, and every byte of them compared; for the suites that open engines
//! over real drives. Knows windows only as a builder's setting.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fs_adapter::{FileIndex, Format, Model, OpenOptions};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use ubio::open::Builder;
use ubio::source::file::probe::DirectIo;
use ubio::source::nvme::{NvmeAddress, NvmeOptions};
use ubio::vram::VramBuffer;
use ubio::vram::bar::BarMemory;
use ubio::{Destination, Engine, Opened, RangeRequest, RawRequest, Routes};
use ubio_lab_spec::machine::{BAR_ADDRESS, BAR_INDEX};
use ubio_lab_spec::pattern::Seed;
use ubio_lab_spec::{Content, Stored};

use crate::binding;
use crate::lab::Lab;
use crate::pci::Address;
use crate::target::Target;

/// Where the folders are that file systems are mounted on.
const MOUNTS: &str = "/tmp";

/// An engine's settings with windows that are small enough for a BAR.
pub(super) fn builder() -> Builder {
    Engine::builder()
        .windows(4)
        .window_bytes(512 << 10)
        .workers(1)
}

/// The same, over a namespace.
pub(super) fn over(address: NvmeAddress) -> Builder {
    builder().nvme(address, NvmeOptions::default())
}

/// A drive's namespace by the kernel's passthrough.
pub(super) fn passthrough(lab: &Lab, drive: &str, namespace: u32) -> Result<NvmeAddress> {
    Ok(NvmeAddress::Passthrough(lab.node(drive, namespace)?))
}

/// A drive's namespace over VFIO, to which the drive is given.
pub(super) fn vfio(lab: &Lab, drive: &str, namespace: u32) -> Result<NvmeAddress> {
    let function = lab.address(drive)?;
    binding::give_to(function, "vfio-pci")?;
    Ok(NvmeAddress::Vfio {
        function: function.to_string().parse()?,
        namespace,
    })
}

/// The name of the BAR that the host sees, with its memory turned on.
pub(super) fn bar_name() -> Result<String> {
    BAR_ADDRESS.parse::<Address>()?.enable()?;
    Ok(format!("bar:{BAR_ADDRESS}/{BAR_INDEX}"))
}

/// All of that BAR, through sysfs.
pub(super) fn bar() -> Result<Arc<BarMemory>> {
    Ok(BarMemory::open(&bar_name()?.parse()?, None)?)
}

/// The peer-to-peer memory of a drive, or so much of it.
pub(super) fn p2pmem(lab: &Lab, drive: &str, len_bytes: Option<u64>) -> Result<Arc<BarMemory>> {
    let location = format!("bar:{}/p2pmem", lab.address(drive)?).parse()?;
    Ok(BarMemory::open(&location, len_bytes)?)
}

/// What is loaded, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct What {
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    pub(super) in_place: bool,
}

/// Loads a range of a namespace into a buffer.
pub(super) fn load_raw(engine: &Engine, what: What, to: &VramBuffer) -> ubio::Result<()> {
    let request = RawRequest {
        offset: what.offset,
        len_bytes: what.len_bytes,
        destination: Destination::Buffer(to.clone()),
        in_place: what.in_place,
        strict: false,
    };
    engine.read_raw(request)?.wait().map(drop)
}

/// Loads a range of a file into a buffer, past the page cache.
pub(super) fn load_file(
    engine: &Engine,
    file: &Opened,
    what: What,
    to: &VramBuffer,
) -> ubio::Result<()> {
    let request = RangeRequest {
        file: FileIndex(0),
        offset: what.offset,
        len_bytes: what.len_bytes,
        to: to.clone(),
        at: 0,
        routes: Routes::Direct,
        in_place: what.in_place,
    };
    engine.read_range(file, request)?.wait()
}

/// The buffer begins with the pattern's bytes from `from` on.
pub(super) fn holds(to: &VramBuffer, seed: Seed, from: u64, len_bytes: u64) -> Result<()> {
    Target::of(Arc::clone(to.region()) as _).check(seed, from, 0, len_bytes)
}

/// Whether all of a buffer is zero, as it was made.
pub(super) fn is_empty(to: &VramBuffer) -> bool {
    Target::of(Arc::clone(to.region()) as _).is_zero()
}

/// A mounted file system, unmounted with this.
#[derive(Debug)]
pub(super) struct Mounted {
    path: PathBuf,
    stored: Vec<Stored>,
}

impl Mounted {
    /// A drive's file system, to be read.
    pub(super) fn new(lab: &Lab, drive: &str) -> Result<Self> {
        let Content::Ext4(stored) = &lab.drive(drive)?.namespaces[0].content else {
            anyhow::bail!("{drive} has no file system");
        };
        let disk = lab.controller(drive)?.namespace(1)?.block_path();
        let path = Path::new(MOUNTS).join(drive);
        std::fs::create_dir_all(&path)?;
        mount(&disk, &path, "ext4", MountFlags::RDONLY, None)
            .with_context(|| format!("cannot mount {}", disk.display()))?;
        Ok(Self {
            path,
            stored: stored.clone(),
        })
    }

    /// A file of it, opened, and what it holds.
    pub(super) fn file(&self, index: usize) -> Result<(Opened, Stored)> {
        let stored = self.stored[index].clone();
        let path: &Path = &self.path.join(stored.name);
        let options = OpenOptions::default().format(Format::Raw);
        let opened = Opened::new(Arc::new(Model::open(path, &options)?))?;
        let direct = opened.direct_io(FileIndex(0));
        let possible = matches!(direct, DirectIo::Aligned(_));
        ensure!(possible, "no direct I/O here: {direct:?}");
        Ok((opened, stored))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What is busy stays mounted, and the next mount says so.
        let _busy = unmount(&self.path, UnmountFlags::empty());
    }
}
