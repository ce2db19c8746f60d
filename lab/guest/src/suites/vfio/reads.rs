//! Reads of every length and place, in host memory and in the BAR; at depth; under resets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nvme::transport::user::UserTransport;
use nvme::transport::{Direction, IoError, Transport};
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio_lab_spec::Machine;
use ubio_lab_spec::line::Action;

use super::{PLAIN, Way, bar_target, open};
use crate::case::Case;
use crate::lab::Lab;
use crate::session::Session;
use crate::suites::engines::{What, holds, load_raw, over, vfio};
use crate::suites::{OFFSETS, PAGE, PAGES};
use crate::target::Target;

/// Where on the namespace.
const FROM: u64 = 12 * PAGE;

const DRIVE: &str = "vfio";
/// When all that a drive still had to do at a reset would have been done: more than enough.
const RESET_OVER: Duration = Duration::from_millis(800);
/// How long a reset may take.
const RESET: Duration = Duration::from_secs(20);

/// One read of the matrix.
#[derive(Clone, Copy, Debug)]
struct Read {
    namespace: u32,
    into_bar: bool,
    way: Way,
    pages: u64,
    offset: u64,
}

pub(super) fn cases(machine: &Machine, full: bool) -> Vec<Case> {
    let mut cases = matrix(machine, full);
    for polled in [false, true] {
        let how = notice(polled);
        let way = Way {
            queues: 4,
            sgl: false,
            polled,
        };
        cases.push(Case::new(format!("depth-64/4k/{how}"), move |lab| {
            verify(lab, way, PAGE, 64, if full { 20_000 } else { 3000 })
        }));
        cases.push(Case::new(format!("depth-64/128k/{how}"), move |lab| {
            verify(lab, way, 32 * PAGE, 64, if full { 2000 } else { 200 })
        }));
        cases.push(Case::new(format!("reset/{how}"), move |lab| {
            reset(lab, way, if full { 20 } else { 4 })
        }));
    }
    cases.push(Case::new("interrupts/each-is-noticed", interrupts));
    cases.push(Case::new("mdts/16-kib", |lab| {
        limited(lab, "small", 4 * PAGE)
    }));
    cases.push(Case::new("mdts/4-mib", |lab| {
        limited(lab, "outside", 1024 * PAGE)
    }));
    cases.push(Case::new("mdts/engine", by_engine));
    cases.push(Case::new("mdts/none", |lab| {
        let session = open(lab, DRIVE, 1, PLAIN)?;
        // Without MDTS the count of blocks is the limit.
        let most = session.transport.limits().transfer_bytes;
        ensure!(most == (1 << 16) * 512, "{most} bytes at most");
        Ok(())
    }));
    cases
}

/// Whether an SGL is used where the controller has them: what two pointers can name, they do.
fn named_by_sgl(pages: u64, offset: u64) -> bool {
    offset % PAGE + pages * PAGE > 2 * PAGE
}

fn notice(polled: bool) -> &'static str {
    if polled { "poll" } else { "msix" }
}

/// Every value of each axis with every other's in host memory and in the BAR; how data is named
/// and how ends are noticed alternate, unless all is asked for.
fn matrix(machine: &Machine, full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let drive = machine.drive(DRIVE);
    let namespaces = drive.map(|drive| drive.numbered().map(|(id, ns)| (id, ns.block_bytes)));
    for (namespace, block) in namespaces.into_iter().flatten() {
        for into_bar in [false, true] {
            for (i, pages) in PAGES.into_iter().enumerate() {
                for (j, offset) in OFFSETS.into_iter().enumerate() {
                    for (sgl, polled) in
                        [(false, false), (true, false), (false, true), (true, true)]
                    {
                        let possible = named_by_sgl(pages, offset);
                        let turn = possible && (i + j + usize::from(into_bar)) % 2 == 1;
                        let other = (i + j / 2 + usize::from(block == 512)) % 2 == 1;
                        if (sgl && !possible) || (!full && (sgl, polled) != (turn, other)) {
                            continue;
                        }
                        let way = Way {
                            queues: 1,
                            sgl,
                            polled,
                        };
                        let read = Read {
                            namespace,
                            into_bar,
                            way,
                            pages,
                            offset,
                        };
                        let memory = if into_bar { "bar" } else { "host" };
                        let names = if sgl { "sgl" } else { "prp" };
                        let name = format!(
                            "read/{memory}/{block}/{names}-{}/{pages}+{offset}",
                            notice(polled)
                        );
                        cases.push(Case::new(name, move |lab| read.run(lab)));
                    }
                }
            }
        }
    }
    cases
}

