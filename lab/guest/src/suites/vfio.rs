//! Suite `vfio`: queues of our own on a real kernel's VFIO, behind QEMU's IOMMU, into host memory
//! and into a BAR that the host looks at from outside.
//!
//! `vfio` has no MDTS and a namespace of each block size, `outside` takes 4 MiB at once, `small`
//! takes 16 KiB, `left` and `right` share an IOMMU group.

mod admin;
mod mapping;
mod opening;
mod reads;
mod stopping;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::vfio::{VfioContainer, VfioDevice};
use nvme::transport::user::{DataNames, Options, UserTransport};
use ubio_lab_spec::Machine;
use ubio_lab_spec::line::{Action, Line};
use ubio_lab_spec::machine::BAR_ADDRESS;

use super::conformance::{self, Fixture};
use super::engines::bar;
use crate::binding;
use crate::case::Case;
use crate::lab::Lab;
use crate::pci::Address;
use crate::session::Session;
use crate::target::Target;

/// How a controller is used.
#[derive(Clone, Copy, Debug)]
struct Way {
    queues: u16,
    /// Whether data is named by SGLs, not by PRP lists.
    sgl: bool,
    polled: bool,
}

const PLAIN: Way = Way {
    queues: 1,
    sgl: false,
    polled: false,
};

pub(super) fn cases(machine: &Machine, full: bool) -> Vec<Case> {
    if !machine.iommu {
        return vec![Case::new("open/without-iommu", opening::without_iommu)];
    }
    let mut cases = opening::cases();
    cases.extend(reads::cases(machine, full));
    cases.extend(conformance::cases("suite/host", in_host, |_| Ok(())));
    cases.extend(conformance::cases("suite/bar", in_bar, forget_bar));
    cases.extend(mapping::cases());
    cases.extend(stopping::cases());
    // The last cases: they take the BAR from sysfs.
    cases.extend(mapping::cases_of_bars());
    cases
}

/// A drive's device, given to VFIO if it was not.
fn device(lab: &Lab, drive: &str) -> Result<Arc<VfioDevice>> {
    let address = lab.address(drive)?;
    binding::give_to(address, "vfio-pci")?;
    let container = VfioContainer::new()?;
    Ok(Arc::new(VfioDevice::open(
        &container,
        &address.to_string(),
    )?))
}

fn transport(device: Arc<VfioDevice>, namespace: u32, way: Way) -> Result<UserTransport> {
    let mut settings = Settings::new(NamespaceId(namespace));
    settings.queues = way.queues;
    settings.interrupts = !way.polled;
    let mut options = Options::new(settings);
    if !way.sgl {
        options.data = DataNames::Prp;
    }
    let transport = UserTransport::open(device, options)?;
    ensure!(transport.identity().sgl, "the controller offers no SGLs");
    ensure!(
        transport.has_interrupts() != way.polled,
        "not the interrupts that were asked for"
    );
    ensure!(
        transport.queues() == usize::from(way.queues),
        "{} queues",
        transport.queues()
    );
    Ok(transport)
}

fn open(lab: &Lab, drive: &str, namespace: u32, way: Way) -> Result<Session<UserTransport>> {
    Session::new(transport(device(lab, drive)?, namespace, way)?)
}

fn bar_address() -> Result<Address> {
    BAR_ADDRESS.parse()
}

/// All of the BAR, as it is: the host has poisoned it.
fn bar_target() -> Result<Target> {
    Ok(Target::of(Arc::clone(bar()?.region()) as _))
}

/// The suite's drive: its largest command is as large as QEMU can map.
const SUITE_DRIVE: &str = "outside";

fn in_host(lab: &mut Lab) -> Result<Fixture> {
    let address = lab.address(SUITE_DRIVE)?.clone();
    binding::give_to(&address, "vfio-pci")?;
    Ok(Fixture {
        open: Box::new(move || {
            let opened = VfioContainer::new()
                .and_then(|container| VfioDevice::open(&container, &address.to_string()))
                .context("VFIO")
                .and_then(|device| transport(Arc::new(device), 1, PLAIN));
            Box::new(opened.expect("a transport"))
        }),
        memory: None,
        seed: lab.seed(SUITE_DRIVE, 1)?,
    })
}

fn in_bar(lab: &mut Lab) -> Result<Fixture> {
    let memory = bar()?;
    Ok(Fixture {
        memory: Some(Box::new(move |len_bytes| {
            memory.allocate(len_bytes).expect("room in the BAR")
        })),
        ..in_host(lab)?
    })
}

/// What a case of that suite left in the BAR, it has looked at itself.
fn forget_bar(lab: &mut Lab) -> Result<()> {
    let len_bytes = lab.run().machine.bar_bytes();
    lab.talk().say(&Line::Ignore {
        offset: 0,
        len_bytes,
    })?;
    lab.ask(Action::CheckBar)
}
