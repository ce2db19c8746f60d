//! Writes, flushes and compares, and who may not send them.

use anyhow::{Context, Result, ensure};
use nvme::transport::passthrough::Options;
use nvme::transport::{Direction, Done};
use ubio_lab_spec::pattern::Seed;

use super::{DRIVE, open, read_write};
use crate::case::Case;
use crate::lab::Lab;
use crate::suites::PAGE;
use crate::target::Target;

/// Beyond what other cases read.
const FROM: u64 = 48 << 20;
const LEN: u64 = 1 << 20;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for namespace in [1, 2] {
        for register in [true, false] {
            let how = if register { "registered" } else { "plain" };
            cases.push(Case::new(format!("write/{namespace}/{how}"), move |lab| {
                write_flush_read_compare(lab, namespace, register)
            }));
        }
    }
    cases.push(Case::new("write/opened-for-reads", opened_for_reads));
    cases
}

fn write_flush_read_compare(lab: &mut Lab, namespace: u32, register: bool) -> Result<()> {
    let mut session = open(lab, DRIVE, namespace, &read_write())?;
    let (out, back) = (Target::host(LEN)?, Target::host(LEN)?);
    let ours = Seed(0x7000 + u16::from(register));
    out.fill(ours, FROM, 0, LEN);
    let [written, read] = [&out, &back].map(|target| session.attach(target, register));
    let (written, read) = (written?, read?);
    session.transfer(Direction::Write, (FROM, LEN), written, 0)?;
    let flushed = session.transport.flush(77);
    ensure!(flushed.is_ok(), "no room for a flush");
    let done = session.until_something_ends()?;
    let wanted = Done {
        token: 77,
        result: Ok(()),
    };
    ensure!(done == [wanted], "{done:?}");
    session.transfer(Direction::Read, (FROM, LEN), read, 0)?;
    back.check(ours, FROM, 0, LEN)?;
    session.transfer(Direction::Compare, (FROM, LEN), written, 0)?;
    out.flip(LEN / 2 + 8);
    let ios = session.commands(Direction::Compare, (FROM, LEN), written, 0)?;
    let ended = session.run(ios)?;
    let failed: Vec<_> = ended.iter().filter_map(|end| end.result.err()).collect();
    ensure!(failed.len() == 1, "{failed:?}");
    let said = failed.first().context("one")?.to_string();
    ensure!(said.contains("Compare Failure"), "{said}");
    Ok(())
}

fn opened_for_reads(lab: &mut Lab) -> Result<()> {
    let mut session = open(lab, DRIVE, 1, &Options::default())?;
    let target = Target::host(PAGE)?;
    let memory = session.attach(&target, false)?;
    for direction in [Direction::Write, Direction::Compare] {
        let io = session.io(direction, (FROM, PAGE), memory, 0)?;
        ensure!(session.is_assertion(io), "{direction:?} was started");
    }
    Ok(())
}
