//! The end of all DMA while a read is under way: when `quiesce` has returned, what the drive still
//! had to write reaches memory no more. Knows no engine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvme::command::NamespaceId;
use nvme::controller::Settings;
use nvme::device::Device;
use nvme::device::vfio::{VfioContainer, VfioDevice};
use nvme::transport::user::{Options, UserTransport};
use nvme::transport::{Direction, Transport};
use ubio_lab_spec::line::Action;

use super::Way;
use crate::binding;
use crate::lab::Lab;
use crate::session::Session;
use crate::target::Target;

const SIZE: u64 = 64 << 10;
const STALL: Duration = Duration::from_secs(4);

pub(super) fn under_a_read(lab: &mut Lab, way: Way) -> Result<()> {
    let drive = way.drive();
    let address = lab.address(drive)?.clone();
    binding::give_to(&address, "vfio-pci")?;
    let device = VfioDevice::open(&VfioContainer::new()?, &address.to_string())?;
    let device = Arc::new(device);
    let options = Options::new(Settings::new(NamespaceId(1)));
    let transport = UserTransport::open(Arc::clone(&device) as _, options)?;
    let mut session = Session::new(transport)?;
    let target = Target::host(2 * SIZE)?;
    let memory = session.attach(&target, true)?;
    lab.ask(Action::Throttle {
        drive: drive.into(),
        bytes_per_s: SIZE / STALL.as_secs(),
    })?;
    let quiesced = (|| {
        // The first one passes, and uses up what the limit allows.
        session.transfer(Direction::Read, (0, SIZE), memory, 0)?;
        let io = session.io(Direction::Read, (SIZE, SIZE), memory, SIZE)?;
        ensure!(session.submit(io).is_ok(), "no room");
        ensure!(session.poll()?.is_empty(), "the drive does not stall");
        device.quiesce()?;
        target.poison(0, target.len_bytes());
        Ok(())
    })();
    lab.ask(Action::Unthrottle {
        drive: drive.into(),
    })?;
    quiesced?;
    std::thread::sleep(STALL + Duration::from_secs(1));
    let untouched = target.untouched_but(0, 0);
    untouched.context("after the end of all DMA")?;
    ensure!(session.transport.in_flight() == 1, "it has ended after all");
    drop(session);
    // The drive is as good as new.
    drop(device);
    let device = VfioDevice::open(&VfioContainer::new()?, &address.to_string())?;
    let options = Options::new(Settings::new(NamespaceId(1)));
    let mut session = Session::new(UserTransport::open(Arc::new(device), options)?)?;
    let target = Target::host(3 * 4096)?;
    let seed = lab.seed(drive, 1)?;
    session.read_and_check(seed, (0, 4096), &target, 4096, true)?;
    Ok(())
}
