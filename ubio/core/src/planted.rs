//! Bugs planted on purpose, to prove that the simulator would find them. Without the feature
//! `planted-bugs`, which only tests turn on, there are none and no code for them.

use crate::action::FillError;
use crate::commands::Place;
use crate::core::Core;
use crate::retry::Verdict;

/// A bug the machine is told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "public only with the feature")
)]
pub enum PlantedBug {
    /// A cancelled stream's windows are free although the source still writes into them.
    ReleaseOnCancel,
    /// A stream's windows are free once one of its commands is overdue, although the source
    /// still writes into them.
    ReleaseOnOverdue,
    /// A completion is believed whatever its token's sequence.
    IgnoreSequence,
    /// A report on a lease is believed whatever the lease's generation.
    IgnoreGeneration,
    /// A failed stream's windows are not scrubbed.
    SkipScrub,
    /// The first item of each announcement is announced again with the next.
    VisibleTwice,
    /// Items are announced after their stream failed or was cancelled.
    VisibleAfterEnd,
    /// A short read that does not end at the alignment counts as whole.
    ShortUnaligned,
    /// A read that is one byte short counts as whole.
    ShortByOne,
    /// A delayed retry is forgotten.
    LostRetry,
    /// A stream is over although its lent windows are out.
    FinishedWhileLent,
    /// A stream's end is told twice.
    FinishedTwice,
    /// A fallback is not counted.
    UncountedFallback,
    /// A fill goes on although its bytes are not in the page cache.
    IgnoreNotResident,
    /// The stream that was armed last is armed next.
    Unfair,
    /// One command more than the depth is submitted.
    OverDepth,
    /// Windows are lent in the order they land.
    LendAsLanded,
    /// Commands are submitted before the destination is prepared.
    Unprepared,
    /// A lease counts as landed once its last byte was asked for.
    FlushEarly,
    /// A window that changes to its fill's other way forgets that it holds bytes.
    ForgetTouched,
}

#[cfg(feature = "planted-bugs")]
impl PlantedBug {
    /// All bugs.
    pub const ALL: [PlantedBug; 20] = [
        PlantedBug::ReleaseOnCancel,
        PlantedBug::ReleaseOnOverdue,
        PlantedBug::IgnoreSequence,
        PlantedBug::IgnoreGeneration,
        PlantedBug::SkipScrub,
        PlantedBug::VisibleTwice,
        PlantedBug::VisibleAfterEnd,
        PlantedBug::ShortUnaligned,
        PlantedBug::ShortByOne,
        PlantedBug::LostRetry,
        PlantedBug::FinishedWhileLent,
        PlantedBug::FinishedTwice,
        PlantedBug::UncountedFallback,
        PlantedBug::IgnoreNotResident,
        PlantedBug::Unfair,
        PlantedBug::OverDepth,
        PlantedBug::LendAsLanded,
        PlantedBug::Unprepared,
        PlantedBug::FlushEarly,
        PlantedBug::ForgetTouched,
    ];
}

/// The bug planted, if any.
#[derive(Debug, Default)]
pub(crate) struct Planted {
    #[cfg(feature = "planted-bugs")]
    pub(crate) bug: Option<PlantedBug>,
}

impl Planted {
    /// Whether the machine has this bug.
    #[inline]
    pub(crate) fn is(&self, bug: PlantedBug) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "planted-bugs"))]
        {
            let _ = bug;
            false
        }
    }

    /// Whether the machine has any bug.
    pub(crate) fn any(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.bug.is_some();
        #[cfg(not(feature = "planted-bugs"))]
        false
    }

    /// The verdict on a completion as a bug would have it.
    #[inline]
    pub(crate) fn bend(
        &self,
        verdict: Verdict,
        needed: u32,
        result: Result<u32, FillError>,
    ) -> Verdict {
        match (verdict, result) {
            (Verdict::Rest { landed }, Ok(bytes))
                if self.is(PlantedBug::ShortUnaligned) && landed < bytes =>
            {
                Verdict::Landed
            }
            (Verdict::Rest { .. } | Verdict::Again { .. }, Ok(bytes))
                if self.is(PlantedBug::ShortByOne) && bytes + 1 == needed =>
            {
                Verdict::Landed
            }
            (Verdict::NotResident, _) if self.is(PlantedBug::IgnoreNotResident) => Verdict::Landed,
            _ => verdict,
        }
    }
}

impl Core {
    /// Forgets the commands of a lease while the source still has them.
    pub(crate) fn forget_commands(&mut self, lease: u16) {
        for id in 0..self.commands.len() {
            if self.commands[id].place == Place::InFlight && self.commands[id].lease == lease {
                self.commands.release(id);
                self.table[lease].in_flight -= 1;
                self.stats.in_flight.now -= 1;
            }
        }
    }
}
