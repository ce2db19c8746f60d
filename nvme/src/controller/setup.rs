//! Setting a controller up, one admin command after the other: who it is, its namespace, its
//! queues. The same steps after a reset, which then have to find what was there before.

use std::sync::Arc;

use nvme_sys::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, OACS_DOORBELL_BUFFER, ONCS_COMPARE,
    SGLS_SUPPORT_MASK,
};
use nvme_sys::opcode::feature;
use nvme_sys::register::{cq_doorbell, sq_doorbell};
use zerocopy::FromBytes;

use super::{ADMIN_TIMEOUT, Admin, Controller, POWER_CYCLE, State, doorbell_pairs};
use crate::command::{Command, QueueEntries, QueueId};
use crate::device::Mapping;
use crate::dma::{DmaRun, PageSize};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::PAGE_BYTES;
use crate::namespace::Namespace;
use crate::prp;
use crate::queue_pair::{Outcome, QueuePair};
use crate::ring::{CompletionRing, Doorbell, Shadow, SubmissionRing};

/// One admin command of the setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Controller,
    Namespace,
    QueueCount,
    DoorbellBuffer,
    /// Of the I/O queue with this index.
    Completions(u16),
    /// Of the I/O queue with this index.
    Submissions(u16),
}

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Serial number, without the padding.
    pub serial: String,
    /// Model, without the padding.
    pub model: String,
    /// Firmware revision, without the padding.
    pub firmware: String,
    /// Largest transfer (MDTS), bytes; `None` for no limit.
    pub mdts_bytes: Option<u64>,
    /// Whether data may be named by SGLs.
    pub sgl: bool,
    /// Whether there is a compare command.
    pub compare: bool,
    /// Whether writes may be lost without a flush.
    pub volatile_write_cache: bool,
    /// Delays before retries, milliseconds, as completions name them.
    pub retry_delays_ms: [u32; 3],
    pub(super) doorbell_buffer: bool,
    pub(super) abort_limit: u16,
    pub(super) event_limit: u16,
}

impl Identity {
    fn new(data: &IdentifyController) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let mdts = data.max_data_transfer;
        // In units of the smallest memory page, which is 4 KiB (checked at open).
        let mdts_bytes =
            (mdts > 0).then(|| PAGE_BYTES.checked_shl(mdts.into()).unwrap_or(u64::MAX));
        Self {
            serial: text(&data.serial),
            model: text(&data.model),
            firmware: text(&data.firmware),
            mdts_bytes: mdts_bytes.filter(|&bytes| bytes > 0),
            sgl: data.sgl_support.get() & SGLS_SUPPORT_MASK != 0,
            compare: data.optional_nvm.get() & ONCS_COMPARE != 0,
            volatile_write_cache: data.volatile_write_cache & 1 != 0,
            retry_delays_ms: data.retry_delays.map(|delay| u32::from(delay.get()) * 100),
            doorbell_buffer: data.optional_admin.get() & OACS_DOORBELL_BUFFER != 0,
            abort_limit: u16::from(data.abort_limit) + 1,
            event_limit: u16::from(data.async_event_limit) + 1,
        }
    }
}

/// Doorbells and event indices in memory.
#[derive(Debug)]
pub(super) struct ShadowPages {
    doorbells: Mapping,
    event_indices: Mapping,
}

impl<O> Controller<O> {
    pub(super) fn begin_setup(&mut self) {
        self.take(Step::Controller);
    }

    /// Sends the command of a step.
    fn take(&mut self, step: Step) {
        let command = match self.command(step) {
            Ok(command) => command,
            Err(error) => return self.die(error),
        };
        self.enter(State::Setup(step));
        let sent = self.admin.submit(command, Admin::Setup(step));
        assert!(sent.is_ok(), "the only admin command under way");
        self.admin.send();
    }

    pub(super) fn check_setup_time(&mut self) {
        if let State::Setup(step) = self.state
            && self.waited() > ADMIN_TIMEOUT
        {
            let what = format!("{} does not answer ({step:?})", self.device.name());
            self.die(Error::new(ErrorKind::Timeout, what).remedy(POWER_CYCLE));
        }
    }

