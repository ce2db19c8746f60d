//! The table of suites. A suite is a file here with one function: machine → cases.

mod boot;
mod canary;
mod conformance;
mod engines;
mod faults;
mod passthrough;
mod perf;
mod ubcp;
mod vfio;

use ubio_lab_spec::Machine;

use crate::case::Case;

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
