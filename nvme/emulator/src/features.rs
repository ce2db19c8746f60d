//! What can be set: features (Base 5.27), events (Base 5.2), the error log (Base 5.16.1.2).
//! Plain state; moves no data.

use std::collections::VecDeque;
use std::time::Duration;

use nvme_sys::identify::OAES_NAMESPACE_ATTRIBUTE;
use nvme_sys::opcode::feature;

use crate::config::Config;
use crate::controller::Job;

/// An event that an asynchronous event request tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    kind: u8,
    info: u8,
    log_page: u8,
}

impl Event {
    /// A doorbell of a queue that is not there was written.
    pub(crate) const INVALID_DOORBELL: Self = Self::error(0);
    /// A doorbell was written with a value that cannot be.
    pub(crate) const INVALID_DOORBELL_VALUE: Self = Self::error(1);
    /// Namespace Attribute Changed, told of by the list of changed namespaces.
    const NAMESPACE_CHANGED: Self = Self {
        kind: 2,
        info: 0,
        log_page: CHANGED_NAMESPACES,
    };

    const fn error(info: u8) -> Self {
        let (kind, log_page) = (0, 1);
        Self {
            kind,
            info,
            log_page,
        }
    }

    /// Dword 0 of the completion.
    pub(crate) fn result(self) -> u32 {
        u32::from(self.kind) | u32::from(self.info) << 8 | u32::from(self.log_page) << 16
    }
}

/// The log page with the list of changed namespaces.
pub(crate) const CHANGED_NAMESPACES: u8 = 4;

/// Events that wait for a request.
const MAX_EVENTS: usize = 16;

/// Values that only have to be kept, and what they are at first.
const KEPT: &[(u8, u32)] = &[
    (0x01, 0), // arbitration
    (0x02, 0), // power management
    (0x04, 0), // temperature threshold
    (0x05, 0), // error recovery
    (0x09, 0), // interrupt vector configuration
    (0x0a, 0), // write atomicity
    (feature::ASYNC_EVENT_CONFIG, 0),
];

#[derive(Debug)]
pub(crate) struct Features {
    kept: Vec<(u8, u32)>,
    /// Volatile write cache: `None` where there is none.
    pub(crate) write_cache: Option<bool>,
    /// Number of queues of each kind that may be made: submission, completion.
    pub(crate) queues: [u16; 2],
    most_queues: u16,
    coalescing_value: u32,
    /// Completions that an interrupt waits for, and how long it waits.
    pub(crate) coalescing: Option<(u32, Duration)>,
    events: VecDeque<Event>,
    /// By kind of event, the log page that has to be read before another one is told of.
    masked: [Option<u8>; 8],
    /// Namespaces that have changed since the list was read.
    changed: Vec<u32>,
    errors: u64,
    last_error: [u8; 64],
}

