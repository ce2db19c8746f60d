//! One boot: starts QEMU, listens, does what the guest asks, and ends it, whatever happens.
//!
//! Threads only carry lines; every decision is `console.rs`'s, every action `actions.rs`'s.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use ubio_lab_spec::Run;
use ubio_lab_spec::line::{Answer, Line};

use super::actions;
use super::console::{Heard, Outcome, Watch};
use super::images;
use super::machine::{self, Files, QEMU};
use super::qmp::Qmp;
use super::verify::Bar;
use crate::run;

/// How long QEMU may take to start.
const START: Duration = Duration::from_secs(20);
/// How often the watchdog looks.
const TICK: Duration = Duration::from_millis(200);
/// A longer line is cut: a guest gone mad must not take the host's memory.
const LONGEST_LINE: u64 = 4096;

/// A line, from one of the three that talk.
#[derive(Debug)]
enum Event {
    /// The guest's report, over its second serial port.
    Report(String),
    /// The guest's console, its first serial port.
    Console(String),
    /// QEMU itself.
    Qemu(String),
}

/// QEMU, killed when this goes.
#[derive(Debug)]
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots a run's machine and gives how it went. `words` go to the kernel's command line, `say`
/// hears each line worth showing, all lines go to `log`.
pub(super) fn boot(
    run: &Run,
    full: bool,
    files: &Files,
    words: &[String],
    log: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut log = Log {
        file,
        started: Instant::now(),
    };
    images::make(&run.machine, files)?;
    let mut bar = Bar::create(&files.bar(), run.machine.bar_bytes())?;
    let (events, heard) = channel();
    let (mut qemu, connections) = start(run, files, words, &mut log, &events)?;
    drop(events);
    let mut outcome = match connections {
        Ok(mut connections) => {
            let watch = Watch::new(run, full, Instant::now());
            listen(
                run,
                watch,
                &heard,
                &mut connections,
                &mut bar,
                &mut log,
                say,
            )
        }
        Err(error) => {
            let _ = qemu.0.kill();
            let mut outcome = Watch::new(run, full, Instant::now()).finish(None);
            outcome.failures = vec![format!("{}: {QEMU} does not start: {error:#}", run.name)];
            outcome.console = drain(&heard, &mut log);
            outcome
        }
    };
    if let Some(signal) = crash(&mut qemu.0) {
        let what = format!("{QEMU} crashed: signal {signal}");
        log.line("host", &what);
        outcome.emulators_fault = true;
        outcome.fail(format!("{}: {what}", run.name));
    }
    drop(qemu);
    log.line("host", "QEMU is gone");
    // From outside, after the guest is gone: whatever it claimed last must be true now.
    if let Err(error) = bar.check() {
        outcome.fail(format!("{}: after the guest's end: {error:#}", run.name));
    }
    log.line("host", "done");
    Ok(outcome)
}

/// The two lines to QEMU that are not pipes.
#[derive(Debug)]
struct Connections {
    qmp: Qmp<UnixStream>,
    answers: UnixStream,
}

