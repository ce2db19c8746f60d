//! Bugs planted on purpose, to prove that the simulator would find them. Without the feature
//! `planted-bugs`, which only tests turn on, there are none and no code for them.

/// A bug that drivers of the calling thread are told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "public only with the feature")
)]
pub enum PlantedBug {
    /// The last entry of a full PRP list page, the 512th, is left out.
    DropListEntry,
    /// A command names one block more than it is for.
    BlockTooMany,
    /// An operation ends when it is overdue, not when its completion comes.
    EndWhenOverdue,
    /// Operations end when a reset begins, not when it is over.
    EndBeforeReset,
    /// A completion is believed whatever its command identifier's generation.
    IgnoreGeneration,
}

#[cfg(feature = "planted-bugs")]
impl PlantedBug {
    /// All bugs.
    pub const ALL: [Self; 5] = [
        Self::DropListEntry,
        Self::BlockTooMany,
        Self::EndWhenOverdue,
        Self::EndBeforeReset,
        Self::IgnoreGeneration,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static BUG: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Gives what runs on the calling thread a bug, or none any more.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    BUG.set(bug);
}

/// Whether there is this bug.
#[inline]
pub(crate) fn is(bug: PlantedBug) -> bool {
    #[cfg(feature = "planted-bugs")]
    return BUG.get() == Some(bug);
    #[cfg(not(feature = "planted-bugs"))]
    {
        let _ = bug;
        false
    }
}
