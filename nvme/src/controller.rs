//! A controller's life: disable, enable, set up, run, reset, shut down, die. A state machine that
//! is moved on by [`Controller::advance`] and does not block, so that a reset under I/O and the
//! first bring-up are the same code; only a controller that is given up is waited for, where the
//! kernel resets its function ([`Device::quiesce`]). Base 3.5 (initialisation), 3.6 (shutdown),
//! 3.7 (reset).
//! Knows no memory but its own, and no deadlines of I/O commands.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme_sys::register::{
    ACQ, AQA, AQA_ACQS_SHIFT, ASQ, CAP, CC, CC_ENABLE, CC_IOCQES_SHIFT, CC_IOSQES_SHIFT,
    CC_SHN_NORMAL, CC_SHN_SHIFT, CSTS, CSTS_FATAL, CSTS_READY, CSTS_SHST_COMPLETE, CSTS_SHST_SHIFT,
    Cap, GONE, cq_doorbell, sq_doorbell,
};

use crate::command::{Command, NamespaceId, QueueEntries, QueueId};
use crate::device::{Device, Mapping};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::PAGE_BYTES;
use crate::namespace::Namespace;
use crate::planted::{self, PlantedBug};
use crate::queue_pair::{CommandId, QueuePair};
use crate::ring::{CompletionRing, Doorbell, SubmissionRing};

pub use self::setup::Identity;
use self::setup::{ShadowPages, Step};

mod events;
mod setup;

const ADMIN_ENTRIES: u32 = 32;
/// How long an admin command may take.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a shutdown may take before the controller is just disabled.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at a controller that is being waited for.
const PAUSE: Duration = Duration::from_micros(200);

/// How a controller is to be set up.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which namespace is used.
    pub namespace: NamespaceId,
    /// I/O queue pairs wanted; the controller may grant fewer.
    pub queues: u16,
    /// Entries of each I/O queue wanted; more than 1024 are not used.
    pub entries: QueueEntries,
    /// Whether completions raise interrupts, where the device has any.
    pub interrupts: bool,
    /// Whether doorbells go through memory, where the controller offers that.
    pub shadow_doorbells: bool,
}

impl Settings {
    /// One queue of 128 entries, with interrupts.
    #[must_use]
    pub fn new(namespace: NamespaceId) -> Self {
        Self {
            namespace,
            queues: 1,
            entries: QueueEntries::new(128).expect("more than one"),
            interrupts: true,
            shadow_doorbells: true,
        }
    }
}

/// Where a controller stands.
#[derive(Debug)]
enum State {
    /// Told to stop; not stopped yet.
    Disabling,
    /// Told to start; not ready yet.
    Enabling,
    /// Ready for admin commands; one is under way.
    Setup(Step),
    Ready,
    /// Told to shut down, so that it may write its caches back; told to stop after that.
    ShuttingDown,
    /// Given up. It does no DMA any more, unless `stuck`.
    Dead(Error),
}

/// What an admin command was for.
#[derive(Clone, Copy, Debug)]
enum Admin {
    Setup(Step),
    Abort,
    Event,
    /// Reading a log page, which re-arms its event.
    Log,
    /// Saying which events are wanted.
    Configure,
    /// Looking at the namespace again.
    Recheck,
}

/// An admin command under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    what: Admin,
    since: Duration,
}

/// Whether the namespace is being looked at again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Recheck {
    #[default]
    Not,
    UnderWay,
    /// And once more after that.
    Again,
}

/// A controller with its queues. `O` is what the owner keeps with each command in flight.
#[derive(Debug)]
pub struct Controller<O> {
    device: Arc<dyn Device>,
    cap: Cap,
    settings: Settings,
    state: State,
    /// Since when it is in its state, or the admin command under way.
    since: Duration,
    admin: QueuePair<Asked>,
    /// A page for identify data, and one for log pages.
    data: Mapping,
    queues: Vec<QueuePair<O>>,
    shadow: Option<ShadowPages>,
    vectors: Vec<Arc<OwnedFd>>,
    identity: Option<Identity>,
    namespace: Option<Namespace>,
    ended: Vec<O>,
    /// Why it is not started again once it has stopped.
    closing: Option<Error>,
    stuck: bool,
    was_set_up: bool,
    resets: u64,
    events: u64,
    aborts_under_way: u16,
    recheck: Recheck,
}

