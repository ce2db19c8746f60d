//! Whether the limits that a transport names are the kernel's: the largest command goes through
//! in the worst memory there is; and were the memory worse than was promised, the kernel would
//! refuse commands (or copy them), though not the first that is a page larger.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use nvme::transport::passthrough::{MemoryShape, Options};
use nvme::transport::{IoError, Transport};
use rustix::io::Errno;

use super::{DRIVE, open};
use crate::case::{Case, skip};
use crate::lab::Lab;
use crate::scattered::Scattered;
use crate::suites::PAGE;
use crate::target::Target;

const HUGE: u64 = 2 << 20;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for namespace in [1, 2] {
        cases.push(Case::new(
            format!("limits/any-dword/{namespace}"),
            move |lab| largest(lab, namespace, 4, &[0, 4, 4092]),
        ));
        cases.push(Case::new(
            format!("limits/whole-pages/{namespace}"),
            move |lab| largest(lab, namespace, 4096, &[0, 4096]),
        ));
    }
    cases.push(Case::new("limits/larger-is-an-assertion", larger));
    cases.push(Case::new("limits/false-promise", false_promise));
    cases.push(Case::new(
        "memory/registered-pages-are-used",
        registered_pages,
    ));
    cases
}

fn options(alignment: u32, contiguous_bytes: u64) -> Options {
    Options {
        memory: MemoryShape {
            alignment,
            contiguous_bytes,
        },
        ..Options::default()
    }
}

fn scattered(len_bytes: u64) -> Result<Target> {
    let pages = Scattered::new(len_bytes)?;
    let neighbours = pages.neighbours()?;
    ensure!(
        neighbours == 0,
        "{neighbours} pages are no segments of their own"
    );
    let target = Target::of(Arc::new(pages));
    target.poison(0, target.len_bytes());
    Ok(target)
}

/// Every page is a segment of its own.
fn largest(lab: &mut Lab, namespace: u32, alignment: u32, offsets: &[u64]) -> Result<()> {
    let mut session = open(lab, DRIVE, namespace, &options(alignment, PAGE))?;
    let most = u64::from(session.transport.limits().transfer_bytes);
    let seed = lab.seed(DRIVE, namespace)?;
    for register in [true, false] {
        let target = scattered(most + 4 * PAGE)?;
        let memory = session.attach(&target, register)?;
        for &offset in offsets {
            let mut io = session.first(memory, most)?;
            io.offset = offset;
            session
                .one(io)?
                .with_context(|| format!("{most} bytes to {offset}"))?;
            target.check(seed, 0, offset, most)?;
            target.untouched_but(offset, most)?;
            target.poison(0, target.len_bytes());
        }
        session.detach(memory);
    }
    session.was_quiet()
}

fn larger(lab: &mut Lab) -> Result<()> {
    for namespace in [1, 2] {
        let mut session = open(lab, DRIVE, namespace, &Options::default())?;
        let most = u64::from(session.transport.limits().transfer_bytes);
        let block = u64::from(session.transport.namespace().block.bytes());
        let target = Target::host(2 * most)?;
        let memory = session.attach(&target, true)?;
        let io = session.first(memory, most + block)?;
        ensure!(session.is_assertion(io), "a larger command was sent");
        let mut io = session.first(memory, block)?;
        io.offset = 2;
        ensure!(session.is_assertion(io), "an unaligned command was sent");
        io.offset = 2 * most - block + 4;
        ensure!(session.is_assertion(io), "a command left the memory");
    }
    Ok(())
}

/// Base pages where huge ones were promised: what has many more segments than the queue is
/// refused in registered memory, and refused or copied in other. No byte arrives in a wrong
/// place, none at all of what is refused, and what has as many segments as there are is taken.
fn false_promise(lab: &mut Lab) -> Result<()> {
    let honest = open(lab, DRIVE, 1, &options(4, PAGE))?;
    let honest = u64::from(honest.transport.limits().transfer_bytes);
    let mut session = open(lab, DRIVE, 1, &options(4, HUGE))?;
    let most = u64::from(session.transport.limits().transfer_bytes);
    if most <= honest {
        return skip(format!(
            "huge pages change nothing here: {most} bytes at most"
        ));
    }
    let seed = lab.seed(DRIVE, 1)?;
    let known = [Errno::INVAL, Errno::NOMEM].map(Errno::raw_os_error);
    for register in [true, false] {
        let mut refusals = 0;
        for (len, offset, fits) in [
            (honest, 4, true),
            (honest + PAGE, 4, false),
            (most, 0, false),
        ] {
            let target = scattered(most + 2 * PAGE)?;
            let memory = session.attach(&target, register)?;
            let mut io = session.first(memory, len)?;
            io.offset = offset;
            match session.one(io)? {
                Ok(()) => {
                    target.check(seed, 0, offset, len)?;
                    target.untouched_but(offset, len)?;
                }
                Err(IoError::Os(errno)) if !fits && known.contains(&errno) => {
                    refusals += 1;
                    target.untouched_but(0, 0)?;
                }
                Err(error) => bail!("{len} bytes to {offset}: {error}"),
            }
            session.detach(memory);
        }
        // Of plain memory a kernel may make a copy instead, which nobody asked for.
        ensure!(
            !register || refusals > 0,
            "the limit is none: all was taken"
        );
    }
    Ok(())
}

/// A registered buffer is the pages that were there when it was registered; without it a command
/// goes to what is at the address now.
fn registered_pages(lab: &mut Lab) -> Result<()> {
    let seed = lab.seed(DRIVE, 1)?;
    for register in [true, false] {
        let pages = Arc::new(Scattered::new(8 * PAGE)?);
        let before = Target::of(Arc::new(pages.again()?));
        let now = Target::of(Arc::clone(&pages) as _);
        now.poison(0, 8 * PAGE);
        let mut session = open(lab, DRIVE, 1, &Options::default())?;
        let memory = session.attach(&now, register)?;
        pages.replace()?;
        let io = session.first(memory, 8 * PAGE)?;
        session.one(io)??;
        let landed = [&before, &now].map(|target| target.check(seed, 0, 0, 8 * PAGE).is_ok());
        ensure!(
            landed == [register, !register],
            "registered {register}: {landed:?}"
        );
    }
    Ok(())
}
