//! Reads into another controller's memory behind one switch, and what happens to those that
//! cannot be; by commands, and from a file of a mounted file system.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use nvme::transport::passthrough::{Options, Registration};
use nvme::transport::{Direction, IoError};
use nvme_sys::status::sct;
use rustix::io::Errno;
use ubio::vram::VramBuffer;
use ubio::window::MemoryKind;
use ubio_lab_spec::Machine;

use super::reads::{namespaces, were_cut};
use super::{DISK, DRIVE, OUTSIDE, OWNER, open};
use crate::case::Case;
use crate::lab::Lab;
use crate::suites::engines::{Mounted, What, builder, holds, load_file, p2pmem};
use crate::suites::{OFFSETS, PAGE, PAGES};
use crate::target::Target;

const FROM: u64 = 7 * PAGE;

pub(super) fn cases(machine: &Machine, full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (namespace, block) in namespaces(machine) {
        for (i, pages) in PAGES.into_iter().enumerate() {
            for (j, offset) in OFFSETS.into_iter().enumerate() {
                // In turn, unless all is asked for.
                if full || (i + j) % 2 == usize::from(block == 512) {
                    let name = format!("read/p2p/{block}/plain/{pages}+{offset}");
                    cases.push(Case::new(name, move |lab| {
                        read(lab, namespace, pages, offset)
                    }));
                }
            }
        }
    }
    cases.push(Case::new("p2p/registration-is-refused", registration));
    cases.push(Case::new("p2p/own-memory", own_memory));
    cases.push(Case::new("p2p/outside-the-switch", outside));
    for in_place in [false, true] {
        let how = if in_place { "in-place" } else { "windows" };
        cases.push(Case::new(format!("ext4/p2p/{how}"), move |lab| {
            file_to_p2p(lab, in_place)
        }));
    }
    cases
}

/// Memory of the other controller, poisoned.
fn target(lab: &Lab, len_bytes: u64) -> Result<Target> {
    let memory = p2pmem(lab, OWNER, Some(len_bytes))?;
    ensure!(memory.kind() == MemoryKind::P2p);
    let target = Target::of(Arc::clone(memory.region()) as _);
    target.poison(0, target.len_bytes());
    Ok(target)
}

fn read(lab: &mut Lab, namespace: u32, pages: u64, offset: u64) -> Result<()> {
    let mut session = open(lab, DRIVE, namespace, &Options::default())?;
    let seed = lab.seed(DRIVE, namespace)?;
    let (at, len) = (PAGE + offset, pages * PAGE);
    let target = target(lab, len + 3 * PAGE)?;
    let commands = session.read_and_check(seed, (FROM, len), &target, at, false)?;
    were_cut(&session, commands, (FROM, len))?;
    session.was_quiet()
}

/// The kernel pins such memory for no longer than a command; it can still be read into.
fn registration(lab: &mut Lab) -> Result<()> {
    let mut session = open(lab, DRIVE, 1, &Options::default())?;
    let target = target(lab, 32 * PAGE)?;
    let memory = session.attach(&target, true)?;
    let found = session.transport.registration(memory);
    let wanted = Registration::Refused(Errno::FAULT.raw_os_error());
    ensure!(found == wanted, "{found:?}");
    session.transfer(Direction::Read, (0, 32 * PAGE), memory, 0)?;
    target.check(lab.seed(DRIVE, 1)?, 0, 0, 32 * PAGE)
}

/// Of its own memory a controller takes a page, and of more it says "Invalid Use of Controller
/// Memory Buffer": a canary of one page would prove nothing.
fn own_memory(lab: &mut Lab) -> Result<()> {
    const INVALID_CMB_USE: u8 = 0x12;
    let mut session = open(lab, OWNER, 1, &Options::default())?;
    let target = target(lab, 32 * PAGE)?;
    let memory = session.attach(&target, false)?;
    let io = session.first(memory, 32 * PAGE)?;
    match session.one(io)? {
        Err(IoError::Status(status))
            if (status.code_type(), status.code()) == (sct::GENERIC, INVALID_CMB_USE) =>
        {
            ensure!(!status.is_retryable(), "{status} may be tried again");
        }
        other => bail!("{other:?}"),
    }
    let io = session.first(memory, PAGE)?;
    session.one(io)??;
    Ok(())
}

fn outside(lab: &mut Lab) -> Result<()> {
    let mut session = open(lab, OUTSIDE, 1, &Options::default())?;
    let target = target(lab, 32 * PAGE)?;
    let memory = session.attach(&target, false)?;
    let io = session.first(memory, 32 * PAGE)?;
    let refusals = [Errno::INVAL, Errno::REMOTEIO, Errno::IO].map(Errno::raw_os_error);
    match session.one(io)? {
        Err(IoError::Os(errno)) if refusals.contains(&errno) => {}
        other => bail!("{other:?}"),
    }
    target.untouched_but(0, 0)?;
    // The transport goes on.
    let host = Target::host(3 * PAGE)?;
    session.read_and_check(lab.seed(OUTSIDE, 1)?, (0, PAGE), &host, PAGE, true)?;
    Ok(())
}

/// Direct reads of a mounted file, with no map of its blocks: the file system's business.
fn file_to_p2p(lab: &mut Lab, in_place: bool) -> Result<()> {
    let mounted = Mounted::new(lab, DISK)?;
    let seed = lab.seed(DISK, 1)?;
    let memory = p2pmem(lab, OWNER, Some(8 << 20))?;
    let engine = builder()
        .bar(Arc::clone(&memory))
        .windows_in_bar(true)
        .open()?;
    let (file, stored) = mounted.file(0)?;
    let odd = stored.len_bytes - 12_345;
    let ranges = match in_place {
        true => [(0, 2 << 20), (512 << 10, 4096)],
        false => [(0, stored.len_bytes), (12_345, odd)],
    };
    for (offset, len_bytes) in ranges {
        let buffer = VramBuffer::Bar(memory.allocate(len_bytes)?);
        let what = What {
            offset,
            len_bytes,
            in_place,
        };
        load_file(&engine, &file, what, &buffer)?;
        holds(&buffer, seed, stored.offset + offset, len_bytes)?;
    }
    let report = engine.take_report()?;
    let direct = report.route_bytes.get("direct").copied().unwrap_or(0);
    let wanted: u64 = ranges.iter().map(|(_, len)| len).sum();
    ensure!(
        direct >= wanted,
        "{direct} of {wanted} bytes were read direct"
    );
    Ok(())
}