impl<O> Controller<O> {
    /// Brings a controller up, from whatever state it is in.
    ///
    /// # Errors
    /// Gone, Timeout, Unsupported (page sizes, command set, namespace), NotFound (namespace),
    /// NoSpace (memory, queues, interrupts), Device (a command of the bring-up failed).
    pub fn open(device: Arc<dyn Device>, settings: Settings) -> Result<Self> {
        let cap = Cap(device.read_u64(CAP));
        if cap.0 == u64::MAX {
            return Err(gone(&*device));
        }
        check(cap)?;
        let pairs = doorbell_pairs(cap, device.register_bytes());
        if pairs < 2 {
            let what = format!(
                "the doorbells of {} are beyond its registers",
                device.name()
            );
            return Err(Error::new(ErrorKind::Unsupported, what)
                .remedy("look for newer firmware: CAP.DSTRD and the size of BAR 0 disagree"));
        }
        let vectors = vectors(&*device, &settings)?;
        let stride = cap.doorbell_stride();
        let entries = QueueEntries::new(ADMIN_ENTRIES).expect("more than one");
        let submission = SubmissionRing::new(
            Doorbell::new(Arc::clone(&device), sq_doorbell(0, stride)),
            entries,
        )?;
        let completion = CompletionRing::new(
            Doorbell::new(Arc::clone(&device), cq_doorbell(0, stride)),
            entries,
        )?;
        let mut controller = Self {
            data: Mapping::pages(&device, 2 * PAGE_BYTES)?,
            admin: QueuePair::new(QueueId(0), submission, completion),
            since: device.now(),
            device,
            cap,
            settings,
            state: State::Disabling,
            queues: Vec::new(),
            shadow: None,
            vectors,
            identity: None,
            namespace: None,
            ended: Vec::new(),
            closing: None,
            stuck: false,
            was_set_up: false,
            resets: 0,
            events: 0,
            aborts_under_way: 0,
            recheck: Recheck::default(),
        };
        controller.disable();
        loop {
            controller.advance();
            match &controller.state {
                State::Ready => return Ok(controller),
                State::Dead(error) => return Err(error.clone()),
                _ => controller.device.pause(PAUSE),
            }
        }
    }

