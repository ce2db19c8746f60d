//! What the engine has to reach, and whether these samples show it.

use super::roster::{
    BUFFERED, FLOORS_COLD, FLOORS_RESERVED, FLOORS_WARM, MEMCPY, OURS, Sample, UBCP_RESERVED,
};
use super::rounds::{Results, Row, State};
use super::stats::{self, Ratio};

/// One goal and how it stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) what: String,
    /// The rate's ratio has to reach this; a CPU ratio has to stay below (it is inverted).
    pub(crate) goal: f64,
    pub(crate) ratio: Ratio,
}

/// All goals that these contenders allow to judge.
pub(crate) fn standings(results: &Results) -> Vec<Standing> {
    let mut all = Vec::new();
    let mut compare = |over: Option<&Row>, under: Option<&Row>, goal: f64| {
        if let (Some(over), Some(under)) = (over, under) {
            let what = format!("{} against {}", over.name, under.name);
            all.extend(rate(results, over, under).map(|ratio| Standing { what, goal, ratio }));
        }
    };
    let ours = results.row(OURS);
    match results.state {
        State::Cold => {
            let fio = results.baseline().filter(|row| row.is_fio);
            compare(results.row("ubcp --via ub"), fio, 0.97);
            compare(results.row("ubcp --via in-place"), fio, 0.97);
            let [buffers, in_place] = FLOORS_COLD.map(|(name, _)| results.row(name));
            compare(results.row("ubcp --via ub"), buffers, 0.95);
            compare(results.row("ubcp --via in-place"), in_place, 0.95);
            for ((name, _), (floor, _)) in UBCP_RESERVED.iter().zip(FLOORS_RESERVED) {
                compare(results.row(name), fio, 0.97);
                compare(results.row(name), results.row(floor), 0.95);
            }
            compare(ours, results.row("ubcp --via ub"), 1.0);
            compare(ours, results.row("ubcp --via in-place"), 1.0);
        }
        State::Warm => {
            let floors = results.rows.iter().filter(|row| is_floor(row));
            compare(ours, results.row(BUFFERED), 1.0);
            compare(ours, fastest(floors), 0.95);
            let touched = results.row("safetensors mmap, touched");
            compare(results.row("ubcp --via map"), touched, 1.0);
        }
    }
    for peer in results.rows.iter().filter(|row| is_peer(row)) {
        let zero_copy = peer.name.contains("mmap");
        if results.state == State::Warm && zero_copy {
            continue;
        }
        let level = results.state == State::Cold && peer.name.starts_with("runai");
        compare(ours, Some(peer), if level { 1.0 } else { 1.3 });
    }
    if results.state == State::Cold {
        let fio = results.baseline().filter(|row| row.is_fio);
        let in_place = results.row("ubcp --via in-place --prefault");
        // At most 1.3 times fio's.
        all.extend(cpu(results, fio, in_place, 1.0 / 1.3));
        all.extend(cpu_through_windows(results, fio));
        let best = fastest(
            results
                .rows
                .iter()
                .filter(|row| row.name.starts_with("runai")),
        );
        all.extend(cpu(results, best, ours, 1.0));
    }
    all
}

/// How much more CPU a byte costs one than the other.
fn cpu(results: &Results, of: Option<&Row>, than: Option<&Row>, goal: f64) -> Option<Standing> {
    let (of, than) = (of?, than?);
    let pairs = Results::pairs(of, than, Sample::cpu_s_per_gib);
    let ratio = stats::ratio(&pairs, results.seed)?;
    let what = format!("CPU of {} against {}", of.name, than.name);
    Some(Standing { what, goal, ratio })
}

/// CPU through windows: at most 1.3 times fio's and one memcpy.
fn cpu_through_windows(results: &Results, fio: Option<&Row>) -> Option<Standing> {
    let (fio, memcpy) = (fio?, results.row(MEMCPY.0)?);
    let ours = results.row("ubcp --via ub --prefault")?;
    let of = |row: &Row, round: usize| {
        let sample = row.samples.get(round)?.as_ref()?;
        Some(sample.cpu_s_per_gib())
    };
    let pairs: Vec<(f64, f64)> = (0..ours.samples.len())
        .filter_map(|round| {
            let allowed = 1.3 * of(fio, round)? + of(memcpy, round)?;
            Some((allowed, of(ours, round)?))
        })
        .collect();
    let what = format!(
        "1.3 x CPU of {}, and of {}, against {}",
        fio.name, memcpy.name, ours.name
    );
    Some(Standing {
        what,
        goal: 1.0,
        ratio: stats::ratio(&pairs, results.seed)?,
    })
}

/// Somebody else's loader.
fn is_peer(row: &Row) -> bool {
    !row.is_fio && !row.name.starts_with("ubcp") && row.name != BUFFERED && !is_floor(row)
}

fn is_floor(row: &Row) -> bool {
    let mut floors = FLOORS_COLD
        .iter()
        .chain(&FLOORS_RESERVED)
        .chain(&FLOORS_WARM);
    row.name == MEMCPY.0 || floors.any(|(name, _)| *name == row.name)
}

fn fastest<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.filter(|row| row.samples.iter().any(Option::is_some))
        .max_by(|a, b| a.median(Sample::rate).total_cmp(&b.median(Sample::rate)))
}

/// The ratio of the rates, over pairs of the same round.
pub(crate) fn rate(results: &Results, over: &Row, under: &Row) -> Option<Ratio> {
    stats::ratio(&Results::pairs(over, under, Sample::rate), results.seed)
}
