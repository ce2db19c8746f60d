//! A record of what happened when, for the trace viewers that read Chrome's JSON format
//! (Perfetto, chrome://tracing): one row per window, one for what the ring thread waited on.

use std::io::{self, Write};

/// What a span shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Storage → window (or destination).
    Fill,
    /// Window → VRAM.
    Flush,
    /// The caller has the window.
    Lent,
    /// The window was zeroed.
    Scrub,
    /// The destination was faulted in.
    Prepare,
    /// Nothing to do: waiting for commands.
    StallSource,
    /// Nothing to do: waiting for a window.
    StallWindow,
    /// Nothing to do: waiting for the copy engine.
    StallCopy,
    /// Nothing to do: waiting for the consumer.
    StallCompute,
}

impl Activity {
    fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Flush => "flush",
            Self::Lent => "lent",
            Self::Scrub => "scrub",
            Self::Prepare => "prepare",
            Self::StallSource => "stall: source",
            Self::StallWindow => "stall: window",
            Self::StallCopy => "stall: copy",
            Self::StallCompute => "stall: compute",
        }
    }
}

/// One span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub activity: Activity,
    /// Where: a window or ticket, or `None` for the ring thread.
    pub lease: Option<u16>,
    /// Nanoseconds from the engine's start.
    pub start_ns: u64,
    /// Nanoseconds.
    pub len_ns: u64,
    /// Bytes, where that means something.
    pub bytes: u64,
}

/// The spans of one engine, in order of their end.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The spans.
    pub spans: Vec<Span>,
    /// How many of the leases are windows; the rest are in-place tickets.
    pub windows: u16,
}

impl Trace {
    /// Writes the trace as a JSON object.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        write!(
            out,
            "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":\"ubio\"}}}}"
        )?;
        let mut rows: Vec<u16> = self.spans.iter().filter_map(|span| span.lease).collect();
        rows.sort_unstable();
        rows.dedup();
        write!(
            out,
            ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"thread_name\",\"args\":{{\"name\":\"ring thread\"}}}}"
        )?;
        for row in rows {
            let (kind, number) = if row < self.windows {
                ("window", row)
            } else {
                ("ticket", row - self.windows)
            };
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{kind} {number}\"}}}}",
                u32::from(row) + 1
            )?;
        }
        for span in &self.spans {
            let row = span.lease.map_or(0, |lease| u32::from(lease) + 1);
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{row},\"name\":\"{}\",\"ts\":{}.{:03},\"dur\":{}.{:03},\"args\":{{\"bytes\":{}}}}}",
                span.activity.name(),
                span.start_ns / 1000,
                span.start_ns % 1000,
                span.len_ns / 1000,
                span.len_ns % 1000,
                span.bytes
            )?;
        }
        writeln!(out, "\n]}}")
    }
}
