//! From placed tensors to fills: which contiguous stretches are read, by which route, and
//! what of each goes where. Pure but for asking the page cache; runs once, before the first
//! byte moves.

use ubio_core::{FillPlan, ItemIndex, Landing, ObjectId, Piece, Route, StreamPlan};

use crate::limits::{IN_PLACE_BYTES, MAX_GAP_BYTES};
use crate::source::file::residency::Residency;

/// Offsets, lengths and memory places of direct reads are multiples of this, bytes. Every
/// file whose own alignment divides it can be read direct.
pub(crate) const ALIGNMENT: u64 = 4096;
/// A stretch that is partly in the page cache is looked at in parts of this, bytes.
const RESIDENCY_PART_BYTES: u64 = 256 << 10;

/// One contiguous part of one file with one place in the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index of the file.
    pub(crate) file: u32,
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Bytes; never 0.
    pub(crate) len: u64,
    /// First byte in the destination.
    pub(crate) destination: u64,
    /// What it is part of; does not fall from run to run.
    pub(crate) item: u32,
}

/// What a file can do, for the choice of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileWay {
    /// Direct I/O, and reads that can be held to the page cache.
    Direct,
    /// Direct I/O, and no way to read only what is in the page cache (overlay).
    DirectOrWait,
    /// It lives in memory: the page cache is the file.
    Memory,
    /// Only through the page cache.
    Buffered,
    /// It is a namespace, and read by this route.
    Namespace(Route),
}

/// Which routes a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoutePolicy {
    /// Hot bytes from the page cache, cold ones direct.
    Auto,
    /// Everything direct.
    Direct,
    /// Everything through the page cache.
    Cached,
}

/// What fills are to look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Largest fill, bytes, unless fills land in place.
    pub(crate) window_bytes: u64,
    /// Where direct fills land.
    pub(crate) landing: Landing,
    /// Whether workers can write the destination themselves.
    pub(crate) scatter: bool,
    /// The allowed routes.
    pub(crate) policy: RoutePolicy,
}

impl Shape {
    /// Bytes.
    fn largest_fill(&self) -> u64 {
        match self.landing {
            Landing::Destination => IN_PLACE_BYTES.into(),
            _ => self.window_bytes,
        }
    }
}

/// Tells what of a file is in the page cache: (file, offset, bytes).
pub(crate) type Resident<'a> = &'a dyn Fn(u32, u64, u64) -> Residency;

/// Makes the fills of `runs`, in their order. `files` gives each file's way and length.
pub(crate) fn fills(
    runs: &[Run],
    items: u32,
    files: &[(FileWay, u64)],
    shape: &Shape,
    resident: Resident<'_>,
) -> StreamPlan {
    let mut plan = StreamPlan {
        items,
        ..StreamPlan::default()
    };
    let mut rest = runs;
    while let Some(first) = rest.first() {
        let count = stretch(rest);
        let (these, others) = rest.split_at(count);
        rest = others;
        let last = these[count - 1];
        let mut cutter = Cutter {
            plan: &mut plan,
            runs: these,
            next: 0,
            files,
            shape,
            resident,
        };
        cutter.cut(first.file, first.offset, last.offset + last.len);
    }
    plan
}

/// At most so many fills are made of `runs`.
pub(crate) fn most_fills(runs: &[Run], shape: &Shape) -> u64 {
    let smallest = shape.largest_fill().min(RESIDENCY_PART_BYTES);
    // Each run may begin and end within a part.
    let of = |run: &Run| run.len / smallest + 2;
    runs.iter().map(of).fold(0, u64::saturating_add)
}

/// How many of the first runs are read as one: the same file, rising, with small gaps.
fn stretch(runs: &[Run]) -> usize {
    let close = |pair: &&[Run]| {
        let end = pair[0].offset + pair[0].len;
        pair[1].file == pair[0].file
            && pair[1].offset >= end
            && pair[1].offset - end <= MAX_GAP_BYTES
    };
    1 + runs.windows(2).take_while(close).count()
}

