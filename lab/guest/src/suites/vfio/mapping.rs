//! Memory and the device's addresses of it: what cannot be mapped, what limits there are, and
//! BARs mapped through VFIO itself.
//!
//! unsafe: maps memory without a guard that keeps it.
#![expect(
    unsafe_code,
    reason = "names parts of pages, which a guard cannot, and which are to be refused"
)]

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nvme::ErrorKind;
use nvme::device::vfio::{BarMapping, VfioContainer};
use nvme::device::{Device, Mapping};
use nvme::memory::{Pages, TargetMemory};
use nvme::transport::Direction;
use ubio_lab_spec::line::Action;
use ubio_lab_spec::machine::{BAR_ADDRESS, BAR_INDEX};

use super::{PLAIN, Way, bar_address, device, transport};
use crate::binding;
use crate::case::Case;
use crate::lab::Lab;
use crate::session::Session;
use crate::suites::PAGE;
use crate::suites::refusal::by_nvme;
use crate::target::Target;
use crate::user::{as_nobody, with_locked_limit};

const HUGE: u64 = 2 << 20;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("map/whole-pages-only", whole_pages_only),
        Case::new("map/huge-addresses", huge_addresses),
        Case::new("map/more-than-may-be-locked", locked),
        Case::new("map/more-than-entries", entries),
    ]
}

pub(super) fn cases_of_bars() -> Vec<Case> {
    let mut cases = vec![Case::new("bar/wrong-driver", bar_wrong_driver)];
    for sgl in [false, true] {
        let names = if sgl { "sgl" } else { "prp" };
        cases.push(Case::new(format!("bar/through-vfio/{names}"), move |lab| {
            bar_through_vfio(lab, Way { sgl, ..PLAIN })
        }));
    }
    cases.push(Case::new("bar/wrong-bar", bar_wrong_bar));
    cases
}

fn whole_pages_only(lab: &mut Lab) -> Result<()> {
    // Were it mapped after all, it would stay so until the device is closed, which is sooner than
    // the memory goes.
    let pages = Pages::new(2 * PAGE)?;
    let device = device(lab, "vfio")?;
    for (offset, len) in [(0, PAGE - 1), (512, PAGE), (0, 0)] {
        let part = pages.raw().part(offset, len);
        // SAFETY: the memory stays for longer than the device is open.
        let mapped = unsafe { device.map(part) };
        by_nvme(mapped, ErrorKind::InvalidInput, &["whole pages"])?;
    }
    Ok(())
}

fn huge_addresses(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")? as Arc<dyn Device>;
    let _small = Mapping::pages(&device, PAGE)?;
    let large = Mapping::pages(&device, 4 * HUGE)?;
    let (bus, own) = (large.address(0).0, large.raw().start().addr().get() as u64);
    ensure!(large.runs().len() == 1, "{} runs", large.runs().len());
    ensure!(bus % HUGE == own % HUGE, "{bus:#x} for {own:#x}");
    Ok(())
}

fn locked(lab: &mut Lab) -> Result<()> {
    let device = device(lab, "vfio")? as Arc<dyn Device>;
    with_locked_limit(128 << 10, || {
        as_nobody(|| {
            let mapped = Mapping::pages(&device, 1 << 20);
            by_nvme(mapped, ErrorKind::NoSpace, &["ulimit -l", "128 KiB"])
        })
    })?
}

fn entries(lab: &mut Lab) -> Result<()> {
    const PARAMETER: &str = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    let before = fs::read_to_string(PARAMETER)?;
    fs::write(PARAMETER, "4")?;
    let opened = device(lab, "vfio");
    fs::write(PARAMETER, before.trim())?;
    let device = opened?;
    let left = device.container().mappings_left()?;
    ensure!(left == Some(4), "{left:?} mappings left");
    let device = device as Arc<dyn Device>;
    let four = (0..4).map(|_| Mapping::pages(&device, PAGE));
    let _four = four.collect::<nvme::Result<Vec<_>>>()?;
    let fifth = Mapping::pages(&device, PAGE);
    by_nvme(fifth, ErrorKind::NoSpace, &["dma_entry_limit"])
}

fn bar_wrong_driver(_: &mut Lab) -> Result<()> {
    let container = VfioContainer::new()?;
    let opened = BarMapping::open(&container, BAR_ADDRESS, u8::try_from(BAR_INDEX)?);
    by_nvme(opened, ErrorKind::Busy, &["no driver", "drivers_probe"])
}

/// Reads over more than one list page, across the BAR's first and last pages.
fn bar_through_vfio(lab: &mut Lab, way: Way) -> Result<()> {
    binding::give_to(&bar_address()?, "vfio-pci")?;
    let device = device(lab, "vfio")?;
    let bar = u8::try_from(BAR_INDEX)?;
    let mapping = BarMapping::open(device.container(), BAR_ADDRESS, bar)?;
    let len_bytes = mapping.len_bytes();
    let whole = lab.run().machine.bar_bytes();
    ensure!(len_bytes == whole, "{len_bytes} bytes of {whole}");
    let seed = lab.seed("vfio", 1)?;
    let mut session = Session::new(transport(device, 1, way)?)?;
    let target = Target::of(Arc::new(mapping));
    let memory = session.attach(&target, true)?;
    let len = 513 * PAGE;
    let mut wanted = 0;
    for (at, from) in [(0, 7 * PAGE), (len_bytes - len, 2 * len)] {
        let commands = session.transfer(Direction::Read, (from, len), memory, at)?;
        target.check(seed, from, at, len)?;
        lab.expect_bar((at, len), ("vfio", 1), from)?;
        wanted += if way.sgl { commands as u64 } else { 0 };
    }
    let by_sgl = session.transport.sgl_commands(memory);
    ensure!(by_sgl == wanted, "{by_sgl} commands by SGL, not {wanted}");
    lab.ask(Action::CheckBar).context("seen by the host")
}

fn bar_wrong_bar(_: &mut Lab) -> Result<()> {
    binding::give_to(&bar_address()?, "vfio-pci")?;
    let container = VfioContainer::new()?;
    let open = |bar| BarMapping::open(&container, BAR_ADDRESS, bar);
    by_nvme(open(5), ErrorKind::NotFound, &["no BAR 5"])?;
    by_nvme(open(6), ErrorKind::InvalidInput, &["0 to 5"])?;
    // Registers of 256 bytes: less than a page.
    by_nvme(open(0), ErrorKind::Unsupported, &["cannot be mapped"])
}