impl Read {
    fn run(self, lab: &mut Lab) -> Result<()> {
        let mut session = open(lab, DRIVE, self.namespace, self.way)?;
        let seed = lab.seed(DRIVE, self.namespace)?;
        let (at, len) = (PAGE + self.offset, self.pages * PAGE);
        let target = match self.into_bar {
            true => bar_target()?,
            false => Target::host(len + 3 * PAGE)?,
        };
        let memory = session.attach(&target, true)?;
        let commands = session.transfer(Direction::Read, (FROM, len), memory, at)?;
        ensure!(commands == 1, "{commands} commands");
        let by_sgl = session.transport.sgl_commands(memory);
        ensure!(by_sgl == u64::from(self.way.sgl), "{by_sgl} of them by SGL");
        session.was_quiet()?;
        target.check(seed, FROM, at, len)?;
        if !self.into_bar {
            return target.untouched_but(at, len);
        }
        // The host compares all of the BAR.
        lab.expect_bar((at, len), (DRIVE, self.namespace), FROM)?;
        lab.ask(Action::CheckBar)
    }
}

fn verify(lab: &mut Lab, way: Way, size: u64, depth: u64, count: u64) -> Result<()> {
    let mut session = open(lab, DRIVE, 1, way)?;
    let seed = lab.seed(DRIVE, 1)?;
    session.verify(seed, size, depth, count)?;
    session.was_quiet()
}

/// One read after the other ends far sooner than the transport looks by itself, which it does
/// every 10 ms while anything is in flight: an interrupt that got lost would go unnoticed else.
fn interrupts(lab: &mut Lab) -> Result<()> {
    const READS: usize = 200;
    const SOON: Duration = Duration::from_millis(5);
    let way = Way { queues: 4, ..PLAIN };
    let mut session = open(lab, DRIVE, 1, way)?;
    let target = Target::host(PAGE)?;
    let memory = session.attach(&target, true)?;
    let mut spans = Vec::new();
    for _ in 0..READS {
        let io = session.first(memory, PAGE)?;
        let started = Instant::now();
        session.one(io)??;
        spans.push(started.elapsed());
    }
    // Every queue has a vector, and a quarter of the reads: of each queue's most are to be soon.
    for queue in 0..4 {
        let mut of_queue: Vec<Duration> = spans.iter().copied().skip(queue).step_by(4).collect();
        of_queue.sort_unstable();
        let middle = of_queue[of_queue.len() / 2];
        ensure!(
            middle < SOON,
            "half of queue {queue}'s took {middle:?} and more"
        );
    }
    Ok(())
}

/// A command of the limit's size goes through, in the worst place too; a larger one is not sent.
fn limited(lab: &mut Lab, drive: &'static str, most: u64) -> Result<()> {
    for sgl in [false, true] {
        let way = Way { sgl, ..PLAIN };
        let mut session = open(lab, drive, 1, way)?;
        let (seed, limit) = (
            lab.seed(drive, 1)?,
            session.transport.limits().transfer_bytes,
        );
        ensure!(
            u64::from(limit) == most,
            "{limit} bytes at most, not {most}"
        );
        for offset in [PAGE, 0] {
            let target = Target::host(most + 2 * PAGE)?;
            // Keeps the count of what the next line attaches and lets go.
            let memory = session.attach(&target, true)?;
            let commands = session.read_and_check(seed, (0, most), &target, offset, true)?;
            ensure!(commands == 1, "{commands} commands");
            let by_sgl = session.transport.sgl_commands(memory);
            ensure!(by_sgl == u64::from(sgl), "{by_sgl} of them by SGL");
            session.detach(memory);
        }
        let target = Target::host(4 * most)?;
        // The first one ends where a multiple of the limit is, so four of them.
        let run = (PAGE, 3 * most);
        let commands = session.read_and_check(seed, run, &target, PAGE, true)?;
        ensure!(commands == 4, "{commands} commands");
        let memory = session.attach(&target, true)?;
        let larger = session.first(memory, most + 512)?;
        ensure!(session.is_assertion(larger), "a larger command was sent");
    }
    Ok(())
}

