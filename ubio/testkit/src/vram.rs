//! The suite for any [`Vram`] backend: every piece at its place, nothing beside it, each
//! operation done exactly once.
//!
//! A crate with a backend of its own implements [`VramFixture`] and writes
//!
//! ```ignore
//! ubio_testkit::vram_suite!(my_vram, MyFixture);
//! ```

use std::sync::Arc;

use ubio::source::Waker;
use ubio::sys::memory::Region;
use ubio::vram::bar::EmulatedBar;
use ubio::vram::mapped::MappedVram;
use ubio::vram::{Vram, VramBuffer};
use ubio::workers::Workers;

pub mod cases;
mod session;

/// What the suite has to know of a backend.
pub trait VramFixture {
    /// A new backend for at most `capacity` operations under way, that wakes `waker` for
    /// each one that ends.
    fn open(&self, capacity: usize, waker: Waker) -> Box<dyn Vram>;

    /// Buffers of at least `len_bytes` that callers may bring, and what each is.
    fn callers_buffers(&self, len_bytes: u64) -> Vec<(&'static str, VramBuffer)>;

    /// A buffer that it must refuse, given its windows.
    fn foreign_buffer(&self) -> Option<VramBuffer> {
        None
    }

    /// Memory for the suite's windows, of the kind that is to be tested; at least
    /// `len_bytes`, whole pages, nobody else's.
    fn window_region(&self, len_bytes: u64) -> Arc<Region> {
        Arc::new(Region::anonymous(len_bytes, false).expect("memory"))
    }

    /// Bytes of the largest buffer it can make; cases that need larger ones are left out.
    fn largest_buffer(&self) -> u64 {
        u64::MAX
    }
}

/// Buffers in host memory, with some copy workers.
#[derive(Clone, Copy, Debug)]
pub struct HostFixture {
    /// Threads that copy.
    pub workers: usize,
}

impl VramFixture for HostFixture {
    fn open(&self, capacity: usize, waker: Waker) -> Box<dyn Vram> {
        let workers = Workers::start("testkit", self.workers, capacity).expect("threads");
        Box::new(MappedVram::new(workers, capacity, waker))
    }

    fn callers_buffers(&self, len_bytes: u64) -> Vec<(&'static str, VramBuffer)> {
        let len = usize::try_from(len_bytes).expect("64-bit");
        let host = |region: Region| VramBuffer::Host(Arc::new(region));
        let mapped = Region::anonymous(len_bytes, false).expect("memory");
        vec![
            ("a vector", host(Region::adopt(vec![0u8; len]))),
            (
                "a boxed slice",
                host(Region::adopt(vec![0u8; len].into_boxed_slice())),
            ),
            ("a region", host(mapped)),
        ]
    }
}

/// Buffers in an emulated BAR, with some copy workers.
#[derive(Debug)]
pub struct BarFixture {
    workers: usize,
    /// Whose parts all buffers are.
    bar: EmulatedBar,
    /// Whose parts all windows are; host windows without it.
    windows: Option<EmulatedBar>,
}

/// What a case has at most of buffers or of windows: an emulated BAR takes memory only where
/// it is written.
const BAR_BYTES: u64 = 256 << 20;

impl BarFixture {
    /// Buffers in a BAR, host windows.
    ///
    /// # Panics
    /// If the system has no descriptor or memory left.
    #[must_use]
    pub fn with_host_windows(workers: usize) -> Self {
        Self {
            workers,
            bar: EmulatedBar::new(BAR_BYTES).expect("an emulated BAR"),
            windows: None,
        }
    }

    /// Buffers in a BAR, windows in another one.
    ///
    /// # Panics
    /// If the system has no descriptor or memory left.
    #[must_use]
    pub fn with_bar_windows(workers: usize) -> Self {
        Self {
            windows: Some(EmulatedBar::new(BAR_BYTES).expect("an emulated BAR")),
            ..Self::with_host_windows(workers)
        }
    }

