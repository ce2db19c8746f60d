//! A machine of the table as QEMU's arguments.
//!
//! Knows QEMU's words; whether it runs, and what runs inside, is not known here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use ubio_lab_spec::{Drive, Fault, Machine, Namespace, Place, Transfer};

/// The program.
pub(super) const QEMU: &str = "qemu-system-x86_64";

/// Slots of the root bus: the switch, and from the second one on a root port for each
/// [`Place::Port`]. The table's fixed slots lie between.
const SWITCH_SLOT: usize = 3;
const FIRST_PORT_SLOT: usize = 0x10;

/// What a machine boots, and where its files lie.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    pub(super) vmlinuz: PathBuf,
    pub(super) initrd: PathBuf,
}

impl Files {
    /// The file behind the BAR.
    pub(super) fn bar(&self) -> PathBuf {
        self.folder.join("bar")
    }

    /// The file behind a namespace.
    pub(super) fn image(&self, drive: &str, nsid: u32) -> PathBuf {
        self.folder.join(image_name(drive, nsid))
    }
}

/// The name of the file behind a namespace.
pub(super) fn image_name(drive: &str, nsid: u32) -> String {
    format!("{drive}-{nsid}.img")
}

/// The id of a drive's limits, if it has them.
pub(super) fn limits_of(drive: &str) -> String {
    format!("limits-{drive}")
}

/// All of QEMU's arguments but the two connections that the session adds.
pub(super) fn arguments(machine: &Machine, files: &Files, words: &[String]) -> Vec<String> {
    let mut list = Arguments::default();
    // Not KVM: where there is one it is often a nested one, and the lab's results must not depend
    // on the machine.
    if machine.counts_instructions {
        list.add("-accel", "tcg,thread=single");
        list.add("-icount", "shift=0,sleep=off");
    } else {
        list.add("-accel", "tcg,thread=multi");
    }
    list.add("-machine", "q35,kernel-irqchip=off");
    list.add("-cpu", "max");
    list.add("-m", format!("{}M", machine.memory_mib));
    list.add("-smp", machine.cores.to_string());
    list.0
        .extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(String::from));
    list.add("-display", "none");
    list.add("-vga", "none");
    list.add("-kernel", files.vmlinuz.display().to_string());
    list.add("-initrd", files.initrd.display().to_string());
    // One processor at first: until version 8.1 QEMU can translate code while another processor
    // patches it, and keeps the stale translation (the kernel then dies of `Oops: int3`). A
    // booting kernel patches itself all the time, a running one hardly; init starts the others.
    let mut append = vec![
        "console=ttyS0",
        // Warnings, too: what the kernel warns of fails a run.
        "loglevel=5",
        "panic=-1",
        "oops=panic",
        "maxcpus=1",
    ];
    // A busy host delivers timer interrupts late, which the kernel takes for a broken timer.
    append.extend(["noreplace-smp", "no_timer_check"]);
    if machine.iommu {
        list.add("-device", "intel-iommu,caching-mode=on");
        append.push("intel_iommu=on");
    }
    append.extend(&machine.kernel_arguments);
    append.extend(words.iter().map(String::as_str));
    list.add("-append", append.join(" "));

    let switch = format!("pcie-root-port,id=switch-port,bus=pcie.0,addr={SWITCH_SLOT:#x}");
    list.add("-device", format!("{switch},chassis=1,slot=1"));
    list.add("-device", "x3130-upstream,id=switch,bus=switch-port");
    for (index, drive) in machine.drives.iter().enumerate() {
        drive_arguments(&mut list, index, drive, files);
    }
    let size = machine.bar_bytes();
    let backing = json!({
        "qom-type": "memory-backend-file", "id": "bar", "share": true, "size": size,
        "mem-path": files.bar(),
    });
    list.add("-object", backing.to_string());
    // The address is the table's: ubio_lab_spec::machine::BAR_ADDRESS.
    list.add("-device", "ivshmem-plain,memdev=bar,bus=pcie.0,addr=0x6");
    list.0
}

#[derive(Debug, Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn add(&mut self, option: &str, value: impl Into<String>) {
        self.0.extend([option.into(), value.into()]);
    }
}

fn drive_arguments(list: &mut Arguments, index: usize, drive: &Drive, files: &Files) {
    let name = drive.name;
    if drive.throttled {
        let limits = json!({
            "qom-type": "throttle-group", "id": limits_of(name), "limits": {},
        });
        list.add("-object", limits.to_string());
    }
    let port = format!("id={name}-port,chassis={},slot={0}", index + 2);
    let place = match drive.place {
        Place::Switch => {
            list.add("-device", format!("xio3130-downstream,bus=switch,{port}"));
            format!("bus={name}-port")
        }
        Place::Port => {
            let slot = FIRST_PORT_SLOT + index;
            list.add(
                "-device",
                format!("pcie-root-port,bus=pcie.0,addr={slot:#x},{port}"),
            );
            format!("bus={name}-port")
        }
        Place::Slot(slot) => format!("bus=pcie.0,addr={slot:#x}"),
        Place::Function(slot, function) => {
            format!("bus=pcie.0,addr={slot:#x}.{function},multifunction=on")
        }
    };
    let mut device = format!("nvme,id={name},serial={},{place}", drive.serial());
    if let Some(size) = drive.cmb_mib {
        device += &format!(",cmb_size_mb={size}");
    }
    if let Some(power) = drive.mdts {
        device += &format!(",mdts={power}");
    }
    list.add("-device", device);
    for (nsid, namespace) in drive.numbered() {
        let node = nodes(list, drive, nsid, namespace, files);
        let unit = namespace.block_bytes;
        let sizes = format!("logical_block_size={unit},physical_block_size={unit}");
        let mut device = format!("nvme-ns,bus={name},nsid={nsid},drive={node},{sizes}");
        if let Some((bytes, protection)) = namespace.metadata {
            device += &format!(",ms={bytes},pi={protection}");
        }
        list.add("-device", device);
    }
}

