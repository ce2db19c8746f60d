//! What is to be refused: that it is, of which kind, with a remedy, and in which words. Knows
//! neither who refuses nor why.

use std::fmt::{Debug, Display};

use anyhow::{Result, bail, ensure};

/// What an attempt says that is to fail.
pub(super) fn refusal<T, E>(attempt: Result<T, E>) -> Result<E> {
    match attempt {
        Ok(_) => bail!("it was accepted"),
        Err(error) => Ok(error),
    }
}

/// All of these words are in what was said.
pub(super) fn says(said: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(said.contains(word), "nothing of `{word}` in: {said}");
    }
    Ok(())
}

/// Refused by the NVMe crate, so, with a remedy, and in these words.
pub(super) fn by_nvme<T>(
    attempt: nvme::Result<T>,
    kind: nvme::ErrorKind,
    words: &[&str],
) -> Result<()> {
    let error = refusal(attempt)?;
    refused_so(&error, (error.kind(), kind), error.advice(), words)
}

/// Refused by the engine, so, with a remedy, and in these words.
pub(super) fn by_engine<T>(
    attempt: ubio::Result<T>,
    kind: ubio::ErrorKind,
    words: &[&str],
) -> Result<()> {
    let error = refusal(attempt)?;
    refused_so(&error, (error.kind(), kind), error.advice(), words)
}

fn refused_so<K: Debug + PartialEq>(
    error: &impl Display,
    (found, wanted): (K, K),
    remedy: Option<&str>,
    words: &[&str],
) -> Result<()> {
    let said = error.to_string();
    ensure!(found == wanted, "{found:?}: {said}");
    ensure!(remedy.is_some(), "no remedy: {said}");
    says(&said, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accepted_or_says_something_else_fails() {
        let error = || nvme::Error::new(nvme::ErrorKind::Busy, "in use");
        let kind = nvme::ErrorKind::Busy;
        by_nvme::<()>(Err(error().remedy("wait")), kind, &["in use", "wait"]).unwrap();
        let wrong = [
            by_nvme(Ok(()), kind, &[]),
            by_nvme::<()>(Err(error()), kind, &[]),
            by_nvme::<()>(Err(error().remedy("wait")), nvme::ErrorKind::Io, &[]),
            by_nvme::<()>(Err(error().remedy("wait")), kind, &["in use", "gone"]),
        ];
        assert!(wrong.iter().all(Result::is_err));
    }
}
