//! QEMU's machine protocol: one JSON object a line, commands answered in order, events between.
//!
//! Knows the protocol, and nothing of what its commands mean.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Nobody has more to say about that much that happened without being asked for.
const KEPT_EVENTS: usize = 256;

/// A connection. The stream's reads must end by themselves after a while (a read timeout).
#[derive(Debug)]
pub(super) struct Qmp<S: Read> {
    reader: BufReader<S>,
    writer: S,
    /// A line that is not complete yet: a read that timed out must not lose its start.
    partial: Vec<u8>,
    events: VecDeque<Value>,
}

impl<S: Read + Write> Qmp<S> {
    /// Hears the greeting and enters command mode.
    pub(super) fn connect(reader: S, writer: S, patience: Duration) -> Result<Self> {
        let mut qmp = Self {
            reader: BufReader::new(reader),
            writer,
            partial: Vec::new(),
            events: VecDeque::new(),
        };
        let deadline = Instant::now() + patience;
        let greeting = qmp.message(deadline).context("QEMU does not greet")?;
        anyhow::ensure!(!greeting["QMP"].is_null(), "QEMU greets with `{greeting}`");
        qmp.execute("qmp_capabilities", &json!({}), patience)?;
        Ok(qmp)
    }

    /// Runs a command and gives what it returns; events meanwhile are kept.
    pub(super) fn execute(
        &mut self,
        command: &str,
        arguments: &Value,
        patience: Duration,
    ) -> Result<Value> {
        let mut message = json!({ "execute": command });
        if arguments
            .as_object()
            .is_some_and(|object| !object.is_empty())
        {
            message["arguments"] = arguments.clone();
        }
        writeln!(self.writer, "{message}")
            .and_then(|()| self.writer.flush())
            .with_context(|| format!("cannot send `{command}` to QEMU"))?;
        let deadline = Instant::now() + patience;
        loop {
            let mut message = self
                .message(deadline)
                .with_context(|| format!("QEMU does not answer `{command}`"))?;
            if let Some(error) = message.get("error") {
                bail!(
                    "QEMU refuses `{command}`: {}",
                    error["desc"].as_str().unwrap_or("?")
                );
            }
            if message.get("event").is_some() {
                self.keep(message);
            } else if message.get("return").is_some() {
                return Ok(message["return"].take());
            } else {
                bail!("QEMU answers `{command}` with `{message}`");
            }
        }
    }

    /// Waits for an event whose data holds `key` = `value`; one that came before counts.
    pub(super) fn event(
        &mut self,
        name: &str,
        (key, value): (&str, &str),
        patience: Duration,
    ) -> Result<()> {
        let is_it = |event: &Value| event["event"] == name && event["data"][key] == value;
        if let Some(index) = self.events.iter().position(is_it) {
            self.events.remove(index);
            return Ok(());
        }
        let deadline = Instant::now() + patience;
        loop {
            let message = self
                .message(deadline)
                .with_context(|| format!("QEMU does not report {name} of {value}"))?;
            if is_it(&message) {
                return Ok(());
            }
            self.keep(message);
        }
    }

    fn keep(&mut self, event: Value) {
        if self.events.len() == KEPT_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn message(&mut self, deadline: Instant) -> Result<Value> {
        loop {
            match self.reader.read_until(b'\n', &mut self.partial) {
                Ok(_) if self.partial.ends_with(b"\n") => {
                    let line = std::mem::take(&mut self.partial);
                    let shown = || format!("not JSON: `{}`", String::from_utf8_lossy(&line));
                    return serde_json::from_slice(&line).with_context(shown);
                }
                Ok(_) => bail!("QEMU hung up"),
                Err(error) if is_timeout(error.kind()) => {}
                Err(error) => return Err(error).context("the connection to QEMU broke"),
            }
            anyhow::ensure!(Instant::now() < deadline, "nothing came in time");
        }
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(400);
    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

    /// A QEMU that answers each line it hears with the next of these texts, as they are.
    fn scripted(script: &'static [&'static str]) -> (UnixStream, thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let served = thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap());
            let mut theirs = theirs;
            let mut heard = Vec::new();
            writeln!(theirs, "{GREETING}").unwrap();
            for text in script {
                let mut line = String::new();
                if lines.read_line(&mut line).unwrap() == 0 {
                    break;
                }
                heard.push(line.trim().to_string());
                for part in text.split('|') {
                    theirs.write_all(part.as_bytes()).unwrap();
                    thread::sleep(Duration::from_millis(50));
                }
            }
            // Open until the other side has had its answer or given up.
            let mut rest = String::new();
            let _ = lines.read_line(&mut rest);
            heard
        });
        (ours, served)
    }

    fn connect(stream: &UnixStream) -> Result<Qmp<UnixStream>> {
        Qmp::connect(
            stream.try_clone().unwrap(),
            stream.try_clone().unwrap(),
            PATIENCE,
        )
    }

    #[test]
    fn commands_are_answered_around_events() {
        let (stream, served) = scripted(&[
            "{\"return\": {}}\n",
            "{\"event\": \"RESET\", \"data\": {}}\n{\"return\"|: {\"a\": 1}}\n",
            "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}}\n",
        ]);
        let mut qmp = connect(&stream).unwrap();
        let answer = qmp.execute("query", &json!({"id": "x"}), PATIENCE).unwrap();
        assert_eq!(answer["a"], 1);
        let error = qmp.execute("device_del", &json!({}), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error:#}");
        qmp.event("RESET", ("x", "y"), PATIENCE).unwrap_err();
        drop((qmp, stream));
        let heard = served.join().unwrap();
        assert_eq!(heard[1], r#"{"execute":"query","arguments":{"id":"x"}}"#);
        assert_eq!(heard[2], r#"{"execute":"device_del"}"#);
    }

    #[test]
    fn an_event_counts_before_and_after_it_is_asked_for() {
        let (stream, _served) = scripted(&[
            "{\"return\": {}}\n",
            "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"a\"}}\n{\"return\": {}}\n\
             |{\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\n\
             |{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"b\"}}\n",
        ]);
        let mut qmp = connect(&stream).unwrap();
        qmp.execute("device_del", &json!({}), PATIENCE).unwrap();
        for device in ["b", "a"] {
            qmp.event("DEVICE_DELETED", ("device", device), PATIENCE)
                .unwrap();
        }
        let again = qmp
            .event("DEVICE_DELETED", ("device", "a"), PATIENCE)
            .unwrap_err();
        assert!(format!("{again:#}").contains("in time"), "{again:#}");
    }

    #[test]
    fn a_silent_a_babbling_and_a_dead_qemu_are_errors() {
        let (stream, _served) = scripted(&["{\"return\": {}}\n", "", "what?\n", "{\"odd\": 1}\n"]);
        let mut qmp = connect(&stream).unwrap();
        let mut said = || format!("{:#}", qmp.execute("x", &json!({}), PATIENCE).unwrap_err());
        assert!(said().contains("in time"));
        assert!(said().contains("not JSON"));
        assert!(said().contains("odd"));
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(connect(&ours).is_err());
    }
}
