//! Writing to standard output. A reader that has gone (`ubcp … | head`) is no error: the work
//! is done, and the exit code says how.

use std::io::{self, BufWriter, Write};

use crate::exit::{Exit, Failure};

/// Runs `write` on a buffered standard output and flushes it.
pub(crate) fn write(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Io,
            "io",
            format!("cannot write to standard output: {cause}"),
        )
        .remedy("check where it is redirected to")),
        _ => {
            // What is left in the buffer has no reader.
            let (_stdout, _unwritten) = out.into_parts();
            Ok(())
        }
    }
}
