//! The table of suites. A suite is a file here with one function: machine → cases.

mod boot;
mod canary;
mod conformance;
mod engines;
mod faults;
mod passthrough;
mod perf;
mod refusal;
mod ubcp;
mod vfio;

use ubio_lab_spec::Machine;

use crate::case::Case;

const PAGE: u64 = 4096;
/// Lengths of reads in pages: around those at which another PRP list page begins, and above.
const PAGES: [u64; 7] = [1, 2, 3, 511, 512, 513, 1023];
/// Where in a page reads begin.
const OFFSETS: [u64; 4] = [0, 4, 512, 4092];

/// The cases for a machine; the flag asks for the whole matrix.
pub(crate) type Suite = fn(&Machine, bool) -> Vec<Case>;

/// A line for each suite; which machines it runs on is in `lab/spec/src/runs.rs`.
const SUITES: [(&str, Suite); 7] = [
    ("boot", boot::cases),
    ("canary", canary::cases),
    ("faults", faults::cases),
    ("passthrough", passthrough::cases),
    ("perf", perf::cases),
    ("ubcp", ubcp::cases),
    ("vfio", vfio::cases),
];

/// The suite of that name.
pub(crate) fn find(name: &str) -> Option<Suite> {
    let found = SUITES.iter().find(|(suite, _)| *suite == name);
    found.map(|(_, cases)| *cases)
}
