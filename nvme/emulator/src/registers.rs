//! The controller's registers and the states behind them: Base 3.1.3, 3.5, 3.6. Times come in
//! as values; knows no queues.

use std::time::Duration;

use nvme_sys::register::{ACQ, AQA, AQA_ACQS_SHIFT, ASQ, CAP, CC, CSTS, VS};
use nvme_sys::register::{
    CC_CSS_SHIFT, CC_ENABLE, CC_IOCQES_SHIFT, CC_IOSQES_SHIFT, CC_MPS_SHIFT, CC_SHN_SHIFT,
    CSTS_FATAL, CSTS_READY, CSTS_SHST_COMPLETE, CSTS_SHST_SHIFT,
};

use crate::config::Config;

/// NVMe 2.0.
pub(crate) const VERSION: u32 = 2 << 16;

/// CC.EN and CSTS.RDY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Disabled,
    Enabling { until: Duration },
    Ready,
    Disabling { until: Duration, was_ready: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    No,
    Under { until: Duration },
    Done,
}

/// What the controller has to do after a register or time changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The admin queue comes to life.
    Ready,
    /// Everything but the registers is forgotten.
    Reset,
    /// What was written must be durable.
    Shutdown,
}

#[derive(Debug)]
pub(crate) struct Registers {
    cap: u64,
    cc: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    state: State,
    shutdown: Shutdown,
    fatal: bool,
    ready_delay: Duration,
    reset_delay: Duration,
    shutdown_delay: Duration,
    /// The next time it is enabled, instead of `ready_delay`.
    slow: Option<Duration>,
}

impl Registers {
    pub(crate) fn new(config: &Config) -> Self {
        let (min, max) = config.page_shifts;
        let cap = u64::from(config.max_queue_entries - 1)
            | 1 << 16
            | u64::from(config.timeout_half_seconds) << 24
            | u64::from(config.doorbell_stride) << 32
            | 1 << 37
            | u64::from(min) << 48
            | u64::from(max) << 52;
        Self {
            cap,
            cc: 0,
            aqa: 0,
            asq: 0,
            acq: 0,
            state: State::Disabled,
            shutdown: Shutdown::No,
            fatal: false,
            ready_delay: config.ready_delay,
            reset_delay: config.reset_delay,
            shutdown_delay: config.shutdown_delay,
            slow: None,
        }
    }

    pub(crate) fn read(&self, offset: u64) -> u32 {
        match offset {
            CAP => low(self.cap),
            0x04 => high(self.cap),
            VS => VERSION,
            CC => self.cc,
            CSTS => self.csts(),
            AQA => self.aqa,
            ASQ => low(self.asq),
            0x2c => high(self.asq),
            ACQ => low(self.acq),
            0x34 => high(self.acq),
            _ => 0,
        }
    }

    fn csts(&self) -> u32 {
        let ready = match self.state {
            State::Ready => CSTS_READY,
            State::Disabling { was_ready, .. } => u32::from(was_ready),
            State::Disabled | State::Enabling { .. } => 0,
        };
        let shutdown = match self.shutdown {
            Shutdown::No => 0,
            Shutdown::Under { .. } => 1,
            Shutdown::Done => CSTS_SHST_COMPLETE,
        };
        let fatal = if self.fatal { CSTS_FATAL } else { 0 };
        ready | fatal | shutdown << CSTS_SHST_SHIFT
    }