impl Features {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            kept: KEPT.to_vec(),
            write_cache: config.volatile_write_cache.then_some(true),
            queues: [config.io_queues; 2],
            most_queues: config.io_queues,
            coalescing_value: 0,
            coalescing: None,
            events: VecDeque::new(),
            masked: [None; 8],
            changed: Vec::new(),
            errors: 0,
            last_error: [0; 64],
        }
    }

    /// The value of a feature, now or at first; `None` where it is not there.
    pub(crate) fn get(&self, id: u8, first: bool) -> Option<u32> {
        let kept = |table: &[(u8, u32)]| {
            let found = table.iter().find(|(kept, _)| *kept == id);
            found.map(|(_, value)| *value)
        };
        match id {
            feature::NUMBER_OF_QUEUES => Some(self.number_of_queues(first)),
            feature::VOLATILE_WRITE_CACHE => self.write_cache.map(|on| u32::from(on || first)),
            feature::INTERRUPT_COALESCING if first => Some(0),
            feature::INTERRUPT_COALESCING => Some(self.coalescing_value),
            _ if first => kept(KEPT),
            _ => kept(&self.kept),
        }
    }

    fn number_of_queues(&self, first: bool) -> u32 {
        let [submissions, completions] = if first {
            [self.most_queues; 2]
        } else {
            self.queues
        };
        u32::from(submissions - 1) | u32::from(completions - 1) << 16
    }

    /// Sets a feature; the result of the command, or `None` where it is not there.
    pub(crate) fn set(&mut self, id: u8, value: u32) -> Option<u32> {
        match id {
            feature::NUMBER_OF_QUEUES => {
                let asked = |field: u32| {
                    let zero_based = u16::try_from(field & 0xffff).expect("16 bits");
                    zero_based.saturating_add(1).min(self.most_queues)
                };
                self.queues = [asked(value), asked(value >> 16)];
                return Some(self.number_of_queues(false));
            }
            feature::VOLATILE_WRITE_CACHE => *self.write_cache.as_mut()? = value & 1 != 0,
            feature::INTERRUPT_COALESCING => {
                self.coalescing_value = value & 0xffff;
                let (threshold, time) = ((value & 0xff) + 1, value >> 8 & 0xff);
                let span = Duration::from_micros(u64::from(time) * 100);
                self.coalescing = (threshold > 1 && time > 0).then_some((threshold, span));
            }
            _ => self.kept.iter_mut().find(|(kept, _)| *kept == id)?.1 = value,
        }
        Some(0)
    }

    pub(crate) fn report(&mut self, event: Event) {
        // One of a kind is told of until its log page is read; there the rest would be.
        if self.events.len() < MAX_EVENTS && !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    /// A namespace is not what it was; told of where the host wants to know.
    pub(crate) fn namespace_changed(&mut self, id: u32) {
        if !self.changed.contains(&id) {
            self.changed.push(id);
        }
        let wanted = self.get(feature::ASYNC_EVENT_CONFIG, false).unwrap_or(0);
        if wanted & OAES_NAMESPACE_ATTRIBUTE != 0 {
            self.report(Event::NAMESPACE_CHANGED);
        }
    }

    /// The list of changed namespaces; zeroes after its end.
    pub(crate) fn changed_namespaces(&self) -> Vec<u8> {
        let mut data: Vec<u8> = (self.changed.iter())
            .flat_map(|id| id.to_le_bytes())
            .collect();
        data.resize(4096, 0);
        data
    }

    /// The next event that may be told of.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let masked = |event: &Event| self.masked[usize::from(event.kind)].is_some();
        let at = self.events.iter().position(|event| !masked(event))?;
        let event = self.events.remove(at)?;
        self.masked[usize::from(event.kind)] = Some(event.log_page);
        Some(event)
    }

    /// A log page was read, and its kind of events may be told of again.
    pub(crate) fn unmask(&mut self, log_page: u8) {
        for masked in &mut self.masked {
            masked.take_if(|page| *page == log_page);
        }
        if log_page == CHANGED_NAMESPACES {
            self.changed.clear();
        }
    }

    /// Notes a command that failed.
    pub(crate) fn error(&mut self, job: &Job, status: u16) {
        self.errors += 1;
        let entry = &mut self.last_error;
        entry[..8].copy_from_slice(&self.errors.to_le_bytes());
        entry[8..10].copy_from_slice(&job.queue.to_le_bytes());
        entry[10..12].copy_from_slice(&job.command_id().to_le_bytes());
        entry[12..14].copy_from_slice(&(status << 1).to_le_bytes());
        let [low, high] = [job.entry.cdw10.get(), job.entry.cdw11.get()].map(u32::to_le_bytes);
        entry[16..20].copy_from_slice(&low);
        entry[20..24].copy_from_slice(&high);
        entry[24..28].copy_from_slice(&job.entry.namespace_id.get().to_le_bytes());
    }

    /// Base figure 207: the newest entry, the only one that is kept.
    pub(crate) fn error_log(&self) -> [u8; 64] {
        self.last_error
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }
}
