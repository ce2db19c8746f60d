//! What cannot be read: blocks with errors, namespaces with metadata, blocks that are not there.
//! Each is refused by name, and everything else stays readable.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ubio::{ErrorKind, RawRequest};

use super::{Bench, MIB, Way, fails, open};
use crate::lab::Lab;
use crate::status;
use crate::suites::refusal::{by_engine, refusal, says};

const DEADLINE: Duration = Duration::from_secs(30);

/// Generic command status, without DNR.
const LBA_OUT_OF_RANGE: i32 = 0x80;

pub(super) fn media_error(lab: &mut Lab, way: Way) -> Result<()> {
    let sector = lab.drive(way.drive())?.namespaces[0].faults[0].sector;
    let place = sector * 512;
    let bench = Bench::open(lab, way, 4, DEADLINE)?;
    let start = place / MIB * MIB;
    let load = bench.start(start - 2 * MIB, 4 * MIB)?;
    let said = fails(load, ErrorKind::Device, Duration::ZERO)?;
    says(&said, &["Unrecovered Read Error (0x281)", "2 tries", "LBA"])?;
    bench.undisturbed(1)?;
    // One block is read with the page around it, which is what fails, and is named.
    let load = bench.start(place, 512)?;
    let said = fails(load, ErrorKind::Device, Duration::ZERO)?;
    let (first, last) = (sector / 8 * 8, sector / 8 * 8 + 7);
    says(&said, &[&format!("(LBA {first} to {last})")])?;
    bench.undisturbed(1)?;
    let page = place / 4096 * 4096;
    bench.load(page - 4096, 4096)?;
    bench.load(page + 4096, 4096)?;
    bench.load(start + MIB, 2 * MIB)?;
    bench.undisturbed(0).map(drop)
}

pub(super) fn metadata(lab: &mut Lab, way: Way) -> Result<()> {
    let address = way.address(lab, way.drive(), 2)?;
    let opened = open(address, 2, DEADLINE);
    by_engine(opened, ErrorKind::Unsupported, &["metadata"])
}

pub(super) fn beyond_the_end(lab: &mut Lab, way: Way) -> Result<()> {
    let bench = Bench::open(lab, way, 2, DEADLINE)?;
    let end = lab.drive(way.drive())?.namespaces[0].visible_bytes();
    for (offset, len_bytes) in [(end, 1), (end - 512, 513), (0, end + 1), (u64::MAX, 2)] {
        let request = RawRequest {
            offset,
            len_bytes,
            ..RawRequest::default()
        };
        let error = refusal(bench.engine.read_raw(request))
            .with_context(|| format!("{len_bytes} bytes from {offset} of {end}"))?;
        ensure!(error.kind() == ErrorKind::InvalidInput, "{error}");
        says(&error.to_string(), &[&end.to_string(), "len="])?;
    }
    bench.load(end - 4096 - 7, 4096 + 7)?;
    bench.undisturbed(0)?;
    if way == Way::Passthrough {
        // What the drive itself would have said: that our own check is the same as its.
        let node = lab.node(way.drive(), 1)?;
        let status = status::of_read(&node, 1, end / 512)?;
        ensure!(
            status & 0x7ff == LBA_OUT_OF_RANGE,
            "the drive says {status:#x}"
        );
        ensure!(
            status::of_read(&node, 1, end / 512 - 1)? == 0,
            "the last block"
        );
    }
    Ok(())
}