    pub(crate) fn write(&mut self, offset: u64, value: u32, now: Duration) {
        let with_low = |register: u64| register & !0xffff_ffff | u64::from(value);
        let with_high = |register: u64| register & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            CC => self.write_cc(value, now),
            AQA => self.aqa = value & 0x0fff_0fff,
            ASQ => self.asq = with_low(self.asq) & !0xfff,
            0x2c => self.asq = with_high(self.asq),
            ACQ => self.acq = with_low(self.acq) & !0xfff,
            0x34 => self.acq = with_high(self.acq),
            // Read-only, or not there (subsystem reset, pin interrupts, memory buffer).
            _ => {}
        }
    }

    fn write_cc(&mut self, value: u32, now: Duration) {
        let before = std::mem::replace(&mut self.cc, value);
        let enabled = |cc: u32| cc & CC_ENABLE != 0;
        if enabled(value) && !enabled(before) {
            // While it still resets, it is enabled when that is done.
            if self.state == State::Disabled {
                self.enable(now);
            }
        } else if enabled(before) && !enabled(value) {
            let was_ready = self.csts() & CSTS_READY != 0;
            let until = now.saturating_add(self.reset_delay);
            self.state = State::Disabling { until, was_ready };
        }
        let notified = |cc: u32| cc >> CC_SHN_SHIFT & 0b11 != 0;
        if notified(value) && !notified(before) && self.shutdown == Shutdown::No {
            let until = now.saturating_add(self.shutdown_delay);
            self.shutdown = Shutdown::Under { until };
        }
    }

    fn enable(&mut self, now: Duration) {
        if self.is_legal() {
            let delay = self.slow.take().unwrap_or(self.ready_delay);
            let until = now.saturating_add(delay);
            self.state = State::Enabling { until };
        } else {
            self.fatal = true;
        }
    }

    /// Whether the configuration is one that this controller takes.
    fn is_legal(&self) -> bool {
        let (min, max) = (self.cap >> 48 & 0xf, self.cap >> 52 & 0xf);
        let mps = u64::from(self.cc >> CC_MPS_SHIFT & 0xf);
        let (command_set, arbitration) = (self.cc >> CC_CSS_SHIFT & 0b111, self.cc >> 11 & 0b111);
        let [submissions, completions] = self.admin_entries();
        (min..=max).contains(&mps)
            && command_set == 0
            && arbitration == 0
            && submissions >= 2
            && completions >= 2
            && self.asq.is_multiple_of(self.page_bytes())
            && self.acq.is_multiple_of(self.page_bytes())
    }

    /// Goes on where time has come; one change at a time.
    pub(crate) fn tick(&mut self, now: Duration) -> Option<Change> {
        match self.state {
            State::Disabling { until, .. } if until <= now => {
                self.state = State::Disabled;
                self.shutdown = Shutdown::No;
                self.fatal = false;
                if self.cc & CC_ENABLE != 0 {
                    self.enable(now);
                }
                return Some(Change::Reset);
            }
            State::Enabling { until } if until <= now && !self.fatal => {
                self.state = State::Ready;
                return Some(Change::Ready);
            }
            _ => {}
        }
        match self.shutdown {
            Shutdown::Under { until } if until <= now => {
                self.shutdown = Shutdown::Done;
                Some(Change::Shutdown)
            }
            _ => None,
        }
    }

    /// When the next change comes by itself.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let state = match self.state {
            State::Enabling { until } if !self.fatal => Some(until),
            State::Disabling { until, .. } => Some(until),
            State::Enabling { .. } | State::Disabled | State::Ready => None,
        };
        let shutdown = match self.shutdown {
            Shutdown::Under { until } => Some(until),
            Shutdown::No | Shutdown::Done => None,
        };
        state.into_iter().chain(shutdown).min()
    }

    /// Whether commands are fetched and completed.
    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Ready && !self.fatal && self.shutdown == Shutdown::No
    }

    /// Whether commands under way may move data: also while a reset is not acknowledged yet.
    pub(crate) fn may_move(&self) -> bool {
        let resetting = matches!(self.state, State::Disabling { was_ready, .. } if was_ready);
        !self.fatal && (self.is_running() || resetting)
    }

    pub(crate) fn fail(&mut self) {
        self.fatal = true;
    }

    /// The next time it is enabled takes so long.
    pub(crate) fn slow_down(&mut self, delay: Duration) {
        self.slow = Some(delay);
    }

    /// As after power on, but for what only time can change.
    pub(crate) fn clear(&mut self) {
        (self.cc, self.aqa, self.asq, self.acq) = (0, 0, 0, 0);
        (self.state, self.shutdown) = (State::Disabled, Shutdown::No);
        self.fatal = false;
    }

    /// Bytes of a memory page.
    pub(crate) fn page_bytes(&self) -> u64 {
        4096 << (self.cc >> CC_MPS_SHIFT & 0xf)
    }

    /// Bytes of the smallest memory page, which MDTS counts in.
    pub(crate) fn min_page_bytes(&self) -> u64 {
        4096 << (self.cap >> 48 & 0xf)
    }

    /// Bytes from one doorbell to the next.
    pub(crate) fn doorbell_bytes(&self) -> u64 {
        4 << (self.cap >> 32 & 0xf)
    }

    /// log2 of the sizes of submission and completion entries.
    pub(crate) fn entry_sizes(&self) -> [u32; 2] {
        [
            self.cc >> CC_IOSQES_SHIFT & 0xf,
            self.cc >> CC_IOCQES_SHIFT & 0xf,
        ]
    }

    /// Entries of the admin queues.
    pub(crate) fn admin_entries(&self) -> [u32; 2] {
        let field = |shift| (self.aqa >> shift & 0xfff) + 1;
        [field(0), field(AQA_ACQS_SHIFT)]
    }

    /// Addresses of the admin queues.
    pub(crate) fn admin_addresses(&self) -> [u64; 2] {
        [self.asq, self.acq]
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).expect("32 bits")
}

fn high(value: u64) -> u32 {
    u32::try_from(value >> 32).expect("32 bits")
}
