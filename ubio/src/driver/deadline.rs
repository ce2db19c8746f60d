//! Commands that take longer than a load may wait. The load fails, and its holder hears of it;
//! the command stays in flight, and what it writes stays out of use, until it comes back.

use ubio_core::{FillErrorKind, Nanos, Outcome};

use super::Driver;
use super::streams::failed;

impl Driver {
    /// When the next command in flight is overdue.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let deadline = self.parts.deadline?;
        let waiting = self.submitted.iter().filter(|command| !command.overdue);
        let first = waiting.map(|command| command.at.0).min()?;
        Some(Nanos(first.saturating_add(deadline.0)))
    }

    /// Tells the core of commands that are overdue, and holders of their loads' end.
    pub(super) fn check_deadlines(&mut self, now: Nanos) {
        let Some(deadline) = self.parts.deadline else {
            return;
        };
        let mut any = false;
        for command in &mut self.submitted {
            if !command.overdue && now.0 >= command.at.0.saturating_add(deadline.0) {
                command.overdue = true;
                any = true;
                self.core.on_overdue(command.token);
            }
        }
        if any {
            self.tell_overdue();
        }
    }

    /// A stream ends only when the device has let go of its memory; its holder need not wait.
    fn tell_overdue(&self) {
        for stream in &self.streams {
            if let Some(Outcome::Failed(failure)) = self.core.ending(stream.id)
                && failure.error.kind == FillErrorKind::Overdue
            {
                stream.ending.0.finish(Err(failed(stream, &failure)));
            }
        }
    }
}
