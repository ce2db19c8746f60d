//! Newtypes for everything that is counted or named, so that an index is never a length and
//! a window never a stream. Knows no behaviour.

/// A moment or a span on the driver's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// What a lease stands on: the windows are `0..windows`; above them come the in-place
/// tickets, leases without a window whose fills land at their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u16);

/// How often a window (or ticket) has been leased. A completion that carries another
/// generation than the window's own is stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

/// The right to fill one window (or ticket) for one stream, as it was given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The window or ticket.
    pub id: LeaseId,
    /// Which leasing of it this is.
    pub generation: Generation,
}

/// A stream: one caller's ordered sequence of fills. Ids are never reused within a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// What a source reads from: a file of a file source, a namespace of an NVMe source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// An item of a stream (for models: a tensor), counted from 0 in plan order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemIndex(pub u32);

/// Names one submitted command. Sources hand it back with the completion, unread. It holds
/// the command's slot and how often that slot was used, so a late or repeated completion
/// can be told from a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);
