//! Reads of every length and place into host memory, registered and plain; at depth; by polling;
//! and by an engine that is asked for more than one command's bytes.

use std::sync::Arc;

use anyhow::{Result, ensure};
use nvme::transport::Transport;
use nvme::transport::passthrough::{Options, Passthrough, Polling, Registration};
use ubio::sys::memory::Region;
use ubio::vram::VramBuffer;
use ubio_lab_spec::Machine;

use super::{DRIVE, open};
use crate::case::Case;
use crate::lab::Lab;
use crate::session::Session;
use crate::suites::engines::{What, holds, load_raw, over, passthrough};
use crate::suites::{OFFSETS, PAGE, PAGES};
use crate::target::Target;

/// Where on the namespace.
const FROM: u64 = 12 * PAGE;

pub(super) fn cases(machine: &Machine, full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (namespace, block) in namespaces(machine) {
        for register in [true, false] {
            for pages in PAGES {
                for offset in OFFSETS {
                    let how = if register { "registered" } else { "plain" };
                    let name = format!("read/host/{block}/{how}/{pages}+{offset}");
                    cases.push(Case::new(name, move |lab| {
                        let options = Options::default();
                        read(lab, namespace, &options, register, (pages, offset))
                    }));
                }
            }
        }
    }
    for (name, size, depth, count) in [
        (
            "verify/4k-depth-64",
            PAGE,
            64,
            if full { 50_000 } else { 6000 },
        ),
        (
            "verify/128k-depth-16",
            32 * PAGE,
            16,
            if full { 3000 } else { 400 },
        ),
    ] {
        cases.push(Case::new(name, move |lab| {
            let mut session = open(lab, DRIVE, 1, &Options::default())?;
            let seed = lab.seed(DRIVE, 1)?;
            session.verify(seed, size, depth, count)?;
            session.was_quiet()
        }));
    }
    cases.push(Case::new("poll/read", |lab| {
        let options = Options {
            polling: Polling::Poll,
            ..Options::default()
        };
        for register in [true, false] {
            read(lab, 1, &options, register, (513, 4))?;
        }
        let mut session = open(lab, DRIVE, 1, &options)?;
        session.verify(lab.seed(DRIVE, 1)?, PAGE, 32, 500)
    }));
    for in_place in [false, true] {
        let how = if in_place { "in-place" } else { "windows" };
        cases.push(Case::new(format!("engine/{how}"), move |lab| {
            by_engine(lab, in_place)
        }));
    }
    cases.push(Case::new("thread/first-use-elsewhere", first_use_elsewhere));
    cases
}

/// The drive's namespaces and their block sizes.
pub(super) fn namespaces(machine: &Machine) -> Vec<(u32, u64)> {
    let drive = machine.drive(DRIVE);
    let numbered = drive.map(|drive| drive.numbered().map(|(id, ns)| (id, ns.block_bytes)));
    numbered.into_iter().flatten().collect()
}

/// How many commands of at most `most` bytes a run takes, cut at their multiples.
fn cut(from: u64, len: u64, most: u64) -> u64 {
    (from + len - 1) / most - from / most + 1
}

/// A run was read by as many commands as its length and the transport's limit ask for.
pub(super) fn were_cut(
    session: &Session<Passthrough>,
    commands: usize,
    (from, len): (u64, u64),
) -> Result<()> {
    let most = session.transport.limits().transfer_bytes;
    let wanted = cut(from, len, most.into());
    ensure!(
        commands as u64 == wanted,
        "{commands} commands, not {wanted}"
    );
    Ok(())
}

fn read(
    lab: &mut Lab,
    namespace: u32,
    options: &Options,
    register: bool,
    (pages, offset): (u64, u64),
) -> Result<()> {
    let mut session = open(lab, DRIVE, namespace, options)?;
    let seed = lab.seed(DRIVE, namespace)?;
    let (at, len) = (PAGE + offset, pages * PAGE);
    let target = Target::host(len + 3 * PAGE)?;
    let probe = session.attach(&target, register)?;
    let wanted = match register {
        true => Registration::Registered,
        false => Registration::NotAsked,
    };
    let found = session.transport.registration(probe);
    ensure!(found == wanted, "{found:?}");
    session.detach(probe);
    let commands = session.read_and_check(seed, (FROM, len), &target, at, register)?;
    were_cut(&session, commands, (FROM, len))?;
    session.was_quiet()
}

/// More than one command's and one window's bytes, from and to odd places.
fn by_engine(lab: &mut Lab, in_place: bool) -> Result<()> {
    let engine = over(passthrough(lab, DRIVE, 1)?).open()?;
    let seed = lab.seed(DRIVE, 1)?;
    let (offset, len_bytes) = match in_place {
        true => (3 * PAGE, (9 << 20) + 777),
        false => (12_345, (9 << 20) + 777),
    };
    let what = What {
        offset,
        len_bytes,
        in_place,
    };
    let region = Region::anonymous(len_bytes.next_multiple_of(PAGE), false)?;
    let buffer = VramBuffer::Host(Arc::new(region));
    load_raw(&engine, what, &buffer)?;
    holds(&buffer, seed, offset, len_bytes)?;
    let moved = engine.take_report()?.route_bytes;
    let moved = moved.get("passthrough").copied().unwrap_or(0);
    ensure!(moved >= len_bytes, "{moved} bytes by passthrough");
    Ok(())
}

/// A ring belongs to the thread that first uses it, not to the one that opened it.
fn first_use_elsewhere(lab: &mut Lab) -> Result<()> {
    let mut session = open(lab, DRIVE, 1, &Options::default())?;
    let seed = lab.seed(DRIVE, 1)?;
    let read = || {
        let target = Target::host(3 * PAGE)?;
        session.read_and_check(seed, (0, PAGE), &target, PAGE, true)
    };
    let read = std::thread::scope(|scope| scope.spawn(read).join());
    read.map_err(|_panic| anyhow::anyhow!("it panicked"))?
        .map(drop)
}
