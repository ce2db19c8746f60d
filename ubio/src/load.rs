//! What a caller holds of a load: tensors as they become visible in plan order, or all of
//! them; windows lent without a copy. Works under any executor, and without one. Dropping a
//! handle cancels its load and is always safe: memory stays until no device writes it.
//!
//! unsafe: gives out slices of memory that is final.
#![expect(
    unsafe_code,
    reason = "visible tensors and lent windows are no longer written"
)]

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use crossbeam_queue::SegQueue;
use event_listener::{Event, Listener};
use fs_adapter::placement::PlacedTensor;
use fs_adapter::{Model, Tensor, TensorIndex};
use ubio_core::{Lease, StreamPlan};

use crate::error::{Error, ErrorKind, Result};
use crate::source::Waker;
use crate::sys::claim::Claim;
use crate::sys::memory::Region;
use crate::vram::VramBuffer;

/// What handle and ring thread share of one load: atomics, and an event for waiters.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Items `0..visible` may be used.
    visible: AtomicU32,
    visible_bytes: AtomicU64,
    /// Bytes that the source was asked for.
    requested_bytes: AtomicU64,
    /// Items the consumer is done with.
    consumed: AtomicU32,
    cancelled: AtomicBool,
    outcome: OnceLock<Result<()>>,
    /// Something became visible or was lent, or it is over.
    changed: Event,
    /// It is over: whoever waits for that alone is not woken before.
    ended: Event,
    lent: SegQueue<LentFill>,
    waker: Waker,
    /// The process it was started in.
    pid: u32,
}

impl Shared {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            visible: AtomicU32::new(0),
            visible_bytes: AtomicU64::new(0),
            requested_bytes: AtomicU64::new(0),
            consumed: AtomicU32::new(0),
            cancelled: AtomicBool::new(false),
            outcome: OnceLock::new(),
            changed: Event::new(),
            ended: Event::new(),
            lent: SegQueue::new(),
            waker,
            pid: std::process::id(),
        })
    }

    pub(crate) fn show(&self, visible: u32, bytes: u64) {
        self.visible.store(visible, Ordering::Release);
        self.visible_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.changed.notify(usize::MAX);
    }

    pub(crate) fn requested(&self, bytes: u64) {
        self.requested_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn lend(&self, fill: LentFill) {
        self.lent.push(fill);
        // With the fence in `cancel`: whichever of the two comes second sees the other's
        // doing, so no window stays in a queue that nobody will look into again.
        fence(Ordering::SeqCst);
        if self.is_cancelled() {
            self.drop_lent();
        }
        self.changed.notify(usize::MAX);
    }

    fn drop_lent(&self) {
        while self.lent.pop().is_some() {}
    }

    /// The first outcome stays.
    pub(crate) fn finish(&self, outcome: Result<()>) {
        let _first_stays = self.outcome.set(outcome);
        self.changed.notify(usize::MAX);
        self.ended.notify(usize::MAX);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.outcome.get().is_some()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn consumed(&self) -> u32 {
        self.consumed.load(Ordering::Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.drop_lent();
        self.waker.wake();
    }

    /// Blocks until `look` finds something, looking after each event.
    fn wait_for<T>(&self, event: &Event, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            if std::process::id() != self.pid && !self.is_finished() {
                self.finish(Err(forked()));
                continue;
            }
            let listener = event.listen();
            if let Some(found) = look(self) {
                return found;
            }
            listener.wait();
        }
    }

    async fn wait_for_async<T>(
        &self,
        event: &Event,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let listener = event.listen();
            if let Some(found) = look(self) {
                return found;
            }
            listener.await;
        }
    }

    /// Blocks until it is over.
    pub(crate) fn wait_finished(&self) -> Result<()> {
        self.wait_for(&self.ended, |shared| shared.outcome.get().cloned())
    }

    /// Waits until it is over.
    pub(crate) async fn wait_finished_async(&self) -> Result<()> {
        self.wait_for_async(&self.ended, |shared| shared.outcome.get().cloned())
            .await
    }

    /// Whether item `next` is there: `Some(Ok(true))` yes, `Some(Ok(false))` there are no
    /// more, `None` not yet.
    fn item(&self, next: u32, items: u32) -> Option<Result<bool>> {
        // An image without tensors becomes visible too, as an item nobody asked for.
        if next < self.visible.load(Ordering::Acquire).min(items) {
            return Some(Ok(true));
        }
        match self.outcome.get()? {
            Err(error) => Some(Err(error.clone())),
            Ok(()) if next >= items => Some(Ok(false)),
            // The outcome came after the last items: look again.
            Ok(()) => (next < self.visible.load(Ordering::Acquire)).then_some(Ok(true)),
        }
    }
}

/// One tensor, as the consumer sees it.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Name, type and shape.
    pub tensor: &'a Tensor,
    /// Its bytes in host memory.
    pub bytes: &'a [u8],
}

/// Where everything of a load is; common to running and finished ones.
#[derive(Debug)]
struct Placed {
    model: Arc<Model>,
    /// In plan order.
    tensors: Vec<PlacedTensor>,
    buffer: VramBuffer,
    /// As long as tensors can be looked at nobody writes them.
    claim: Arc<Claim>,
}

impl Placed {
    fn view(&self, index: usize) -> TensorView<'_> {
        let placed = &self.tensors[index];
        let VramBuffer::Host(region) = &self.buffer;
        // SAFETY: only called for visible items; those were landed, flushed and are never
        // written again as long as the buffer lives.
        let bytes = unsafe { region.bytes(placed.offset, placed.len) };
        TensorView {
            tensor: &self.model.tensors()[placed.tensor],
            bytes,
        }
    }
}