/// The block nodes from the file up; gives the name of the topmost.
fn nodes(
    list: &mut Arguments,
    drive: &Drive,
    nsid: u32,
    namespace: &Namespace,
    files: &Files,
) -> String {
    let name = format!("{}-{nsid}", drive.name);
    let mut top = format!("{name}-file");
    let mut add = |driver: &str, kind: &str, value: Value| {
        let node = format!("{name}-{kind}");
        let mut options = json!({ "driver": driver, "node-name": node });
        if let (Some(options), Some(more)) = (options.as_object_mut(), value.as_object()) {
            options.extend(more.clone());
        }
        list.add("-blockdev", options.to_string());
        node
    };
    // The images last as long as the run: the guest's flushes need not reach the host's disk.
    let path = files.image(drive.name, nsid);
    add(
        "file",
        "file",
        json!({ "filename": path, "cache": { "no-flush": true } }),
    );
    if !namespace.faults.is_empty() {
        let errors: Vec<Value> = namespace.faults.iter().map(injected).collect();
        top = add(
            "blkdebug",
            "faults",
            json!({ "image": top, "inject-error": errors }),
        );
    }
    if drive.throttled {
        let group = limits_of(drive.name);
        top = add(
            "throttle",
            "limits",
            json!({ "file": top, "throttle-group": group }),
        );
    }
    top
}

fn injected(fault: &Fault) -> Value {
    const EIO: i32 = 5;
    let transfer = match fault.transfer {
        Transfer::Read => "read",
        Transfer::Write => "write",
    };
    json!({ "event": "none", "iotype": transfer, "errno": EIO, "sector": fault.sector })
}

/// Where all of a run's files are made: what an earlier try left there goes.
pub(super) fn make_folder(parent: &Path, name: &str) -> Result<PathBuf> {
    let folder = parent.join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use ubio_lab_spec::machine::BAR_ADDRESS;

    use super::*;

    fn files() -> Files {
        Files {
            folder: "run".into(),
            vmlinuz: "vmlinuz".into(),
            initrd: "initrd".into(),
        }
    }

    fn joined(machine: &Machine) -> String {
        arguments(machine, &files(), &["lab.run=x".into()]).join(" ")
    }

    #[test]
    fn the_standard_machine() {
        let text = joined(&Machine::standard());
        for part in [
            "-append console=ttyS0 loglevel=5 panic=-1 oops=panic maxcpus=1 noreplace-smp no_timer_check lab.run=x",
            "nvme,id=cmb,serial=LAB-CMB,bus=cmb-port,cmb_size_mb=64",
            "xio3130-downstream,bus=switch,id=peer-port,chassis=3,slot=3",
            "nvme,id=vfio,serial=LAB-VFIO,bus=pcie.0,addr=0x5",
            "pcie-root-port,bus=pcie.0,addr=0x12,id=outside-port",
            "nvme-ns,bus=peer,nsid=1,drive=peer-1-file,logical_block_size=512",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        assert!(
            !text.contains("iommu") && !text.contains("throttle"),
            "{text}"
        );
        assert_eq!(BAR_ADDRESS, "0000:00:06.0");
        assert!(
            !text.contains("icount") && text.contains("-smp 2"),
            "{text}"
        );
    }

    #[test]
    fn a_machine_that_counts_has_one_thread_and_one_processor() {
        let text = joined(&Machine::standard().counting());
        for part in [
            "-accel tcg,thread=single",
            "-icount shift=0,sleep=off",
            "-smp 1",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }

    #[test]
    fn every_variation_reaches_qemu() {
        let namespaces = [
            Namespace::new(8).blocks(4096),
            Namespace::new(8).metadata(8, 1).fault(16, Transfer::Write),
        ];
        let machine = Machine::standard().iommu().with("peer", |drive| {
            drive.namespaces(&namespaces).mdts(0).throttled()
        });
        let text = joined(&machine);
        for part in [
            "-device intel-iommu,caching-mode=on",
            "intel_iommu=on",
            "bus=peer-port,mdts=0",
            r#""id":"limits-peer""#,
            r#""inject-error":[{"event":"none","iotype":"write","errno":5,"sector":16}]"#,
            r#""driver":"throttle","node-name":"peer-2-limits","file":"peer-2-faults""#,
            "nvme-ns,bus=peer,nsid=1,drive=peer-1-limits,logical_block_size=4096",
            "nsid=2,drive=peer-2-limits,logical_block_size=512,physical_block_size=512,ms=8,pi=1",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
    }
}
