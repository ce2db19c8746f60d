//! Landed windows lent to a caller without a copy, until the last of their bytes is dropped.
//!
//! unsafe: gives out slices of lent windows.
#![expect(unsafe_code, reason = "lent windows are no longer written")]

use std::sync::Arc;

use bytes::Bytes;
use fs_adapter::TensorIndex;
use ubio_core::{Lease, StreamPlan};

use super::Shared;
use crate::error::Result;
use crate::source::Waker;
use crate::sys::memory::Region;

/// Part of a tensor, in a window that is lent until the bytes are dropped.
#[derive(Clone, Debug)]
pub struct LentPiece {
    /// Which tensor.
    pub tensor: TensorIndex,
    /// First byte, from the tensor's start.
    pub offset: u64,
    /// The bytes, still in the window.
    pub bytes: Bytes,
}

/// The windows that were lent and came back, for the ring thread.
pub(crate) type Returns = crossbeam_queue::ArrayQueue<Lease>;

/// A landed window on its way to the consumer.
#[derive(Debug)]
pub(crate) struct LentFill {
    pub(crate) window: Bytes,
    pub(crate) plan: Arc<StreamPlan>,
    pub(crate) fill: u32,
}

/// A window as long as somebody holds its bytes.
struct LentWindow {
    region: Arc<Region>,
    offset: u64,
    len: u64,
    lease: Lease,
    returns: Arc<Returns>,
    waker: Waker,
}

impl AsRef<[u8]> for LentWindow {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the core lends a window only when it has landed, and neither leases nor
        // scrubs it before it is returned, which `Drop` does.
        unsafe { self.region.bytes(self.offset, self.len) }
    }
}

impl Drop for LentWindow {
    fn drop(&mut self) {
        let pushed = self.returns.push(self.lease);
        debug_assert!(pushed.is_ok(), "the queue holds every window there is");
        self.waker.wake();
    }
}

/// Wraps a landed window so that dropping the last of its bytes returns it.
///
/// # Safety
/// Nobody writes the range until the lease was taken from `returns`.
pub(crate) unsafe fn lend_window(
    region: &Arc<Region>,
    range: (u64, u64),
    lease: Lease,
    returns: &Arc<Returns>,
    waker: &Waker,
) -> Bytes {
    Bytes::from_owner(LentWindow {
        region: Arc::clone(region),
        offset: range.0,
        len: range.1,
        lease,
        returns: Arc::clone(returns),
        waker: waker.clone(),
    })
}

/// A load whose windows are lent to the caller instead of flushed: every byte of the plan,
/// in plan order, without a copy. Holding many pieces holds windows, and reads wait.
#[derive(Debug)]
pub struct Lending {
    shared: Arc<Shared>,
    order: Vec<TensorIndex>,
    /// The window being handed out, and its next piece.
    current: Option<(LentFill, u32)>,
}

impl Lending {
    pub(crate) fn new(order: Vec<TensorIndex>, shared: Arc<Shared>) -> Self {
        Self {
            shared,
            order,
            current: None,
        }
    }

    fn piece(&mut self) -> Option<LentPiece> {
        let (fill, next) = self.current.as_mut()?;
        let plan = &fill.plan;
        let fill_plan = &plan.fills[fill.fill as usize];
        let piece = plan.pieces[*next as usize];
        let start = piece.fill_offset as usize;
        let found = LentPiece {
            tensor: self.order[piece.item.0 as usize],
            offset: piece.destination,
            bytes: fill.window.slice(start..start + piece.len as usize),
        };
        *next += 1;
        if *next == fill_plan.pieces.end {
            self.current = None;
        }
        Some(found)
    }

    fn take(&mut self, look: Option<LentFill>) {
        self.current = look.map(|fill| {
            let first = fill.plan.fills[fill.fill as usize].pieces.start;
            (fill, first)
        });
    }

    /// The next piece, waiting until its window has landed; `None` after the last.
    ///
    /// # Errors
    /// The load failed.
    pub fn next_piece(&mut self) -> Result<Option<LentPiece>> {
        if self.current.is_none() {
            let fill = self.shared.wait_for(&self.shared.changed, next_fill)?;
            self.take(fill);
        }
        Ok(self.piece())
    }

    /// [`next_piece`](Self::next_piece) as a future.
    ///
    /// # Errors
    /// As there.
    pub async fn next_piece_async(&mut self) -> Result<Option<LentPiece>> {
        if self.current.is_none() {
            let fill = self
                .shared
                .wait_for_async(&self.shared.changed, next_fill)
                .await?;
            self.take(fill);
        }
        Ok(self.piece())
    }
}

fn next_fill(shared: &Shared) -> Option<Result<Option<LentFill>>> {
    if let Some(fill) = shared.lent.pop() {
        return Some(Ok(Some(fill)));
    }
    match shared.outcome.get()? {
        Err(error) => Some(Err(error.clone())),
        // The outcome came after the last window: look again.
        Ok(()) => Some(Ok(shared.lent.pop())),
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}