    /// The run of the page that identify data goes to.
    fn with_page(&self, command: Command, index: u64) -> Command {
        let run = DmaRun {
            start: self.data.address(index * PAGE_BYTES),
            len_bytes: PAGE_BYTES,
        };
        let pointer = prp::write(&[run], PageSize::MIN, &mut []).expect("a page");
        command.with_data(pointer)
    }

    /// An identify or log command with its page: the first for identify data, the second for
    /// log pages.
    pub(super) fn with_data(&self, command: Command, log: bool) -> Command {
        self.with_page(command, u64::from(log))
    }

    fn command(&mut self, step: Step) -> Result<Command> {
        let wanted = self.settings.queues.max(1);
        Ok(match step {
            Step::Controller => self.with_data(Command::identify_controller(), false),
            Step::Namespace => {
                self.with_data(Command::identify_namespace(self.settings.namespace), false)
            }
            Step::QueueCount => {
                let zero_based = u32::from(wanted - 1);
                let value = zero_based << 16 | zero_based;
                Command::set_feature(feature::NUMBER_OF_QUEUES, value)
            }
            Step::DoorbellBuffer => {
                let pages = ShadowPages {
                    doorbells: Mapping::pages(&self.device, PAGE_BYTES)?,
                    event_indices: Mapping::pages(&self.device, PAGE_BYTES)?,
                };
                let command = Command::doorbell_buffer(
                    pages.doorbells.address(0),
                    pages.event_indices.address(0),
                );
                self.shadow = Some(pages);
                command
            }
            Step::Completions(index) => {
                let vector = self.vector(index);
                let queue = &mut self.queues[usize::from(index)];
                let (id, entries) = (queue.id(), queue.completion().entries());
                Command::create_cq(id, entries, vector)
                    .with_data(one_piece(queue.completion().address()))
            }
            Step::Submissions(index) => {
                let queue = &mut self.queues[usize::from(index)];
                let (id, entries) = (queue.id(), queue.submission().entries());
                Command::create_sq(id, entries, id)
                    .with_data(one_piece(queue.submission().address()))
            }
        })
    }

    /// The interrupt vector of an I/O queue: its own, or the last there is.
    fn vector(&self, index: u16) -> Option<u16> {
        let last = u16::try_from(self.vectors.len()).ok()?.checked_sub(1)?;
        Some((index + 1).min(last))
    }

    /// A command of the setup came back.
    pub(super) fn on_setup(&mut self, step: Step, outcome: Outcome) {
        let State::Setup(current) = self.state else {
            return;
        };
        assert_eq!(current, step, "one command at a time");
        if let Err(status) = outcome.status {
            // What cannot be had by memory is had by registers.
            if step == Step::DoorbellBuffer {
                self.shadow = None;
                return self.take(Step::Completions(0));
            }
            let what = format!("{} refused {step:?}", self.device.name());
            return self.die(Error::new(ErrorKind::Device, what).because(status));
        }
        match self.next(step, outcome) {
            Ok(Some(next)) => self.take(next),
            Ok(None) => self.set_up(),
            Err(error) => self.die(error),
        }
    }

    fn next(&mut self, step: Step, outcome: Outcome) -> Result<Option<Step>> {
        Ok(Some(match step {
            Step::Controller => {
                self.learn_controller()?;
                Step::Namespace
            }
            Step::Namespace => {
                self.learn_namespace()?;
                Step::QueueCount
            }
            Step::QueueCount => {
                self.make_queues(outcome.result)?;
                match self.settings.shadow_doorbells && self.identity().doorbell_buffer {
                    true => Step::DoorbellBuffer,
                    false => Step::Completions(0),
                }
            }
            Step::DoorbellBuffer => {
                self.use_shadow();
                Step::Completions(0)
            }
            Step::Completions(index) => Step::Submissions(index),
            Step::Submissions(index) => {
                let next = index + 1;
                if usize::from(next) == self.queues.len() {
                    return Ok(None);
                }
                Step::Completions(next)
            }
        }))
    }

    fn set_up(&mut self) {
        if self.identity.is_some() && self.was_set_up {
            self.resets += 1;
        }
        self.was_set_up = true;
        self.enter(State::Ready);
        self.arm_events();
    }

