//! What a load took: time, processor, memory. Knows the kernel's counters, no loads.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Processor seconds of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) sys: f64,
}

impl Cpu {
    fn now() -> Self {
        getrusage(UsageWho::RUSAGE_SELF).map_or_else(
            |_unsupported| Self::default(),
            |usage| Self {
                user: seconds(usage.user_time()),
                sys: seconds(usage.system_time()),
            },
        )
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            user: (self.user - earlier.user).max(0.0),
            sys: (self.sys - earlier.sys).max(0.0),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a process fit")]
fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Cpu,
    /// The most memory the process had at once, destination included.
    pub(crate) peak_rss_bytes: u64,
}

/// A running measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    begun: Instant,
    cpu: Cpu,
}

impl Meter {
    /// Measures from the program's first instruction, which `begun` was taken at.
    pub(crate) fn from_start(begun: Instant) -> Self {
        Self {
            begun,
            cpu: Cpu::default(),
        }
    }

    /// Measures from now. The peak of memory begins anew too, where the kernel lets it.
    pub(crate) fn from_now() -> Self {
        let _unsupported = std::fs::write("/proc/self/clear_refs", "5");
        Self {
            begun: Instant::now(),
            cpu: Cpu::now(),
        }
    }

    /// Does something that does not count.
    pub(crate) fn except<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (begun, cpu) = (Instant::now(), Cpu::now());
        let result = work();
        self.begun += begun.elapsed();
        let spent = Cpu::now().since(cpu);
        self.cpu.user += spent.user;
        self.cpu.sys += spent.sys;
        result
    }

    pub(crate) fn stop(&self) -> Measured {
        Measured {
            elapsed: self.begun.elapsed(),
            cpu: Cpu::now().since(self.cpu),
            peak_rss_bytes: peak_rss_bytes(),
        }
    }
}

/// `VmHWM` of this process; 0 where there is no `/proc`.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| {
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<u64>()
                .ok()
        })
        .map_or(0, |kib| kib << 10)
}
