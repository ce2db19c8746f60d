//! What is left of a transport whose device was let go: it remembers what it was, and every
//! command ends at once. Knows no device.
//!
//! unsafe: implements the unsafe method of a transport.
#![expect(unsafe_code, reason = "implements the unsafe method of a transport")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::waiting::readable;
use super::{Done, Incidents, Io, IoError, MemoryId, Transport, TransportLimits};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::TargetMemory;
use crate::namespace::Namespace;
use crate::status::Status;

/// Takes the place of a transport, so that its device is let go, and whoever asks is told.
#[derive(Debug)]
pub struct Withdrawn {
    namespace: Namespace,
    limits: TransportLimits,
    incidents: Incidents,
    /// Taken, and not told of their end yet.
    refused: Vec<u64>,
}

impl Withdrawn {
    /// In the place of a transport that has nothing in flight.
    #[must_use]
    pub fn of(transport: &dyn Transport) -> Self {
        Self {
            namespace: *transport.namespace(),
            limits: transport.limits(),
            incidents: transport.incidents(),
            refused: Vec::new(),
        }
    }
}

impl Transport for Withdrawn {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn limits(&self) -> TransportLimits {
        self.limits
    }

    fn attach(&mut self, _memory: Arc<dyn TargetMemory>, _register: bool) -> Result<MemoryId> {
        let what = "the drive was removed, or given to another driver";
        Err(Error::new(ErrorKind::Gone, what).remedy("open it anew when it is back"))
    }

    fn is_registered(&self, _memory: MemoryId) -> bool {
        false
    }

    fn detach(&mut self, _memory: MemoryId) {}

    unsafe fn submit(&mut self, io: Io) -> std::result::Result<(), Io> {
        self.refused.push(io.token);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<()> {
        done.extend(self.refused.drain(..).map(|token| Done {
            token,
            result: Err(IoError::Gone),
        }));
        Ok(())
    }

    fn wait(&mut self, other: BorrowedFd<'_>, span: Option<Duration>) -> Result<()> {
        match self.refused.is_empty() {
            true => readable(&[other], span).map(|_any| ()),
            false => Ok(()),
        }
    }

    fn in_flight(&self) -> usize {
        self.refused.len()
    }

    fn retry_delay(&self, _status: Status) -> Duration {
        Duration::ZERO
    }

    fn incidents(&self) -> Incidents {
        self.incidents
    }
}
