//! One transport under test: submits, waits, and keeps count of what has to come back.
//!
//! unsafe: submits commands into memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the targets are the suite's own"
)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme::lba::Lba;
use nvme::memory::TargetMemory;
use nvme::transport::{Direction, Done, Io, IoError, MemoryId, Transport};
use ubio::source::Waker;

use super::TransportFixture;
use crate::guarded::{GUARD_BYTES, Guarded};

/// How long anything may take before the transport counts as stuck.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Session<'a> {
    pub(super) fixture: &'a dyn TransportFixture,
    /// Before the memory of the case, so that it is dropped first.
    pub(super) transport: Box<dyn Transport>,
    waiting: HashSet<u64>,
    next_token: u64,
    pub(super) waker: Waker,
}

impl<'a> Session<'a> {
    pub(super) fn open(fixture: &'a dyn TransportFixture) -> Self {
        Self {
            fixture,
            transport: fixture.open(),
            waiting: HashSet::new(),
            next_token: 1 << 40,
            waker: Waker::new().expect("an eventfd"),
        }
    }

    /// Memory of the fixture's kind with `len_bytes` between its guards.
    pub(super) fn memory(&self, len_bytes: u64) -> Guarded {
        let region = self.fixture.memory(len_bytes + 2 * GUARD_BYTES);
        Guarded::of(region, len_bytes)
    }

    /// Bytes of a block.
    pub(super) fn block(&self) -> u64 {
        self.transport.namespace().block.bytes().into()
    }

    pub(super) fn largest(&self) -> u64 {
        self.transport.limits().transfer_bytes.into()
    }

    pub(super) fn attach(&mut self, memory: &Guarded, register: bool) -> MemoryId {
        let region: Arc<dyn TargetMemory> = Arc::clone(memory.region()) as _;
        let id = self.transport.attach(region, register);
        let id = id.expect("room for memory");
        if register && self.fixture.registers() {
            assert!(self.transport.is_registered(id), "not registered");
        }
        id
    }

    /// A command over `len` bytes from `offset` of the namespace.
    pub(super) fn io(
        &mut self,
        direction: Direction,
        (offset, len): (u64, u64),
        memory: MemoryId,
        at: u64,
    ) -> Io {
        self.next_token += 1;
        let block = self.transport.namespace().block;
        Io {
            token: self.next_token,
            direction,
            lba: Lba(offset / u64::from(block.bytes())),
            blocks: block.blocks(len).expect("whole blocks"),
            memory,
            offset: at,
        }
    }

    pub(super) fn submit(&mut self, io: Io) -> Result<(), Io> {
        // SAFETY: the cases give every command memory of its own and look at it only after
        // its end.
        unsafe { self.transport.submit(io) }?;
        assert!(self.waiting.insert(io.token), "a case uses a token twice");
        assert_eq!(self.transport.in_flight(), self.waiting.len(), "in flight");
        Ok(())
    }

    pub(super) fn must_submit(&mut self, io: Io) {
        assert!(self.submit(io).is_ok(), "refused, and there is room");
    }

    pub(super) fn poll(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        self.transport.poll(&mut done).expect("it is not broken");
        for end in &done {
            assert!(
                self.waiting.remove(&end.token),
                "{end:?} was not under way: unknown, or ended twice"
            );
        }
        assert_eq!(self.transport.in_flight(), self.waiting.len(), "in flight");
        done
    }

    /// Waits until nothing is under way.
    pub(super) fn finish(&mut self) -> Vec<Done> {
        let start = Instant::now();
        let mut all = self.poll();
        while !self.waiting.is_empty() {
            let span = Some(Duration::from_millis(100));
            let waited = self.transport.wait(self.waker.event(), span);
            waited.expect("the wait itself");
            all.extend(self.poll());
            assert!(
                start.elapsed() < PATIENCE,
                "{} commands never ended",
                self.waiting.len()
            );
        }
        all
    }

    /// One command, to its end.
    pub(super) fn run(&mut self, io: Io) -> Result<(), IoError> {
        self.must_submit(io);
        let done = self.finish();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].token, io.token);
        done[0].result
    }
}
