//! The guest's file system, made in memory: init, busybox, modules, our programs, and fio.
//!
//! Knows which files a guest needs and where this machine has them; what they do there is theirs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cpio::newc::{self, ModeFileType};

use super::kernel::{Kernel, program};
use crate::{repo, run};

/// What init loads, with what each of them needs before it.
const MODULES: [&str; 4] = ["nvme", "vfio-pci", "vfio_iommu_type1", "ext4"];

/// Our programs: packages, each with a binary of the same name.
const PROGRAMS: [&str; 2] = ["ubio-lab", "ubcp"];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds our programs for a guest that has no libraries, and gives the folder they are in.
pub(super) fn build_programs(folder: &Path) -> Result<PathBuf> {
    let target = folder.join("target");
    let mut command = run::cargo();
    command
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        // Linking the programs whole takes minutes, and under emulation gains nothing.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        // The initrd is read into the guest's memory at every boot.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .args([
            "build",
            "--quiet",
            "--release",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&target);
    for package in PROGRAMS {
        command.args(["--package", package]);
    }
    run::captured(&mut command).context("the guest's programs do not build")?;
    Ok(target.join(TARGET).join("release"))
}

/// Writes the initrd into a file. Not compressed: a guest in emulation unpacks slower than it
/// reads.
pub(super) fn write(kernel: &Kernel, programs: &Path, fio: bool, path: &Path) -> Result<()> {
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "etc", "m", "proc", "sys", "tmp"] {
        archive.folder(folder)?;
    }
    archive.copy("init", &repo::root().join("lab/guest/init"))?;
    archive.copy("bin/busybox", &kernel.busybox)?;
    archive.copy("etc/kernel-config", &kernel.config)?;
    for name in PROGRAMS {
        archive.copy(&format!("bin/{name}"), &programs.join(name))?;
    }
    let mut order = String::new();
    for module in modules(kernel)? {
        let (name, bytes) = unpacked(&module)?;
        archive.file(&format!("m/{name}"), &bytes)?;
        order += &format!("{name}\n");
    }
    archive.file("m/order", order.as_bytes())?;
    if fio {
        let program = run::which("fio").context("fio is not installed")?;
        archive.copy("bin/fio", &program)?;
        for library in libraries(&program)? {
            archive.copy(library.trim_start_matches('/'), Path::new(&library))?;
        }
    }
    fs::write(path, archive.finish()?).with_context(|| format!("cannot write {}", path.display()))
}

/// An archive as the kernel unpacks it.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// A folder, with those above it.
    fn folder(&mut self, name: &str) -> Result<()> {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above)?;
        }
        if self.names.insert(name.into()) {
            self.entry(name, ModeFileType::Directory, &[])?;
        }
        Ok(())
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above)?;
        }
        ensure!(
            self.names.insert(name.into()),
            "the guest has two files called /{name}"
        );
        self.entry(name, ModeFileType::Regular, bytes)
    }

    fn copy(&mut self, name: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.file(name, &bytes)
    }

    fn entry(&mut self, name: &str, kind: ModeFileType, bytes: &[u8]) -> Result<()> {
        let size = u32::try_from(bytes.len()).with_context(|| format!("/{name} is too large"))?;
        let entry = newc::Builder::new(name)
            .mode(0o755)
            .set_mode_file_type(kind);
        let mut writer = entry.write(&mut self.bytes, size);
        std::io::Write::write_all(&mut writer, bytes)?;
        writer.finish()?;
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        Ok(newc::trailer(self.bytes)?)
    }
}

/// The modules' files, in the order in which they can be loaded.
fn modules(kernel: &Kernel) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for module in MODULES {
        let mut modprobe = program("modprobe")?;
        modprobe
            .arg("-d")
            .arg(&kernel.modules_base)
            .args(["-S", &kernel.version]);
        let said = run::captured(modprobe.args(["--show-depends", module]))?.stdout;
        for path in module_paths(&said) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    Ok(paths)
}

/// From `modprobe --show-depends`: what is built in is not to be loaded.
fn module_paths(said: &str) -> impl Iterator<Item = PathBuf> {
    said.lines()
        .filter_map(|line| Some(line.strip_prefix("insmod ")?.split(' ').next()?.into()))
}

/// A module's name and its bytes, whatever it is packed with.
fn unpacked(path: &Path) -> Result<(String, Vec<u8>)> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let (plain, unpacker) = match name.rsplit_once('.') {
        Some((plain, "xz")) => (plain, "xz"),
        Some((plain, "zst")) => (plain, "zstd"),
        Some((plain, "gz")) => (plain, "gzip"),
        _ => return Ok((name.clone(), fs::read(path)?)),
    };
    let unpacking = || format!("`{unpacker}` cannot unpack {}", path.display());
    let output = Command::new(unpacker)
        .arg("-dc")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .with_context(unpacking)?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            unpacking(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok((plain.into(), output.stdout))
}

/// The shared libraries of a program, the loader among them.
fn libraries(program: &Path) -> Result<BTreeSet<String>> {
    let said = run::captured(Command::new("ldd").arg(program))?.stdout;
    ensure!(
        !said.contains("not found"),
        "{} lacks a library: {said}",
        program.display()
    );
    Ok(library_paths(&said))
}

fn library_paths(said: &str) -> BTreeSet<String> {
    let lines = said
        .lines()
        .map(|line| line.split("=>").last().unwrap_or(line));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .filter(|path| path.starts_with('/'))
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_libraries_are_read() {
        let said = "builtin crc32c\ninsmod /x/a.ko.xz \ninsmod /x/b.ko param=1\n";
        let paths: Vec<PathBuf> = module_paths(said).collect();
        assert_eq!(
            paths,
            [PathBuf::from("/x/a.ko.xz"), PathBuf::from("/x/b.ko")]
        );
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths: Vec<String> = library_paths(said).into_iter().collect();
        assert_eq!(paths, ["/lib/x/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn folders_come_before_their_files_and_once() {
        let mut archive = Archive::default();
        archive.file("lib/x/a", b"aa").unwrap();
        archive.file("lib/x/b", b"").unwrap();
        assert!(archive.file("lib/x/b", b"").is_err());
        let bytes = archive.finish().unwrap();
        let mut names = Vec::new();
        let mut rest = &bytes[..];
        loop {
            let entry = newc::Reader::new(rest).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            names.push((entry.entry().name().to_string(), entry.entry().file_size()));
            rest = entry.finish().unwrap();
        }
        let expected = [("lib", 0), ("lib/x", 0), ("lib/x/a", 2), ("lib/x/b", 0)];
        let expected = expected.map(|(name, size)| (String::from(name), size));
        assert_eq!(names, expected);
    }
}
