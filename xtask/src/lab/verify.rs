//! The BAR from outside: its backing file, compared with what the guest says landed in it.
//!
//! The file is read through descriptors into memory of our own: the machine writes to it. Knows
//! nothing of how the bytes got there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ubio_lab_spec::line::Line;
use ubio_lab_spec::pattern::{self, POISON, Seed};
use ubio_lab_spec::{Machine, line};

const CHUNK_BYTES: usize = 1 << 20;

/// What the guest says about a range.
#[derive(Clone, Debug)]
struct Claim {
    start: u64,
    end: u64,
    /// Nothing: the range may hold anything.
    holds: Option<Held>,
}

/// Whose bytes a range holds.
#[derive(Clone, Debug)]
struct Held {
    source: String,
    seed: Seed,
    offset: u64,
}

/// The file and what is claimed about it.
#[derive(Debug)]
pub(super) struct Bar {
    file: File,
    len_bytes: u64,
    claims: Vec<Claim>,
}

impl Bar {
    /// Makes the file, all poison.
    pub(super) fn create(path: &Path, len_bytes: u64) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(len_bytes)?;
        let bar = Self {
            file,
            len_bytes,
            claims: Vec::new(),
        };
        bar.poison()?;
        Ok(bar)
    }

    fn poison(&self) -> Result<()> {
        write_pattern(&self.file, POISON, 0, self.len_bytes).context("cannot poison the BAR's file")
    }

    /// Notes an `expect` or `ignore` line of the guest's.
    pub(super) fn claim(&mut self, machine: &Machine, claim: &Line) -> Result<()> {
        let (start, len_bytes) = match claim {
            Line::Expect {
                offset, len_bytes, ..
            }
            | Line::Ignore { offset, len_bytes } => (*offset, *len_bytes),
            other => bail!("`{other}` claims nothing about the BAR"),
        };
        let end = start
            .checked_add(len_bytes)
            .filter(|end| *end <= self.len_bytes && len_bytes > 0)
            .with_context(|| format!("`{claim}` is not inside the BAR"))?;
        let holds = match claim {
            Line::Expect {
                drive,
                namespace,
                drive_offset,
                ..
            } => {
                let known = machine.seed(drive, *namespace);
                let seed = known.with_context(|| format!("`{claim}` names no known drive"))?;
                let source = format!("{drive}/{namespace}");
                Some(Held {
                    source,
                    seed,
                    offset: *drive_offset,
                })
            }
            _ => None,
        };
        self.claims.push(Claim { start, end, holds });
        Ok(())
    }

    /// Compares the whole file: claimed ranges with what they hold, all else with the poison.
    pub(super) fn check(&mut self) -> Result<()> {
        let mut claims = self.claims.clone();
        claims.sort_by_key(|claim| claim.start);
        let mut done = 0;
        for claim in &claims {
            ensure!(
                claim.start >= done,
                "two claims about the BAR's byte {:#x}",
                claim.start
            );
            self.untouched(done, claim.start)?;
            if let Some(held) = &claim.holds {
                self.compare(claim.start, claim.end, held.seed, held.offset)
                    .with_context(|| format!("what {} should have brought", held.source))?;
            }
            done = claim.end;
        }
        self.untouched(done, self.len_bytes)
    }

    /// [`Self::check`], then all poison again and no claims.
    pub(super) fn check_and_reset(&mut self) -> Result<()> {
        let checked = self.check();
        self.claims.clear();
        self.poison()?;
        checked
    }

    fn untouched(&self, start: u64, end: u64) -> Result<()> {
        self.compare(start, end, POISON, start)
            .context("written to outside of what was claimed")
    }

    /// The file's bytes `start..end` against the pattern from `offset` on.
    fn compare(&self, start: u64, end: u64, seed: Seed, offset: u64) -> Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut at = start;
        while at < end {
            let len = usize::try_from(end - at)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            let bytes = &mut buffer[..len];
            self.file
                .read_exact_at(bytes, at)
                .context("cannot read the BAR's file")?;
            pattern::check(seed, offset + (at - start), bytes).map_err(|mismatch| {
                let place = at + mismatch.index as u64;
                anyhow::anyhow!(
                    "the BAR's byte {place:#x}: {}",
                    line::one_line(&mismatch.to_string())
                )
            })?;
            at += len as u64;
        }
        Ok(())
    }
}

