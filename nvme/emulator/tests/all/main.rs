//! The emulated controller, driven by hand: queues, doorbells and PRP lists are written by the
//! tests' own code, which knows nothing of the driver in `nvme`.

mod admin;
mod bring_up;
mod driver;
