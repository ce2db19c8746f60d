//! Streams file bytes through fixed windows into GPU or host memory.
//!
//! An [`Engine`] owns a small pool of windows. A ring thread fills them from storage, copy
//! workers flush them into their final place, and tensors become visible one by one in the
//! order asked for. See `ARCHITECTURE.md` for the picture and the invariants.
//!
//! ```no_run
//! use std::sync::Arc;
//! use fs_adapter::plan::{Order, Plan, Selection};
//! use fs_adapter::{Model, OpenOptions, placement};
//! use ubio::{Engine, LoadRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Arc::new(Model::open("model.safetensors", &OpenOptions::default())?);
//! let plan = Plan::new(&model, &Selection::all(), Order::Layer)?;
//! let placement = placement::packed(&model, &plan, 256)?;
//! let engine = Engine::builder().open()?;
//! let mut load = engine.load(LoadRequest::new(model, placement))?;
//! while let Some(view) = load.next_tensor()? {
//!     println!("{} {:?}: {} bytes", view.tensor.name, view.tensor.shape, view.bytes.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`open`] | settings; probe, choose, explain |
//! | [`engine`] | start loads |
//! | [`load`] | what a caller holds: tensors as they become visible, lent windows |
//! | [`range`] | byte ranges of files opened once |
//! | [`raw`] | byte ranges of a namespace or a file, into memory of any kind |
//! | [`source`] | the joint for whatever fills windows; files, NVMe namespaces |
//! | [`vram`] | the joint for where bytes end; host memory, named shared memory, PCI BARs |
//! | [`canary`] | proof that bytes land, before memory is used |
//! | [`window`] | what windows are made of |
//! | [`map`] | the page cache itself as destination |
//! | [`stats`], [`trace`] | what a load reports |
//! | [`limits`] | bounds and defaults |

pub mod canary;
mod destination;
mod driver;
pub mod engine;
pub mod error;
mod inbox;
pub mod limits;
pub mod load;
pub mod map;
pub mod open;
mod pairing;
mod plan;
mod prepare;
pub mod range;
pub mod raw;
pub mod source;
pub mod stats;
pub mod sys;
mod tables;
pub mod topology;
pub mod trace;
mod traditional;
pub mod vram;
pub mod window;
pub mod workers;

pub use engine::{Destination, Engine, LoadRequest, Routes};
pub use error::{Error, ErrorKind, Result};
pub use load::{Lending, LentPiece, Load, Loaded, TensorView, Watch};
pub use open::{Builder, Explanation};
pub use range::{Opened, RangeRequest, Transfer};
pub use raw::{RawLoad, RawLoaded, RawRequest};
