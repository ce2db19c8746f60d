//! One suite of the machine's own Debian mirror, in an apt state of our own.
//!
//! The machine's package lists, sources and installed packages stay as they are. Which packages
//! are wanted is not known here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

const APT_FOLDER: &str = "/etc/apt";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where this machine gets Debian packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirror {
    uri: String,
    keyring: Option<String>,
}

impl Mirror {
    /// From the machine's apt sources.
    pub(super) fn of_this_machine() -> Result<Self> {
        anyhow::ensure!(
            run::which("apt-get").is_some() && run::which("dpkg").is_some(),
            "no apt-get and dpkg here: the lab takes its kernel from Debian packages"
        );
        let folder = Path::new(APT_FOLDER);
        let mut paths = vec![folder.join("sources.list")];
        if let Ok(entries) = folder.join("sources.list.d").read_dir() {
            paths.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())));
        }
        paths.sort();
        let texts = paths
            .iter()
            .filter_map(|path| std::fs::read_to_string(path).ok());
        let mut mirror = texts
            .filter_map(|text| Self::parse(&text))
            .next()
            .with_context(|| {
                format!("no Debian mirror in {APT_FOLDER}; is this a Debian system?")
            })?;
        if mirror.keyring.is_none() && Path::new(KEYRING).is_file() {
            mirror.keyring = Some(KEYRING.into());
        }
        Ok(mirror)
    }

    /// The first Debian archive in one file of sources, in either of apt's two formats.
    fn parse(text: &str) -> Option<Self> {
        let paragraphs = text.split("\n\n").map(|paragraph| {
            paragraph
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'))
                .collect::<Vec<_>>()
        });
        paragraphs
            .flat_map(|lines| Self::of_stanza(&lines).or_else(|| Self::of_lines(&lines)))
            .next()
    }

    /// `URIs: …`, `Signed-By: …`.
    fn of_stanza(lines: &[&str]) -> Option<Self> {
        let field = |name: &str| {
            lines.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then_some(value.trim())
            })
        };
        let uri = field("URIs")?
            .split_whitespace()
            .find(|uri| is_debian(uri))?;
        let keyring = field("Signed-By").filter(|path| path.starts_with('/'));
        Some(Self {
            uri: uri.into(),
            keyring: keyring.map(String::from),
        })
    }

    /// `deb [signed-by=…] URI SUITE COMPONENT…`.
    fn of_lines(lines: &[&str]) -> Option<Self> {
        lines.iter().find_map(|line| {
            let rest = line.trim().strip_prefix("deb ")?;
            let uri = rest.split_whitespace().find(|word| word.contains("://"))?;
            let keyring = rest
                .split(['[', ']', ' '])
                .find_map(|word| word.strip_prefix("signed-by="))
                .map(String::from);
            is_debian(uri).then(|| Self {
                uri: uri.into(),
                keyring,
            })
        })
    }

    /// The line that gives one suite of it.
    fn line(&self, suite: &str) -> String {
        let keyring = self
            .keyring
            .as_ref()
            .map(|path| format!("[signed-by={path}] "));
        format!(
            "deb {}{} {suite} main\n",
            keyring.unwrap_or_default(),
            self.uri
        )
    }
}

/// The main archive: not the security one, not somebody else's.
fn is_debian(uri: &str) -> bool {
    uri.contains("://") && uri.trim_end_matches('/').ends_with("/debian")
}

/// The suites to look into, in order: this release's backports, stable, what comes after it.
pub(super) fn suites(os_release: &str) -> Vec<String> {
    let codename = os_release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"'))
        .filter(|name| !name.is_empty());
    let backports = codename.map(|name| format!("{name}-backports"));
    let others = ["stable", "testing", "sid"].map(String::from);
    backports.into_iter().chain(others).collect()
}

/// An updated suite.
#[derive(Debug)]
pub(super) struct Archive {
    options: Vec<String>,
}

