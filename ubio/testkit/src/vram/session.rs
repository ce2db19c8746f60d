//! One backend under test, with windows of the suite's own: submits, waits, counts.
//!
//! unsafe: submits operations over memory that it owns.
#![expect(
    unsafe_code,
    reason = "submit is an unsafe method; the memory is the suite's own"
)]

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ubio::source::{Wait, Waker};
use ubio::sys::memory::Region;
use ubio::vram::{BufferId, Vram, VramBuffer, VramDone, VramWork, WindowsId};
use ubio::window::WindowMemory;
use ubio_core::{FillPlan, ItemIndex, Landing, ObjectId, Piece, Route, StreamPlan};

use super::VramFixture;
use crate::guarded::{GUARD_BYTES, Guarded};

const PATIENCE: Duration = Duration::from_secs(60);
/// Most operations a case has under way.
pub(super) const CAPACITY: usize = 256;

pub(super) struct Session {
    pub(super) vram: Box<dyn Vram>,
    pub(super) waker: Waker,
    pub(super) windows: Guarded,
    windows_id: WindowsId,
    /// The memory of every buffer that was adopted and is still used by somebody.
    buffers: Vec<Weak<Region>>,
    waiting: HashSet<u64>,
    next_id: u64,
}

/// A piece: (offset in the fill, bytes, place in the buffer).
pub(super) type Place = (u32, u32, u64);

impl Session {
    /// With `window_bytes` of windows, poisoned.
    pub(super) fn open(fixture: &dyn VramFixture, window_bytes: u64) -> Self {
        let waker = Waker::new().expect("an eventfd");
        let mut vram = fixture.open(CAPACITY, waker.clone());
        let region = fixture.window_region(window_bytes + 2 * GUARD_BYTES);
        let windows = Guarded::of(region, window_bytes);
        let region = Arc::clone(windows.region());
        let windows_id = vram
            .attach(&WindowMemory::of(region, window_bytes))
            .expect("windows of the fixture's kind");
        Self {
            vram,
            waker,
            windows,
            windows_id,
            buffers: Vec::new(),
            waiting: HashSet::new(),
            next_id: 0,
        }
    }

    pub(super) fn allocate(&mut self, len_bytes: u64) -> BufferId {
        let buffer = self.vram.allocate(len_bytes).expect("memory");
        assert!(buffer.len_bytes() >= len_bytes);
        self.adopt(buffer)
    }

    pub(super) fn adopt(&mut self, buffer: VramBuffer) -> BufferId {
        self.buffers.retain(|region| region.strong_count() > 0);
        self.buffers.push(Arc::downgrade(buffer.region()));
        self.vram.adopt(buffer).expect("a buffer of its own kind")
    }

    pub(super) fn flush(&self, buffer: BufferId, at: u64, pieces: &[Place]) -> VramWork {
        VramWork::Flush {
            windows: self.windows_id,
            window_offset: GUARD_BYTES + at,
            buffer,
            plan: plan(pieces),
            fill: 1,
        }
    }

    pub(super) fn gather(&self, buffer: BufferId, at: u64, pieces: &[Place]) -> VramWork {
        VramWork::Gather {
            windows: self.windows_id,
            window_offset: GUARD_BYTES + at,
            buffer,
            plan: plan(pieces),
            fill: 1,
        }
    }

    pub(super) fn scrub(&self, at: u64, len_bytes: u64) -> VramWork {
        VramWork::Scrub {
            windows: self.windows_id,
            offset: GUARD_BYTES + at,
            len_bytes,
        }
    }

    pub(super) fn submit(&mut self, work: VramWork) -> u64 {
        self.next_id += 1;
        self.submit_as(self.next_id, work);
        self.next_id
    }

    pub(super) fn submit_as(&mut self, id: u64, work: VramWork) {
        assert!(self.waiting.insert(id), "a case uses an id twice");
        // SAFETY: the cases give operations under way ranges of their own and look at them
        // only afterwards.
        unsafe { self.vram.submit(id, work) };
    }

