//! SIGINT and SIGTERM. While devices may write into our memory a signal asks the main thread
//! to cancel; before and after that, and the second time, it ends the program at once, which
//! leaves nothing behind because nothing has a name yet (`export.rs` tells the exceptions).
//! Once there is a name the work is done, and a signal no longer makes it undone.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::Signals as Incoming;
use ubio::sys::thread::start;

use crate::exit::Failure;

#[derive(Debug)]
struct State {
    /// The main thread looks at `received` itself.
    graceful: bool,
    /// The result has its name.
    published: bool,
    /// Who ends the program by a signal prints an object, unless there is one already.
    json: bool,
    received: Option<i32>,
}

/// What the main thread knows of signals.
#[derive(Debug)]
pub(crate) struct Signals(Arc<Mutex<State>>);

/// The signals that end a program.
const ENDING: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// What to make of an error that comes later than the result.
const PUBLISHED: &str = "the result is published all the same";

/// From now on exceeding the file-size limit is an error like a full disk, not the end.
pub(crate) fn survive_file_size_limit() {
    let _default_kept = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

impl Signals {
    /// Starts listening, on a thread of its own. Where that cannot be had (descriptors or
    /// threads have run out) signals end the program by default, which leaves nothing either.
    pub(crate) fn listen(json: bool) -> Self {
        let state = Arc::new(Mutex::new(State {
            graceful: false,
            published: false,
            json,
            received: None,
        }));
        if let Ok(incoming) = Incoming::new(ENDING.map(|signal| signal as i32)) {
            let main = std::thread::current();
            let shared = Arc::clone(&state);
            let started = start("ubcp-signals", move || wait(incoming, &shared, &main));
            if started.is_ok() {
                // No thread but that one takes them: one that is stuck in the kernel could be
                // given a signal and never look at it.
                let _kept = ENDING.iter().copied().collect::<SigSet>().thread_block();
            } else {
                // The handler is in place without a listener: give the signals back.
                for signal in ENDING.map(|signal| signal as i32) {
                    let _kept = signal_hook::flag::register_conditional_default(
                        signal,
                        Arc::new(true.into()),
                    );
                }
            }
        }
        Self(state)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the first signal only sets [`received`](Self::received) and unparks the
    /// main thread; for as long as the guard lives.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.lock().graceful = true;
        Held(self)
    }

    /// The result has its name: from now on one signal is too late to matter.
    pub(crate) fn published(&self) {
        self.lock().published = true;
    }

    /// The main thread prints the one object that is to be printed.
    pub(crate) fn answering(&self) {
        self.lock().json = false;
    }

    /// An error that came when the result had its name already says so.
    pub(crate) fn too_late(&self, error: Failure) -> Failure {
        if self.lock().published {
            error.remedy(PUBLISHED)
        } else {
            error
        }
    }

    /// The signal that came while they were held.
    pub(crate) fn received(&self) -> Option<i32> {
        self.lock().received
    }

    /// An error once a signal came.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.received() {
            Some(signal) => Err(Failure::signal(signal)),
            None => Ok(()),
        }
    }
}

/// Signals are held back as long as this lives.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Signals);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock().graceful = false;
    }
}

fn wait(mut incoming: Incoming, state: &Mutex<State>, main: &Thread) {
    for signal in incoming.forever() {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if (state.graceful || state.published) && state.received.is_none() {
            state.received = Some(signal);
            drop(state);
            main.unpark();
        } else {
            let mut failure = Failure::signal(state.received.unwrap_or(signal));
            if state.published {
                failure = failure.remedy(PUBLISHED);
            }
            // With the lock held: the main thread does not begin to print, too.
            crate::fail(&failure, state.json);
            signal_hook::low_level::exit(failure.exit as i32);
        }
    }
}
