//! What the machine offers: cores this process may use, NUMA nodes. Reads sysfs and the
//! affinity mask; missing files mean the plainest answer.

/// Cores this process may run on; at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Copy workers for this machine: all cores but the ring thread's, at least one, at most
/// eight (memory bandwidth is used up by then).
pub fn copy_workers() -> usize {
    (cores().saturating_sub(1)).clamp(1, 8)
}