/// An engine cuts what it is asked for into commands of 16 KiB, from and to odd places.
fn by_engine(lab: &mut Lab) -> Result<()> {
    let engine = over(vfio(lab, "small", 1)?).open()?;
    let (offset, len_bytes) = (12_345, (3 << 20) + 777);
    let what = What {
        offset,
        len_bytes,
        in_place: false,
    };
    let region = Region::anonymous(len_bytes, false)?;
    let buffer = VramBuffer::Host(Arc::new(region));
    load_raw(&engine, what, &buffer)?;
    holds(&buffer, lab.seed("small", 1)?, offset, len_bytes)
}

/// Resets under 64 commands over four queues, on a drive that takes a quarter of a second for
/// them: each ends once, well or as aborted, and afterwards everything can be read.
fn reset(lab: &mut Lab, way: Way, resets: u64) -> Result<()> {
    let mut session = open(lab, DRIVE, 1, way)?;
    lab.ask(Action::Throttle {
        drive: DRIVE.into(),
        bytes_per_s: 4 * SLOTS * SIZE,
    })?;
    let done = reset_under_load(lab, &mut session, resets);
    lab.ask(Action::Unthrottle {
        drive: DRIVE.into(),
    })?;
    done?;
    let seed = lab.seed(DRIVE, 1)?;
    session.verify(seed, PAGE, 64, 256)
}

const SLOTS: u64 = 64;
const SIZE: u64 = 4 * PAGE;

fn reset_under_load(lab: &Lab, session: &mut Session<UserTransport>, resets: u64) -> Result<()> {
    let seed = lab.seed(DRIVE, 1)?;
    let target = Target::host(SLOTS * SIZE)?;
    let memory = session.attach(&target, true)?;
    let mut aborted = 0;
    for round in 0..resets {
        target.poison(0, SLOTS * SIZE);
        let (mut waiting, mut well) = (BTreeSet::new(), Vec::new());
        // Other blocks in every round: what a command of the last one still wrote would be seen.
        let from = round * SLOTS * SIZE;
        for slot in 0..SLOTS {
            let at = slot * SIZE;
            let io = session.io(Direction::Read, (from + at, SIZE), memory, at)?;
            let started = Instant::now();
            // There is no room until the reset before is over.
            while session.submit(io).is_err() {
                ensure!(session.poll()?.is_empty(), "an end of nothing");
                ensure!(started.elapsed() < RESET, "the reset does not end");
            }
            waiting.insert(io.token);
        }
        // Sent by the first poll; in odd rounds some have ended when the reset comes. Until then
        // the drive fetches all of them: QEMU 7.2 crashes of what it fetches while it resets.
        let mut done = Vec::new();
        session.transport.poll(&mut done)?;
        sleep(Duration::from_millis(50));
        if round % 2 == 1 {
            session.transport.poll(&mut done)?;
        }
        session.transport.reset();
        let started = Instant::now();
        while !waiting.is_empty() {
            for end in done.drain(..) {
                ensure!(waiting.remove(&end.token), "{end:?} ended twice");
                match end.result {
                    Ok(()) => {
                        target.check(seed, from + end.token, end.token, SIZE)?;
                        well.push(end.token);
                    }
                    Err(IoError::Aborted) => aborted += 1,
                    Err(error) => return Err(error).context("after a reset"),
                }
            }
            done = session.poll()?;
            ensure!(started.elapsed() < RESET, "{} do not end", waiting.len());
        }
        for at in well {
            let still = target.check(seed, from + at, at, SIZE);
            still.context("changed after its end")?;
        }
    }
    session.stays_untouched(&target, RESET_OVER)?;
    // Goes through when the last reset is over.
    session.transfer(Direction::Read, (0, SIZE), memory, 0)?;
    let incidents = session.transport.incidents();
    ensure!(
        incidents.resets == resets && incidents.strays == 0,
        "{incidents:?}"
    );
    ensure!(aborted > 0, "no reset came while commands were in flight");
    session.detach(memory);
    Ok(())
}