    fn page<T: FromBytes>(&self) -> T {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        self.data.raw().copy_to(0, &mut bytes);
        T::read_from_bytes(&bytes).expect("4096 bytes")
    }

    fn learn_controller(&mut self) -> Result<()> {
        let found = Identity::new(&self.page::<IdentifyController>());
        match &self.identity {
            Some(known) if known.serial != found.serial => {
                let what = format!(
                    "{} came back as another controller ({}, was {})",
                    self.device.name(),
                    found.serial,
                    known.serial
                );
                Err(Error::new(ErrorKind::Gone, what).remedy("open it anew"))
            }
            _ => {
                self.identity = Some(found);
                Ok(())
            }
        }
    }

    pub(super) fn learn_namespace(&mut self) -> Result<()> {
        let data = self.page::<IdentifyNamespace>();
        let found = Namespace::new(self.settings.namespace, &data)?;
        match self.namespace {
            Some(known) if known != found => {
                let what = format!(
                    "namespace {} of {} is another now, or has another size or format",
                    found.id.0,
                    self.device.name()
                );
                Err(Error::new(ErrorKind::Gone, what).remedy("open it anew"))
            }
            _ => {
                self.namespace = Some(found);
                Ok(())
            }
        }
    }

    /// Makes as many queues as there may be, or checks that there may still be as many.
    fn make_queues(&mut self, granted: u32) -> Result<()> {
        // Both numbers are zero-based.
        let granted = (granted & 0xffff).min(granted >> 16) + 1;
        if !self.queues.is_empty() {
            let there = self.queues.len();
            if there as u64 > u64::from(granted) {
                let what = format!("{there} queues were there, {granted} are left");
                return Err(Error::new(ErrorKind::Device, what).remedy("open it anew"));
            }
            return Ok(());
        }
        let most = self.cap.max_queue_entries().max(2);
        let entries = self.settings.entries.get().min(most);
        let entries = QueueEntries::new(entries).expect("2 to 65,536");
        let stride = self.cap.doorbell_stride();
        let reachable = doorbell_pairs(self.cap, self.device.register_bytes()) - 1;
        let reachable = u32::try_from(reachable).unwrap_or(u32::MAX);
        let wanted = u32::from(self.settings.queues.max(1))
            .min(granted)
            .min(reachable);
        for id in 1..=u16::try_from(wanted).expect("a queue count") {
            let doorbell = |register| Doorbell::new(Arc::clone(&self.device), register);
            let submission = SubmissionRing::new(doorbell(sq_doorbell(id, stride)), entries)?;
            let completion = CompletionRing::new(doorbell(cq_doorbell(id, stride)), entries)?;
            let queue = QueuePair::new(QueueId(id), submission, completion);
            self.queues.push(queue);
        }
        Ok(())
    }

    /// Doorbells go through the registers until memory is known to the controller again.
    pub(super) fn forget_shadow(&mut self) {
        for queue in &mut self.queues {
            queue.submission().doorbell().set_shadow(None);
            queue.completion().doorbell().set_shadow(None);
        }
        self.shadow = None;
    }

    fn use_shadow(&mut self) {
        let Some(pages) = &self.shadow else {
            return;
        };
        let stride = self.cap.doorbell_stride();
        for queue in &mut self.queues {
            let id = queue.id().0;
            let shadow = |register| Shadow {
                doorbells: pages.doorbells.raw(),
                event_indices: pages.event_indices.raw(),
                offset: register - nvme_sys::register::DOORBELLS,
            };
            let submission = shadow(sq_doorbell(id, stride));
            // As many as a page has room for; the others stay with their registers.
            if submission.offset + (8 << stride) <= PAGE_BYTES {
                let completion = shadow(cq_doorbell(id, stride));
                queue.submission().doorbell().set_shadow(Some(submission));
                queue.completion().doorbell().set_shadow(Some(completion));
            }
        }
    }
}

fn one_piece(address: crate::dma::Iova) -> prp::DataPointer {
    prp::DataPointer {
        prp1: address.0,
        prp2: 0,
    }
}
