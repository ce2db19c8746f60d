//! Awaiting a load while showing how far it is and listening for signals.

use std::future::{Future, IntoFuture};
use std::io::IsTerminal;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ubio::Watch;

use crate::args::{Args, ProgressWhen};
use crate::exit::Failure;
use crate::signals::Signals;
use crate::size::human;

/// How often progress is shown, and how late a signal is seen at worst.
const TICK: Duration = Duration::from_millis(100);
/// How often a line is written where there is no terminal.
const LINE: Duration = Duration::from_secs(1);

/// Progress on standard error, or none.
#[derive(Debug)]
pub(crate) enum Progress {
    Hidden,
    Bar(ProgressBar),
    Lines {
        total: u64,
        begun: Instant,
        next: Instant,
    },
}

impl Progress {
    pub(crate) fn new(args: &Args, total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let wanted = match args.progress {
            ProgressWhen::Always => true,
            ProgressWhen::Auto => terminal && !args.quiet,
            ProgressWhen::Never => false,
        };
        if !wanted {
            return Self::Hidden;
        }
        if !terminal {
            let begun = Instant::now();
            return Self::Lines {
                total,
                begun,
                next: begun,
            };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = "{bar:40} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  \
                     {binary_bytes_per_sec}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    /// Shows that `done` bytes are there.
    pub(crate) fn show(&mut self, done: u64) {
        match self {
            Self::Hidden => {}
            Self::Bar(bar) => bar.set_position(done.min(bar.length().unwrap_or(done))),
            Self::Lines { total, begun, next } => {
                let now = Instant::now();
                if now >= *next {
                    *next = now + LINE;
                    eprint_line(&line(done.min(*total), *total, now - *begun));
                }
            }
        }
    }

    /// Ends it: all is there.
    pub(crate) fn finish(&mut self) {
        match self {
            Self::Hidden => {}
            Self::Bar(bar) => bar.finish_and_clear(),
            Self::Lines { total, begun, .. } => {
                eprint_line(&line(*total, *total, begun.elapsed()));
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for people"
)]
fn line(done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-9);
    let percent = if total == 0 {
        100.0
    } else {
        100.0 * done as f64 / total as f64
    };
    let left = match done {
        0 => "?".to_owned(),
        _ => format!("{:.0}", (total - done) as f64 / rate),
    };
    format!(
        "ubcp: {percent:.0}%, {} of {}, {}/s, {left} s left",
        human(done),
        human(total),
        human(rate as u64)
    )
}

/// A closed standard error is no reason to fail.
fn eprint_line(line: &str) {
    use std::io::Write;
    let _closed = writeln!(std::io::stderr(), "{line}");
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits until all of a load is visible. On a signal the load is cancelled; dropping the
/// engine then waits for the devices.
pub(crate) fn drive<T>(
    load: impl IntoFuture<Output = ubio::Result<T>>,
    watch: &Watch,
    signals: &Signals,
    progress: &mut Progress,
) -> Result<T, Failure> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut whole = pin!(load.into_future());
    let loaded = loop {
        if let Poll::Ready(outcome) = whole.as_mut().poll(&mut context) {
            break outcome.map_err(|error| Failure::engine(&error))?;
        }
        signals.check()?;
        progress.show(watch.requested_bytes());
        std::thread::park_timeout(TICK);
    };
    signals.check()?;
    progress.finish();
    Ok(loaded)
}
