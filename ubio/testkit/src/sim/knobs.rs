//! What commands must be like, as the machine was told.

use ubio_core::{Core, Limits, Setting};

/// Both sets of knobs, and which is to be used.
#[derive(Debug)]
pub(crate) struct Knobs {
    limits: Limits,
    windows: Setting,
    in_place: Setting,
    /// Whether a stream that lands in place was the last to be open.
    pub(crate) is_in_place: bool,
    tuned: bool,
}

impl Knobs {
    pub(crate) fn new(limits: Limits) -> Knobs {
        let full = Setting {
            command_bytes: limits.command_bytes,
            depth: limits.depth,
        };
        Knobs {
            limits,
            windows: full,
            in_place: full,
            is_in_place: false,
            tuned: false,
        }
    }

    /// The size and depth to use. A machine that adapts them is believed, within its limits.
    pub(crate) fn setting(&self, core: &Core) -> Setting {
        let told = if self.is_in_place {
            self.in_place
        } else {
            self.windows
        };
        let used = core.setting();
        if !self.tuned {
            assert_eq!(used, told, "not the knobs as they were turned");
        }
        assert!(
            (1..=self.limits.depth).contains(&used.depth)
                && (1..=self.limits.command_bytes).contains(&used.command_bytes)
                && used.command_bytes.is_multiple_of(self.limits.alignment),
            "{used:?} is not within the limits"
        );
        used
    }

    pub(crate) fn set_command_bytes(&mut self, core: &mut Core, bytes: u32) {
        core.set_command_bytes(bytes);
        let cut = self.cut(bytes);
        self.windows.command_bytes = cut;
        self.in_place.command_bytes = cut;
    }

    pub(crate) fn set_depth(&mut self, core: &mut Core, depth: u16) {
        core.set_depth(depth);
        let cut = depth.clamp(1, self.limits.depth);
        self.windows.depth = cut;
        self.in_place.depth = cut;
    }

    pub(crate) fn set_in_place(&mut self, core: &mut Core, setting: Setting) {
        core.set_in_place(setting);
        self.in_place = Setting {
            command_bytes: self.cut(setting.command_bytes),
            depth: setting.depth.clamp(1, self.limits.depth),
        };
    }

    pub(crate) fn tune(&mut self, core: &mut Core, on: bool) {
        core.tune(on);
        self.tuned = on;
    }

    fn cut(&self, bytes: u32) -> u32 {
        let aligned = bytes / self.limits.alignment * self.limits.alignment;
        aligned.clamp(self.limits.alignment, self.limits.command_bytes)
    }
}
