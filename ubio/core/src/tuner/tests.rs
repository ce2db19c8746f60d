//! The tuner against devices made of one formula each, with and without noise.

use super::{Setting, Tuner, TunerLimits};
use crate::units::Nanos;

const LIMITS: TunerLimits = TunerLimits {
    command_bytes_max: 4 << 20,
    depth_max: 128,
    alignment: 4096,
};
const MIB: u64 = 1 << 20;
const HINT: Setting = Setting {
    command_bytes: 1 << 20,
    depth: 8,
};

/// A device: MiB/s at a setting.
type Device = fn(Setting) -> u64;

/// Draws numbers; the usual xorshift.
struct Draws(u64);

impl Draws {
    /// 0 to 1999.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % 2000
    }
}

/// What a load came to.
#[derive(Debug)]
struct Run {
    end: Setting,
    ns: u64,
    /// Bytes read away from the hint.
    away: u64,
    /// Bytes read at settings more than 15 % worse than the best.
    bad: u64,
}

/// Reads so many MiB. `noise` in thousandths: each stretch of 16 MiB is as much slower or
/// faster, and each command again.
fn load(device: Device, mib: u64, noise: u64, seed: u64) -> Run {
    load_from(HINT, device, mib, noise, seed)
}

fn load_from(hint: Setting, device: Device, mib: u64, noise: u64, seed: u64) -> Run {
    let mut draws = Draws(seed * 2 + 1);
    let mut tuner = Tuner::new(LIMITS, hint.command_bytes, hint.depth);
    let best = best(device);
    let mut run = Run {
        end: hint,
        ns: 0,
        away: 0,
        bad: 0,
    };
    let (mut done, mut next_stretch, mut stretch) = (0, 0, 1000);
    let noisy = |draws: &mut Draws| 1000 - noise + draws.next() * noise / 1000;
    while done < mib * MIB {
        if done >= next_stretch {
            stretch = noisy(&mut draws);
            next_stretch += 16 * MIB;
        }
        let setting = tuner.setting();
        let bytes = u64::from(setting.command_bytes);
        let rate = device(setting);
        run.ns += bytes * 1_000_000 / MIB * 1000 / rate * stretch / 1000 * noisy(&mut draws) / 1000;
        done += bytes;
        run.away += if setting == hint { 0 } else { bytes };
        run.bad += if rate * 100 < best * 85 { bytes } else { 0 };
        assert!(setting.depth >= 2, "{setting:?}");
        tuner.on_completed(setting.command_bytes, true, Nanos(run.ns));
    }
    run.end = tuner.setting();
    run
}

/// The best rate of all candidates.
fn best(device: Device) -> u64 {
    let sizes = (18..=22).map(|bits| 1_u32 << bits);
    let all = sizes.flat_map(|command_bytes| {
        let depths = (1..=7).map(|bits| 1_u16 << bits);
        depths.map(move |depth| Setting {
            command_bytes,
            depth,
        })
    });
    all.filter(|setting| setting.in_flight_bytes() <= 32 << 20)
        .map(device)
        .max()
        .unwrap_or(1)
}

/// What staying at the hint takes, ns.
fn staying(device: Device, mib: u64) -> u64 {
    mib * 1_000_000_000 / device(HINT)
}

/// Each command takes 4 ms whatever its size, up to 20 GiB/s.
fn latency_bound(setting: Setting) -> u64 {
    (setting.in_flight_bytes() / MIB * 250).clamp(1, 20_000)
}

fn bandwidth_bound(_setting: Setting) -> u64 {
    3_000
}

/// Falls to a fifth beyond 8 MiB in flight.
fn collapsing(setting: Setting) -> u64 {
    if setting.in_flight_bytes() > 8 * MIB {
        600
    } else {
        3_000 - u64::from(setting.in_flight_bytes() < 8 * MIB) * 500
    }
}