struct Cutter<'a> {
    plan: &'a mut StreamPlan,
    runs: &'a [Run],
    /// The first run that still has bytes to place.
    next: usize,
    files: &'a [(FileWay, u64)],
    shape: &'a Shape,
    resident: Resident<'a>,
}

impl Cutter<'_> {
    /// Cuts `start..end` of a file into fills that end at multiples of the window size, or in
    /// place of [`IN_PLACE_BYTES`].
    fn cut(&mut self, file: u32, start: u64, end: u64) {
        let window = self.shape.largest_fill();
        let mut at = start / ALIGNMENT * ALIGNMENT;
        while at < end {
            let to = ((at / window + 1) * window).min(at + window);
            self.route(Stretch {
                file,
                start: at,
                end: to.min(end),
            });
            at = to;
        }
    }

    /// Chooses the route of one window's worth of bytes; a partly resident one is divided.
    fn route(&mut self, stretch: Stretch) {
        let (way, _len) = self.files[stretch.file as usize];
        match (way, self.shape.policy) {
            (FileWay::Namespace(route), _) => {
                self.fill(stretch, Way::new(route, self.shape.landing));
            }
            (FileWay::Memory, _) => self.fill(stretch, Way::new(Route::Buffered, self.cached())),
            (FileWay::Buffered, _) => {
                self.fill(stretch, Way::new(Route::Buffered, self.shape.landing));
            }
            (FileWay::Direct | FileWay::DirectOrWait, RoutePolicy::Direct) => {
                self.fill(stretch, self.direct());
            }
            (FileWay::Direct, RoutePolicy::Cached) if self.residency(stretch) == Residency::Hot => {
                let otherwise = Some((Route::Buffered, self.shape.landing));
                self.fill(
                    stretch,
                    Way {
                        otherwise,
                        ..self.hot()
                    },
                );
            }
            (FileWay::Direct | FileWay::DirectOrWait, RoutePolicy::Cached) => {
                self.fill(stretch, Way::new(Route::Buffered, self.shape.landing));
            }
            // What the kernel says is there is read at the risk of waiting for it; what it does
            // not know is not.
            (FileWay::DirectOrWait, RoutePolicy::Auto) => match self.residency(stretch) {
                Residency::Hot => self.fill(stretch, Way::new(Route::Buffered, self.cached())),
                _ => self.fill(stretch, self.direct()),
            },
            (FileWay::Direct, RoutePolicy::Auto) => match self.residency(stretch) {
                // To ask by reading would start readahead of what is not there: read twice.
                Residency::Cold | Residency::Unknown => self.fill(stretch, self.direct()),
                Residency::Hot => self.fill(stretch, self.hot()),
                Residency::Mixed => self.mixed(stretch),
            },
        }
    }

    fn residency(&self, stretch: Stretch) -> Residency {
        (self.resident)(stretch.file, stretch.start, stretch.end - stretch.start)
    }

    /// Where bytes copied from the page cache land.
    fn cached(&self) -> Landing {
        if self.shape.scatter {
            Landing::Scatter
        } else {
            self.shape.landing
        }
    }

    fn direct(&self) -> Way {
        Way::new(Route::Direct, self.shape.landing)
    }

    fn hot(&self) -> Way {
        let otherwise = Some((Route::Direct, self.shape.landing));
        Way {
            otherwise,
            ..Way::new(Route::Cached, self.cached())
        }
    }

    fn mixed(&mut self, stretch: Stretch) {
        let Stretch { start, end, .. } = stretch;
        let mut from = start;
        let mut from_hot = None;
        let mut at = start;
        while at < end {
            let to = ((at / RESIDENCY_PART_BYTES + 1) * RESIDENCY_PART_BYTES).min(end);
            let hot = self.residency(Stretch {
                start: at,
                end: to,
                ..stretch
            }) == Residency::Hot;
            if from_hot.is_some_and(|was| was != hot) {
                let way = if hot { self.direct() } else { self.hot() };
                self.fill(
                    Stretch {
                        start: from,
                        end: at,
                        ..stretch
                    },
                    way,
                );
                from = at;
            }
            from_hot = Some(hot);
            at = to;
        }
        let way = if from_hot == Some(true) {
            self.hot()
        } else {
            self.direct()
        };
        self.fill(
            Stretch {
                start: from,
                ..stretch
            },
            way,
        );
    }

    fn fill(&mut self, stretch: Stretch, way: Way) {
        let Stretch { file, start, end } = stretch;
        let pieces = u32::try_from(self.plan.pieces.len()).expect("below 2^32 pieces");
        while let Some(run) = self.runs.get(self.next) {
            let from = run.offset.max(start);
            let to = (run.offset + run.len).min(end);
            if from < to {
                self.plan.pieces.push(Piece {
                    fill_offset: small(from - start),
                    len: small(to - from),
                    destination: run.destination + (from - run.offset),
                    item: ItemIndex(run.item),
                });
            }
            if run.offset + run.len > end {
                break;
            }
            self.next += 1;
        }
        let to = u32::try_from(self.plan.pieces.len()).expect("below 2^32 pieces");
        if to == pieces {
            // A gap between two runs filled a whole window: nobody needs it.
            return;
        }
        let (_way, file_len) = self.files[file as usize];
        let len = (end - start).next_multiple_of(ALIGNMENT);
        self.plan.fills.push(FillPlan {
            object: ObjectId(file),
            offset: start,
            len: small(len),
            expected: small(len.min(file_len - start)),
            route: way.route,
            landing: way.landing,
            otherwise: way.otherwise,
            pieces: pieces..to,
        });
    }
}