    /// What it says of itself.
    ///
    /// # Panics
    /// Never: it has been set up once.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.identity.as_ref().expect("set up once")
    }

    /// The namespace.
    ///
    /// # Panics
    /// Never: it has been set up once.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        self.namespace.as_ref().expect("set up once")
    }

    /// Its function.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The I/O queues.
    pub fn queues(&mut self) -> &mut [QueuePair<O>] {
        &mut self.queues
    }

    /// The same, to look at.
    #[must_use]
    pub fn queues_now(&self) -> &[QueuePair<O>] {
        &self.queues
    }

    /// The eventfds of its interrupts; none if it is polled.
    #[must_use]
    pub fn vectors(&self) -> &[Arc<OwnedFd>] {
        &self.vectors
    }

    /// Whether I/O commands may be submitted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Why it was given up, if it was.
    #[must_use]
    pub fn dead(&self) -> Option<&Error> {
        match &self.state {
            State::Dead(error) => Some(error),
            _ => None,
        }
    }

    /// Whether it was given up and may still do DMA.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Resets that were finished.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// Asynchronous events it reported.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Completions of its admin queue that named nothing in flight.
    #[must_use]
    pub fn admin_strays(&self) -> u64 {
        self.admin.strays()
    }

    /// Takes the operations that a reset, or the controller's end, has ended.
    pub fn take_ended(&mut self) -> std::vec::Drain<'_, O> {
        self.ended.drain(..)
    }

    /// Stops the controller, ends what is in flight, and sets it up anew;
    /// [`advance`](Self::advance) does the steps.
    pub fn reset(&mut self) {
        if !matches!(
            self.state,
            State::Dead(_) | State::Disabling | State::ShuttingDown
        ) {
            self.disable();
        }
    }

    /// Stops it for good, ending what is in flight; blocks until it has.
    pub fn stop(&mut self) {
        if self.dead().is_some() {
            return;
        }
        let what = format!("{} was closed", self.device.name());
        self.shut_down(Error::new(ErrorKind::Gone, what));
        while self.dead().is_none() {
            self.device.pause(PAUSE);
            self.advance();
        }
    }

    /// Asks for the end of a command; the command's own completion tells whether it came.
    /// `false` if that cannot be asked now.
    pub fn abort(&mut self, queue: QueueId, id: CommandId) -> bool {
        let most = self.identity().abort_limit;
        if !self.is_ready() || self.aborts_under_way >= most {
            return false;
        }
        let asked = self.ask(Command::abort(queue, id.0), Admin::Abort);
        self.aborts_under_way += u16::from(asked);
        self.admin.send();
        asked
    }

    /// Looks whether the controller still runs (one register read) and is still ours.
    pub fn look(&mut self) {
        if !self.is_ready() {
            return;
        }
        if self.device.is_wanted_back() {
            self.shut_down(wanted_back(&*self.device));
            return;
        }
        match self.device.read_u32(CSTS) {
            GONE => self.die(gone(&*self.device)),
            status if status & CSTS_FATAL != 0 || status & CSTS_READY == 0 => self.reset(),
            _ if self.is_admin_overdue() => self.reset(),
            _ => {}
        }
    }

    /// Whether the admin queue has a completion.
    #[must_use]
    pub fn has_admin_completion(&self) -> bool {
        self.admin.is_ready()
    }

    /// Takes what the admin queue has, and the next step of a reset if it can be taken.
    pub fn advance(&mut self) {
        match &self.state {
            State::Dead(_) => {}
            State::Disabling => self.disabling(),
            State::Enabling => self.enabling(),
            State::Setup(_) => {
                self.admin_completions();
                self.check_setup_time();
            }
            State::Ready => self.admin_completions(),
            State::ShuttingDown => self.shutting_down(),
        }
    }

    /// Ends an operation that the controller still has: a planted bug.
    pub(crate) fn end_early(&mut self, queue: QueueId, id: CommandId) {
        let queue = self.queues.iter_mut().find(|known| known.id() == queue);
        self.ended
            .extend(queue.and_then(|queue| queue.end_early(id)));
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.since = self.device.now();
    }

    fn waited(&self) -> Duration {
        self.device.now().saturating_sub(self.since)
    }

    /// CAP.TO, the longest that starting or stopping takes.
    fn patience(&self) -> Duration {
        Duration::from_millis(500) * u32::from(self.cap.timeout_half_seconds().max(2))
    }

    fn disable(&mut self) {
        let config = self.device.read_u32(CC);
        if config == GONE {
            self.die(gone(&*self.device));
            return;
        }
        let shn = 0b11 << CC_SHN_SHIFT;
        self.device.write_u32(CC, config & !CC_ENABLE & !shn);
        self.enter(State::Disabling);
        if planted::is(PlantedBug::EndBeforeReset) {
            self.restart_queues();
        }
    }

    fn disabling(&mut self) {
        let status = self.device.read_u32(CSTS);
        if status == GONE {
            self.die(gone(&*self.device));
        } else if status & CSTS_READY == 0 {
            // It does no DMA any more (Base 3.7.2): what was in flight is over.
            self.restart_queues();
            match self.closing.take() {
                Some(why) => self.enter(State::Dead(why)),
                None => self.enable(),
            }
        } else if self.waited() > self.patience() {
            self.die(timeout(&*self.device, "does not stop"));
        }
    }

    fn restart_queues(&mut self) {
        for queue in &mut self.queues {
            queue.restart(&mut self.ended);
        }
        let mut given_up = Vec::new();
        self.admin.restart(&mut given_up);
        self.aborts_under_way = 0;
        self.recheck = Recheck::default();
    }

    fn enable(&mut self) {
        let size = u32::from(QueueEntries::new(ADMIN_ENTRIES).expect("fits").zero_based());
        self.device.write_u32(AQA, size << AQA_ACQS_SHIFT | size);
        let (submission, completion) = (
            self.admin.submission().address(),
            self.admin.completion().address(),
        );
        self.device.write_u64(ASQ, submission.0);
        self.device.write_u64(ACQ, completion.0);
        let sizes = u32::from(nvme_sys::sqe::ENTRY_LOG2) << CC_IOSQES_SHIFT
            | u32::from(nvme_sys::cqe::ENTRY_LOG2) << CC_IOCQES_SHIFT;
        self.forget_shadow();
        self.device.write_u32(CC, sizes | CC_ENABLE);
        self.enter(State::Enabling);
    }

    fn enabling(&mut self) {
        let status = self.device.read_u32(CSTS);
        if status == GONE {
            self.die(gone(&*self.device));
        } else if status & CSTS_FATAL != 0 {
            let what = format!("{} reports a fatal error when enabled", self.device.name());
            self.die(Error::new(ErrorKind::Device, what).remedy(POWER_CYCLE));
        } else if status & CSTS_READY != 0 {
            self.begin_setup();
        } else if self.waited() > self.patience() {
            self.die(timeout(&*self.device, "does not start"));
        }
    }

    /// Gives the controller up. Where its DMA can be ended, what was in flight is over.
    fn die(&mut self, error: Error) {
        if self.device.quiesce().is_ok() {
            self.restart_queues();
        } else {
            self.stuck = self.queues.iter().any(|queue| queue.in_flight() > 0);
        }
        let why = self.closing.take().unwrap_or(error);
        self.enter(State::Dead(why));
    }

    /// Begins to shut down in order and for good.
    fn shut_down(&mut self, why: Error) {
        self.closing = Some(why);
        match self.state {
            State::Dead(_) | State::Disabling | State::ShuttingDown => {}
            // It has nothing to write back.
            State::Enabling => self.disable(),
            State::Setup(_) | State::Ready => {
                let config = self.device.read_u32(CC);
                if config == GONE {
                    self.die(gone(&*self.device));
                    return;
                }
                let shn = CC_SHN_NORMAL << CC_SHN_SHIFT;
                self.device.write_u32(CC, config | shn);
                self.enter(State::ShuttingDown);
            }
        }
    }

    fn shutting_down(&mut self) {
        let status = self.device.read_u32(CSTS);
        let is_down = status >> CSTS_SHST_SHIFT & 0b11 == CSTS_SHST_COMPLETE;
        // Whether or not it is shut down in time, it is disabled.
        if status == GONE || is_down || self.waited() > SHUTDOWN_TIMEOUT {
            self.disable();
        }
    }
}

