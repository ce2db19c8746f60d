//! Opening nodes: what is refused, and with which remedy; who a namespace is.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nvme::ErrorKind;
use nvme::transport::Direction;
use nvme::transport::passthrough::{Options, Passthrough, Registration};
use rustix::io::Errno;
use ubio_lab_spec::pattern::Seed;

use super::{DRIVE, OUTSIDE, open, read_write};
use crate::case::{Case, skip};
use crate::lab::Lab;
use crate::session::Session;
use crate::suites::PAGE;
use crate::suites::engines::{over, passthrough};
use crate::suites::refusal::{by_engine, by_nvme};
use crate::target::Target;
use crate::user::{as_nobody, with_locked_limit};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("open/unprivileged", unprivileged),
        Case::new("open/unprivileged-engine", unprivileged_engine),
        Case::new("open/right-to-read", right_to_read),
        Case::new("open/locked-limit", locked_limit),
        Case::new("open/wrong-paths", wrong_paths),
        Case::new("open/io-uring-disabled", uring_disabled),
        Case::new("open/identity", identity),
        Case::new("open/beyond-the-end", beyond_the_end),
    ]
}

fn unprivileged(lab: &mut Lab) -> Result<()> {
    let path = lab.node(DRIVE, 1)?;
    as_nobody(|| {
        let opened = Passthrough::open(&path, &Options::default());
        by_nvme(opened, ErrorKind::Permission, &["as root"])
    })
}

/// The same words through an engine, whose ring thread inherits who opens it.
fn unprivileged_engine(lab: &mut Lab) -> Result<()> {
    let address = passthrough(lab, DRIVE, 1)?;
    as_nobody(|| {
        let opened = over(address).open();
        by_engine(opened, ubio::ErrorKind::Permission, &["as root"])
    })
}

/// Does something while everybody may read a node.
fn readable<R>(path: &Path, body: impl FnOnce() -> Result<R>) -> Result<R> {
    let set = |mode| fs::set_permissions(path, Permissions::from_mode(mode));
    set(0o644)?;
    let done = body();
    set(0o600)?;
    done
}

fn read_page(session: &mut Session<Passthrough>, seed: Seed) -> Result<()> {
    let target = Target::host(3 * PAGE)?;
    session.read_and_check(seed, (0, PAGE), &target, PAGE, false)?;
    Ok(())
}

/// The right to read the node is the right to read, and no more.
fn right_to_read(lab: &mut Lab) -> Result<()> {
    let (path, seed) = (lab.node(DRIVE, 1)?, lab.seed(DRIVE, 1)?);
    readable(&path, || {
        as_nobody(|| {
            let mut session = Session::new(Passthrough::open(&path, &Options::default())?)?;
            read_page(&mut session, seed)?;
            let target = Target::host(PAGE)?;
            let memory = session.attach(&target, false)?;
            let io = session.io(Direction::Compare, (0, PAGE), memory, 0)?;
            ensure!(
                session.is_assertion(io),
                "compared through a node for reads"
            );
            let opened = Passthrough::open(&path, &read_write());
            by_nvme(opened, ErrorKind::Permission, &["as root"])
        })
    })
}

/// Beyond the limit of locked memory a user's memory is not registered, and still works.
fn locked_limit(lab: &mut Lab) -> Result<()> {
    let (path, seed) = (lab.node(DRIVE, 1)?, lab.seed(DRIVE, 1)?);
    readable(&path, || {
        with_locked_limit(1 << 20, || {
            as_nobody(|| {
                let mut session = Session::new(Passthrough::open(&path, &Options::default())?)?;
                let target = Target::host(4 << 20)?;
                let memory = session.attach(&target, true)?;
                let found = session.transport.registration(memory);
                let wanted = Registration::Refused(Errno::NOMEM.raw_os_error());
                ensure!(found == wanted, "{found:?}");
                session.transfer(Direction::Read, (0, PAGE), memory, PAGE)?;
                target.check(seed, 0, PAGE, PAGE)
            })
        })?
    })
}

fn wrong_paths(lab: &mut Lab) -> Result<()> {
    let node = lab.node(DRIVE, 1)?;
    let node = node.to_str().context("a path of letters")?;
    let disk = node.replacen("/ng", "/nvme", 1);
    let controller = disk
        .trim_end_matches(char::is_numeric)
        .trim_end_matches('n');
    for (path, kind, word) in [
        ("/dev/ng99n1", ErrorKind::NotFound, "nvme list"),
        ("/dev/null", ErrorKind::InvalidInput, "like /dev/ng0n1"),
        ("/dev", ErrorKind::InvalidInput, "a folder"),
        ("/init", ErrorKind::InvalidInput, "a file"),
        (disk.as_str(), ErrorKind::InvalidInput, node),
        (controller, ErrorKind::InvalidInput, "it is a controller"),
    ] {
        let opened = Passthrough::open(path, &Options::default());
        by_nvme(opened, kind, &[word]).with_context(|| path.to_owned())?;
    }
    Ok(())
}

fn uring_disabled(lab: &mut Lab) -> Result<()> {
    const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";
    if !Path::new(SWITCH).exists() {
        return skip("this kernel has no such switch (Linux 6.6 has)");
    }
    let path = lab.node(DRIVE, 1)?;
    fs::write(SWITCH, "2")?;
    let opened = Passthrough::open(&path, &Options::default());
    fs::write(SWITCH, "0")?;
    by_nvme(opened, ErrorKind::Permission, &["io_uring_disabled"])
}

fn identity(lab: &mut Lab) -> Result<()> {
    let options = Options::default();
    let first = open(lab, DRIVE, 1, &options)?;
    let who = first.transport.identity();
    let (serial, address) = (lab.drive(DRIVE)?.serial(), lab.address(DRIVE)?.to_string());
    ensure!(who.serial == serial, "{who:?}");
    ensure!(who.pci_address == Some(address), "{who:?}");
    let same = |drive, namespace| -> Result<bool> {
        let other = open(lab, drive, namespace, &options)?;
        Ok(who.is_same_namespace(other.transport.identity()))
    };
    ensure!(same(DRIVE, 1)?, "not the same as itself");
    ensure!(!same(DRIVE, 2)?, "the same as its neighbour");
    ensure!(!same(OUTSIDE, 1)?, "the same as another drive's");
    Ok(())
}

/// A command that leaves the namespace is a bug of ours and never sent.
fn beyond_the_end(lab: &mut Lab) -> Result<()> {
    let mut session = open(lab, DRIVE, 1, &Options::default())?;
    let target = Target::host(PAGE)?;
    let memory = session.attach(&target, false)?;
    let mut io = session.first(memory, PAGE)?;
    io.lba = session.lba_from_end(8);
    session.one(io)??;
    io.lba = session.lba_from_end(7);
    ensure!(session.is_assertion(io), "it was sent");
    Ok(())
}
