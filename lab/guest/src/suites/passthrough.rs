//! Suite `passthrough`: commands through a real kernel's NVMe driver, into host memory and into
//! another controller's memory, without an IOMMU.
//!
//! `peer` has no MDTS and a namespace of each block size, `cmb` is the controller with memory,
//! both below the switch; `disk` holds an ext4 file system.

mod limits;
mod opening;
mod peers;
mod reads;
mod writes;

use anyhow::Result;
use nvme::transport::passthrough::{Access, Options, Passthrough};
use ubio_lab_spec::Machine;

use super::conformance::{self, Fixture};
use super::engines::p2pmem;
use crate::case::Case;
use crate::lab::Lab;
use crate::session::Session;

/// The drive that is read.
const DRIVE: &str = "peer";
/// The drive with memory.
const OWNER: &str = "cmb";
/// The drive behind a port of its own.
const OUTSIDE: &str = "outside";
/// The drive with a file system.
const DISK: &str = "disk";

pub(super) fn cases(machine: &Machine, full: bool) -> Vec<Case> {
    let mut cases = reads::cases(machine, full);
    cases.extend(peers::cases(machine, full));
    cases.extend(conformance::cases("suite/host", in_host, |_| Ok(())));
    cases.extend(conformance::cases("suite/p2p", in_p2p, |_| Ok(())));
    cases.extend(limits::cases());
    cases.extend(writes::cases());
    cases.extend(opening::cases());
    cases
}

fn open(lab: &Lab, drive: &str, namespace: u32, options: &Options) -> Result<Session<Passthrough>> {
    Session::new(Passthrough::open(lab.node(drive, namespace)?, options)?)
}

fn read_write() -> Options {
    Options {
        access: Access::ReadWrite,
        ..Options::default()
    }
}

fn in_host(lab: &mut Lab) -> Result<Fixture> {
    let path = lab.node(DRIVE, 1)?;
    Ok(Fixture {
        open: Box::new(move || {
            Box::new(Passthrough::open(&path, &read_write()).expect("a transport"))
        }),
        memory: None,
        seed: lab.seed(DRIVE, 1)?,
    })
}

fn in_p2p(lab: &mut Lab) -> Result<Fixture> {
    let memory = p2pmem(lab, OWNER, Some(16 << 20))?;
    Ok(Fixture {
        memory: Some(Box::new(move |len_bytes| {
            memory.allocate(len_bytes).expect("room in the p2pmem")
        })),
        ..in_host(lab)?
    })
}
