//! Which commands a controller was given, and which completions it wrote: what a driver may say
//! has ended. Knows no memory and no registers.

use std::collections::HashMap;

use nvme_sys::cqe::CompletionEntry;
use nvme_sys::opcode::admin;
use nvme_sys::sqe::SubmissionEntry;

use super::liar::halves;

/// A queue and an identifier.
pub(super) type Name = (u16, u16);

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Where commands of a queue lie, and how many at most; known longer than the queue.
    rings: HashMap<u16, (u64, u16)>,
    /// By the address of its data.
    fetched: HashMap<u64, Name>,
    /// How often, by name and status.
    written: HashMap<(Name, u16), u64>,
}

impl Ledger {
    pub(super) fn fetch(&mut self, queue: u16, entry: &SubmissionEntry) {
        if queue > 0 {
            let name = (queue, entry.command_id.get());
            self.fetched.insert(entry.data1.get(), name);
        } else if entry.opcode == admin::CREATE_SQ {
            // Whether it creates the queue or only says so.
            let [id, last] = halves(entry.cdw10.get());
            let ring = (entry.data1.get(), last.saturating_add(1));
            self.rings.insert(id, ring);
        }
    }

    pub(super) fn write(&mut self, queue: u16, entry: &CompletionEntry) {
        if entry.sq_id.get() == queue {
            // Code and type of zero are success, whatever the other bits are.
            let status = Some(entry.status()).filter(|status| status & 0x7ff != 0);
            let name = (queue, entry.command_id.get());
            *self.written.entry((name, status.unwrap_or(0))).or_default() += 1;
        }
    }

    /// The command whose data is at an address.
    pub(super) fn fetched(&self, address: u64) -> Option<Name> {
        self.fetched.get(&address).copied()
    }

    /// Forgets the command whose data is at an address; whether a completion of it with this
    /// status was written and not taken yet. That may be before it was fetched: then it is
    /// what lies in a ring, which `read` gives.
    pub(super) fn take(
        &mut self,
        address: u64,
        status: u16,
        read: impl Fn(u64) -> Option<SubmissionEntry>,
    ) -> bool {
        let fetched = self.fetched.remove(&address);
        let entries = self.rings.iter().flat_map(|(&queue, &(start, entries))| {
            (0..u64::from(entries)).map(move |index| (queue, start + index * 64))
        });
        let queued = entries.filter_map(|(queue, at)| {
            let entry = read(at)?;
            (entry.data1.get() == address).then(|| (queue, entry.command_id.get()))
        });
        fetched.into_iter().chain(queued).any(|name| {
            let written = self.written.get_mut(&(name, status));
            written.is_some_and(|count| {
                let is_there = *count > 0;
                *count -= u64::from(is_there);
                is_there
            })
        })
    }
}
