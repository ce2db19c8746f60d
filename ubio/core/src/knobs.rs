//! Size and number of commands. There are two sets: no window bounds the commands of fills that
//! land at their destination, so what is best for those is not what is best for windows. One set
//! is in use at a time, and each is adapted, if it is to be, by a tuner of its own.

use crate::limits::Limits;
use crate::tuner::{Setting, Tuner, TunerLimits};
use crate::units::Nanos;

/// One set: where it starts from, and what has become of it.
#[derive(Debug)]
struct Set {
    hint: Setting,
    tuner: Option<Tuner>,
}

impl Set {
    fn setting(&self) -> Setting {
        self.tuner.as_ref().map_or(self.hint, Tuner::setting)
    }

    fn tune(&mut self, limits: Option<TunerLimits>) {
        let Setting {
            command_bytes,
            depth,
        } = self.hint;
        self.tuner = limits.map(|limits| Tuner::new(limits, command_bytes, depth));
    }
}

/// Both sets.
#[derive(Debug)]
pub(crate) struct Knobs {
    /// What commands are to be like now.
    pub(crate) now: Setting,
    /// Whether the set of in-place fills is the one in use.
    in_place: bool,
    used: Set,
    other: Set,
    limits: Limits,
}

impl Knobs {
    /// Both sets at full depth and command size, none adapted.
    pub(crate) fn new(limits: Limits) -> Knobs {
        let hint = Setting {
            command_bytes: limits.command_bytes,
            depth: limits.depth,
        };
        let set = || Set { hint, tuner: None };
        Knobs {
            now: hint,
            in_place: false,
            used: set(),
            other: set(),
            limits,
        }
    }

    /// Changes what both sets start from; the tuners, where there are any, begin anew there.
    pub(crate) fn hint(&mut self, mut change: impl FnMut(Setting) -> Setting) {
        for in_place in [false, true] {
            self.hint_one(in_place, &mut change);
        }
    }

    /// Changes what one set starts from; its tuner, if there is one, begins anew there.
    pub(crate) fn hint_one(&mut self, in_place: bool, change: impl FnOnce(Setting) -> Setting) {
        let limits = self.limits;
        let tuned = self.is_tuned();
        let set = self.set(in_place);
        let Setting {
            command_bytes,
            depth,
        } = change(set.hint);
        let aligned = command_bytes & !(limits.alignment - 1);
        set.hint = Setting {
            command_bytes: aligned.clamp(limits.alignment, limits.command_bytes),
            depth: depth.clamp(1, limits.depth),
        };
        set.tune(tuned.then(|| tuner_limits(&limits, in_place)));
        self.now = self.used.setting();
    }

    fn set(&mut self, in_place: bool) -> &mut Set {
        if in_place == self.in_place {
            &mut self.used
        } else {
            &mut self.other
        }
    }

    fn is_tuned(&self) -> bool {
        self.used.tuner.is_some()
    }

    /// Whether both sets are adapted from now on, beginning with what they start from.
    pub(crate) fn tune(&mut self, on: bool) {
        let limits = self.limits;
        for in_place in [false, true] {
            let limits = on.then(|| tuner_limits(&limits, in_place));
            self.set(in_place).tune(limits);
        }
        self.now = self.used.setting();
    }

    /// Says whether anything lands in place now. Whether the set in use has changed by it.
    pub(crate) fn choose(&mut self, in_place: bool, in_flight: u16) -> bool {
        if in_place == self.in_place {
            return false;
        }
        self.in_place = in_place;
        core::mem::swap(&mut self.used, &mut self.other);
        if let Some(tuner) = &mut self.used.tuner {
            tuner.resume(in_flight);
        }
        self.now = self.used.setting();
        true
    }

    /// A direct read came back whole; see [`Tuner::on_completed`].
    #[inline]
    pub(crate) fn on_completed(&mut self, bytes: u32, saturated: bool, now: Nanos) {
        if let Some(tuner) = &mut self.used.tuner
            && tuner.on_completed(bytes, saturated, now)
        {
            self.now = tuner.setting();
        }
    }
}

fn tuner_limits(limits: &Limits, in_place: bool) -> TunerLimits {
    let command_bytes_max = if in_place {
        limits.command_bytes
    } else {
        limits.command_bytes.min(limits.window_bytes)
    };
    TunerLimits {
        command_bytes_max,
        depth_max: limits.depth,
        alignment: limits.alignment,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        windows: 8,
        window_bytes: 1 << 20,
        tickets: 8,
        depth: 64,
        command_bytes: 4 << 20,
        alignment: 4096,
        streams: 2,
    };

    #[test]
    fn each_set_goes_on_where_it_stood() {
        let mut knobs = Knobs::new(LIMITS);
        let in_place = Setting {
            command_bytes: 4 << 20,
            depth: 6,
        };
        let windows = Setting {
            command_bytes: 1 << 20,
            depth: 3,
        };
        knobs.hint(|_| windows);
        knobs.hint_one(true, |_| in_place);
        knobs.tune(true);
        assert_eq!(knobs.now, windows);
        // Until a trial is under way.
        let mut now = 0;
        while knobs.now == windows {
            now += 400_000;
            assert!(now < 1_000_000_000_000, "nothing is tried");
            knobs.on_completed(knobs.now.command_bytes, true, Nanos(now));
        }
        assert!(knobs.choose(true, 3) && !knobs.choose(true, 3));
        assert_eq!(knobs.now, in_place);
        assert!(knobs.choose(false, 3));
        // What the others did meanwhile is nothing to judge a trial by.
        assert_eq!(knobs.now, windows);
    }
}
