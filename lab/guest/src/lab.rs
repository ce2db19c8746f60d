//! What a case is given: the run, the drives by name, the BAR, and the line to the host.
//!
//! Knows nothing of single suites.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ubio_lab_spec::line::{Action, Line};
use ubio_lab_spec::pattern::Seed;
use ubio_lab_spec::{Drive, Run};

use crate::devices::{self, Controller};
use crate::pci::Address;
use crate::talk::Talk;

/// How long the kernel may take to find all drives.
const FIND_LIMIT: Duration = Duration::from_secs(20);

/// The machine from inside.
#[derive(Debug)]
pub(crate) struct Lab {
    run: Run,
    kernel: String,
    talk: Talk,
    /// Where each drive sits: asked once, since a drive given to VFIO has no serial to find.
    addresses: BTreeMap<&'static str, Address>,
}

impl Lab {
    /// Waits for the kernel to find the drives, each with all its namespaces. One that does not
    /// come is left out: the cases that want it fail by name.
    pub(crate) fn start(run: Run, talk: Talk) -> Result<Self> {
        let mut lab = Self::of(run, talk);
        let started = Instant::now();
        while started.elapsed() < FIND_LIMIT && lab.addresses.len() < lab.run.machine.drives.len() {
            for drive in &lab.run.machine.drives {
                let Some(found) = devices::by_serial(&drive.serial())? else {
                    continue;
                };
                if found.namespaces()?.len() >= drive.namespaces.len() {
                    lab.addresses.insert(drive.name, found.address()?);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(lab)
    }

    /// A lab whose devices nobody has looked for.
    pub(crate) fn of(run: Run, talk: Talk) -> Self {
        let uname = rustix::system::uname();
        let kernel = uname.release().to_string_lossy().into_owned();
        Self {
            run,
            kernel,
            talk,
            addresses: BTreeMap::new(),
        }
    }

    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    /// The guest's kernel, as `uname -r` has it.
    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }

    pub(crate) fn talk(&mut self) -> &mut Talk {
        &mut self.talk
    }

    /// What the table says about a drive.
    pub(crate) fn drive(&self, name: &str) -> Result<&Drive> {
        let drive = self.run.machine.drive(name);
        drive.with_context(|| format!("run {} has no drive called {name}", self.run.name))
    }

    /// Where a drive sits.
    pub(crate) fn address(&self, drive: &str) -> Result<&Address> {
        self.addresses.get(drive).with_context(|| {
            format!("the kernel did not find drive {drive} with all its namespaces")
        })
    }

    /// A drive's controller, while the kernel's NVMe driver has it.
    pub(crate) fn controller(&self, drive: &str) -> Result<Controller> {
        devices::by_serial(&self.drive(drive)?.serial())?
            .with_context(|| format!("the kernel's NVMe driver does not have drive {drive}"))
    }

    /// The node through which the kernel takes commands for a namespace.
    pub(crate) fn node(&self, drive: &str, namespace: u32) -> Result<PathBuf> {
        Ok(self
            .controller(drive)?
            .namespace(namespace)?
            .passthrough_path())
    }

    /// The seed of what is on a namespace.
    pub(crate) fn seed(&self, drive: &str, namespace: u32) -> Result<Seed> {
        self.run
            .machine
            .seed(drive, namespace)
            .with_context(|| format!("run {} has no {drive}/{namespace}", self.run.name))
    }

    /// Asks the host for something and waits until it is done.
    pub(crate) fn ask(&mut self, action: Action) -> Result<()> {
        self.talk.ask(action)
    }

    /// Tells the host that these bytes of the BAR are now the drive's.
    pub(crate) fn expect_bar(
        &mut self,
        (offset, len_bytes): (u64, u64),
        (drive, namespace): (&str, u32),
        drive_offset: u64,
    ) -> Result<()> {
        self.talk.say(&Line::Expect {
            offset,
            len_bytes,
            drive: drive.into(),
            namespace,
            drive_offset,
        })
    }

    /// Says how far a case is, where it takes long: a guest that says nothing is taken for one
    /// that hangs.
    pub(crate) fn progress(&mut self, text: String) -> Result<()> {
        self.talk.say(&Line::Progress { text })
    }

    /// Reports a measured figure.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &str) -> Result<()> {
        self.figure_with_goal(name, value, unit, None)
    }

    /// The same, and how much is wanted.
    pub(crate) fn figure_with_goal(
        &mut self,
        name: &str,
        value: f64,
        unit: &str,
        goal: Option<f64>,
    ) -> Result<()> {
        self.talk.say(&Line::Figure {
            name: name.into(),
            value,
            unit: unit.into(),
            goal,
        })
    }
}
