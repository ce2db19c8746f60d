//! What a guest can ask of its host, done to the running machine through QMP and the BAR's file.
//!
//! Knows the meaning of each action; who asked, and how the answer gets back, is not known here.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use ubio_lab_spec::line::{Action, Answer};
use ubio_lab_spec::{Machine, Place};

use super::machine::limits_of;
use super::qmp::Qmp;
use super::verify::Bar;

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a guest may take to let a drive go: its hot-plug driver waits for 5 s by itself.
const REMOVAL: Duration = Duration::from_secs(40);

/// A longer pause would look like a hang.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Does it and gives the answer.
pub(super) fn perform<S: Read + Write>(
    action: &Action,
    machine: &Machine,
    qmp: &mut Qmp<S>,
    bar: &mut Bar,
) -> Answer {
    match try_to(action, machine, qmp, bar) {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed(format!("{error:#}")),
    }
}

fn try_to<S: Read + Write>(
    action: &Action,
    machine: &Machine,
    qmp: &mut Qmp<S>,
    bar: &mut Bar,
) -> Result<()> {
    let known = |drive: &str| {
        let found = machine.drive(drive);
        found.with_context(|| format!("this machine has no drive called {drive}"))
    };
    match action {
        Action::Throttle { drive, bytes_per_s } => {
            ensure!(
                known(drive)?.throttled,
                "{drive} is not throttled in the table of runs"
            );
            limit(qmp, drive, *bytes_per_s)
        }
        Action::Unthrottle { drive } => {
            ensure!(
                known(drive)?.throttled,
                "{drive} is not throttled in the table of runs"
            );
            limit(qmp, drive, 0)
        }
        Action::Remove { drive } => {
            if let Place::Slot(_) | Place::Function(..) = known(drive)?.place {
                bail!("{drive} sits on the root bus, where nothing is unplugged");
            }
            qmp.execute("device_del", &json!({ "id": drive }), PATIENCE)?;
            qmp.event("DEVICE_DELETED", ("device", drive), REMOVAL)
        }
        Action::Pause { millis } => {
            let pause = Duration::from_millis(*millis);
            ensure!(
                pause <= LONGEST_PAUSE,
                "{millis} ms are too long for a pause"
            );
            qmp.execute("stop", &json!({}), PATIENCE)?;
            thread::sleep(pause);
            qmp.execute("cont", &json!({}), PATIENCE).map(drop)
        }
        Action::CheckBar => bar.check_and_reset(),
    }
}

/// A limit of 0 is none. What waits under the old one goes on under the new one.
fn limit<S: Read + Write>(qmp: &mut Qmp<S>, drive: &str, bytes_per_s: u64) -> Result<()> {
    qmp.execute("qom-set", &limits(drive, bytes_per_s), PATIENCE)
        .map(drop)
}

fn limits(drive: &str, bytes_per_s: u64) -> Value {
    let path = format!("/objects/{}", limits_of(drive));
    json!({ "path": path, "property": "limits", "value": { "bps-total": bytes_per_s } })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A QEMU that has said all this already, and keeps what it hears.
    #[derive(Debug, Default)]
    struct Script {
        says: Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            self.says.read(bytes)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.heard.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn answer(action: &Action, says: &str) -> Answer {
        let greeting = "{\"QMP\": {}}\n{\"return\": {}}\n";
        let text = format!("{greeting}{says}").into_bytes();
        let reader = Script {
            says: Cursor::new(text),
            heard: Vec::new(),
        };
        let mut qmp = Qmp::connect(reader, Script::default(), PATIENCE).unwrap();
        let machine = Machine::standard().with("vfio", ubio_lab_spec::Drive::throttled);
        let name = format!(
            "xtask-action-{}-{:?}",
            std::process::id(),
            thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        let mut bar = Bar::create(&path, 4096).unwrap();
        std::fs::remove_file(&path).unwrap();
        perform(action, &machine, &mut qmp, &mut bar)
    }

    fn failed(action: &Action, says: &str) -> String {
        match answer(action, says) {
            Answer::Failed(why) => why,
            Answer::Done => panic!("{action} was done"),
        }
    }

    const RETURN: &str = "{\"return\": {}}\n";

    #[test]
    fn each_action_is_done() {
        let removed = "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"outside\"}}\n";
        let removed = format!("{RETURN}{removed}");
        let twice = RETURN.repeat(2);
        for (action, says) in [
            ("throttle vfio 4096", RETURN),
            ("unthrottle vfio", RETURN),
            ("remove outside", removed.as_str()),
            ("pause 1", twice.as_str()),
            ("check-bar", ""),
        ] {
            assert_eq!(
                answer(&action.parse().unwrap(), says),
                Answer::Done,
                "{action}"
            );
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_said() {
        for (action, says, part) in [
            ("throttle tape 1", "", "no drive called tape"),
            ("throttle peer 1", "", "not throttled"),
            ("remove vfio", "", "root bus"),
            (
                "remove outside",
                "{\"error\": {\"desc\": \"busy\"}}\n",
                "busy",
            ),
            ("remove outside", RETURN, "hung up"),
            ("pause 60000", "", "too long"),
        ] {
            let said = failed(&action.parse().unwrap(), says);
            assert!(said.contains(part), "{action}: {said}");
        }
    }

    #[test]
    fn a_limit_names_its_group() {
        let value = limits("vfio", 4096);
        assert_eq!(value["path"], "/objects/limits-vfio");
        assert_eq!(value["value"]["bps-total"], 4096);
    }
}
