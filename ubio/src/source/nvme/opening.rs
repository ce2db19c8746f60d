//! From an address to a source: the device or node behind it, the transport over that.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use nvme::command::NamespaceId;
use nvme::controller::{Identity, Settings};
use nvme::device::Device;
use nvme::device::vfio::{VfioContainer, VfioDevice};
use nvme::transport::Transport;
use nvme::transport::passthrough::{self, MemoryShape, Passthrough, Polling};
use nvme::transport::user::{DataNames, Options, UserTransport};
use nvme_emulator::{Config, Disk, Emulator, FileDisk, Namespace, SglSupport};
use ubio_core::Route;

use super::failure::of_transport;
use super::{NamespaceInfo, NvmeAddress, NvmeOptions, NvmeSource};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::DIRECT_DEPTH;

impl NvmeAddress {
    /// Opens what it names.
    ///
    /// # Errors
    /// InvalidInput (there is no such device or namespace), Permission, Busy, Unsupported
    /// (this kernel, device or namespace cannot be read so), Device (it does not come up).
    pub fn open(&self, options: &NvmeOptions) -> Result<NvmeSource> {
        match self {
            Self::Passthrough(path) => self.passthrough(path, options),
            Self::Vfio {
                function,
                namespace,
            } => {
                let at = |error| of_transport(&error).at(self.to_string());
                let container = VfioContainer::new().map_err(at)?;
                let device = VfioDevice::open(&container, &function.to_string()).map_err(at)?;
                let namespace = NamespaceId(*namespace);
                let (transport, info) =
                    self.user(Arc::new(device), namespace, Route::Vfio, options)?;
                NvmeSource::new(transport, info)
            }
            Self::Emulated { file, block_bytes } => {
                let (device, len_bytes) = emulated(file, *block_bytes, options.queues)?;
                let (transport, mut info) =
                    self.user(device, NamespaceId(1), Route::Emulated, options)?;
                // The last block may have less.
                info.len_bytes = info.len_bytes.min(len_bytes);
                NvmeSource::new(transport, info)
            }
        }
    }

    /// A source over the kernel's passthrough.
    fn passthrough(&self, path: &Path, options: &NvmeOptions) -> Result<NvmeSource> {
        let wanted = passthrough::Options {
            depth: DIRECT_DEPTH,
            polling: match options.polled {
                true => Polling::Poll,
                false => Polling::Interrupt,
            },
            memory: MemoryShape {
                // Windows and destinations begin with a page, and so do commands.
                alignment: 4096,
                ..MemoryShape::default()
            },
            ..passthrough::Options::default()
        };
        let transport = Passthrough::open(path, &wanted).map_err(|error| of_transport(&error))?;
        let identity = transport.identity();
        let noticed = match options.polled {
            true => "polling",
            false => "interrupts",
        };
        let info = NamespaceInfo {
            name: self.to_string(),
            model: format!("{} {}", identity.model, identity.serial),
            len_bytes: transport.namespace().len_bytes(),
            block_bytes: transport.namespace().block.bytes(),
            route: Route::Passthrough,
            how: format!("io_uring, {noticed}"),
        };
        NvmeSource::new(Box::new(transport), info)
    }

    /// A transport over queues of our own.
    fn user(
        &self,
        device: Arc<dyn Device>,
        namespace: NamespaceId,
        route: Route,
        options: &NvmeOptions,
    ) -> Result<(Box<dyn Transport>, NamespaceInfo)> {
        let mut settings = Settings::new(namespace);
        settings.queues = options.queues;
        settings.interrupts = !options.polled;
        let mut wanted = Options::new(settings);
        if options.prp_only {
            wanted.data = DataNames::Prp;
        }
        // A load gives a command up before the controller is reset for it, or with it.
        wanted.abort_after = wanted.abort_after.min(options.deadline);
        let transport = UserTransport::open(device, wanted)
            .map_err(|error| of_transport(&error).at(self.to_string()))?;
        let names = match transport.identity().sgl && !options.prp_only {
            true => "SGLs",
            false => "PRP lists",
        };
        let noticed = match transport.has_interrupts() {
            true => "interrupts",
            false => "polling",
        };
        let queues = match transport.queues() {
            1 => "1 queue".to_owned(),
            queues => format!("{queues} queues"),
        };
        let info = NamespaceInfo {
            name: self.to_string(),
            model: model(transport.identity()),
            len_bytes: transport.namespace().len_bytes(),
            block_bytes: transport.namespace().block.bytes(),
            route,
            how: format!("{queues}, {names}, {noticed}"),
        };
        Ok((Box::new(transport), info))
    }
}

fn model(identity: &Identity) -> String {
    format!("{} {}", identity.model, identity.serial)
}

/// A controller in this process whose namespace is a file, and the bytes of that.
fn emulated(file: &Path, block_bytes: u32, queues: u16) -> Result<(Arc<dyn Device>, u64)> {
    let fail = |cause: std::io::Error| {
        let error = Error::os("cannot open the disk image", cause).at(file);
        error.remedy("name a file or block device that you may read")
    };
    let found = std::fs::metadata(file).map_err(fail)?;
    if !found.is_file() && !found.file_type().is_block_device() {
        let what = "a disk image is a file or a block device";
        return Err(Error::new(ErrorKind::InvalidInput, what)
            .at(file)
            .remedy("name one: nvme:emulated?file=disk.img"));
    }
    if found.is_file() && found.len() == 0 {
        let what = "the disk image is empty";
        return Err(Error::new(ErrorKind::InvalidInput, what)
            .at(file)
            .remedy("name one with blocks in it"));
    }
    let disk = FileDisk::open(file, true).map_err(|error| {
        let error = of_transport(&error);
        error.remedy("name a file or block device that you may read")
    })?;
    let len_bytes = disk.len_bytes();
    let mut config = Config::new(Namespace::new(disk, block_bytes));
    config.sgl = SglSupport::Bytes;
    // One for the admin queue, too.
    config.vectors = queues.saturating_add(1);
    let emulator = Emulator::threaded(config).map_err(|error| of_transport(&error))?;
    Ok((Arc::new(emulator), len_bytes))
}