    pub(super) fn poll(&mut self) -> Vec<VramDone> {
        let mut done = Vec::new();
        let ready = self.vram.is_ready();
        self.vram.poll(&mut done);
        assert!(!ready || !done.is_empty(), "ready, and nothing came");
        for operation in &done {
            assert!(
                self.waiting.remove(&operation.id),
                "{operation:?} was not under way: unknown, or done twice"
            );
        }
        done
    }

    /// Waits until nothing is under way; every operation must have gone well.
    pub(super) fn finish(&mut self) -> Vec<u64> {
        let start = Instant::now();
        let mut ids = Vec::new();
        while !self.waiting.is_empty() {
            self.waker.about_to_sleep();
            if !self.vram.is_ready() {
                let span = Duration::from_millis(50);
                self.waker.sleep(Wait::AtMost(span)).expect("a sleep");
            }
            self.waker.awake();
            for operation in self.poll() {
                assert_eq!(operation.result, Ok(()), "operation {}", operation.id);
                ids.push(operation.id);
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{} operations never ended",
                self.waiting.len()
            );
        }
        // What is reported twice would be reported now.
        assert_eq!(self.poll(), []);
        self.check_settled();
        ids
    }

    /// What is reported done has reached its device.
    fn check_settled(&self) {
        let buffers = self.buffers.iter().filter_map(Weak::upgrade);
        for region in buffers.chain([Arc::clone(self.windows.region())]) {
            let posted = region.posted_bytes();
            assert_eq!(
                posted,
                0,
                "bytes on their way in {} memory",
                region.kind().name()
            );
        }
    }

    pub(super) fn run(&mut self, work: VramWork) {
        self.submit(work);
        self.finish();
    }

    /// Writes into the windows, from their start.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        self.windows.write(GUARD_BYTES + at, bytes);
    }

    /// What the windows hold.
    pub(super) fn get(&self, at: u64, len: u64) -> Vec<u8> {
        self.windows.bytes(GUARD_BYTES + at..GUARD_BYTES + at + len)
    }

    /// What a buffer holds, through a gather into the start of the windows, which are as
    /// before afterwards.
    pub(super) fn look(&mut self, buffer: BufferId, at: u64, len: u64) -> Vec<u8> {
        let before = self.get(0, len);
        let piece = (0, u32::try_from(len).expect("small"), at);
        self.run(self.gather(buffer, 0, &[piece]));
        let found = self.get(0, len);
        self.put(0, &before);
        found
    }
}

/// A plan whose fill 1 has these pieces; fill 0 is there to be confused with.
fn plan(pieces: &[Place]) -> Arc<StreamPlan> {
    let ends = pieces.iter().map(|&(from, len, _)| from + len);
    let expected = ends.max().unwrap_or(1);
    let fill = |pieces| FillPlan {
        object: ObjectId(0),
        offset: 1 << 20,
        len: expected.next_multiple_of(4096),
        expected,
        route: Route::Direct,
        landing: Landing::Window,
        otherwise: None,
        pieces,
    };
    let decoy = (0, 1, 0);
    let count = u32::try_from(pieces.len()).expect("few pieces");
    Arc::new(StreamPlan {
        fills: vec![fill(0..1), fill(1..1 + count)],
        pieces: std::iter::once(&decoy)
            .chain(pieces)
            .map(|&(fill_offset, len, destination)| Piece {
                fill_offset,
                len,
                destination,
                item: ItemIndex(0),
            })
            .collect(),
        items: 1,
        ..StreamPlan::default()
    })
}

/// Bytes of a region that no operation uses at the moment.
pub(super) fn region_bytes(region: &Region, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).expect("64-bit")];
    // SAFETY: the cases call this only while nothing is under way.
    unsafe { region.copy_out(at, &mut bytes) };
    bytes
}

/// Writes into a region that no operation uses at the moment.
pub(super) fn region_write(region: &Region, at: u64, bytes: &[u8]) {
    // SAFETY: the cases call this only while nothing is under way.
    unsafe { region.write(at, bytes) };
}
