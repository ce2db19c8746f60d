//! Controllers in user space's hands through VFIO: the function is bound to vfio-pci, the
//! IOMMU stands between it and memory. Knows no queues and no commands.
//!
//! ```text
//! VfioContainer ── one IOMMU domain: device addresses, mappings (type 1: group and container)
//!   ├─ VfioDevice ── a controller: registers, interrupts, quiesce
//!   └─ BarMapping ── a BAR of another function, as memory that the controller may target
//! ```
//!
//! Everything that is mapped is reached by every function of the container, so functions that
//! must not reach each other's memory get a container each.
//!
//! Left out, on purpose:
//! - **iommufd** and VFIO's character devices per function. iommufd pins pages and refuses a
//!   mapping of a BAR, which is what [`BarMapping`] is for; type 1 takes it. Debian's kernels
//!   have no iommufd to test with, either. Kernels without `CONFIG_VFIO_CONTAINER` are not
//!   served.
//! - **The crate vfio-ioctls.** Its devices can panic when they are dropped while the kernel
//!   removes the function, it drops the errnos and results of what has to be explained here
//!   (container, interrupts, reset, configuration space), and it has neither the IOMMU's limits
//!   nor mappings of BARs. The structures and numbers are vfio-bindings'.
//! - **No-IOMMU mode**: then any process with the node writes anywhere.
//!
//! unsafe: exposes memory to a device.
#![expect(unsafe_code, reason = "DMA maps expose raw memory to devices")]

mod bar;
mod capability;
mod container;
mod function;
mod iova;
mod registers;
mod sys;
mod sysfs;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use nvme_sys::register::{CAP, CC, CC_ENABLE, CSTS, CSTS_READY, Cap, DOORBELLS, GONE};
use vfio_bindings::bindings::vfio::{VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX};

pub use bar::BarMapping;
pub use container::VfioContainer;

use super::Device;
use crate::dma::DmaRun;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::RawMemory;
use function::Function;
use registers::Registers;
use sysfs::Role;

/// Most interrupt vectors that are asked for: each takes a descriptor here and a vector of the
/// machine's, which has about 200 a processor for everybody.
const MAX_VECTORS: u32 = 64;

/// Registers of a controller with one pair of doorbells: what the smallest has.
const MIN_REGISTER_BYTES: u64 = DOORBELLS + 8;

/// An NVMe controller bound to vfio-pci. It is disabled when it is opened; disabling it again
/// before it is closed is up to who enabled it, and closing ends its DMA in any case.
pub struct VfioDevice {
    registers: Registers,
    interrupts: Interrupts,
    /// Where the kernel says so.
    removal: Option<Arc<OwnedFd>>,
    wanted_back: AtomicBool,
    function: Arc<Function>,
}

impl fmt::Debug for VfioDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioDevice")
            .field("address", &self.function.address())
            .field("vectors", &self.interrupts.count)
            .finish_non_exhaustive()
    }
}

/// Message-signalled interrupts. All are enabled at the first use of one: kernels before 6.5
/// cannot add any later.
struct Interrupts {
    index: u32,
    count: u16,
    enabled: Mutex<Vec<Arc<OwnedFd>>>,
}

impl Interrupts {
    fn of(function: &Function) -> Self {
        // One more than processors: the admin queue's.
        let useful = available_parallelism().map_or(1, usize::from) + 1;
        let most = u32::try_from(useful).map_or(MAX_VECTORS, |useful| useful.min(MAX_VECTORS));
        let msix = function.irq_count(VFIO_PCI_MSIX_IRQ_INDEX).min(most);
        let (index, count) = if msix > 0 {
            (VFIO_PCI_MSIX_IRQ_INDEX, msix)
        } else {
            // One vector of MSI: several have to be enabled as a block, which few machines do.
            let msi = function.irq_count(VFIO_PCI_MSI_IRQ_INDEX).min(1);
            (VFIO_PCI_MSI_IRQ_INDEX, msi)
        };
        Self {
            index,
            count: u16::try_from(count).expect("limited above"),
            enabled: Mutex::default(),
        }
    }
}

impl VfioDevice {
    /// Opens a controller by its PCI address (`0000:05:00.0`) and disables it, so that nothing
    /// it was told before reaches memory; then lets it send.
    ///
    /// # Errors
    /// InvalidInput (no PCI address), NotFound, Unsupported (no controller, no IOMMU, no VFIO),
    /// Busy (another driver or process has it or a part of its group), Permission, Gone,
    /// Timeout (it does not stop).
    pub fn open(container: &Arc<VfioContainer>, address: &str) -> Result<Self> {
        let function = Function::open(container, address, Role::Controller)?;
        let region = function.bar(0)?;
        let unfit = |what: &str| {
            let what = format!("BAR 0 of {address} {what}: no NVMe controller's registers");
            Error::new(ErrorKind::Unsupported, what)
        };
        let first = region.areas.iter().find(|&&(offset, _)| offset == 0);
        let &(_, len_bytes) = first.ok_or_else(|| unfit("cannot be mapped"))?;
        if len_bytes < MIN_REGISTER_BYTES {
            return Err(unfit(&format!("has only {len_bytes} bytes")));
        }
        let this = Self {
            registers: Registers::new(function.map(&region, 0, len_bytes)?),
            interrupts: Interrupts::of(&function),
            removal: function.removal_request()?,
            wanted_back: AtomicBool::new(false),
            function: Arc::new(function),
        };
        this.disable()?;
        this.function.set_bus_master(true)?;
        Ok(this)
    }