    /// Buffers in p2pmem, windows in that of another function.
    ///
    /// # Panics
    /// If the system has no descriptor or memory left.
    #[must_use]
    pub fn with_p2pmem(workers: usize) -> Self {
        let p2pmem = || EmulatedBar::p2pmem(BAR_BYTES).expect("emulated p2pmem");
        Self {
            workers,
            bar: p2pmem(),
            windows: Some(p2pmem()),
        }
    }
}

impl VramFixture for BarFixture {
    fn open(&self, capacity: usize, waker: Waker) -> Box<dyn Vram> {
        let workers = Workers::start("testkit", self.workers, capacity).expect("threads");
        let memory = Arc::clone(self.bar.memory());
        let vram = MappedVram::new(workers, capacity, waker);
        Box::new(vram.allocating_from(memory))
    }

    fn callers_buffers(&self, len_bytes: u64) -> Vec<(&'static str, VramBuffer)> {
        let part =
            |bar: &EmulatedBar| VramBuffer::Bar(bar.memory().allocate(len_bytes).expect("room"));
        let other = EmulatedBar::new(len_bytes).expect("an emulated BAR");
        let whole = VramBuffer::Bar(Arc::clone(other.memory().region()));
        vec![
            ("a part of its BAR", part(&self.bar)),
            ("a part of another BAR", part(&other)),
            ("all of another BAR", whole),
        ]
    }

    fn foreign_buffer(&self) -> Option<VramBuffer> {
        // From windows in a device nothing goes back to the host.
        self.windows.as_ref()?;
        let region = Region::anonymous(4096, false).expect("memory");
        Some(VramBuffer::Host(Arc::new(region)))
    }

    fn window_region(&self, len_bytes: u64) -> Arc<Region> {
        match &self.windows {
            Some(bar) => bar.memory().allocate(len_bytes).expect("room"),
            None => Arc::new(Region::anonymous(len_bytes, false).expect("memory")),
        }
    }

    fn largest_buffer(&self) -> u64 {
        BAR_BYTES
    }
}

/// One case of the suite.
pub type Case = fn(&dyn VramFixture);

/// Runs every case, one after the other.
///
/// # Panics
/// At the first that fails.
pub fn run(fixture: &dyn VramFixture) {
    for (name, case) in CASES {
        println!("{name}");
        case(fixture);
    }
}

/// Hands the names of all cases to another macro: the list exists once.
#[doc(hidden)]
#[macro_export]
macro_rules! __vram_cases {
    ($then:ident $($more:tt)*) => {
        $crate::$then! {
            $($more)*
            [
                a_fresh_backend_has_nothing_to_say
                allocated_memory_is_long_enough_and_zero
                callers_memory_is_taken_as_it_is
                foreign_memory_is_refused
                pieces_go_to_odd_places_in_odd_lengths
                many_tiny_pieces_each_find_their_place
                a_fill_without_pieces_is_done
                a_gather_is_a_flush_backwards
                windows_start_where_they_are_said_to
                preparing_changes_nothing_up_to_the_edges
                a_scrub_zeroes_its_range_and_no_more
                many_operations_end_once_each
                ids_come_back_unread
                a_released_buffer_makes_room_for_another
                in_place_memory_is_the_buffer
                places_beyond_four_gib
                polling_never_blocks_and_the_waker_is_woken
                a_dropped_backend_keeps_nobodys_memory
                what_is_done_has_reached_the_device
            ]
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __vram_list {
    ([$($case:ident)*]) => {
        /// Every case and its name.
        pub const CASES: &[(&str, Case)] = &[$((stringify!($case), cases::$case)),*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __vram_tests {
    ($fixture:expr, [$($case:ident)*]) => {
        $(
            #[test]
            fn $case() {
                $crate::vram::cases::$case(&$fixture);
            }
        )*
    };
}

/// A module of tests, one for each case, for a backend.
#[macro_export]
macro_rules! vram_suite {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;

            $crate::__vram_cases! { __vram_tests $fixture, }
        }
    };
}

crate::__vram_cases! { __vram_list }
