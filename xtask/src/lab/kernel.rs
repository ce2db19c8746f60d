//! The guest's kernel: the first suite's whose kernel can do PCI peer-to-peer, kept in `.xtask/`.
//!
//! Suites drift, so a kernel that is known to boot is kept until a newer one does. Knows packages
//! and files; what is done with a kernel is not known here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::archive::{Archive, Mirror, suites};
use crate::{repo, run};

/// What the lab is about; Debian's 6.1 and 6.12 are built without it.
const WANTED: &str = "CONFIG_PCI_P2PDMA=y";

/// A kernel that old is looked for again.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

/// Lists, packages and unpacked files of one kernel.
const NEEDED_BYTES: u64 = 1 << 30;

/// The packages of a kernel, each with the version in its name; older suites have the first only.
const PARTS: [&str; 4] = ["linux-image", "linux-binary", "linux-modules", "linux-base"];

/// Small packages that hold a kernel's configuration.
const WITH_CONFIG: [&str; 2] = ["linux-base", "linux-headers"];

/// An unpacked kernel, with a static busybox of the same suite beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) version: String,
    pub(super) vmlinuz: PathBuf,
    pub(super) config: PathBuf,
    pub(super) busybox: PathBuf,
    /// What `modprobe -d` takes.
    pub(super) modules_base: PathBuf,
}

impl Kernel {
    /// Debian's two layouts: everything below `usr/lib/modules/`, or `boot/` and `lib/modules/`.
    fn open(folder: &Path, version: &str) -> Result<Self> {
        let root = folder.join(version);
        let first = |paths: &[String]| {
            let found = paths
                .iter()
                .map(|path| root.join(path))
                .find(|path| path.is_file());
            found.with_context(|| {
                format!(
                    "kernel {version} has no {} in {}",
                    paths[0],
                    repo::shown(&root)
                )
            })
        };
        let modules = format!("lib/modules/{version}");
        let base = if root.join("usr").join(&modules).is_dir() {
            root.join("usr")
        } else {
            root.clone()
        };
        Ok(Self {
            version: version.into(),
            vmlinuz: first(&[
                format!("usr/{modules}/vmlinuz"),
                format!("boot/vmlinuz-{version}"),
            ])?,
            config: first(&[
                format!("usr/{modules}/config"),
                format!("boot/config-{version}"),
            ])?,
            busybox: first(&["bin/busybox".into(), "usr/bin/busybox".into()])?,
            modules_base: base,
        })
    }
}

/// What is known about the kernels in the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    /// The one to use.
    current: Option<String>,
    /// The last one that booted.
    proven: Option<String>,
    /// One that did not boot: not taken again.
    broken: Option<String>,
    /// When the suites were last looked into, in seconds since 1970.
    checked_s: u64,
}

/// The kernels of this checkout.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    state: State,
}

impl Store {
    pub(super) fn open(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        // A state that cannot be read is no state: the kernel is fetched again.
        let text = fs::read_to_string(folder.join("state.json")).unwrap_or_default();
        let state = serde_json::from_str(&text).unwrap_or_default();
        Ok(Self { folder, state })
    }

