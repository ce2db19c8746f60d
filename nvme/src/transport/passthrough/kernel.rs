//! Which kernels tell the truth about passthrough: some report success for commands that were
//! never sent to the device. Judges by version alone; knows no devices.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// A kernel's version: major, minor, patch.
type Version = (u32, u32, u32);

/// Releases whose io_uring passthrough passes errors on, from this patch to the end of their
/// series. The fault: a command that fails before it reaches the device ends with result 0.
/// Fixed by 1147dd050356 (6.7, with backports), undone by d6aacee9255e (6.8), fixed again by
/// 5eed4fb274cd (6.12, with a backport).
const SOUND: &[Version] = &[(6, 1, 63), (6, 5, 12), (6, 6, 2), (6, 7, 0), (6, 11, 7)];

/// From here on all are.
const SOUND_FROM: Version = (6, 12, 0);

fn is_sound(version: Version) -> bool {
    version >= SOUND_FROM
        || SOUND.iter().any(|&(major, minor, patch)| {
            (version.0, version.1) == (major, minor) && version.2 >= patch
        })
}

/// Refuses the running kernel where it may report success for commands that were never sent.
///
/// # Errors
/// Unsupported.
pub(super) fn check(proc: &Path) -> Result<()> {
    let uname = rustix::system::uname();
    let signature = std::fs::read_to_string(proc.join("version_signature")).unwrap_or_default();
    judge(
        &uname.release().to_string_lossy(),
        &uname.version().to_string_lossy(),
        &signature,
    )
}

/// By what `uname` says as release and version, and what Ubuntu's kernels say beside.
fn judge(release: &str, version: &str, signature: &str) -> Result<()> {
    let upstream = upstream(release, version, signature);
    if upstream.is_some_and(is_sound) {
        return Ok(());
    }
    let what = match upstream {
        Some((major, minor, patch)) => format!(
            "kernel {release} (upstream {major}.{minor}.{patch}) may report success for NVMe \
             commands that were never sent"
        ),
        None => format!("kernel {release} has no version that can be judged"),
    };
    Err(Error::new(ErrorKind::Unsupported, what).remedy(
        "boot 6.12 or newer, or 6.1.63, 6.5.12, 6.6.2, 6.7, 6.11.7 or newer of their series; \
         a program that knows of fix 5eed4fb274cd (or 1147dd050356) in it may set trust_kernel",
    ))
}

/// The upstream version: distributions put theirs into `release`, and upstream's elsewhere.
fn upstream(release: &str, version: &str, signature: &str) -> Option<Version> {
    // Ubuntu, /proc/version_signature: "Ubuntu 6.8.0-59.61-generic 6.8.12".
    let ubuntu = signature.split_whitespace().nth(2).and_then(parse);
    // Debian, version: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.55-1 (2023-09-29)".
    let debian = || {
        let mut words = version.split_whitespace();
        words.find(|word| *word == "Debian")?;
        words.next().and_then(parse)
    };
    ubuntu.or_else(debian).or_else(|| parse(release))
}

/// The numbers that a version starts with.
fn parse(text: &str) -> Option<Version> {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .next()?
        .split('.');
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    let (major, minor) = (next()?, next()?);
    Some((major, minor, next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_every_boundary() {
        for (version, sound) in [
            ((5, 19, 17), false),
            ((6, 0, 19), false),
            ((6, 1, 62), false),
            ((6, 1, 63), true),
            ((6, 4, 16), false),
            ((6, 5, 11), false),
            ((6, 5, 12), true),
            ((6, 6, 1), false),
            ((6, 6, 2), true),
            ((6, 7, 0), true),
            ((6, 8, 12), false),
            ((6, 9, 0), false),
            ((6, 10, 14), false),
            ((6, 11, 6), false),
            ((6, 11, 7), true),
            ((6, 12, 0), true),
            ((7, 2, 13), true),
        ] {
            assert_eq!(is_sound(version), sound, "{version:?}");
        }
    }

    #[test]
    fn distributions_say_it_in_their_own_places() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.55-1 (2023-09-29)";
        assert!(judge("6.1.0-13-amd64", debian, "").is_err());
        assert!(judge("6.1.0-13-amd64", &debian.replace("55", "76"), "").is_ok());
        let ubuntu = "Ubuntu 6.11.0-29.29-generic 6.11.11";
        assert!(judge("6.11.0-29-generic", "#29-Ubuntu SMP", ubuntu).is_ok());
        assert!(judge("6.11.0-29-generic", "#29-Ubuntu SMP", "").is_err());
        assert!(judge("6.18.44", "#1 SMP", "").is_ok());
        assert!(judge("7.2.13+deb14-amd64", "#1 SMP Debian 7.2.13-1", "").is_ok());
        let error = judge("5.14.0-503.el9.x86_64", "#1 SMP", "").expect_err("cannot be judged");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("trust_kernel"), "{error}");
        assert!(judge("unheard of", "", "").is_err());
    }
}
