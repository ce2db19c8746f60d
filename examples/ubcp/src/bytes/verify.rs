//! `--verify` for bytes: a second read of the same range, through windows into fresh host
//! memory, part by part, that is compared with what was loaded.

use ubio::{Destination, RawLoad, RawLoaded, RawRequest};

use super::each_part;
use crate::exit::{Exit, Failure};

/// Compares; `start` begins a read of the source.
pub(super) fn compare(
    offset: u64,
    loaded: &RawLoaded,
    start: impl Fn(RawRequest) -> ubio::Result<RawLoad>,
) -> Result<(), Failure> {
    each_part(loaded, |at, part| {
        let request = RawRequest {
            offset: offset + at,
            len_bytes: part.len() as u64,
            destination: Destination::Host,
            in_place: false,
            strict: false,
        };
        let again = start(request).and_then(RawLoad::wait);
        let again = again.map_err(|error| Failure::engine(&error))?;
        let again = again.bytes().unwrap_or_default();
        let differs = part.iter().zip(again).position(|(one, other)| one != other);
        match differs {
            None => Ok(()),
            Some(first) => {
                let message = format!(
                    "what was loaded differs from a second read first at byte {}",
                    offset + at + first as u64
                );
                let remedy = "nothing was published; see that nobody writes the source, and load \
                              it again";
                Err(Failure::new(Exit::Mismatch, "mismatch", message).remedy(remedy))
            }
        }
    })
}
