//! The files behind the drives: patterns, and file systems with files of it.
//!
//! Knows what is on a namespace; nothing of QEMU, and of ext4 only the program that makes one.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use ubio_lab_spec::pattern::Seed;
use ubio_lab_spec::{Content, Machine, Stored};

use super::kernel::program;
use super::machine::Files;
use super::verify;
use crate::run;

/// Makes the drives' files.
pub(super) fn make(machine: &Machine, files: &Files) -> Result<()> {
    for drive in &machine.drives {
        for (nsid, namespace) in drive.numbered() {
            let path = files.image(drive.name, nsid);
            let making = || format!("cannot make {}", path.display());
            let file = File::create(&path).with_context(making)?;
            let seed = machine
                .seed(drive.name, nsid)
                .context("a namespace without a seed")?;
            file.set_len(namespace.image_bytes()).with_context(making)?;
            match &namespace.content {
                Content::Pattern => {
                    verify::write_pattern(&file, seed, 0, namespace.visible_bytes())
                }
                Content::Ext4(stored) => ext4(&path, seed, stored),
            }
            .with_context(making)?;
        }
    }
    Ok(())
}

/// Fills a file of the right size with a file system that holds these files.
fn ext4(image: &Path, seed: Seed, stored: &[Stored]) -> Result<()> {
    let folder = image.with_extension("files");
    fs::create_dir(&folder)?;
    for one in stored {
        let file = File::create(folder.join(one.name))?;
        verify::write_pattern(&file, seed, one.offset, one.len_bytes)?;
    }
    let mut command = program("mke2fs")?;
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]);
    let made = run::captured(command.arg(&folder).arg(image));
    fs::remove_dir_all(&folder)?;
    made.map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use ubio_lab_spec::{Namespace, pattern};

    use super::*;

    #[test]
    fn a_file_system_holds_the_patterns_bytes() {
        let folder = std::env::temp_dir().join(format!("xtask-images-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = Files {
            folder: folder.clone(),
            vmlinuz: "vmlinuz".into(),
            initrd: "initrd".into(),
        };
        let one = Stored {
            name: "one",
            offset: 512,
            len_bytes: 12_345,
        };
        let content = [Namespace::new(8).ext4(&[one]), Namespace::new(1)];
        let machine = Machine::standard().with("peer", |drive| drive.namespaces(&content));
        make(&machine, &files).unwrap();
        let bytes = fs::read(files.image("peer", 1)).unwrap();
        assert_eq!(bytes.len(), 8 << 20);
        // The magic number of the superblock, and the file in one piece somewhere.
        assert_eq!(bytes[1024 + 56..1024 + 58], [0x53, 0xef]);
        let seed = machine.seed("peer", 1).unwrap();
        let mut wanted = vec![0; 12_345];
        pattern::fill(seed, 512, &mut wanted);
        let found = bytes
            .chunks(4096)
            .position(|block| block == &wanted[..4096]);
        let at = found.expect("the file's first block") * 4096;
        assert_eq!(bytes[at..at + wanted.len()], wanted[..]);
        let mut plain = vec![0; 4096];
        let file = File::open(files.image("peer", 2)).unwrap();
        file.read_exact_at(&mut plain, 0).unwrap();
        pattern::check(machine.seed("peer", 2).unwrap(), 0, &plain).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
