//! Suite `boot`: the machine is what the table says, and the lab's own tools tell the truth.
//!
//! It trusts nothing of the lab: every tool that other suites stand on is tried here, also for
//! whether it can say no.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use ubio_lab_spec::line::{Action, Line};
use ubio_lab_spec::machine::{BAR_ADDRESS, BAR_INDEX};
use ubio_lab_spec::pattern::{self, POISON};
use ubio_lab_spec::{Machine, Place, Transfer};

use super::refusal::says;
use crate::case::{Case, skip};
use crate::devices::number;
use crate::lab::Lab;
use crate::memory::AlignedBytes;
use crate::pci::Address;
use crate::sys::Bar;

/// Where init puts the configuration that the kernel's package came with.
const KERNEL_CONFIG: &str = "/etc/kernel-config";
const SECTOR_BYTES: u64 = 512;
const MIB: u64 = 1 << 20;

pub(super) fn cases(machine: &Machine, _full: bool) -> Vec<Case> {
    let mut cases = vec![Case::new("kernel", kernel)];
    for drive in &machine.drives {
        let name = drive.name;
        cases.push(Case::new(format!("drive/{name}"), move |lab| {
            found(lab, name)
        }));
        for (nsid, namespace) in drive.numbered() {
            if namespace.metadata.is_none() {
                let title = format!("pattern/{name}-{nsid}");
                cases.push(Case::new(title, move |lab| holds_pattern(lab, name, nsid)));
            }
            for fault in namespace.faults.clone() {
                let (sector, transfer) = (fault.sector, fault.transfer);
                let title = format!("fault/{name}-{nsid}-{transfer:?}").to_lowercase();
                cases.push(Case::new(title, move |lab| {
                    fails_at(lab, (name, nsid), sector, transfer)
                }));
            }
        }
    }
    cases.push(Case::new("switch", switch));
    cases.push(Case::new("iommu-groups", iommu_groups));
    cases.push(Case::new("p2pmem", p2pmem));
    cases.push(Case::new("bar/poisoned", bar_is_poisoned));
    cases.push(Case::new(
        "bar/host-sees-what-landed",
        host_sees_what_landed,
    ));
    cases.push(Case::new(
        "bar/host-sees-a-foreign-byte",
        host_sees_a_foreign_byte,
    ));
    cases.push(Case::new(
        "bar/host-sees-a-missing-byte",
        host_sees_a_missing_byte,
    ));
    cases.push(Case::new("bar/left-for-the-end", left_for_the_end));
    for drive in machine.drives.iter().filter(|drive| drive.throttled) {
        let name = drive.name;
        cases.push(Case::new(format!("host/throttle-{name}"), move |lab| {
            throttle(lab, name)
        }));
    }
    cases.push(Case::new("host/pause", |lab| {
        lab.ask(Action::Pause { millis: 50 })
    }));
    cases.push(Case::new("host/refuses", host_refuses));
    // The last case: afterwards the drive is gone.
    let port = machine
        .drives
        .iter()
        .find(|drive| drive.place == Place::Port);
    cases.extend(port.map(|drive| {
        let name = drive.name;
        Case::new(format!("host/remove-{name}"), move |lab| remove(lab, name))
    }));
    cases
}

fn kernel(lab: &mut Lab) -> Result<()> {
    let release = lab.kernel().to_string();
    let config = fs::read_to_string(KERNEL_CONFIG).context("init left no kernel configuration")?;
    for option in ["PCI_P2PDMA", "IO_URING", "VFIO_CONTAINER", "INTEL_IOMMU"] {
        let line = format!("CONFIG_{option}=y");
        ensure!(
            config.lines().any(|found| found == line),
            "{release} lacks {line}"
        );
    }
    let version = config.lines().find_map(|line| {
        line.strip_prefix("# Linux/x86")?
            .strip_suffix(" Kernel Configuration")?
            .split(' ')
            .nth(1)
    });
    let version = version.context("the configuration does not name its version")?;
    ensure!(
        release.starts_with(version),
        "{release} runs with the configuration of {version}"
    );
    let online = std::thread::available_parallelism()?.get();
    let cores = usize::try_from(lab.run().machine.cores)?;
    ensure!(
        online == cores,
        "{online} processors are online, not {cores}"
    );
    let modules = fs::read_to_string("/proc/modules")?;
    for wanted in ["nvme", "vfio_pci", "vfio_iommu_type1", "ext4"] {
        let loaded = modules
            .lines()
            .any(|line| line.split(' ').next() == Some(wanted));
        ensure!(loaded, "module {wanted} is not loaded");
    }
    Ok(())
}

