//! What a caller holds of a load: tensors as they become visible in plan order, or all of
//! them. Works under any executor, and without one. Dropping a handle cancels its load and is
//! always safe: memory stays until no device writes it.
//!
//! unsafe: gives out slices of memory that is final.
#![expect(unsafe_code, reason = "visible tensors are no longer written")]

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};

use crossbeam_queue::SegQueue;
use event_listener::{Event, EventListener, Listener};
use fs_adapter::placement::PlacedTensor;
use fs_adapter::{Model, Tensor};

use crate::error::{Error, ErrorKind, Result};
use crate::source::Waker;
use crate::sys::claim::Claim;
use crate::vram::VramBuffer;

pub use self::lending::{Lending, LentPiece};
pub(crate) use self::lending::{LentFill, Returns, lend_window};

mod lending;

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
            if self.ends_by_fork() {
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
        let mut listener: Option<EventListener> = None;
        poll_fn(|context| {
            loop {
                if let Some(found) = look(self) {
                    return Poll::Ready(found);
                }
                if self.ends_by_fork() {
                    continue;
                }
                match &mut listener {
                    // Something may have come before it listened.
                    None => listener = Some(event.listen()),
                    Some(listening) => {
                        ready!(Pin::new(listening).poll(context));
                        listener = None;
                    }
                }
            }
        })
        .await
    }

    /// In a forked child there is no ring thread: a load that was under way ends there.
    fn ends_by_fork(&self) -> bool {
        let forked_away = std::process::id() != self.pid && !self.is_finished();
        if forked_away {
            self.finish(Err(forked()));
        }
        forked_away
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
    /// Of the buffer, from its first byte on.
    len_bytes: u64,
    /// As long as tensors can be looked at nobody writes them.
    claim: Arc<Claim>,
}

impl Placed {
    fn view(&self, index: usize) -> TensorView<'_> {
        let placed = &self.tensors[index];
        let region = self.buffer.region();
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
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
        }
    }

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
        (buffer, len_bytes): (VramBuffer, u64),
        claim: Arc<Claim>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            placed: Placed {
                model,
                tensors,
                buffer,
                len_bytes,
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
        Watch::new(&self.shared)
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
            len_bytes: self.placed.len_bytes,
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

    /// All that was loaded: header, tensors and padding as placed, as many bytes as the
    /// placement has. The buffer may be larger.
    pub fn bytes(&self) -> &[u8] {
        let region = self.placed.buffer.region();
        // SAFETY: the load is over: all of it has landed, and nothing writes it any more.
        unsafe { region.bytes(0, self.placed.len_bytes) }
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
