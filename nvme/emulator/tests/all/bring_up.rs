//! From reset to blocks and back: the shortest way through a controller.

use nvme_sys::opcode::nvm;
use nvme_sys::register::{CC, CSTS};

use crate::driver::{Driver, at, blocks, config, pattern};

#[test]
fn blocks_are_read_and_written() {
    for threaded in [false, true] {
        let config = config(1 << 20, 512);
        let mut driver = if threaded {
            Driver::threaded(config)
        } else {
            Driver::stepped(config)
        };
        let mut queue = driver.queue(1, 64);
        let memory = driver.memory(8192);
        let [first, second] = [0, 4096].map(|offset| memory.address(offset).0);
        memory.raw().copy_from(0, &[7; 8192]);
        driver
            .run(&mut queue, at(blocks(nvm::WRITE, 100, 16), first, second))
            .expect("written");
        driver
            .run(&mut queue, blocks(nvm::FLUSH, 0, 1))
            .expect("flushed");
        memory.raw().copy_from(0, &[1; 8192]);
        driver
            .run(
                &mut queue,
                at(blocks(nvm::READ, 99, 10), first + 512, second),
            )
            .expect("read");
        let mut bytes = [0; 8192];
        memory.raw().copy_to(0, &mut bytes);
        assert_eq!(bytes[..512], [1; 512]);
        assert_eq!(bytes[512..1024], pattern(1 << 20)[99 * 512..100 * 512]);
        assert_eq!(bytes[1024..512 * 11], [7; 9 * 512]);
        assert_eq!(bytes[512 * 11..], [1; 5 * 512]);
        driver.reset();
        let mut queue = driver.queue(1, 64);
        driver
            .run(&mut queue, at(blocks(nvm::READ, 0, 1), first, 0))
            .expect("read");
        assert!(driver.emulator.iommu_faults().is_empty());
        driver.device.write_u32(CC, 0);
        driver.wait_ready(false);
        assert_eq!(driver.device.read_u32(CSTS), 0);
    }
}