fn found(lab: &mut Lab, name: &str) -> Result<()> {
    let drive = lab.drive(name)?.clone();
    let controller = lab.controller(name)?;
    if let Some(fixed) = drive.address() {
        let address = controller.address()?;
        ensure!(
            address.to_string() == fixed,
            "{name} sits at {address}, not at {fixed}"
        );
    }
    let blocks = controller.namespaces()?;
    ensure!(
        blocks.len() == drive.namespaces.len(),
        "{name} has {} namespaces, not {}",
        blocks.len(),
        drive.namespaces.len()
    );
    for (nsid, wanted) in drive.numbered() {
        let block = controller.namespace(nsid)?;
        let (size, unit) = (block.size_bytes()?, block.queue("logical_block_size")?);
        ensure!(
            size == wanted.visible_bytes(),
            "{name}/{nsid} has {size} bytes"
        );
        ensure!(
            unit == wanted.block_bytes,
            "{name}/{nsid} has blocks of {unit} bytes"
        );
        ensure!(block.queue("physical_block_size")? == wanted.block_bytes);
        let passthrough = block.passthrough_path();
        ensure!(
            passthrough.exists(),
            "{} is not there",
            passthrough.display()
        );
        // Power of two of pages of 4 KiB; without a limit the kernel still has one of its own.
        if let Some(power @ 1..) = drive.mdts {
            let largest = block.queue("max_hw_sectors_kb")?;
            ensure!(
                largest == 4 << power,
                "{name}/{nsid} transfers {largest} KiB at most"
            );
        }
    }
    Ok(())
}

fn open_direct(lab: &Lab, drive: &str, nsid: u32, write: bool) -> Result<File> {
    let path = lab.controller(drive)?.namespace(nsid)?.block_path();
    let flags = i32::try_from(OFlags::DIRECT.bits())?;
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(flags)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))
}

fn holds_pattern(lab: &mut Lab, drive: &str, nsid: u32) -> Result<()> {
    let seed = lab.seed(drive, nsid)?;
    let size = lab.controller(drive)?.namespace(nsid)?.size_bytes()?;
    let faults: Vec<u64> = lab.drive(drive)?.namespaces[nsid as usize - 1]
        .faults
        .iter()
        .filter(|fault| fault.transfer == Transfer::Read)
        .map(|fault| fault.sector * SECTOR_BYTES / MIB)
        .collect();
    let file = open_direct(lab, drive, nsid, false)?;
    let mut pages = AlignedBytes::new(usize::try_from(MIB)?);
    for mib in (0..size / MIB).filter(|mib| !faults.contains(mib)) {
        let bytes = pages.as_mut();
        file.read_exact_at(bytes, mib * MIB)
            .with_context(|| format!("cannot read {drive}/{nsid} at {mib} MiB"))?;
        pattern::check(seed, mib * MIB, bytes)
            .with_context(|| format!("{drive}/{nsid} at {mib} MiB"))?;
    }
    Ok(())
}

/// The faulty sector fails with the error of media, and the one before it does not.
fn fails_at(
    lab: &mut Lab,
    (drive, nsid): (&str, u32),
    sector: u64,
    transfer: Transfer,
) -> Result<()> {
    let file = open_direct(lab, drive, nsid, true)?;
    let seed = lab.seed(drive, nsid)?;
    let mut pages = AlignedBytes::new(usize::try_from(SECTOR_BYTES)?);
    let mut try_at = |sector: u64| {
        let (bytes, offset) = (pages.as_mut(), sector * SECTOR_BYTES);
        match transfer {
            Transfer::Read => file.read_exact_at(bytes, offset),
            Transfer::Write => {
                pattern::fill(seed, offset, bytes);
                file.write_all_at(bytes, offset)
            }
        }
    };
    try_at(sector - 1).context("the sector before the faulty one fails too")?;
    match try_at(sector) {
        Ok(()) => bail!("sector {sector} of {drive}/{nsid} does not fail"),
        Err(error) => {
            let code = error.raw_os_error();
            let expected = [rustix::io::Errno::IO, rustix::io::Errno::NODATA];
            let media = expected
                .iter()
                .any(|errno| code == Some(errno.raw_os_error()));
            ensure!(
                media,
                "sector {sector} of {drive}/{nsid} fails with {error}"
            );
            Ok(())
        }
    }
}

