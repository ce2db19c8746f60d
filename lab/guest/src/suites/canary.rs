//! Suite `canary`: pairs of drive and device memory. With the IOMMU, reads between devices report
//! success and nothing lands; an engine refuses them by name and shows nothing. Without it the
//! same pair is taken: a test that cannot fail is none.
//!
//! `cmb` is the controller with memory and `peer` beside it, `outside` behind a port of its own;
//! `disk` below the switch and `far` behind a port of its own hold ext4 file systems. Knows no
//! transports.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ubio::source::nvme::NvmeAddress;
use ubio::vram::VramBuffer;
use ubio::vram::bar::BarMemory;
use ubio::{Engine, ErrorKind};
use ubio_lab_spec::Machine;
use ubio_lab_spec::line::{Action, Line};
use ubio_lab_spec::machine::BAR_ADDRESS;

use super::engines::{
    Mounted, What, bar, builder, holds, is_empty, load_file, load_raw, over, p2pmem, passthrough,
    vfio,
};
use super::refusal::{by_engine, refusal as refusal_of, says};
use crate::case::Case;
use crate::lab::Lab;

const MIB: u64 = 1 << 20;
/// The drive whose memory is the target.
const OWNER: &str = "cmb";

/// How a pair is used first.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// Windows in the memory.
    Windows,
    /// The destination itself, from host windows' engine.
    InPlace,
}

const USES: [(&str, Use); 2] = [("windows", Use::Windows), ("in-place", Use::InPlace)];

pub(super) fn cases(machine: &Machine, _full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, how) in USES {
        let mut case = |pair: &str, body: fn(&mut Lab, Use) -> Result<()>| {
            cases.push(Case::new(format!("{pair}/{name}"), move |lab| {
                body(lab, how)
            }));
        };
        case("own-memory", own_memory);
        if machine.iommu {
            case("behind-the-iommu", behind_the_iommu);
            case("outside-behind-the-iommu", outside_behind_the_iommu);
            case("file-behind-the-iommu", file_behind_the_iommu);
            case("vfio-into-the-bar", vfio_into_the_bar);
        } else {
            case("one-switch", one_switch);
            case("outside-the-switch", outside_the_switch);
            case("file-on-one-switch", file_on_one_switch);
            case("file-on-another-drive", file_on_another_drive);
        }
    }
    cases.push(Case::new("one-page-of-own-memory", one_page_of_own_memory));
    cases.push(Case::new("passthrough-into-a-bar", passthrough_into_a_bar));
    if !machine.iommu {
        cases.push(Case::new("all-of-the-memory", all_of_the_memory));
    }
    cases
}

const WHAT: What = What {
    offset: 3 * MIB,
    len_bytes: 2 * MIB,
    in_place: false,
};

impl Use {
    fn what(self) -> What {
        What {
            in_place: matches!(self, Self::InPlace),
            ..WHAT
        }
    }
}

/// An engine whose windows and destinations, or destinations only, lie in the memory.
fn engine(address: NvmeAddress, memory: &Arc<BarMemory>, how: Use) -> ubio::Result<Engine> {
    let builder = over(address).bar(Arc::clone(memory));
    builder.windows_in_bar(matches!(how, Use::Windows)).open()
}

/// What an attempt said, at open or at the first load; the buffer is still empty then.
fn refusal(attempt: ubio::Result<()>, buffer: &VramBuffer) -> Result<String> {
    let error = refusal_of(attempt)?;
    let said = error.to_string();
    by_engine::<()>(Err(error), ErrorKind::Unsupported, &[])?;
    ensure!(
        is_empty(buffer),
        "bytes of a refused pair are in the buffer"
    );
    Ok(said)
}

/// The pair of a drive and the other's memory is refused, again and again, in these words.
fn refused(lab: &Lab, drive: &str, what: What, how: Use, words: &[&str]) -> Result<()> {
    let memory = p2pmem(lab, OWNER, Some(8 * MIB))?;
    let address = passthrough(lab, drive, 1)?;
    let name = address.to_string();
    for _ in 0..2 {
        let buffer = VramBuffer::Bar(memory.allocate(what.len_bytes)?);
        let attempt = engine(address.clone(), &memory, how).and_then(|engine| {
            let first = load_raw(&engine, what, &buffer);
            // It is not refused for once.
            let second = load_raw(&engine, what, &buffer);
            first.and(second)
        });
        let said = refusal(attempt, &buffer)?;
        says(&said, words)?;
        says(&said, &[&name, memory.name()])?;
    }
    Ok(())
}

fn behind_the_iommu(lab: &mut Lab, how: Use) -> Result<()> {
    let words = ["reported success", "did not arrive", "IOMMU translates"];
    refused(lab, "peer", how.what(), how, &words)
}

fn outside_behind_the_iommu(lab: &mut Lab, how: Use) -> Result<()> {
    refused(lab, "outside", how.what(), how, &["root port"])
}

fn own_memory(lab: &mut Lab, how: Use) -> Result<()> {
    refused(lab, OWNER, how.what(), how, &["own"])
}

/// Reads of one page into its own memory succeed, which is no reason to take it.
fn one_page_of_own_memory(lab: &mut Lab) -> Result<()> {
    let what = What {
        len_bytes: 4096,
        ..Use::InPlace.what()
    };
    refused(lab, OWNER, what, Use::InPlace, &["own"])
}

fn outside_the_switch(lab: &mut Lab, how: Use) -> Result<()> {
    refused(lab, "outside", how.what(), how, &["root port"])
}

