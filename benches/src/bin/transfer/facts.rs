//! What one has to know of the machine and the file to read the figures.

use std::time::Duration;

use rustix::fs::StatVfsMountFlags;
use ubio::source::Reader;
use ubio::source::file::probe::{DirectIo, probe};

use crate::sides::Sides;

/// Facts, in the order they are shown: (name, value).
pub(crate) fn facts(sides: &Sides) -> Vec<(&'static str, String)> {
    let system = rustix::system::uname();
    let explained = sides.engine().explain();
    let reader = match &explained.reader {
        Reader::Uring { deferred, .. } => format!("io_uring, deferred task work: {deferred}"),
        Reader::Threads { reason } => format!("threads ({reason})"),
        Reader::Nvme(info) => format!("{} ({})", info.route.name(), info.how),
    };
    let direct = match probe(sides.file()).map(|probed| probed.direct_io) {
        Ok(DirectIo::Aligned(bytes)) => format!("yes, aligned to {bytes}"),
        Ok(DirectIo::InMemory) => "the file is in memory".to_owned(),
        Ok(DirectIo::Refused(why)) => format!("no: {why}"),
        Err(error) => error.to_string(),
    };
    let gib = |bytes: u64| format!("{:.1} GiB", in_gib(bytes));
    let pages = |huge: Option<u64>| huge.map_or_else(|| "unknown".to_owned(), gib);
    let read_only = rustix::fs::fstatvfs(sides.file())
        .is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    vec![
        ("processor", processor()),
        ("cores", ubio::topology::cores().to_string()),
        ("kernel", system.release().to_string_lossy().into_owned()),
        ("file", gib(sides.file_bytes())),
        ("file system", file_system(sides.file(), read_only)),
        ("direct I/O", direct),
        ("reader", reader),
        ("copy workers", explained.workers.to_string()),
        ("window pages", explained.window_pages.name().to_owned()),
        (
            "destination",
            format!(
                "{}, faulted in, on huge pages: {}",
                gib(sides.destination().len_bytes()),
                pages(sides.destination().huge_bytes())
            ),
        ),
        (
            "cold",
            "file dropped from the guest's or host's own page cache before every turn; \
             caches below it are not"
                .to_owned(),
        ),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn in_gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn file_system(file: &std::fs::File, read_only: bool) -> String {
    let name = match rustix::fs::fstatfs(file).map(|found| found.f_type) {
        Ok(0xef53) => "ext4".to_owned(),
        Ok(0x5846_5342) => "xfs".to_owned(),
        Ok(0x9123_683e) => "btrfs".to_owned(),
        Ok(0x0102_1994) => "tmpfs".to_owned(),
        Ok(0x794c_7630) => "overlay".to_owned(),
        Ok(other) => format!("{other:#x}"),
        Err(error) => error.to_string(),
    };
    if read_only {
        name + ", read-only"
    } else {
        name
    }
}

/// Processor time of this process until now, all threads.
pub(crate) fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
