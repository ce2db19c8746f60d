//! The file source under the suite: by io_uring and by threads, by every route, on the disk
//! and in memory.

use nvme_emulator::Scatter;
use ubio_core::Route;
use ubio_testkit::source::{Cache, EmulatedFixture, FileFixture, Reading, cases};
use ubio_testkit::source_suite;

fn on_disk(reading: Reading, route: Route, cache: Cache) -> FileFixture {
    FileFixture::new(env!("CARGO_TARGET_TMPDIR"), reading, route, cache)
}

fn in_memory(reading: Reading) -> FileFixture {
    FileFixture::new("/dev/shm", reading, Route::Buffered, Cache::Hot)
}

source_suite!(
    uring_direct,
    on_disk(Reading::Uring, Route::Direct, Cache::Cold)
);
source_suite!(
    uring_direct_over_hot_pages,
    on_disk(Reading::Uring, Route::Direct, Cache::Hot)
);
source_suite!(
    uring_cached,
    on_disk(Reading::Uring, Route::Cached, Cache::Hot)
);
source_suite!(
    uring_buffered,
    on_disk(Reading::Uring, Route::Buffered, Cache::Cold)
);
source_suite!(uring_in_memory, in_memory(Reading::Uring));
source_suite!(
    threads_direct,
    on_disk(Reading::Threads, Route::Direct, Cache::Cold)
);
source_suite!(
    threads_cached,
    on_disk(Reading::Threads, Route::Cached, Cache::Hot)
);
source_suite!(
    threads_buffered,
    on_disk(Reading::Threads, Route::Buffered, Cache::Cold)
);
source_suite!(threads_in_memory, in_memory(Reading::Threads));
source_suite!(
    uring_direct_into_emulated_p2pmem,
    on_disk(Reading::Uring, Route::Direct, Cache::Cold).into_p2pmem()
);
source_suite!(
    threads_direct_into_emulated_p2pmem,
    on_disk(Reading::Threads, Route::Direct, Cache::Cold).into_p2pmem()
);

#[test]
fn what_is_not_in_the_page_cache_is_said_to_be_so() {
    for reading in [Reading::Uring, Reading::Threads] {
        cases::cold_ranges_are_not_resident(&on_disk(reading, Route::Cached, Cache::Cold));
    }
}

source_suite!(emulated, EmulatedFixture::new(512));
source_suite!(
    emulated_scattered,
    EmulatedFixture {
        scatter: Scatter::Pages,
        interrupts: false,
        ..EmulatedFixture::new(4096)
    }
);
source_suite!(
    emulated_sgls,
    EmulatedFixture {
        sgl: true,
        ..EmulatedFixture::new(4096)
    }
);