    /// Stops a controller that somebody left running, while it cannot send.
    fn disable(&self) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(1);
        let gone = || {
            let what = format!("{} does not answer: all ones", self.name());
            Error::new(ErrorKind::Gone, what)
                .remedy("it is removed, dead, or asleep: rescan the bus or switch it off and on")
        };
        let (configuration, status) = (self.read_u32(CC), self.read_u32(CSTS));
        if status == GONE {
            return Err(gone());
        }
        if configuration & CC_ENABLE != 0 {
            self.write_u32(CC, configuration & !CC_ENABLE);
        }
        let half_seconds = Cap(self.read_u64(CAP)).timeout_half_seconds();
        let limit = Duration::from_millis(500) * u32::from(half_seconds.max(1));
        let start = self.now();
        loop {
            let status = self.read_u32(CSTS);
            if status == GONE {
                return Err(gone());
            }
            if status & CSTS_READY == 0 {
                return Ok(());
            }
            if self.now().saturating_sub(start) > limit {
                let what = format!("{} was running and does not stop", self.name());
                return Err(Error::new(ErrorKind::Timeout, what).remedy(format!(
                    "reset it: echo 1 > /sys/bus/pci/devices/{}/reset",
                    self.name()
                )));
            }
            self.pause(PAUSE);
        }
    }

    /// The container it is in.
    #[must_use]
    pub fn container(&self) -> &Arc<VfioContainer> {
        self.function.container()
    }

    /// Whether the kernel can reset the function by itself. Where it cannot,
    /// [`quiesce`](Device::quiesce) silences a controller but does not make it forget, and one
    /// that does not stop by its own registers stays as it is until the power goes.
    #[must_use]
    pub fn can_be_reset(&self) -> bool {
        self.function.can_reset()
    }

    /// A BAR of this function as memory: a controller memory buffer.
    ///
    /// # Errors
    /// As [`BarMapping::open`].
    pub fn bar(&self, bar: u8) -> Result<BarMapping> {
        BarMapping::of(Arc::clone(&self.function), bar)
    }
}

impl Device for VfioDevice {
    fn name(&self) -> &str {
        self.function.address()
    }

    #[inline]
    fn read_u32(&self, offset: u64) -> u32 {
        self.registers.read(offset)
    }

    #[inline]
    fn write_u32(&self, offset: u64, value: u32) {
        self.registers.write(offset, value);
    }

    fn register_bytes(&self) -> u64 {
        self.registers.len_bytes()
    }

    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        // SAFETY: the caller's promise.
        let run = unsafe { self.function.container().map(memory) }?;
        Ok(vec![run])
    }

    fn unmap(&self, runs: &[DmaRun]) -> Result<()> {
        // One that fails does not keep the others.
        let ends: Vec<Result<()>> = runs
            .iter()
            .map(|&run| self.function.container().unmap(run))
            .collect();
        ends.into_iter().collect()
    }

    fn vectors(&self) -> u16 {
        self.interrupts.count
    }

    fn interrupt(&self, vector: u16) -> Result<Arc<OwnedFd>> {
        let missing = |have: usize| {
            let what = format!("{} has no interrupt vector {vector}", self.name());
            Error::new(ErrorKind::Unsupported, what)
                .remedy(format!("there are {have}: share them, or poll"))
        };
        let Interrupts {
            index,
            count,
            enabled,
        } = &self.interrupts;
        if vector >= *count {
            return Err(missing((*count).into()));
        }
        // Filled in one step, so a panic leaves nothing half done.
        let mut enabled = enabled.lock().unwrap_or_else(PoisonError::into_inner);
        if enabled.is_empty() {
            *enabled = self.function.enable_irqs(*index, *count)?;
        }
        let fd = enabled.get(usize::from(vector)).map(Arc::clone);
        fd.ok_or_else(|| missing(enabled.len()))
    }

    /// Once asked, the kernel waits: it is removing or unbinding the function, and goes on when
    /// everything that belongs to this value is dropped.
    fn is_wanted_back(&self) -> bool {
        if let Some(removal) = &self.removal {
            let mut count = [0; 8];
            // Not blocking: an error is that nobody asked.
            if rustix::io::read(removal, &mut count).is_ok() {
                self.wanted_back.store(true, Ordering::Relaxed);
            }
        }
        self.wanted_back.load(Ordering::Relaxed)
    }

    fn removal_event(&self) -> Option<BorrowedFd<'_>> {
        self.removal.as_ref().map(|removal| removal.as_fd())
    }

    /// Switches bus mastering off, and sees that it is; then resets the function where it can
    /// be reset by itself, so that the controller forgets what it was told. Without a reset the
    /// first is enough: nothing of the controller's reaches memory as long as this lives, and
    /// the next who opens it disables it first. What is gone sends nothing.
    fn quiesce(&self) -> Result<()> {
        let silence = || match self.function.set_bus_master(false) {
            Err(error) if error.kind() == ErrorKind::Gone => Ok(()),
            other => other,
        };
        silence()?;
        if self.function.can_reset() {
            // Whether it worked or not: a function that is silent reaches no memory.
            let _forgets = self.function.reset();
        }
        // The reset gives the configuration back as it was, which is to be seen, not believed.
        silence()
    }
}
