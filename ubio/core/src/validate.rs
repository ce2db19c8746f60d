//! Whether a plan can be carried out at all: every way to be wrong has its own error, and the
//! machine behind it need not look twice. Knows no stream that runs.

use core::fmt;

use crate::limits::{Limits, MAX_FILLS, MAX_ITEMS, MAX_PIECES, MAX_WINDOW_BYTES};
use crate::plan::{FillPlan, Landing, StreamPlan};
use crate::window_table::Kind;

/// Why a stream was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// As many streams as the limits allow are open. Nothing is wrong: try again when one has
    /// finished.
    Busy,
    /// Every stream id has been used: make a new machine.
    IdsExhausted,
    /// More than [`MAX_FILLS`] fills, [`MAX_PIECES`] pieces or [`MAX_ITEMS`] items.
    TooLarge,
    /// A lookahead of 0 bytes lets nothing start.
    LookaheadZero,
    /// A fill without bytes, or of which no byte is expected.
    FillEmpty {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// Offset or length is no multiple of the alignment.
    FillUnaligned {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// A fill longer than a window.
    FillTooLong {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// A fill that ends beyond the largest offset there is.
    FillOverflow {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// More bytes expected than asked for.
    ExpectedBeyondLen {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// A fill that lands at its destination and has no piece to name it, or whose pieces do
    /// not lie at the destination as they lie in the fill.
    NotOneRun {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// One of a fill's two ways is lent and the other is not: its place in the order of
    /// lending would depend on the page cache.
    LentOneWay {
        /// Index into [`StreamPlan::fills`].
        fill: u32,
    },
    /// The pieces of the fills must follow each other without a gap or overlap, and use up
    /// [`StreamPlan::pieces`].
    PieceRanges {
        /// Index into [`StreamPlan::fills`]; the number of fills when pieces are left over.
        fill: u32,
    },
    /// A piece without bytes.
    PieceEmpty {
        /// Index into [`StreamPlan::pieces`].
        piece: u32,
    },
    /// A piece that ends beyond the bytes its fill expects.
    PieceOutside {
        /// Index into [`StreamPlan::pieces`].
        piece: u32,
    },
    /// A piece whose destination ends beyond the largest offset there is.
    DestinationOverflow {
        /// Index into [`StreamPlan::pieces`].
        piece: u32,
    },
    /// A piece of an item there is not.
    ItemOutOfRange {
        /// Index into [`StreamPlan::pieces`].
        piece: u32,
    },
    /// A piece of an earlier item than the piece before it.
    ItemOrder {
        /// Index into [`StreamPlan::pieces`].
        piece: u32,
    },
}

impl OpenError {
    /// Whether trying again later may help: back-pressure, not a fault.
    pub fn is_busy(&self) -> bool {
        matches!(self, OpenError::Busy)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Busy => out.write_str("all streams are in use; try again when one ends"),
            OpenError::IdsExhausted => out.write_str("all stream ids have been used"),
            OpenError::TooLarge => out.write_str("the plan has too many fills, pieces or items"),
            OpenError::LookaheadZero => out.write_str("a lookahead of 0 bytes lets nothing start"),
            OpenError::FillEmpty { fill } => write!(out, "fill {fill} has no bytes"),
            OpenError::FillUnaligned { fill } => write!(out, "fill {fill} is not aligned"),
            OpenError::FillTooLong { fill } => write!(
                out,
                "fill {fill} is longer than a window, or than {MAX_WINDOW_BYTES} bytes without one"
            ),
            OpenError::FillOverflow { fill } => write!(out, "fill {fill} ends beyond 2^64"),
            OpenError::ExpectedBeyondLen { fill } => {
                write!(out, "fill {fill} expects more bytes than it asks for")
            }
            OpenError::NotOneRun { fill } => {
                write!(
                    out,
                    "fill {fill} lands at its destination but is not one run there"
                )
            }
            OpenError::LentOneWay { fill } => {
                write!(out, "fill {fill} is lent on one of its two ways only")
            }
            OpenError::PieceRanges { fill } => {
                write!(
                    out,
                    "the pieces of fill {fill} do not follow those before it"
                )
            }
            OpenError::PieceEmpty { piece } => write!(out, "piece {piece} has no bytes"),
            OpenError::PieceOutside { piece } => {
                write!(out, "piece {piece} ends beyond what its fill expects")
            }
            OpenError::DestinationOverflow { piece } => {
                write!(out, "the destination of piece {piece} ends beyond 2^64")
            }
            OpenError::ItemOutOfRange { piece } => {
                write!(out, "piece {piece} belongs to an item there is not")
            }
            OpenError::ItemOrder { piece } => {
                write!(
                    out,
                    "piece {piece} belongs to an earlier item than the one before it"
                )
            }
        }
    }
}

impl core::error::Error for OpenError {}

/// Checks a whole plan; linear in its size.
pub(crate) fn validate(plan: &StreamPlan, limits: &Limits) -> Result<(), OpenError> {
    if plan.fills.len() > MAX_FILLS || plan.pieces.len() > MAX_PIECES || plan.items > MAX_ITEMS {
        return Err(OpenError::TooLarge);
    }
    if plan.lookahead_bytes == Some(0) {
        return Err(OpenError::LookaheadZero);
    }
    let mut next_piece = 0;
    let mut last_item = 0;
    for (fill, shape) in (0..).zip(&plan.fills) {
        validate_shape(fill, shape, limits)?;
        if shape.pieces.start != next_piece || shape.pieces.end < next_piece {
            return Err(OpenError::PieceRanges { fill });
        }
        let range = shape.pieces.start as usize..shape.pieces.end as usize;
        let pieces = plan
            .pieces
            .get(range)
            .ok_or(OpenError::PieceRanges { fill })?;
        for (piece, part) in (next_piece..).zip(pieces) {
            if part.len == 0 {
                return Err(OpenError::PieceEmpty { piece });
            }
            if u64::from(part.fill_offset) + u64::from(part.len) > u64::from(shape.expected) {
                return Err(OpenError::PieceOutside { piece });
            }
            if part.destination.checked_add(u64::from(part.len)).is_none() {
                return Err(OpenError::DestinationOverflow { piece });
            }
            if part.item.0 >= plan.items {
                return Err(OpenError::ItemOutOfRange { piece });
            }
            if part.item.0 < last_item {
                return Err(OpenError::ItemOrder { piece });
            }
            last_item = part.item.0;
        }
        if shape
            .landings()
            .any(|landing| landing == Landing::Destination)
        {
            let base = pieces.first().filter(|first| first.fill_offset == 0);
            let base = base.ok_or(OpenError::NotOneRun { fill })?.destination;
            let lies = |part: &crate::plan::Piece| {
                base.checked_add(u64::from(part.fill_offset)) == Some(part.destination)
            };
            if !pieces.iter().all(lies) {
                return Err(OpenError::NotOneRun { fill });
            }
        }
        next_piece = shape.pieces.end;
    }
    if next_piece as usize != plan.pieces.len() {
        let fill = u32::try_from(plan.fills.len()).unwrap_or(u32::MAX);
        return Err(OpenError::PieceRanges { fill });
    }
    Ok(())
}

/// What can be said of a fill without its pieces.
fn validate_shape(fill: u32, shape: &FillPlan, limits: &Limits) -> Result<(), OpenError> {
    let unaligned = |bytes: u64| bytes & (u64::from(limits.alignment) - 1) != 0;
    if shape.len == 0 || shape.expected == 0 {
        return Err(OpenError::FillEmpty { fill });
    }
    if unaligned(shape.offset) || unaligned(u64::from(shape.len)) {
        return Err(OpenError::FillUnaligned { fill });
    }
    let through = shape
        .landings()
        .any(|landing| Kind::of(landing) == Kind::Window);
    let most = if through {
        limits.window_bytes
    } else {
        MAX_WINDOW_BYTES
    };
    if shape.len > most {
        return Err(OpenError::FillTooLong { fill });
    }
    if shape.offset.checked_add(u64::from(shape.len)).is_none() {
        return Err(OpenError::FillOverflow { fill });
    }
    if shape.expected > shape.len {
        return Err(OpenError::ExpectedBeyondLen { fill });
    }
    let lent = |landing| landing == Landing::Lent;
    if let Some((_, otherwise)) = shape.otherwise
        && lent(otherwise) != lent(shape.landing)
    {
        return Err(OpenError::LentOneWay { fill });
    }
    debug_assert!(!lent(shape.landing) || Kind::of(shape.landing) == Kind::Window);
    Ok(())
}