    fn save(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.state)?;
        fs::write(self.folder.join("state.json"), text).context("cannot note the kernel's state")
    }

    /// The kernel to use, and a word on why this one: cached while fresh, else fetched, else
    /// whatever is still there.
    pub(super) fn choose(&mut self, refresh: bool) -> Result<(Kernel, String)> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let age = Duration::from_secs(now_s.saturating_sub(self.state.checked_s));
        if !refresh
            && age < FRESH
            && let Some(kernel) = self.cached(self.state.current.as_ref())
        {
            return Ok((kernel, "cached".into()));
        }
        match self.fetch() {
            Ok((kernel, from)) => {
                self.state.current = Some(kernel.version.clone());
                self.state.checked_s = now_s;
                self.save()?;
                Ok((kernel, from))
            }
            Err(error) => {
                let kept = [&self.state.current, &self.state.proven];
                let kernel = kept
                    .into_iter()
                    .find_map(|version| self.cached(version.as_ref()));
                let kernel = kernel.ok_or_else(|| error.context("the lab has no kernel"))?;
                Ok((kernel, "kept: no newer one could be fetched".into()))
            }
        }
    }

    fn cached(&self, version: Option<&String>) -> Option<Kernel> {
        Kernel::open(&self.folder, version?).ok()
    }

    /// It came up: from now on it is the one to go back to, and older ones may go.
    pub(super) fn proved(&mut self, kernel: &Kernel) -> Result<()> {
        if self.state.proven.as_ref() == Some(&kernel.version) {
            return Ok(());
        }
        self.state.proven = Some(kernel.version.clone());
        self.state.broken = None;
        self.save()?;
        for entry in self.folder.read_dir()? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_kernel = name.starts_with(|c: char| c.is_ascii_digit());
            if is_kernel && name != kernel.version && entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// It did not come up: the one that last did, if there is another.
    pub(super) fn fall_back(&mut self, kernel: &Kernel) -> Result<Option<Kernel>> {
        if self.state.proven.as_ref() == Some(&kernel.version) {
            return Ok(None);
        }
        let Some(proven) = self.cached(self.state.proven.as_ref()) else {
            return Ok(None);
        };
        self.state.current = Some(proven.version.clone());
        self.state.broken = Some(kernel.version.clone());
        self.save()?;
        Ok(Some(proven))
    }

    /// Looks into one suite after the other.
    fn fetch(&self) -> Result<(Kernel, String)> {
        repo::require_free(&self.folder, NEEDED_BYTES)?;
        let mirror = Mirror::of_this_machine()?;
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let mut refusals = Vec::new();
        for suite in suites(&release) {
            match self.fetch_from(&mirror, &suite) {
                Ok(kernel) => return Ok((kernel, format!("from Debian's {suite}"))),
                Err(error) => refusals.push(format!("{suite}: {error:#}")),
            }
        }
        bail!("no suite has a kernel for the lab: {}", refusals.join("; "))
    }

    fn fetch_from(&self, mirror: &Mirror, suite: &str) -> Result<Kernel> {
        let archive = Archive::open(&self.folder, mirror, suite)?;
        let version = archive.kernel_version()?;
        if self.state.broken.as_ref() == Some(&version) {
            bail!("{version} did not boot");
        }
        if let Ok(kernel) = Kernel::open(&self.folder, &version) {
            return Ok(kernel);
        }
        let partial = self.folder.join("partial");
        let _ = fs::remove_dir_all(&partial);
        self.refuse_without_p2p(&archive, &version, &partial)?;
        let parts = PARTS.iter().map(|part| format!("{part}-{version}"));
        let mut packages: Vec<String> = parts.filter(|package| archive.has(package)).collect();
        packages.push("busybox-static".into());
        archive.unpack(&packages, &partial)?;
        let place = self.folder.join(&version);
        let _ = fs::remove_dir_all(&place);
        fs::rename(&partial, &place)?;
        let kernel = Kernel::open(&self.folder, &version)?;
        if !has_p2p(&fs::read_to_string(&kernel.config)?) {
            fs::remove_dir_all(&place)?;
            bail!("{version} has no {WANTED}");
        }
        let mut depmod = program("depmod")?;
        run::captured(depmod.arg("-b").arg(&kernel.modules_base).arg(&version))?;
        Ok(kernel)
    }

    /// Looks at the configuration in a small package first: a kernel is 100 MB.
    fn refuse_without_p2p(&self, archive: &Archive, version: &str, partial: &Path) -> Result<()> {
        let names = WITH_CONFIG.iter().map(|part| format!("{part}-{version}"));
        let Some(package) = names.into_iter().find(|package| archive.has(package)) else {
            return Ok(());
        };
        archive.unpack(&[package], partial)?;
        let places = [
            format!("usr/lib/modules/{version}/config"),
            format!("usr/src/linux-headers-{version}/.config"),
        ];
        let text = places
            .iter()
            .find_map(|path| fs::read_to_string(partial.join(path)).ok());
        fs::remove_dir_all(partial)?;
        match text {
            Some(text) if !has_p2p(&text) => bail!("{version} has no {WANTED}"),
            _ => Ok(()),
        }
    }
}