impl Archive {
    /// Fetches the suite's package lists into a state below `folder`.
    pub(super) fn open(folder: &Path, mirror: &Mirror, suite: &str) -> Result<Self> {
        let state = folder.join("apt").join(suite);
        for part in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(state.join(part))?;
        }
        let list = state.join("sources.list");
        std::fs::write(&list, mirror.line(suite))?;
        let option = |name: &str, path: PathBuf| format!("-o{name}={}", path.display());
        let archive = Self {
            options: vec![
                option("Dir::Etc::sourcelist", list),
                "-oDir::Etc::sourceparts=/dev/null".into(),
                option("Dir::State::lists", state.join("lists")),
                option("Dir::Cache", state.join("cache")),
                // As root, apt would fetch as a user who may not write here.
                "-oAPT::Sandbox::User=root".into(),
                "-oAcquire::Retries=2".into(),
                "-oAcquire::http::Timeout=30".into(),
                "-oAcquire::https::Timeout=30".into(),
                // Without this a mirror that cannot be reached is only a warning.
                "-oAPT::Update::Error-Mode=any".into(),
            ],
        };
        archive
            .run("apt-get", &["-qq", "update"])
            .with_context(|| format!("cannot fetch the package lists of {suite} (no network?)"))?;
        Ok(archive)
    }

    /// The version of the suite's newest kernel, as its packages are named.
    pub(super) fn kernel_version(&self) -> Result<String> {
        let said = self.run("apt-cache", &["depends", "linux-image-amd64"])?;
        kernel_version(&said).context("linux-image-amd64 depends on no kernel")
    }

    /// Whether the suite has that package.
    pub(super) fn has(&self, package: &str) -> bool {
        self.run("apt-cache", &["show", package])
            .is_ok_and(|said| said.contains("Package: "))
    }

    /// Fetches packages and unpacks them all into one folder.
    pub(super) fn unpack(&self, packages: &[String], folder: &Path) -> Result<()> {
        let fetched = folder.with_extension("debs");
        let _ = std::fs::remove_dir_all(&fetched);
        std::fs::create_dir_all(&fetched)?;
        let mut command = Command::new("apt-get");
        command
            .current_dir(&fetched)
            .args(&self.options)
            .args(["-qq", "download"]);
        run::captured(command.args(packages))
            .with_context(|| format!("cannot fetch {}", packages.join(" ")))?;
        for entry in fetched.read_dir()? {
            let mut command = Command::new("dpkg");
            run::captured(command.arg("-x").arg(entry?.path()).arg(folder))?;
        }
        std::fs::remove_dir_all(&fetched)?;
        Ok(())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command
            .env("LC_ALL", "C")
            .args(&self.options)
            .args(arguments);
        Ok(run::captured(&mut command)?.stdout)
    }
}

fn kernel_version(depends: &str) -> Option<String> {
    depends
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("linux-image-"))
        .find(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        .map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_of_a_release_and_of_an_unknown_one() {
        let names = suites("ID=debian\nVERSION_CODENAME=bookworm\n");
        assert_eq!(names, ["bookworm-backports", "stable", "testing", "sid"]);
        assert_eq!(
            suites("VERSION_CODENAME=\"trixie\"\n")[0],
            "trixie-backports"
        );
        assert_eq!(suites("ID=debian\n"), ["stable", "testing", "sid"]);
    }

    #[test]
    fn a_mirror_in_either_format() {
        let stanza = "Types: deb\n# URIs: http://old.example/debian\n\
            URIs: http://mirror.example/debian-security\n\n\
            Types: deb\nURIs: http://mirror.example/debian/\nSuites: x\nSigned-By: /k.gpg\n";
        let mirror = Mirror::parse(stanza).unwrap();
        assert_eq!(
            mirror.line("sid"),
            "deb [signed-by=/k.gpg] http://mirror.example/debian/ sid main\n"
        );
        let lines = "# deb http://no.example/debian x main\n\
            deb https://other.example/apt stable main\n\
            deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian x main\n";
        let mirror = Mirror::parse(lines).unwrap();
        assert_eq!(mirror.uri, "https://mirror.example/debian");
        assert_eq!(mirror.keyring.as_deref(), Some("/k.gpg"));
        let bare = Mirror::parse("deb http://mirror.example/debian x main").unwrap();
        assert_eq!(
            bare.line("sid"),
            "deb http://mirror.example/debian sid main\n"
        );
        assert_eq!(
            Mirror::parse("deb https://other.example/apt stable main\n"),
            None
        );
        assert_eq!(Mirror::parse(""), None);
    }

    #[test]
    fn the_kernel_among_the_dependencies() {
        let said = "linux-image-amd64\n  Depends: linux-base-amd64\n  \
            Depends: linux-image-7.2.12+deb14-amd64\n";
        assert_eq!(kernel_version(said).as_deref(), Some("7.2.12+deb14-amd64"));
        assert_eq!(kernel_version("linux-image-amd64\n"), None);
    }
}
