//! The emulated controller, driven by hand: queues, doorbells and PRP lists are written by the
//! tests' own code, which knows nothing of the driver in `nvme`.

mod admin;
mod arbitrary;
mod blocks;
mod bring_up;
mod doorbells;
mod driver;
mod faults;
mod pointers;
mod threaded;
