//! The engine's decisions as a deterministic state machine: which stream gets which window,
//! what is read into it, when it is flushed, retried, lent, scrubbed and given back.
//!
//! It knows no files, rings, threads, clocks or addresses. Time is an input ([`Nanos`]),
//! completions are inputs, and everything it wants done is an [`Action`] taken from
//! [`Core::next_action`]. The drivers around it (sources, copy engines) only carry actions
//! out, so the same machine runs under a real ring, a seeded simulator and an instruction
//! counter.
//!
//! | module | what it holds |
//! |---|---|
//! | [`units`] | newtypes: windows, generations, streams, tokens, time |
//! | [`limits`] | every bound of the machine, in one file |
//! | [`plan`] | what a stream wants: fills, pieces, items |
//! | [`tuner`] | command size and depth, adapted to the device |
//! | [`action`] | what the machine asks its drivers to do, and what they report |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod action;
mod actions;
mod arbiter;
mod check;
mod commands;
mod core;
mod events;
mod knobs;
pub mod limits;
pub mod plan;
mod planted;
mod retry;
mod ring;
pub mod stats;
mod stream;
pub mod tuner;
pub mod units;
mod validate;
mod window_table;

pub use self::core::Core;
pub use action::{Action, Failure, FillError, FillErrorKind, Outcome, Stall};
pub use limits::{Limits, LimitsError};
pub use plan::{FillPlan, Landing, Piece, Route, StreamPlan};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use stats::Stats;
pub use tuner::{Setting, Tuner, TunerLimits};
pub use units::{Generation, ItemIndex, Lease, LeaseId, Nanos, ObjectId, StreamId, Token};
pub use validate::OpenError;