/// Part of a file, to be one fill or several.
#[derive(Clone, Copy)]
struct Stretch {
    file: u32,
    start: u64,
    end: u64,
}

/// How a fill is done, and how if that fails.
#[derive(Clone, Copy)]
struct Way {
    route: Route,
    landing: Landing,
    otherwise: Option<(Route, Landing)>,
}

impl Way {
    fn new(route: Route, landing: Landing) -> Self {
        Self {
            route,
            landing,
            otherwise: None,
        }
    }
}

fn small(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("a window is below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1 << 20;

    fn shape() -> Shape {
        Shape {
            window_bytes: WINDOW,
            landing: Landing::Window,
            scatter: true,
            policy: RoutePolicy::Auto,
        }
    }

    /// Every byte of every run is in exactly one piece, at its place.
    fn check(runs: &[Run], plan: &StreamPlan) {
        let mut covered: Vec<(u64, u64, u64, u32)> = Vec::new();
        for fill in &plan.fills {
            assert_eq!(fill.offset % ALIGNMENT, 0);
            assert_eq!(u64::from(fill.len) % ALIGNMENT, 0);
            let mut landings = fill.landings();
            let most = if landings.any(|landing| landing == Landing::Destination) {
                IN_PLACE_BYTES.into()
            } else {
                WINDOW
            };
            assert!(u64::from(fill.len) <= most && fill.expected <= fill.len);
            let mut last_end = 0;
            for piece in &plan.pieces[fill.pieces.start as usize..fill.pieces.end as usize] {
                assert!(piece.fill_offset >= last_end && piece.len > 0);
                last_end = piece.fill_offset + piece.len;
                assert!(last_end <= fill.expected);
                covered.push((
                    piece.destination,
                    piece.len.into(),
                    fill.offset + u64::from(piece.fill_offset),
                    fill.object.0,
                ));
            }
        }
        covered.sort_unstable();
        for run in runs {
            let mut at = 0;
            while at < run.len {
                let piece = covered
                    .iter()
                    .find(|piece| piece.0 == run.destination + at)
                    .unwrap_or_else(|| panic!("{run:?} lacks byte {at}"));
                assert_eq!((piece.2, piece.3), (run.offset + at, run.file));
                at += piece.1;
            }
            assert_eq!(at, run.len);
        }
        assert_eq!(
            covered.iter().map(|piece| piece.1).sum::<u64>(),
            runs.iter().map(|run| run.len).sum::<u64>()
        );
    }

    fn runs(parts: &[(u32, u64, u64)]) -> Vec<Run> {
        let mut destination = 0;
        parts
            .iter()
            .zip(0..)
            .map(|(&(file, offset, len), item)| {
                let run = Run {
                    file,
                    offset,
                    len,
                    destination,
                    item,
                };
                destination = (destination + len).next_multiple_of(256);
                run
            })
            .collect()
    }

    #[test]
    fn every_byte_is_covered_once_whatever_the_edges() {
        let edges = [
            1,
            511,
            4095,
            4096,
            4097,
            WINDOW - 1,
            WINDOW,
            WINDOW + 1,
            3 * WINDOW + 17,
        ];
        for offset in [0, 1, 4095, 4096, WINDOW - 1, WINDOW, WINDOW + 4097] {
            for len in edges {
                for gap in [0, 1, 5000, MAX_GAP_BYTES, MAX_GAP_BYTES + 1, 2 * WINDOW] {
                    let runs = runs(&[
                        (0, offset, len),
                        (0, offset + len + gap, len),
                        (1, offset, 3),
                    ]);
                    let files = [(FileWay::Direct, 1 << 30), (FileWay::Direct, offset + 3)];
                    for residency in [Residency::Cold, Residency::Hot, Residency::Mixed] {
                        let plan = fills(&runs, 3, &files, &shape(), &|_, _, _| residency);
                        check(&runs, &plan);
                    }
                }
            }
        }
    }

    #[test]
    fn a_partly_resident_window_is_divided_by_residency() {
        let runs = runs(&[(0, 0, WINDOW)]);
        let files = [(FileWay::Direct, WINDOW)];
        let hot = |_file, offset, len| match (offset, len) {
            (0, WINDOW) => Residency::Mixed,
            (offset, _) if (RESIDENCY_PART_BYTES..3 * RESIDENCY_PART_BYTES).contains(&offset) => {
                Residency::Hot
            }
            _ => Residency::Cold,
        };
        let plan = fills(&runs, 1, &files, &shape(), &hot);
        check(&runs, &plan);
        let routes: Vec<_> = plan
            .fills
            .iter()
            .map(|fill| (fill.route, fill.len))
            .collect();
        let part = small(RESIDENCY_PART_BYTES);
        assert_eq!(
            routes,
            [
                (Route::Direct, part),
                (Route::Cached, 2 * part),
                (Route::Direct, part)
            ]
        );
    }

    #[test]
    fn what_needs_no_window_is_read_in_larger_parts() {
        let in_place = Shape {
            landing: Landing::Destination,
            ..shape()
        };
        let large = u64::from(IN_PLACE_BYTES);
        let len = 3 * large + WINDOW + 5;
        let files = [(FileWay::Direct, len)];
        // Two tensors, the second from the middle of a window on.
        let first = large + WINDOW / 2;
        let runs = [(0, first, 0), (first, len - first, 1)].map(|(offset, len, item)| Run {
            file: 0,
            offset,
            len,
            destination: offset,
            item,
        });
        let larger = Shape {
            window_bytes: 4 * large,
            ..in_place
        };
        // However small or large the windows are.
        for shape in [in_place, larger] {
            for residency in [Residency::Cold, Residency::Hot] {
                let plan = fills(&runs, 2, &files, &shape, &|_, _, _| residency);
                check(&runs, &plan);
                let lens: Vec<u64> = plan.fills.iter().map(|fill| fill.len.into()).collect();
                assert_eq!(lens, [large, large, large, WINDOW + ALIGNMENT]);
            }
        }
    }

    #[test]
    fn the_last_block_expects_no_more_than_the_file_has() {
        let runs = runs(&[(0, 4096, 10)]);
        let plan = fills(
            &runs,
            1,
            &[(FileWay::Direct, 4106)],
            &shape(),
            &|_, _, _| Residency::Cold,
        );
        assert_eq!((plan.fills[0].len, plan.fills[0].expected), (4096, 10));
    }
}
