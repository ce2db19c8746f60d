//! Says lines to the host and hears its answers. Knows what a line is, and no serial port.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};

use anyhow::{Context, Result, bail};
use ubio_lab_spec::line::{Action, Answer, Line};

/// The two directions of the line to the host.
pub(crate) struct Talk {
    answers: Box<dyn BufRead>,
    lines: Box<dyn Write>,
}

impl fmt::Debug for Talk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Talk")
    }
}

impl Talk {
    /// Answers come from `answers`, lines go to `lines`.
    pub(crate) fn new(answers: impl Read + 'static, lines: impl Write + 'static) -> Self {
        Self {
            answers: Box::new(BufReader::new(answers)),
            lines: Box::new(lines),
        }
    }

    /// Says one line, at once: the host's watchdog counts the time between lines.
    pub(crate) fn say(&mut self, line: &Line) -> Result<()> {
        writeln!(self.lines, "{line}")
            .and_then(|()| self.lines.flush())
            .context("the line to the host is gone")
    }

    /// Asks the host for something and waits until it is done.
    pub(crate) fn ask(&mut self, action: Action) -> Result<()> {
        let asked = action.to_string();
        self.say(&Line::Host(action))?;
        let mut answer = String::new();
        let heard = self
            .answers
            .read_line(&mut answer)
            .context("no answer from the host")?;
        anyhow::ensure!(heard > 0, "the host hung up instead of answering `{asked}`");
        match answer
            .parse()
            .with_context(|| format!("the host answered `{answer}`"))?
        {
            Answer::Done => Ok(()),
            Answer::Failed(why) => bail!("the host could not `{asked}`: {why}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// What was said, for a test to look at.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Said(Rc<RefCell<Vec<u8>>>);

    impl Said {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.borrow().clone()).unwrap()
        }
    }

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn answers_are_heard() {
        let said = Said::default();
        let answers = &b"done\nfailed no such drive\nwhat?\n"[..];
        let mut talk = Talk::new(answers, said.clone());
        talk.ask(Action::CheckBar).unwrap();
        let mut error = || {
            talk.ask(Action::Pause { millis: 1 })
                .unwrap_err()
                .to_string()
        };
        assert!(error().contains("no such drive"));
        assert!(error().contains("what?"));
        assert!(error().contains("hung up"));
        assert!(said.text().starts_with("host: check-bar\nhost: pause 1\n"));
    }
}