/// Drives below the switch share a bridge; the others share none with them.
fn switch(lab: &mut Lab) -> Result<()> {
    let mut inside = Vec::new();
    let mut outside = Vec::new();
    for drive in &lab.run().machine.drives {
        let bridges = lab.address(drive.name)?.bridges()?;
        match drive.place {
            Place::Switch => inside.push((drive.name, bridges)),
            Place::Port | Place::Slot(_) | Place::Function(..) => {
                outside.push((drive.name, bridges))
            }
        }
    }
    let (first, upstream) = inside.first().context("no drive sits below the switch")?;
    // Root port, upstream port, downstream port: the first two are everybody's.
    let shared = upstream
        .get(..2)
        .with_context(|| format!("{first} sits below no switch"))?;
    for (name, bridges) in &inside {
        ensure!(
            bridges.len() == 3,
            "{name} sits below {} bridges",
            bridges.len()
        );
        ensure!(
            bridges.starts_with(shared),
            "{name} sits below another switch than {first}"
        );
    }
    for (name, bridges) in &outside {
        let apart = bridges.iter().all(|bridge| !shared.contains(bridge));
        ensure!(apart, "{name} shares a bridge with {first}");
    }
    Ok(())
}

fn iommu_groups(lab: &mut Lab) -> Result<()> {
    let wanted = lab.run().machine.iommu;
    let bar: Address = BAR_ADDRESS.parse()?;
    let mut groups = vec![("the BAR", bar.iommu_group())];
    for drive in &lab.run().machine.drives {
        groups.push((drive.name, lab.address(drive.name)?.iommu_group()));
    }
    for (name, group) in &groups {
        match (group, wanted) {
            (None, true) => bail!("{name} is in no IOMMU group"),
            (Some(group), false) => bail!("{name} is in IOMMU group {group} without an IOMMU"),
            _ => {}
        }
    }
    Ok(())
}

fn p2pmem(lab: &mut Lab) -> Result<()> {
    let mut published = 0;
    for drive in &lab.run().machine.drives {
        let folder = lab.address(drive.name)?.folder().join("p2pmem");
        let Some(size_mib) = drive.cmb_mib else {
            ensure!(
                !folder.exists(),
                "{} publishes p2pmem and has none",
                drive.name
            );
            continue;
        };
        let size = number(&folder.join("size"))
            .with_context(|| format!("{} publishes no p2pmem", drive.name))?;
        ensure!(
            size == size_mib * MIB,
            "{} publishes {size} bytes",
            drive.name
        );
        ensure!(number(&folder.join("available"))? <= size);
        ensure!(
            folder.join("allocate").exists(),
            "{} cannot be mapped",
            folder.display()
        );
        published += 1;
    }
    if published == 0 {
        return skip("no drive of this machine has a CMB");
    }
    Ok(())
}

fn map_bar(lab: &Lab) -> Result<Bar> {
    let address: Address = BAR_ADDRESS.parse()?;
    let size = address.bar_bytes(BAR_INDEX)?;
    let wanted = lab.run().machine.bar_bytes();
    ensure!(size == wanted, "the BAR has {size} bytes, not {wanted}");
    address.enable()?;
    Bar::map(&address.bar_path(BAR_INDEX), size)
}

fn bar_is_poisoned(lab: &mut Lab) -> Result<()> {
    let bar = map_bar(lab)?;
    let size = usize::try_from(lab.run().machine.bar_bytes())?;
    for offset in (0..size).step_by(1 << 16).chain([size - 8]) {
        let (found, expected) = (bar.read(offset), pattern::word(POISON, offset as u64));
        ensure!(
            found == expected,
            "the BAR has {found:#x} at {offset:#x}, not {expected:#x}"
        );
    }
    Ok(())
}

/// Writes words of a drive into the BAR, by the processor, and leaves one word out.
fn write_words(bar: &Bar, seed: pattern::Seed, bar_offset: usize, from: u64, leave_out: usize) {
    for at in (0..4096).step_by(8).filter(|at| *at != leave_out) {
        bar.write(bar_offset + at, pattern::word(seed, from + at as u64));
    }
}