fn has_p2p(config: &str) -> bool {
    config.lines().any(|line| line == WANTED)
}

/// A program of a system's administrator (kmod's, mke2fs), which is not on every user's `PATH`.
pub(super) fn program(name: &str) -> Result<Command> {
    let path = run::which(name).with_context(|| format!("{name} is not installed"))?;
    Ok(Command::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(name: &str) -> Store {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Store::open(folder).unwrap()
    }

    /// Files as a package of the newer layout leaves them.
    fn plant(store: &Store, version: &str) -> Kernel {
        let modules = store
            .folder
            .join(version)
            .join("usr/lib/modules")
            .join(version);
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir_all(store.folder.join(version).join("usr/bin")).unwrap();
        for name in ["vmlinuz", "config"] {
            fs::write(modules.join(name), WANTED).unwrap();
        }
        fs::write(store.folder.join(version).join("usr/bin/busybox"), "").unwrap();
        Kernel::open(&store.folder, version).unwrap()
    }

    fn now_s() -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
    }

    #[test]
    fn a_fresh_kernel_is_taken_as_it_is() {
        let mut store = store("fresh");
        let kernel = plant(&store, "7.2");
        store.state = State {
            current: Some("7.2".into()),
            checked_s: now_s(),
            ..State::default()
        };
        let (chosen, why) = store.choose(false).unwrap();
        assert_eq!((chosen, why.as_str()), (kernel, "cached"));
        store.save().unwrap();
        let again = Store::open(store.folder.clone()).unwrap();
        assert_eq!(again.state, store.state);
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn a_kernel_that_does_not_boot_gives_way_to_the_one_that_did() {
        let mut store = store("fall-back");
        let (old, new) = (plant(&store, "7.1"), plant(&store, "7.2"));
        store.proved(&old).unwrap();
        assert!(
            !store.folder.join("7.2").exists(),
            "only what booted is kept"
        );
        let new = plant(&store, &new.version);
        store.state.current = Some("7.2".into());
        assert_eq!(store.fall_back(&new).unwrap(), Some(old.clone()));
        assert_eq!(store.state.current.as_deref(), Some("7.1"));
        assert_eq!(store.state.broken.as_deref(), Some("7.2"));
        assert_eq!(
            store.fall_back(&old).unwrap(),
            None,
            "there is no third one"
        );
        store.proved(&new).unwrap();
        assert!(!store.folder.join("7.1").exists());
        assert_eq!(store.state.broken, None);
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn a_broken_state_file_is_no_state() {
        let store = store("state");
        fs::write(store.folder.join("state.json"), "{").unwrap();
        assert_eq!(
            Store::open(store.folder.clone()).unwrap().state,
            State::default()
        );
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn the_older_layout() {
        let store = store("older");
        let root = store.folder.join("6.1");
        fs::create_dir_all(root.join("boot")).unwrap();
        fs::create_dir_all(root.join("lib/modules/6.1")).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        assert!(Kernel::open(&store.folder, "6.1").is_err());
        for path in ["boot/vmlinuz-6.1", "boot/config-6.1", "bin/busybox"] {
            fs::write(root.join(path), "").unwrap();
        }
        assert_eq!(
            Kernel::open(&store.folder, "6.1").unwrap().modules_base,
            root
        );
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn the_option_is_a_whole_line() {
        assert!(has_p2p("A=y\nCONFIG_PCI_P2PDMA=y\n"));
        assert!(!has_p2p("# CONFIG_PCI_P2PDMA is not set\n"));
        assert!(!has_p2p("CONFIG_PCI_P2PDMA=yes\n"));
    }
}
