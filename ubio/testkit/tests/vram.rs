//! The host backend under the suite, with one copy worker and with several.

use ubio_testkit::vram::HostFixture;
use ubio_testkit::vram_suite;

vram_suite!(one_worker, HostFixture { workers: 1 });
vram_suite!(three_workers, HostFixture { workers: 3 });