const NOTHING: usize = usize::MAX;

fn host_sees_what_landed(lab: &mut Lab) -> Result<()> {
    let bar = map_bar(lab)?;
    let seed = lab.seed("peer", 1)?;
    for (bar_offset, from) in [(0, 0), (20_480, 1 << 20)] {
        write_words(&bar, seed, bar_offset, from, NOTHING);
        lab.expect_bar((bar_offset as u64, 4096), ("peer", 1), from)?;
    }
    // Anything may be here, and the host is told so.
    bar.write(8192, 1);
    lab.talk().say(&Line::Ignore {
        offset: 8192,
        len_bytes: 8,
    })?;
    lab.ask(Action::CheckBar)?;
    let again = bar.read(0);
    ensure!(
        again == pattern::word(POISON, 0),
        "the BAR was not poisoned again: {again:#x}"
    );
    Ok(())
}

/// What the host's last check, after the guest's end, is to find.
fn left_for_the_end(lab: &mut Lab) -> Result<()> {
    let bar = map_bar(lab)?;
    let seed = lab.seed("peer", 1)?;
    write_words(&bar, seed, 4096, 8192, NOTHING);
    lab.expect_bar((4096, 4096), ("peer", 1), 8192)
}

fn refused_check(lab: &mut Lab, words: &[&str]) -> Result<()> {
    let Err(error) = lab.ask(Action::CheckBar) else {
        bail!("the host found nothing wrong");
    };
    says(&format!("{error:#}"), words)
}

fn host_sees_a_foreign_byte(lab: &mut Lab) -> Result<()> {
    lab.ask(Action::CheckBar)
        .context("before anything was written")?;
    let bar = map_bar(lab)?;
    bar.write(1 << 20, pattern::word(POISON, 1 << 20) ^ 1);
    refused_check(lab, &["0x100000", "outside"])
}

fn host_sees_a_missing_byte(lab: &mut Lab) -> Result<()> {
    let bar = map_bar(lab)?;
    let seed = lab.seed("peer", 1)?;
    write_words(&bar, seed, 0, 0, 512);
    lab.expect_bar((0, 4096), ("peer", 1), 0)?;
    refused_check(lab, &["peer/1", "untouched poison of 0x200"])
}

fn throttle(lab: &mut Lab, drive: &str) -> Result<()> {
    const PIECE: u64 = 32 << 10;
    let file = open_direct(lab, drive, 1, false)?;
    let mut pages = AlignedBytes::new(usize::try_from(PIECE)?);
    let mut read = || -> Result<Duration> {
        let started = Instant::now();
        for index in 0..4 {
            file.read_exact_at(pages.as_mut(), index * PIECE)?;
        }
        Ok(started.elapsed())
    };
    let drive = || String::from(drive);
    lab.ask(Action::Throttle {
        drive: drive(),
        bytes_per_s: 2 * PIECE,
    })?;
    let slow = read()?;
    lab.ask(Action::Unthrottle { drive: drive() })?;
    let fast = read()?;
    ensure!(
        slow > Duration::from_millis(500),
        "throttled, 128 KiB took {slow:?}"
    );
    ensure!(fast < slow, "128 KiB took {fast:?}, throttled {slow:?}");
    Ok(())
}

fn host_refuses(lab: &mut Lab) -> Result<()> {
    for action in [
        Action::Throttle {
            drive: "tape".into(),
            bytes_per_s: 1,
        },
        Action::Throttle {
            drive: "peer".into(),
            bytes_per_s: 1,
        },
        Action::Remove {
            drive: "vfio".into(),
        },
    ] {
        let asked = action.to_string();
        ensure!(lab.ask(action).is_err(), "the host says it could `{asked}`");
    }
    Ok(())
}

fn remove(lab: &mut Lab, drive: &str) -> Result<()> {
    let address = lab.address(drive)?.clone();
    let node = lab.controller(drive)?.namespace(1)?.block_path();
    lab.ask(Action::Remove {
        drive: drive.into(),
    })?;
    ensure!(!address.is_there(), "{drive} is still at {address}");
    ensure!(
        !Path::new(&node).exists(),
        "{} is still there",
        node.display()
    );
    Ok(())
}