/// How far a load is. Keeps neither the load nor its memory alive.
#[derive(Clone, Debug)]
pub struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    /// Bytes of tensors that are visible by now.
    pub fn visible_bytes(&self) -> u64 {
        self.shared.visible_bytes.load(Ordering::Relaxed)
    }

    /// Bytes the source was asked for by now: ahead of what has landed by what is in flight,
    /// and larger than the load if reads had to be repeated.
    pub fn requested_bytes(&self) -> u64 {
        self.shared.requested_bytes.load(Ordering::Relaxed)
    }
}

/// A load under way.
#[derive(Debug)]
pub struct Load {
    placed: Placed,
    shared: Arc<Shared>,
    next: u32,
    finished: bool,
}

impl Load {
    pub(crate) fn new(
        model: Arc<Model>,
        tensors: Vec<PlacedTensor>,
        buffer: VramBuffer,
        claim: Arc<Claim>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            placed: Placed {
                model,
                tensors,
                buffer,
                claim,
            },
            shared,
            next: 0,
            finished: false,
        }
    }

    fn items(&self) -> u32 {
        u32::try_from(self.placed.tensors.len()).expect("tensors are counted in 32 bits")
    }

    /// Bytes of tensors that are visible by now.
    pub fn visible_bytes(&self) -> u64 {
        self.shared.visible_bytes.load(Ordering::Relaxed)
    }

    /// How far it is, to be asked from anywhere, also while the load is awaited.
    pub fn watch(&self) -> Watch {
        Watch {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Whether it is over, well or not.
    pub fn is_finished(&self) -> bool {
        self.shared.is_finished()
    }

    /// The next tensor in plan order, waiting until it is visible; `None` after the last.
    ///
    /// # Errors
    /// The load failed; tensors seen so far may be of a file that changed.
    pub fn next_tensor(&mut self) -> Result<Option<TensorView<'_>>> {
        let (next, items) = (self.next, self.items());
        let shared = &self.shared;
        let there = shared.wait_for(&shared.changed, |shared| shared.item(next, items))?;
        Ok(self.advance(there))
    }

    /// [`next_tensor`](Self::next_tensor) as a future.
    ///
    /// # Errors
    /// As there.
    pub async fn next_tensor_async(&mut self) -> Result<Option<TensorView<'_>>> {
        let (next, items) = (self.next, self.items());
        let shared = &self.shared;
        let there = shared
            .wait_for_async(&shared.changed, |shared| shared.item(next, items))
            .await?;
        Ok(self.advance(there))
    }

    fn advance(&mut self, there: bool) -> Option<TensorView<'_>> {
        there.then(|| {
            self.next += 1;
            self.placed.view(self.next as usize - 1)
        })
    }

    /// Says that the first `tensors` of the plan are used up: with a lookahead, reads go on
    /// only so far beyond this. Counts beyond what is visible hold once it is.
    /// [`wait`](Self::wait) consumes everything.
    pub fn consumed(&self, tensors: u32) {
        self.shared.consumed.fetch_max(tensors, Ordering::AcqRel);
        self.shared.waker.wake();
    }

    /// Waits for all of it.
    ///
    /// # Errors
    /// The first failure; nothing of the load may be used then.
    pub fn wait(mut self) -> Result<Loaded> {
        self.consumed(u32::MAX);
        self.shared.wait_finished()?;
        Ok(self.take_loaded())
    }

    fn take_loaded(&mut self) -> Loaded {
        self.finished = true;
        let placed = Placed {
            model: Arc::clone(&self.placed.model),
            tensors: std::mem::take(&mut self.placed.tensors),
            buffer: self.placed.buffer.clone(),
            claim: Arc::clone(&self.placed.claim),
        };
        Loaded { placed }
    }
}

impl IntoFuture for Load {
    type Output = Result<Loaded>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        self.consumed(u32::MAX);
        Box::pin(async move {
            self.shared.wait_finished_async().await?;
            Ok(self.take_loaded())
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.cancel();
        }
    }
}

/// A finished load: every tensor whole, the file unchanged since it was opened.
#[derive(Debug)]
pub struct Loaded {
    placed: Placed,
}

impl Loaded {
    /// The model it was loaded from.
    pub fn model(&self) -> &Arc<Model> {
        &self.placed.model
    }

    /// The memory it is in.
    pub fn buffer(&self) -> &VramBuffer {
        &self.placed.buffer
    }

    /// The whole destination: header, tensors and padding as placed, then zeros up to the
    /// buffer's end.
    pub fn bytes(&self) -> &[u8] {
        let VramBuffer::Host(region) = &self.placed.buffer;
        // SAFETY: the load is over: all of it has landed, and nothing writes it any more.
        unsafe { region.bytes(0, region.len_bytes()) }
    }

    /// All tensors, in plan order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        (0..self.placed.tensors.len()).map(|index| self.placed.view(index))
    }

    /// One tensor by name, if it was loaded.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let wanted = self.placed.model.tensors().find(name)?;
        let index = self
            .placed
            .tensors
            .iter()
            .position(|placed| placed.tensor == wanted)?;
        Some(self.placed.view(index))
    }

    /// Where the tensors are in the buffer, in plan order.
    pub fn placed(&self) -> &[PlacedTensor] {
        &self.placed.tensors
    }
}

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

/// The end of a load for a child process: its ring thread is the parent's.
fn forked() -> Error {
    Error::new(ErrorKind::Unsupported, "the load was started before a fork")
        .remedy("open an engine in the child process")
}

/// The end of a load that the ring thread never came to.
pub(crate) fn engine_gone() -> Error {
    Error::new(
        ErrorKind::Cancelled,
        "the engine was closed before the load was over",
    )
}
