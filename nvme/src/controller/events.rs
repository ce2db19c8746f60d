//! What comes back on the admin queue, and asynchronous events: armed, counted, their log page
//! read so that they are raised again (Base 5.2).

use nvme_sys::identify::OAES_NAMESPACE_ATTRIBUTE;
use nvme_sys::opcode::feature;

use super::{ADMIN_ENTRIES, ADMIN_TIMEOUT, Admin, Asked, Controller, Recheck};
use crate::command::Command;
use crate::error::{Error, ErrorKind};
use crate::queue_pair::Outcome;

/// Events that are asked for at once.
const EVENTS_ARMED: u16 = 2;
/// Bytes of a log page that are read.
const LOG_BYTES: u32 = 512;
/// Event types, bits 2:0 of the result: an error, and a notice.
const TYPE_ERROR: u32 = 0;
const TYPE_NOTICE: u32 = 2;
/// Notice: a namespace's identify data has changed. Base figure 150.
const NAMESPACE_CHANGED: u32 = 0;

impl<O> Controller<O> {
    /// Queues an admin command; `false` when there is no room.
    pub(super) fn ask(&mut self, command: Command, what: Admin) -> bool {
        let since = self.device.now();
        self.admin.submit(command, Asked { what, since }).is_ok()
    }

    pub(super) fn arm_events(&mut self) {
        if self.identity().namespace_events {
            let value = OAES_NAMESPACE_ATTRIBUTE;
            let command = Command::set_feature(feature::ASYNC_EVENT_CONFIG, value);
            self.ask(command, Admin::Configure);
        }
        for _ in 0..self.identity().event_limit.min(EVENTS_ARMED) {
            // Without room the event is not armed, and found by looking.
            self.ask(Command::async_event(), Admin::Event);
        }
        self.admin.send();
    }

    pub(super) fn admin_completions(&mut self) {
        // Each may ask for the next, so a controller that answers at once could keep this going.
        for _ in 0..ADMIN_ENTRIES {
            let Some((asked, outcome)) = self.admin.pop() else {
                break;
            };
            self.admin.acknowledge();
            match asked.what {
                Admin::Setup(step) => self.on_setup(step, outcome),
                Admin::Abort => self.aborts_under_way -= 1,
                Admin::Event => self.on_event(outcome),
                // Without it changes are found when commands fail.
                Admin::Configure => {}
                Admin::Log => {
                    self.ask(Command::async_event(), Admin::Event);
                    self.admin.send();
                }
                Admin::Recheck => self.on_recheck(outcome),
            }
        }
        self.admin.acknowledge();
    }

    /// Whether an admin command that is answered at once by rights has not been for long.
    pub(super) fn is_admin_overdue(&mut self) -> bool {
        let now = self.device.now();
        self.admin.operations().any(|(_, asked)| {
            !matches!(asked.what, Admin::Event) && now.saturating_sub(asked.since) > ADMIN_TIMEOUT
        })
    }

    fn on_event(&mut self, outcome: Outcome) {
        if outcome.status.is_err() {
            // Not to be had (any more): whoever looks finds what is wrong.
            return;
        }
        self.events += 1;
        let kind = outcome.result & 0b111;
        let info = outcome.result >> 8 & 0xff;
        let log = u8::try_from(outcome.result >> 16 & 0xff).expect("eight bits");
        let command = self.with_data(Command::log_page(log, LOG_BYTES), true);
        self.ask(command, Admin::Log);
        if kind == TYPE_NOTICE && info == NAMESPACE_CHANGED {
            self.recheck();
        }
        self.admin.send();
        if kind == TYPE_ERROR {
            self.look();
        }
    }

    /// Looks at the namespace again; once at a time, since there is one page for its data.
    fn recheck(&mut self) {
        if self.recheck == Recheck::UnderWay || self.recheck == Recheck::Again {
            self.recheck = Recheck::Again;
            return;
        }
        let command = Command::identify_namespace(self.settings.namespace);
        let command = self.with_data(command, false);
        if self.ask(command, Admin::Recheck) {
            self.recheck = Recheck::UnderWay;
        }
    }

    fn on_recheck(&mut self, outcome: Outcome) {
        let again = std::mem::take(&mut self.recheck) == Recheck::Again;
        let learnt = match outcome.status {
            Ok(()) => self.learn_namespace(),
            Err(status) => {
                let what = format!("{} does not tell of its namespace", self.device.name());
                Err(Error::new(ErrorKind::Gone, what)
                    .because(status)
                    .remedy("open it anew"))
            }
        };
        match learnt {
            Err(error) => self.die(error),
            Ok(()) if again => {
                self.recheck();
                self.admin.send();
            }
            Ok(()) => {}
        }
    }
}
