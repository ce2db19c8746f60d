//! `--via map`: the page cache itself as destination. No engine, no memory of its own.
//!
//! unsafe: a mapped file may be cut by others; whoever asks for `--via map` is told.
#![expect(
    unsafe_code,
    reason = "to map a file is unsafe, and is what was asked for"
)]

use ubio::map::Mapped;
use ubio::stats::Report;

use crate::exit::{Exit, Failure};
use crate::meter::Meter;
use crate::report::{Explain, Outcome};
use crate::run::{Done, Job};
use crate::verify;

/// Maps what is wanted and brings it in.
pub(crate) fn load(job: &Job<'_>, meter: Meter) -> Result<Done, Failure> {
    // SAFETY: what `--via map` asks of its user, as `--help` says; a lease is taken where there
    // is one.
    let mapped = unsafe { Mapped::open(&job.model, &job.plan) };
    let mapped = mapped.map_err(|error| Failure::engine(&error))?;
    let measured = meter.stop();
    let lease = match mapped.unleased() {
        None => "held".to_owned(),
        Some(refused) => format!("none: {refused}"),
    };
    if job.args.strict && mapped.unleased().is_some() {
        let message = format!("strict: no lease on the source ({lease})");
        return Err(Failure::new(Exit::Fallback, "fallback", message)
            .at(job
                .model
                .files()
                .first()
                .map_or("".as_ref(), |file| file.path()))
            .remedy("close what has it open for writing, or load a copy (--via in-place)"));
    }
    let mut tensors: Vec<(_, &[u8])> = job
        .plan
        .order
        .iter()
        .copied()
        .zip(mapped.tensors().map(|view| view.bytes))
        .collect();
    tensors.sort_by_key(|(index, _)| *index);
    if job.args.verify {
        verify::tensors(&job.model, &tensors)?;
    }
    let digest = job.digest(tensors.iter().map(|(_, bytes)| *bytes));
    if !mapped.is_intact() {
        job.model
            .check_unchanged()
            .map_err(|error| Failure::model(&error))?;
    }
    let mut report = Report::default();
    report.route_bytes.insert("mapped", mapped.bytes());
    Ok(Done {
        outcome: Outcome {
            measured,
            report,
            digest,
            verified: job.args.verify,
        },
        bytes: job.plan.payload_bytes,
        explain: Explain {
            reader: "mmap".to_owned(),
            lease: Some(lease),
            ..Explain::default()
        },
    })
}
