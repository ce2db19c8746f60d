//! The suite for any [`Source`]: bytes from any legal place to any legal place, each command
//! completed exactly once, nothing else touched, nothing blocking that must not.
//!
//! A crate with a source of its own implements [`SourceFixture`] and writes
//!
//! ```ignore
//! ubio_testkit::source_suite!(my_source, MyFixture::new());
//! ```
//!
//! which makes a module with one `#[test]` for each case.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use ubio::source::{Object, Source};
use ubio::sys::memory::Region;
use ubio_core::Route;

pub mod cases;
mod file;
mod nvme;
mod session;

pub use crate::guarded::{byte_at, fill};
pub use file::{Cache, FileFixture, Reading};
pub use nvme::{EmulatedFixture, emulated_source};

/// What an object is to hold.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its length, bytes.
    pub len_bytes: u64,
    /// Where it has data: the byte at `offset` is [`byte_at`]`(seed, offset)`. Elsewhere it
    /// is zero, and takes no space where the fixture can have it so.
    pub data: Vec<Range<u64>>,
    /// Tells objects apart.
    pub seed: u64,
}

impl Shape {
    /// Data from end to end.
    #[must_use]
    pub fn full(len_bytes: u64, seed: u64) -> Self {
        let everything = 0..len_bytes;
        Self {
            len_bytes,
            data: vec![everything],
            seed,
        }
    }

    /// The bytes that a read of `len` bytes from `offset` should bring: fewer at the end.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.len_bytes);
        let mut bytes = vec![0; size(end.saturating_sub(offset))];
        for range in &self.data {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            if from < to {
                fill(
                    &mut bytes[size(from - offset)..size(to - offset)],
                    self.seed,
                    from,
                );
            }
        }
        bytes
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit")
}

/// An object to read from.
pub struct Made {
    /// For [`Source::add_object`].
    pub object: Object,
    /// Whatever has to stay alive beside it.
    pub keep: Box<dyn Any>,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made")
            .field("object", &self.object)
            .finish_non_exhaustive()
    }
}

/// What the suite has to know of a source.
pub trait SourceFixture {
    /// A new source, on the calling thread.
    fn open(&self) -> Box<dyn Source>;

    /// An object with known content; `None` if this source's objects cannot have the shape
    /// (a namespace is never empty), which skips the case.
    fn make(&self, shape: &Shape) -> Option<Made>;

    /// The route of every command.
    fn route(&self) -> Route;

    /// Whether it takes [`Target::Scatter`](ubio::source::Target::Scatter) on its route.
    fn scatters(&self) -> bool {
        false
    }

    /// Whether commands on its route may start and end anywhere.
    fn takes_unaligned(&self) -> bool {
        false
    }

    /// Memory to fill, of the kind that is to be tested; at least `len_bytes`, whole pages,
    /// nobody else's.
    fn window_region(&self, len_bytes: u64) -> Arc<Region> {
        Arc::new(Region::anonymous(len_bytes, false).expect("memory"))
    }
}

/// One case of the suite.
pub type Case = fn(&dyn SourceFixture);

/// Runs every case, one after the other.
///
/// # Panics
/// At the first that fails.
pub fn run(fixture: &dyn SourceFixture) {
    for (name, case) in CASES {
        println!("{name}");
        case(fixture);
    }
}

/// Hands the names of all cases to another macro: the list exists once.
#[doc(hidden)]
#[macro_export]
macro_rules! __source_cases {
    ($then:ident $($more:tt)*) => {
        $crate::$then! {
            $($more)*
            [
                a_fresh_source_is_idle_and_names_its_limits
                an_empty_object_gives_no_bytes
                one_block_lands_and_nothing_else_is_touched
                every_size_up_to_the_largest_command
                unaligned_ends_come_through_aligned_commands
                unaligned_commands_where_the_route_takes_them
                a_short_read_brings_the_rest_of_the_object
                reads_at_and_behind_the_end_bring_nothing
                offsets_beyond_four_gib
                overflowing_offsets_are_errors
                a_full_source_gives_the_command_back
                many_commands_complete_once_each
                tokens_come_back_unread
                unknown_and_removed_objects_are_errors
                a_new_object_in_an_old_place_is_the_new_one
                memory_registered_or_not
                memory_can_be_detached_and_attached_again
                a_dropped_source_writes_no_more
                polling_without_wait_does_not_block_and_gets_there
                a_bounded_wait_ends
                a_wake_ends_a_wait
                a_wake_before_the_wait_is_not_lost
                pieces_are_scattered_to_their_places
            ]
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __source_list {
    ([$($case:ident)*]) => {
        /// Every case and its name.
        pub const CASES: &[(&str, Case)] = &[$((stringify!($case), cases::$case)),*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __source_tests {
    ($fixture:expr, [$($case:ident)*]) => {
        $(
            #[test]
            fn $case() {
                $crate::source::cases::$case(&$fixture);
            }
        )*
    };
}

/// A module of tests, one for each case, for a source.
#[macro_export]
macro_rules! source_suite {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;

            $crate::__source_cases! { __source_tests $fixture, }
        }
    };
}

crate::__source_cases! { __source_list }