impl<O> Drop for Controller<O> {
    fn drop(&mut self) {
        self.stop();
    }
}

const POWER_CYCLE: &str = "reset its slot or the machine; dmesg and its SMART log may tell more";

fn gone(device: &dyn Device) -> Error {
    let what = format!(
        "{} does not answer: its registers read all ones",
        device.name()
    );
    Error::new(ErrorKind::Gone, what).remedy("look whether it was removed, or rescan its bus")
}

fn wanted_back(device: &dyn Device) -> Error {
    let what = format!(
        "{} is being removed, or given to another driver",
        device.name()
    );
    Error::new(ErrorKind::Gone, what).remedy("open it anew when it is back")
}

fn timeout(device: &dyn Device, what: &str) -> Error {
    let what = format!("{} {what} in the time it names itself", device.name());
    Error::new(ErrorKind::Timeout, what).remedy(POWER_CYCLE)
}

/// Queue pairs, the admin queue's among them, whose doorbells are inside of the registers.
fn doorbell_pairs(cap: Cap, register_bytes: u64) -> u64 {
    let first = sq_doorbell(0, cap.doorbell_stride());
    let each = sq_doorbell(1, cap.doorbell_stride()) - first;
    // Of the last pair all that is needed is the register itself.
    let unused = each / 2 - 4;
    register_bytes.saturating_sub(first).saturating_add(unused) / each
}

fn check(cap: Cap) -> Result<()> {
    let refuse = |what: &str| Err(Error::new(ErrorKind::Unsupported, what));
    if !cap.nvm_command_set() {
        return refuse("the controller does not have the NVM command set");
    }
    if cap.min_page_shift() > 0 {
        return refuse("the controller has no memory pages of 4 KiB");
    }
    Ok(())
}

/// One for the admin queue, which always has the first, and one for each I/O queue as far as
/// there are any.
fn vectors(device: &dyn Device, settings: &Settings) -> Result<Vec<Arc<OwnedFd>>> {
    let wanted = match settings.interrupts {
        true => device.vectors().min(settings.queues.saturating_add(1)),
        false => 0,
    };
    (0..wanted).map(|vector| device.interrupt(vector)).collect()
}
