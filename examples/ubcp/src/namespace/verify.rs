//! `--verify` for blocks: a second read of the same range, by other commands (through windows
//! into fresh host memory, part by part), that is compared with what was loaded.

use ubio::{Destination, Engine, RawLoaded, RawRequest};

use crate::exit::{Exit, Failure};

/// Bytes read and compared at once.
const PART_BYTES: u64 = 8 << 20;

pub(super) fn compare(engine: &Engine, offset: u64, loaded: &RawLoaded) -> Result<(), Failure> {
    let bytes = loaded.bytes().unwrap_or_default();
    let mut at = 0;
    for part in bytes.chunks(usize::try_from(PART_BYTES).expect("small")) {
        let request = RawRequest {
            offset: offset + at,
            len_bytes: part.len() as u64,
            destination: Destination::Host,
            in_place: false,
            strict: false,
        };
        let again = engine.read_raw(request).and_then(ubio::RawLoad::wait);
        let again = again.map_err(|error| Failure::engine(&error))?;
        let again = again.bytes().unwrap_or_default();
        if let Some(first) = part.iter().zip(again).position(|(one, other)| one != other) {
            let message = format!(
                "what was loaded differs from a second read first at byte {}",
                offset + at + first as u64
            );
            return Err(Failure::new(Exit::Mismatch, "mismatch", message).remedy(
                "nothing was published; see that nobody writes the namespace, and load it again",
            ));
        }
        at += part.len() as u64;
    }
    Ok(())
}
