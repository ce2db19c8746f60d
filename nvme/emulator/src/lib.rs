//! An NVMe controller inside of this process: it executes registers, doorbells, queues, PRP
//! lists and SGLs against this process's memory, over a disk that is memory or a file. Refuses
//! to know the driver's side: it shares structures with it and no code, so that a bug on one
//! side meets the other.
//!
//! | module | what |
//! |---|---|
//! | [`emulator`] | the controller as a [`Device`](nvme::device::Device): stepped or threaded |
//! | [`config`] | what kind of controller |
//! | [`disk`], [`FileDisk`] | where a namespace's bytes are |
//! | [`fault`] | what goes wrong |
//! | [`observe`] | counters, and a log of writes to memory |
//! | `controller` | the state machine: one unit of work a step, no clock and no thread |
//! | `registers`, `queue` | its registers and queues |
//! | `admin`, `features`, `identify`, `nvm` | its commands |
//! | `transfer`, `iommu` | data pointers to bus addresses, bus addresses to memory |
//!
//! ```
//! use nvme::device::Device;
//! use nvme_emulator::{Config, Emulator, MemoryDisk, Namespace};
//!
//! let disk = MemoryDisk::new(1 << 20);
//! let emulator = Emulator::stepped(Config::new(Namespace::new(disk, 512)))?;
//! assert_eq!(emulator.read_u32(nvme_sys::register::VS), 0x2_0000);
//! # Ok::<(), nvme::Error>(())
//! ```

mod admin;
pub mod config;
mod controller;
pub mod disk;
pub mod emulator;
pub mod fault;
mod features;
mod identify;
mod iommu;
mod nvm;
pub mod observe;
mod queue;
mod registers;
pub mod status;
mod sys;
mod transfer;

pub use config::{Config, Namespace, Scatter, SglSupport};
pub use disk::{Disk, MemoryDisk};
pub use emulator::Emulator;
pub use fault::{Deed, Delay, Ending, Faults, Match, NoFaults, Plan, Script};
pub use iommu::IommuFault;
pub use observe::Counters;
pub use sys::file::FileDisk;
