//! The queue from handles to the ring thread. What nobody is left to take is dropped, so that
//! whoever waits for its answer is told; and the ring thread sees whether there is anything
//! without taking it. Knows no messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Where messages are put; from any thread.
pub(crate) struct Outbox<T> {
    sender: SyncSender<T>,
    waiting: Arc<AtomicUsize>,
}

impl<T> fmt::Debug for Outbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// Where they are taken.
pub(crate) struct Inbox<T> {
    receiver: Receiver<T>,
    waiting: Arc<AtomicUsize>,
}

/// A queue for `capacity` messages.
pub(crate) fn inbox<T>(capacity: usize) -> (Outbox<T>, Inbox<T>) {
    let (sender, receiver) = sync_channel(capacity);
    let waiting = Arc::new(AtomicUsize::new(0));
    let outbox = Outbox {
        sender,
        waiting: Arc::clone(&waiting),
    };
    (outbox, Inbox { receiver, waiting })
}

/// Nobody takes messages any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl<T> Outbox<T> {
    /// Puts a message in; waits while the queue is full.
    pub(crate) fn send(&self, message: T) -> Result<(), Closed> {
        // Before the message is there: a taker that sees none must find none.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.sender.send(message).map_err(|_unsent| Closed)
    }
}

impl<T> Inbox<T> {
    /// The next message.
    pub(crate) fn take(&self) -> Option<T> {
        let message = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Some(message)
    }

    /// Whether there is none; one that is about to be there counts.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_are_seen_before() {
        let (outbox, inbox) = inbox(2);
        assert!(inbox.is_empty() && inbox.take().is_none());
        for message in [1, 2] {
            outbox.send(message).expect("open");
            assert!(!inbox.is_empty());
        }
        assert_eq!(
            [inbox.take(), inbox.take(), inbox.take()],
            [Some(1), Some(2), None]
        );
        assert!(inbox.is_empty());
    }

    /// Who waits for an answer that is part of a message is not left waiting.
    #[test]
    fn what_nobody_takes_is_dropped() {
        for _ in 0..1000 {
            let (outbox, inbox) = inbox(4);
            let message = Arc::new(());
            let closes = std::thread::spawn(move || drop(inbox));
            for _ in 0..3 {
                let _closed = outbox.send(Arc::clone(&message));
            }
            closes.join().expect("dropped");
            assert_eq!(Arc::strong_count(&message), 1, "stranded");
            assert_eq!(outbox.send(message), Err(Closed));
        }
    }
}
