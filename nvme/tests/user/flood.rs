//! A controller that writes completions faster than they are taken. Knows no emulator: the
//! test writes the queue's memory itself.
//!
//! unsafe: implements the unsafe method of a device.
#![expect(unsafe_code, reason = "implements the unsafe method of a device")]

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use nvme::command::QueueEntries;
use nvme::device::Device;
use nvme::dma::{DmaRun, Iova};
use nvme::memory::RawMemory;
use nvme::ring::{CompletionRing, Doorbell};
use nvme::{Error, ErrorKind, Result};
use nvme_sys::cqe::CompletionEntry;

/// Memory is where it is; nothing else happens.
#[derive(Debug, Default)]
struct Memory(Mutex<Option<RawMemory>>);

impl Device for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn read_u32(&self, _offset: u64) -> u32 {
        0
    }

    fn write_u32(&self, _offset: u64, _value: u32) {}

    unsafe fn map(&self, memory: RawMemory) -> Result<Vec<DmaRun>> {
        *self.0.lock().expect("no panic") = Some(memory);
        Ok(vec![DmaRun {
            start: Iova(memory.start().as_ptr().addr() as u64),
            len_bytes: memory.len_bytes(),
        }])
    }

    fn unmap(&self, _runs: &[DmaRun]) -> Result<()> {
        Ok(())
    }

    fn vectors(&self) -> u16 {
        0
    }

    fn interrupt(&self, _vector: u16) -> Result<Arc<OwnedFd>> {
        Err(Error::new(ErrorKind::Unsupported, "no interrupts"))
    }

    fn quiesce(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn no_more_completions_are_taken_than_there_is_room_for() {
    let memory = Arc::new(Memory::default());
    let device: Arc<dyn Device> = Arc::clone(&memory) as _;
    let entries = QueueEntries::new(4).expect("a size");
    let mut ring = CompletionRing::new(Doorbell::new(device, 0x1004), entries).expect("memory");
    let raw = memory.0.lock().expect("no panic").expect("mapped");
    let write = |at: u64, phase: u16| {
        let entry = CompletionEntry {
            status_phase: phase.into(),
            ..CompletionEntry::default()
        };
        raw.write(at * 16, entry);
    };
    // A queue of four has room for three, and each that is taken is replaced at once.
    (0..4).for_each(|at| write(at, 1));
    for round in 0..10 {
        let mut taken = 0;
        while ring.pop().is_some() {
            taken += 1;
            let at = (round * 3 + taken - 1) % 4;
            let lap = (round * 3 + taken - 1) / 4;
            write(at, u16::from(lap % 2 == 1));
            assert!(taken < 100, "it never ends");
        }
        assert_eq!(taken, 3);
        ring.tell();
    }
}
