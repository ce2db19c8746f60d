//! Model files as tensors: what is in a safetensors or GGUF file, a sharded folder, or a plain
//! file, in which order to move it, and where each tensor goes in one destination.
//!
//! Refuses to know: windows, GPUs, rings, and how bytes travel. It opens files, reads headers
//! and does arithmetic; payload bytes never pass through it.
//!
//! - [`Model::open`] finds, opens and validates everything a name stands for, before any
//!   payload byte moves. All files stay open; later work uses those descriptors.
//! - [`TensorTable`] lists the tensors in file order.
//! - [`plan`] selects tensors and puts them in the order compute wants.
//! - [`placement`] says where each of them goes in one destination, and which header bytes
//!   make that destination a valid file.
//! - [`mod@format`] and [`index`] are the pure parsers, usable on bytes alone.
//!
//! ```no_run
//! use fs_adapter::plan::{Order, Plan, Selection};
//! use fs_adapter::{Model, OpenOptions, placement};
//!
//! # fn main() -> fs_adapter::Result<()> {
//! let model = Model::open("models/smol", &OpenOptions::default())?;
//! let plan = Plan::new(&model, &Selection::all(), Order::Layer)?;
//! let placement = placement::packed(&model, &plan, 256)?;
//! for placed in &placement.tensors {
//!     let tensor = &model.tensors()[placed.tensor];
//!     let file = model.file(tensor.file).file();
//!     // Read tensor.len bytes of `file` at tensor.offset to placed.offset of the destination.
//! }
//! model.check_unchanged()?;
//! # Ok(())
//! # }
//! ```
//!
//! Units: every offset and length is in bytes, every byte count is a `u64`.

pub mod dtype;
pub mod error;
pub mod format;
pub mod index;
pub mod limits;
pub mod memory;
pub mod placement;
pub mod plan;

mod file;
mod folder;
mod model;
mod shard_name;
mod tensor_table;

pub use dtype::{DType, GgmlType};
pub use error::{Error, ErrorKind, Result};
pub use file::{Identity, ModelFile};
pub use format::Format;
pub use model::{Model, OpenOptions};
pub use tensor_table::{FileIndex, Tensor, TensorIndex, TensorTable};
