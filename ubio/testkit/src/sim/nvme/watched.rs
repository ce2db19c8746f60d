//! The transport under test behind a ledger: what is in flight and where it may write, held
//! against every write that the controller does. Knows no windows.
//!
//! unsafe: implements the unsafe method by handing it on.
#![expect(unsafe_code, reason = "hands commands on to the transport it watches")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme::device::Device;
use nvme::memory::TargetMemory;
use nvme::namespace::Namespace;
use nvme::status::Status;
use nvme::transport::user::UserTransport;
use nvme::transport::{Done, Incidents, Io, IoError, MemoryId, Transport, TransportLimits};
use nvme_emulator::Emulator;
use nvme_emulator::observe::{DmaWrite, WriteKind};

/// Between two looks of the transport at what is overdue.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A command with the transport.
#[derive(Clone, Copy, Debug)]
struct Operation {
    token: u64,
    /// This process's address of its first byte.
    start: u64,
    len_bytes: u64,
    since: Duration,
    /// When it was first seen to take longer than it may.
    long: Option<Duration>,
    surely_long: bool,
}

/// What is in flight, and what was found.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Bus addresses of attached memory: this process's address, and bytes. Bus addresses are
    /// never given twice.
    places: BTreeMap<u64, (u64, u64)>,
    in_flight: Vec<Operation>,
    /// When the transport last looked at its clock: in polls, and when it gets to work again.
    last_look: Duration,
    /// The first write that was not allowed.
    pub(crate) wrong: Option<String>,
    /// Writes of data into attached memory.
    pub(crate) writes: u64,
    /// Operations that ended, and those that no completion ended.
    pub(crate) ended: u64,
    pub(crate) given_up: u64,
    /// Operations that may, and those that must, have been found overdue.
    pub(crate) long: u64,
    pub(crate) surely_long: u64,
}

impl Ledger {
    /// Operations that may write into these bytes.
    pub(crate) fn writers(&self, start: u64, len_bytes: u64) -> usize {
        let overlaps = |known: &&Operation| {
            known.start < start + len_bytes && start < known.start + known.len_bytes
        };
        self.in_flight.iter().filter(overlaps).count()
    }

    /// Operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Nothing is in flight any more, since its transport is gone.
    pub(crate) fn close(&mut self) {
        self.in_flight.clear();
    }

    /// A write of the controller.
    pub(crate) fn judge(&mut self, write: &DmaWrite) {
        let address = write.run.start.0;
        let place = self.places.range(..=address).next_back();
        let place = place.filter(|(start, (_, len))| address < **start + *len);
        let host = place.map(|(start, (host, _))| host + (address - start));
        // The emulator's own word for a violation is not used: it has to be found.
        let data = matches!(write.kind, WriteKind::Data | WriteKind::Violation);
        let allowed = match host {
            Some(host) if data && write.queue > 0 => {
                self.writes += 1;
                let end = host + write.run.len_bytes;
                let mut all = self.in_flight.iter();
                all.any(|known| known.start <= host && end <= known.start + known.len_bytes)
            }
            // Its queues, and what admin commands bring, are elsewhere.
            Some(_) => false,
            None => !data || write.queue == 0,
        };
        if !allowed && self.wrong.is_none() {
            self.wrong = Some(format!(
                "I2: {write:?} (in attached memory: {}) is of nothing in flight",
                host.is_some()
            ));
        }
    }

    /// Before a poll: which operations may be found to take too long.
    fn age(&mut self, now: Duration, abort_after: Duration) {
        self.last_look = now;
        for operation in &mut self.in_flight {
            let old = now.saturating_sub(operation.since) >= abort_after;
            if old && operation.long.is_none() {
                operation.long = Some(now);
                self.long += 1;
            }
        }
    }

    /// After a poll: what lived through a look at its age.
    fn survived(&mut self, now: Duration) {
        for operation in &mut self.in_flight {
            let looked = operation
                .long
                .is_some_and(|long| now.saturating_sub(long) >= LOOK_EVERY);
            if looked && !operation.surely_long {
                operation.surely_long = true;
                self.surely_long += 1;
            }
        }
    }

    fn end(&mut self, done: &Done) {
        let known = self
            .in_flight
            .iter()
            .position(|known| known.token == done.token);
        let known = known.unwrap_or_else(|| panic!("I3: {done:?} of nothing in flight"));
        self.in_flight.swap_remove(known);
        self.ended += 1;
        self.given_up += u64::from(matches!(done.result, Err(IoError::Aborted | IoError::Gone)));
    }
}

/// The transport, watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) inner: Rc<RefCell<UserTransport>>,
    pub(crate) emulator: Arc<Emulator>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) namespace: Namespace,
    pub(crate) abort_after: Duration,
    /// This process's address of each attached memory.
    pub(crate) starts: Vec<u64>,
}

pub(crate) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for Watched {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn limits(&self) -> TransportLimits {
        self.inner.borrow().limits()
    }

    fn attach(&mut self, memory: Arc<dyn TargetMemory>, register: bool) -> nvme::Result<MemoryId> {
        let raw = memory.raw();
        let start = raw.start().as_ptr() as u64;
        let mut inner = self.inner.borrow_mut();
        let id = inner.attach(memory, register)?;
        let index = id.0 as usize;
        self.starts.resize(self.starts.len().max(index + 1), 0);
        self.starts[index] = start;
        let mut host = start;
        let mut ledger = lock(&self.ledger);
        for run in inner.runs(id) {
            ledger.places.insert(run.start.0, (host, run.len_bytes));
            host += run.len_bytes;
        }
        Ok(id)
    }

    fn is_registered(&self, memory: MemoryId) -> bool {
        self.inner.borrow().is_registered(memory)
    }

    fn detach(&mut self, memory: MemoryId) {
        self.inner.borrow_mut().detach(memory);
    }

    unsafe fn submit(&mut self, io: Io) -> Result<(), Io> {
        // SAFETY: promised by the caller.
        unsafe { self.inner.borrow_mut().submit(io) }?;
        let mut ledger = lock(&self.ledger);
        if ledger.in_flight.is_empty() {
            ledger.last_look = self.emulator.now();
        }
        let since = ledger.last_look;
        ledger.in_flight.push(Operation {
            token: io.token,
            start: self.starts[io.memory.0 as usize] + io.offset,
            len_bytes: self.namespace.block.len_bytes(io.blocks),
            since,
            long: None,
            surely_long: false,
        });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> nvme::Result<()> {
        let now = self.emulator.now();
        lock(&self.ledger).age(now, self.abort_after);
        let before = done.len();
        let mut inner = self.inner.borrow_mut();
        inner.poll(done)?;
        let mut ledger = lock(&self.ledger);
        done[before..].iter().for_each(|done| ledger.end(done));
        ledger.survived(now);
        assert_eq!(
            inner.in_flight(),
            ledger.in_flight.len(),
            "I3: commands in flight"
        );
        Ok(())
    }

    fn wait(&mut self, other: BorrowedFd<'_>, span: Option<Duration>) -> nvme::Result<()> {
        self.inner.borrow_mut().wait(other, span)
    }

    fn in_flight(&self) -> usize {
        self.inner.borrow().in_flight()
    }

    fn retry_delay(&self, status: Status) -> Duration {
        self.inner.borrow().retry_delay(status)
    }

    fn incidents(&self) -> Incidents {
        self.inner.borrow().incidents()
    }
}