/// The control: the same code takes the pair that works.
fn accepted(lab: &Lab, memory: &Arc<BarMemory>, how: Use) -> Result<()> {
    let seed = lab.seed("peer", 1)?;
    let engine = engine(passthrough(lab, "peer", 1)?, memory, how)?;
    for offset in [WHAT.offset, 0] {
        let what = What {
            offset,
            ..how.what()
        };
        let buffer = VramBuffer::Bar(memory.allocate(what.len_bytes)?);
        load_raw(&engine, what, &buffer)?;
        holds(&buffer, seed, what.offset, what.len_bytes)?;
    }
    Ok(())
}

fn one_switch(lab: &mut Lab, how: Use) -> Result<()> {
    let memory = p2pmem(lab, OWNER, Some(8 * MIB))?;
    accepted(lab, &memory, how)
}

/// Taking all of the memory leaves none, which is no reason to refuse it.
fn all_of_the_memory(lab: &mut Lab) -> Result<()> {
    let memory = p2pmem(lab, OWNER, None)?;
    ensure!(
        memory.free_bytes() > 32 * MIB,
        "{} bytes",
        memory.free_bytes()
    );
    accepted(lab, &memory, Use::Windows)
}

fn file_engine(memory: &Arc<BarMemory>, how: Use) -> ubio::Result<Engine> {
    let builder = builder().bar(Arc::clone(memory));
    builder.windows_in_bar(matches!(how, Use::Windows)).open()
}

/// What is read of a file, into which memory.
fn from_file(lab: &Lab, how: Use) -> Result<(What, Arc<BarMemory>, VramBuffer)> {
    let memory = p2pmem(lab, OWNER, Some(8 * MIB))?;
    let what = What {
        offset: 0,
        ..how.what()
    };
    let buffer = VramBuffer::Bar(memory.allocate(what.len_bytes)?);
    Ok((what, memory, buffer))
}

fn file_behind_the_iommu(lab: &mut Lab, how: Use) -> Result<()> {
    let mounted = Mounted::new(lab, "disk")?;
    let (file, stored) = mounted.file(0)?;
    let (what, memory, buffer) = from_file(lab, how)?;
    let attempt =
        file_engine(&memory, how).and_then(|engine| load_file(&engine, &file, what, &buffer));
    let said = refusal(attempt, &buffer)?;
    let words = ["reported success", "did not arrive"];
    says(&said, &words)?;
    says(&said, &[stored.name, memory.name()])
}

fn file_on_one_switch(lab: &mut Lab, how: Use) -> Result<()> {
    let mounted = Mounted::new(lab, "disk")?;
    let (file, stored) = mounted.file(0)?;
    let (what, memory, buffer) = from_file(lab, how)?;
    load_file(&file_engine(&memory, how)?, &file, what, &buffer)?;
    holds(&buffer, lab.seed("disk", 1)?, stored.offset, what.len_bytes)
}

/// One engine reads a file of a drive that reaches the memory, then one of a drive that does
/// not: the first proves nothing of the second, and goes on.
fn file_on_another_drive(lab: &mut Lab, how: Use) -> Result<()> {
    let (near, far) = (Mounted::new(lab, "disk")?, Mounted::new(lab, "far")?);
    let memory = p2pmem(lab, OWNER, Some(8 * MIB))?;
    let engine = file_engine(&memory, how)?;
    let what = What {
        offset: 0,
        ..how.what()
    };
    // The same bytes of memory for both.
    let buffer = VramBuffer::Bar(memory.allocate(what.len_bytes)?);
    let (file, stored) = near.file(0)?;
    let works = || {
        load_file(&engine, &file, what, &buffer)?;
        holds(&buffer, lab.seed("disk", 1)?, stored.offset, what.len_bytes)
    };
    works()?;
    for _ in 0..2 {
        let (file, stored) = far.file(0)?;
        let attempt = load_file(&engine, &file, what, &buffer);
        let words = [stored.name, memory.name(), "refused to read"];
        by_engine(attempt, ErrorKind::Unsupported, &words)?;
        works().context("the drive that was proven")?;
    }
    Ok(())
}

/// The control with an IOMMU: where VFIO maps the BAR for the drive, bytes do land, and the host
/// sees them.
fn vfio_into_the_bar(lab: &mut Lab, how: Use) -> Result<()> {
    let address = vfio(lab, "vfio", 1)?;
    let memory = bar()?;
    let engine = engine(address, &memory, how)?;
    let what = how.what();
    let region = memory.allocate(what.len_bytes)?;
    let at = region.address(0, 0) as u64 - memory.region().address(0, 0) as u64;
    let buffer = VramBuffer::Bar(region);
    load_raw(&engine, what, &buffer)?;
    holds(&buffer, lab.seed("vfio", 1)?, what.offset, what.len_bytes)?;
    drop(engine);
    lab.expect_bar((at, what.len_bytes), ("vfio", 1), what.offset)?;
    // The windows, which the host knows nothing of.
    let all = lab.run().machine.bar_bytes();
    let end = at + what.len_bytes;
    for (offset, len_bytes) in [(0, at), (end, all - end)] {
        if len_bytes > 0 {
            lab.talk().say(&Line::Ignore { offset, len_bytes })?;
        }
    }
    lab.ask(Action::CheckBar)
}

fn passthrough_into_a_bar(lab: &mut Lab) -> Result<()> {
    let memory = bar()?;
    let opened = engine(passthrough(lab, "peer", 1)?, &memory, Use::Windows);
    by_engine(opened, ErrorKind::Unsupported, &["pages", BAR_ADDRESS])
}