/// Fills a file's first bytes with a pattern's from `offset` on.
pub(super) fn write_pattern(file: &File, seed: Seed, offset: u64, len_bytes: u64) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < len_bytes {
        let len = usize::try_from(len_bytes - at)
            .unwrap_or(CHUNK_BYTES)
            .min(CHUNK_BYTES);
        pattern::fill(seed, offset + at, &mut buffer[..len]);
        file.write_all_at(&buffer[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = (2 << 20) + 4096;

    fn bar(name: &str) -> Bar {
        let path = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let bar = Bar::create(&path, LEN).unwrap();
        std::fs::remove_file(&path).unwrap();
        bar
    }

    fn claim(bar: &mut Bar, text: &str) -> Result<()> {
        bar.claim(&Machine::standard(), &text.parse().unwrap())
    }

    /// Writes bytes of `peer/1` into the file, as a device would.
    fn land(bar: &Bar, offset: u64, len: usize, drive_offset: u64) {
        let seed = Machine::standard().seed("peer", 1).unwrap();
        let mut bytes = vec![0; len];
        pattern::fill(seed, drive_offset, &mut bytes);
        bar.file.write_all_at(&bytes, offset).unwrap();
    }

    fn said(result: Result<()>) -> String {
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn what_landed_is_seen_and_the_rest_is_untouched() {
        let mut bar = bar("landed");
        bar.check().unwrap();
        land(&bar, 512, 1 << 20, 100);
        claim(&mut bar, "expect bar 512 1048576 peer/1 100").unwrap();
        bar.check().unwrap();
        bar.check_and_reset().unwrap();
        bar.check().unwrap();
        assert!(bar.claims.is_empty());
    }

    #[test]
    fn a_foreign_byte_is_found_anywhere() {
        for place in [0, 4095, 1 << 20, LEN - 1] {
            let mut bar = bar("foreign");
            let mut byte = [0];
            bar.file.read_exact_at(&mut byte, place).unwrap();
            bar.file.write_all_at(&[!byte[0]], place).unwrap();
            let said = said(bar.check());
            assert!(said.contains(&format!("{place:#x}:")), "{said}");
            assert!(said.contains("outside"), "{said}");
            // Once found, it is gone: the next case starts clean.
            assert!(bar.check_and_reset().is_err());
            bar.check().unwrap();
        }
    }

    #[test]
    fn missing_short_and_shifted_bytes_are_found() {
        let mut none = bar("none");
        claim(&mut none, "expect bar 0 4096 peer/1 0").unwrap();
        let text = said(none.check());
        assert!(
            text.contains("peer/1") && text.contains("untouched poison"),
            "{text}"
        );

        let mut short = bar("short");
        land(&short, 0, 4088, 0);
        claim(&mut short, "expect bar 0 4096 peer/1 0").unwrap();
        assert!(said(short.check()).contains("0xff8:"));

        let mut shifted = bar("shifted");
        land(&shifted, 0, 4096, 512);
        claim(&mut shifted, "expect bar 0 4096 peer/1 0").unwrap();
        assert!(said(shifted.check()).contains("the word of 0x200"));

        let mut long = bar("long");
        land(&long, 0, 4097, 0);
        claim(&mut long, "expect bar 0 4096 peer/1 0").unwrap();
        assert!(said(long.check()).contains("0x1000:"));
    }

    #[test]
    fn claims_that_cannot_be_are_refused() {
        let mut bar = bar("claims");
        for text in [
            "expect bar 0 0 peer/1 0",
            "expect bar 0 4096 tape/1 0",
            "expect bar 0 4096 peer/2 0",
            "ignore bar 2097152 4097",
            "ignore bar 1 18446744073709551615",
            "start boot/x",
        ] {
            assert!(claim(&mut bar, text).is_err(), "{text}");
        }
        claim(&mut bar, "ignore bar 0 512").unwrap();
        claim(&mut bar, "ignore bar 511 1").unwrap();
        assert!(said(bar.check()).contains("two claims"));
    }

    #[test]
    fn a_foreign_byte_between_claims_is_found() {
        for place in [0, 600, 2000] {
            let mut bar = bar("between");
            claim(&mut bar, "ignore bar 512 8").unwrap();
            claim(&mut bar, "ignore bar 1024 8").unwrap();
            bar.file.write_all_at(&[0], place).unwrap();
            let said = said(bar.check());
            assert!(said.contains(&format!("{place:#x}:")), "{said}");
        }
    }

    #[test]
    fn ignored_bytes_may_be_anything() {
        let mut bar = bar("ignored");
        bar.file.write_all_at(&[1; 100], 1000).unwrap();
        claim(&mut bar, "ignore bar 1000 100").unwrap();
        bar.check().unwrap();
    }
}
