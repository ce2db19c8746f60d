//! What the machine counts. Plain numbers that only grow (but for the gauges), read by whoever
//! reports; nothing here decides anything.

use crate::plan::Route;
use crate::units::Nanos;

/// Counters of one machine since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of fills that landed whole, by the route they took; indexed by [`Route::index`].
    pub route_bytes: [u64; Route::COUNT],
    /// Fills that did not go the way planned first, by reason.
    pub fallbacks: Fallbacks,
    /// Fills that landed whole.
    pub fills: u64,
    /// Commands submitted, repeats included.
    pub commands: u64,
    /// Commands submitted again after an error.
    pub retries: u64,
    /// Completions with fewer bytes than needed.
    pub short_reads: u64,
    /// Completions that claimed more bytes than were asked for: a driver's bug.
    pub overlong_completions: u64,
    /// Completions of an earlier use of a command slot, dropped.
    pub stale_completions: u64,
    /// Repeated completions, dropped.
    pub duplicate_completions: u64,
    /// Completions under tokens never given out, dropped.
    pub unknown_completions: u64,
    /// Reports on a lease (prepared, flushed, returned, scrubbed) that is another by now, or
    /// was not asked for; dropped.
    pub stale_reports: u64,
    /// Flushes asked for.
    pub flushes: u64,
    /// Windows lent.
    pub lends: u64,
    /// Windows scrubbed.
    pub scrubs: u64,
    /// Windows given a new destination range.
    pub window_switches: u64,
    /// Most windows leased at once.
    pub peak_windows_in_use: u16,
    /// Most tickets leased at once.
    pub peak_tickets_in_use: u16,
    /// Items that became visible.
    pub items_visible: u64,
    /// Streams that ended whole.
    pub streams_complete: u64,
    /// Streams that were cancelled.
    pub streams_cancelled: u64,
    /// Streams that failed.
    pub streams_failed: u64,
    /// Commands with the source, over time.
    pub in_flight: InFlight,
}

impl Stats {
    /// Bytes that landed by a route.
    pub fn bytes_by(&self, route: Route) -> u64 {
        self.route_bytes[route.index()]
    }

    /// Bytes that landed, by whatever route.
    pub fn bytes(&self) -> u64 {
        self.route_bytes.iter().sum()
    }
}

/// Fills that did not go the way planned first, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallbacks {
    /// The bytes were not in the page cache.
    pub not_resident: u64,
}

/// How many commands are with the source: now, at most, and over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Now.
    pub now: u16,
    /// At most.
    pub max: u16,
    /// The sum of (commands in flight × ns they were so).
    pub command_ns: u64,
    /// How long at least one was in flight.
    pub busy_ns: u64,
    /// Up to when the two above are counted.
    at: Nanos,
}

impl InFlight {
    /// The mean while busy, in thousandths of a command; 0 before the first completion.
    pub fn mean_milli(&self) -> u64 {
        let mean = u128::from(self.command_ns) * 1000 / u128::from(self.busy_ns.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }

    /// Counts the time up to `now`. A clock that steps back counts as one that stands.
    #[inline]
    fn advance(&mut self, now: Nanos) {
        let elapsed = now.0.saturating_sub(self.at.0);
        if elapsed > 0 {
            if self.now > 0 {
                self.command_ns = self
                    .command_ns
                    .saturating_add(elapsed.saturating_mul(u64::from(self.now)));
                self.busy_ns += elapsed;
            }
            self.at = now;
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, now: Nanos) {
        self.advance(now);
        self.now += 1;
        self.max = self.max.max(self.now);
    }

    #[inline]
    pub(crate) fn remove(&mut self, now: Nanos) {
        self.advance(now);
        self.now -= 1;
    }
}
