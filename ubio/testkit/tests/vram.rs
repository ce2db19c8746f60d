//! The backends under the suite, with one copy worker and with several; that for BARs with
//! each kind of windows, over an emulated BAR.

use ubio_testkit::vram::{BarFixture, HostFixture};
use ubio_testkit::vram_suite;

vram_suite!(one_worker, HostFixture { workers: 1 });
vram_suite!(three_workers, HostFixture { workers: 3 });
vram_suite!(
    emulated_bar_from_host_windows,
    BarFixture::with_host_windows(1)
);
vram_suite!(
    emulated_bar_from_bar_windows,
    BarFixture::with_bar_windows(3)
);
vram_suite!(
    emulated_p2pmem_from_p2pmem_windows,
    BarFixture::with_p2pmem(2)
);