/// QEMU with its threads. An error inside is QEMU's; outside, this machine's.
fn start(
    run: &Run,
    files: &Files,
    words: &[String],
    log: &mut Log,
    events: &Sender<Event>,
) -> Result<(Qemu, Result<Connections>)> {
    // Connected pairs instead of sockets in a folder: no path that is too long, nobody to wait
    // for, and the end of QEMU is the end of the line.
    let (qmp, qmp_theirs) = UnixStream::pair()?;
    let (report, report_theirs) = UnixStream::pair()?;
    // QEMU ends with this process, even where that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", QEMU]);
    command.args(machine::arguments(&run.machine, files, words));
    for (name, stream) in [("qmp", &qmp_theirs), ("report", &report_theirs)] {
        fcntl_setfd(stream, FdFlags::empty())?;
        let descriptor = stream.as_raw_fd();
        command.args(["-chardev", &format!("socket,id={name},fd={descriptor}")]);
    }
    command
        .args(["-mon", "chardev=qmp,mode=control"])
        .args([
            "-chardev",
            "stdio,id=console,signal=off",
            "-serial",
            "chardev:console",
        ])
        .args(["-serial", "chardev:report"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    log.line("host", &run::typed(&command));
    let mut qemu = Qemu(
        command
            .spawn()
            .with_context(|| format!("cannot start {QEMU}"))?,
    );
    drop((qmp_theirs, report_theirs));

    let stdout = qemu.0.stdout.take().context("no pipe from QEMU")?;
    let stderr = qemu.0.stderr.take().context("no pipe from QEMU")?;
    carry(report.try_clone()?, events.clone(), Event::Report);
    carry(stdout, events.clone(), Event::Console);
    carry(stderr, events.clone(), Event::Qemu);
    qmp.set_read_timeout(Some(TICK))?;
    report.set_write_timeout(Some(START))?;
    let connected = Qmp::connect(qmp.try_clone()?, qmp, START);
    Ok((
        qemu,
        connected.map(|qmp| Connections {
            qmp,
            answers: report,
        }),
    ))
}

/// The signal that ended QEMU, if one did: a QEMU that is to be killed still runs.
fn crash(qemu: &mut Child) -> Option<i32> {
    let started = Instant::now();
    while started.elapsed() < TICK {
        if let Ok(Some(status)) = qemu.try_wait() {
            return status.signal();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Sends each line until the stream ends.
fn carry(stream: impl Read + Send + 'static, events: Sender<Event>, kind: fn(String) -> Event) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            // A stream that breaks has ended: nobody is left to tell.
            let read = reader
                .by_ref()
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut bytes);
            if read.unwrap_or(0) == 0 {
                return;
            }
            let text = String::from_utf8_lossy(&bytes);
            let line = text.trim_end_matches(['\r', '\n']).to_string();
            if events.send(kind(line)).is_err() {
                return;
            }
        }
    });
}

/// Listens until QEMU has ended, and ends it when it must.
fn listen(
    run: &Run,
    mut watch: Watch,
    heard: &Receiver<Event>,
    connections: &mut Connections,
    bar: &mut Bar,
    log: &mut Log,
    say: &mut dyn FnMut(&str),
) -> Outcome {
    let mut broken = Vec::new();
    let killed = loop {
        match heard.recv_timeout(TICK) {
            Ok(Event::Report(line)) => {
                log.line("report", &line);
                match watch.report(&line, Instant::now()) {
                    Heard::Noted => {}
                    Heard::Shown(text) => say(&text),
                    Heard::Asked(action) => {
                        let qmp = &mut connections.qmp;
                        let answer = actions::perform(&action, &run.machine, qmp, bar);
                        log.line("host", &answer.to_string());
                        reply(&mut connections.answers, &answer);
                        watch.excuse(Instant::now());
                    }
                    Heard::Bar(claim) => broken.extend(claimed(bar, run, &claim)),
                }
            }
            Ok(Event::Console(line)) => {
                log.line("console", &line);
                watch.console(&line, Instant::now());
            }
            Ok(Event::Qemu(line)) => {
                log.line("qemu", &line);
                watch.console(&format!("{QEMU}: {line}"), Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break None,
        }
        if let Some(why) = watch.overdue(Instant::now()) {
            log.line("host", &why);
            break Some(why);
        }
    };
    let mut outcome = watch.finish(killed);
    broken.into_iter().for_each(|reason| outcome.fail(reason));
    outcome
}

/// A claim that cannot be true is a failure of its own.
fn claimed(bar: &mut Bar, run: &Run, claim: &Line) -> Option<String> {
    let error = bar.claim(&run.machine, claim).err()?;
    Some(format!("{}: {error:#}", run.name))
}

/// A guest that does not listen any more is about to be noticed by its silence.
fn reply(answers: &mut UnixStream, answer: &Answer) {
    let _ = writeln!(answers, "{answer}");
}

/// What is left to hear of a QEMU that is gone.
fn drain(heard: &Receiver<Event>, log: &mut Log) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Event::Report(line) | Event::Console(line) | Event::Qemu(line)) =
        heard.recv_timeout(START)
    {
        log.line("end", &line);
        lines.push(line);
    }
    lines
}

/// Every line, with when it was heard and who said it.
#[derive(Debug)]
struct Log {
    file: File,
    started: Instant,
}

impl Log {
    fn line(&mut self, who: &str, text: &str) {
        // The log is for people: a full disk must not end a run.
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(self.file, "{seconds:8.3} {who:8} {text}");
    }
}
