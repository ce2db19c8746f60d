//! What comes back on the admin queue, and asynchronous events: armed, counted, their log page
//! read so that they are raised again (Base 5.2).

use super::{ADMIN_ENTRIES, Admin, Controller};
use crate::command::Command;
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
    pub(super) fn arm_events(&mut self) {
        for _ in 0..self.identity().event_limit.min(EVENTS_ARMED) {
            // Without room the event is not armed, and found by looking.
            let _full = self.admin.submit(Command::async_event(), Admin::Event);
        }
        self.admin.send();
    }

    pub(super) fn admin_completions(&mut self) {
        // Each may ask for the next, so a controller that answers at once could keep this going.
        for _ in 0..ADMIN_ENTRIES {
            let Some((admin, outcome)) = self.admin.pop() else {
                break;
            };
            self.admin.acknowledge();
            match admin {
                Admin::Setup(step) => self.on_setup(step, outcome),
                Admin::Abort => self.aborts_under_way -= 1,
                Admin::Event => self.on_event(outcome),
                Admin::Log => {
                    let _full = self.admin.submit(Command::async_event(), Admin::Event);
                    self.admin.send();
                }
                Admin::Recheck => self.on_recheck(outcome),
            }
        }
        self.admin.acknowledge();
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
        let _full = self.admin.submit(command, Admin::Log);
        if kind == TYPE_NOTICE && info == NAMESPACE_CHANGED {
            let command = Command::identify_namespace(self.settings.namespace);
            let command = self.with_data(command, false);
            let _full = self.admin.submit(command, Admin::Recheck);
        }
        self.admin.send();
        if kind == TYPE_ERROR {
            self.look();
        }
    }

    fn on_recheck(&mut self, outcome: Outcome) {
        if outcome.status.is_ok()
            && let Err(error) = self.learn_namespace()
        {
            self.die(error);
        }
    }
}
