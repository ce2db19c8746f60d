//! The suite for any [`Transport`]: blocks from any place to any place in memory, each command
//! ended exactly once, nothing else touched. Runs over an emulated controller in every test
//! run, and over real drivers wherever there are any.

use std::sync::Arc;

use nvme::transport::Transport;
use ubio::sys::memory::Region;

pub mod cases;
mod session;

/// What the suite has to know of a transport.
pub trait TransportFixture {
    /// A new transport over the namespace. Its first 24 MiB hold known bytes.
    fn open(&self) -> Box<dyn Transport>;

    /// Those bytes.
    fn bytes(&self, offset: u64, len: u64) -> Vec<u8>;

    /// Where blocks may be written, bytes from the namespace's start; `None` for read-only
    /// ones. There is room for 4 MiB.
    fn scratch(&self) -> Option<u64>;

    /// Memory to read into, `len_bytes` long or a little longer, nobody else's.
    fn memory(&self, len_bytes: u64) -> Arc<Region> {
        Arc::new(Region::anonymous(len_bytes, false).expect("memory"))
    }

    /// Whether attaching memory can give descriptors that outlast one command.
    fn registers(&self) -> bool {
        true
    }
}

/// One case of the suite.
pub type Case = fn(&dyn TransportFixture);

/// Hands the names of all cases to another macro: the list exists once.
#[doc(hidden)]
#[macro_export]
macro_rules! __transport_cases {
    ($then:ident $($more:tt)*) => {
        $crate::$then! {
            $($more)*
            [
                a_fresh_transport_is_idle_and_names_its_limits
                every_count_of_pages_from_every_place_in_a_page
                every_place_in_a_long_memory
                commands_at_the_largest_transfer
                single_blocks_land_anywhere_in_a_page
                small_reads_at_random_are_the_right_ones
                large_reads_at_random_are_the_right_ones
                what_is_written_is_read_again
                a_compare_tells_one_byte_of_difference
                a_full_transport_gives_the_command_back
                memory_is_attached_and_detached_again_and_again
                memory_that_begins_anywhere
                another_descriptor_ends_a_wait
                a_bounded_wait_ends
                a_dropped_transport_writes_no_more
            ]
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __transport_list {
    ([$($case:ident)*]) => {
        /// Every case and its name.
        pub const CASES: &[(&str, Case)] = &[$((stringify!($case), cases::$case)),*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __transport_tests {
    ($fixture:expr, [$($case:ident)*]) => {
        $(
            #[test]
            fn $case() {
                $crate::transport::cases::$case(&$fixture);
            }
        )*
    };
}

/// A module of tests, one for each case, for a transport.
#[macro_export]
macro_rules! transport_suite {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;

            $crate::__transport_cases! { __transport_tests $fixture, }
        }
    };
}

crate::__transport_cases! { __transport_list }