/// Each command costs the time of half a MiB.
fn small_commands_cost(setting: Setting) -> u64 {
    let kib = u64::from(setting.command_bytes >> 10);
    4_000 * kib / (kib + 512)
}

/// Falls by a tenth with each doubling of the bytes in flight away from 8 MiB, and with each
/// of the command's size from 1 MiB.
fn peak_at_hint(setting: Setting) -> u64 {
    let away =
        setting.in_flight_bytes().ilog2().abs_diff(23) + setting.command_bytes.ilog2().abs_diff(20);
    3_000 * 9_u64.pow(away) / 10_u64.pow(away)
}

/// The same, with its peak two steps from the hint.
fn peak_elsewhere(setting: Setting) -> u64 {
    let away =
        setting.in_flight_bytes().ilog2().abs_diff(21) + setting.command_bytes.ilog2().abs_diff(20);
    3_000 * 9_u64.pow(away) / 10_u64.pow(away)
}

#[test]
fn goes_deeper_where_latency_binds() {
    let run = load(latency_bound, 2048, 0, 1);
    assert_eq!(run.end.in_flight_bytes(), 32 * MIB, "{run:?}");
    assert!(run.ns < staying(latency_bound, 2048) / 2, "{run:?}");
    // From where engines begin, too: through windows, and in place.
    for (command_bytes, depth) in [(1 << 20, 3), (4 << 20, 6)] {
        let hint = Setting {
            command_bytes,
            depth,
        };
        let run = load_from(hint, latency_bound, 4096, 0, 1);
        assert_eq!(run.end.in_flight_bytes(), 32 * MIB, "{run:?}");
    }
}

/// Others' commands take the place of ours for a while, as often as they like.
#[test]
fn goes_on_where_it_stood_when_it_was_interrupted() {
    let mut tuner = Tuner::new(LIMITS, HINT.command_bytes, HINT.depth);
    let mut now = 0;
    let mut trials = 0;
    let mut completed = |tuner: &mut Tuner, count: u32| {
        for _ in 0..count {
            let setting = tuner.setting();
            now +=
                1_000_000_000 * u64::from(setting.command_bytes) / (MIB * latency_bound(setting));
            if tuner.on_completed(setting.command_bytes, true, Nanos(now)) {
                trials += u32::from(tuner.trial.is_some());
            }
        }
        now += 1_000_000_000;
        trials
    };
    // A trial has begun; then it is interrupted, again and again, before it can end.
    while tuner.trial.is_none() {
        completed(&mut tuner, 1);
    }
    let (step, next_wait) = (tuner.step, tuner.next_wait);
    for _ in 0..20 {
        tuner.resume(5);
        assert_eq!(tuner.setting(), HINT);
        assert_eq!((tuner.step, tuner.next_wait), (step, next_wait));
        // What comes of the commands in flight at that moment is not ours.
        completed(&mut tuner, 5);
        assert_eq!(tuner.bytes, 0);
        completed(&mut tuner, 5);
        assert_eq!(tuner.bytes, 5 * MIB);
        assert_eq!(tuner.setting(), HINT);
    }
    // The time between said nothing either.
    let trials = completed(&mut tuner, 2000);
    assert!(trials >= 2, "{trials}");
    assert_eq!(tuner.at.in_flight_bytes(), 32 * MIB);
}

#[test]
fn stays_where_nothing_helps() {
    let run = load(bandwidth_bound, 32 << 10, 0, 1);
    assert!(run.away * 10 < (32 << 10) * MIB, "{run:?}");
    let run = load(bandwidth_bound, 2048, 0, 1);
    assert!(run.away * 10 <= 2048 * MIB, "{run:?}");
}

#[test]
fn loses_little_where_the_hint_is_best() {
    let devices: [(&str, Device); 3] = [
        ("bandwidth", bandwidth_bound),
        ("collapsing", collapsing),
        ("peak", peak_at_hint),
    ];
    for (name, device) in devices {
        for mib in [2048, 8192] {
            let run = load(device, mib, 0, 1);
            let lost = run.ns * 1000 / staying(device, mib);
            assert!(lost <= 1030, "{name}, {mib} MiB: {lost} {run:?}");
        }
    }
}

#[test]
fn larger_commands_where_small_ones_cost() {
    let run = load(small_commands_cost, 4096, 0, 1);
    assert_eq!(run.end.command_bytes, 4 << 20, "{run:?}");
}

#[test]
fn finds_a_peak_two_steps_away() {
    let run = load(peak_elsewhere, 8192, 0, 1);
    let found = peak_elsewhere(run.end);
    assert!(found >= 2_700, "{found} {run:?}");
}

/// What a stretch of noise pushes it into, it leaves again.
#[test]
fn noise_leads_nowhere_bad_for_long() {
    let devices: [(&str, Device); 3] = [
        ("collapsing", collapsing),
        ("peak", peak_at_hint),
        ("bandwidth", bandwidth_bound),
    ];
    for (name, device) in devices {
        let (mut bad, mut ns) = (0, 0);
        for seed in 1..=64 {
            let run = load(device, 8192, 300, seed);
            bad += run.bad;
            ns += run.ns;
        }
        let bad = bad * 100 / (64 * 8192 * MIB);
        let lost = ns * 100 / (64 * staying(device, 8192));
        assert!(bad <= 10, "{name}: {bad} % of the bytes in bad places");
        assert!(lost <= 105, "{name}: {lost} % of the time at the hint");
    }
}

#[test]
fn time_that_the_source_idled_does_not_count() {
    let mut tuner = Tuner::new(LIMITS, HINT.command_bytes, HINT.depth);
    for completion in 0..10_000 {
        let changed = tuner.on_completed(1 << 20, false, Nanos(completion * 1000));
        assert!(!changed);
    }
    assert_eq!(tuner.setting(), HINT);
}

/// After the source idled, what was in flight comes back at once: as if it were fast, and the
/// deeper the faster.
#[test]
fn what_was_in_flight_while_the_source_idled_does_not_count() {
    let mut tuner = Tuner::new(LIMITS, HINT.command_bytes, HINT.depth);
    let mut now = 0;
    for _ in 0..20_000 {
        let Setting {
            command_bytes,
            depth,
        } = tuner.setting();
        now += 4_000_000;
        for completion in 0..depth {
            now += 10_000;
            tuner.on_completed(command_bytes, completion > 0, Nanos(now));
        }
        assert_eq!(tuner.setting(), HINT);
    }
}

#[test]
fn a_trial_that_starves_is_given_up() {
    let mut tuner = Tuner::new(LIMITS, HINT.command_bytes, HINT.depth);
    let mut now = 0;
    let mut trials = 0;
    let mut uses = 0;
    for _ in 0..4096 {
        now += 300_000;
        let setting = tuner.setting();
        uses += u32::from(setting != HINT);
        let saturated = setting == HINT;
        if tuner.on_completed(setting.command_bytes, saturated, Nanos(now)) {
            trials += u32::from(tuner.setting() != HINT);
        }
    }
    assert!(trials > 1 && uses < trials * 120, "{trials} {uses}");
}

#[test]
fn keeps_to_the_limits() {
    let limits = TunerLimits {
        command_bytes_max: 512 << 10,
        depth_max: 16,
        alignment: 4096,
    };
    for (bytes, depth) in [(4 << 20, 128), (64 << 10, 1), (4096, 8), (384 << 10, 3)] {
        let mut tuner = Tuner::new(limits, bytes, depth);
        for completion in 0..200_000_u64 {
            let Setting {
                command_bytes,
                depth,
            } = tuner.setting();
            assert!((2..=16).contains(&depth) && command_bytes <= 512 << 10);
            assert!(command_bytes.is_multiple_of(4096));
            tuner.on_completed(command_bytes, true, Nanos((completion + 1) * 100_000));
        }
    }
}
