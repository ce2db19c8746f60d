//! Digests of what was loaded: over the tensors' bytes in file order, whatever the order and
//! the way of the load, so that one model has one digest. For a plain file that is the
//! file's own digest.

use std::fmt::Write as _;

use clap::ValueEnum;
use sha2::Digest as _;

/// `--digest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// SHA-256, as sha256sum prints it
    Sha256,
    /// BLAKE3, as b3sum prints it
    Blake3,
    /// CRC-32C (Castagnoli): fast, no proof against intent
    Crc32c,
}

impl Algorithm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
            Self::Crc32c => "crc32c",
        }
    }

    pub(crate) fn begin(self) -> Digest {
        match self {
            Self::Sha256 => Digest::Sha256(sha2::Sha256::new()),
            Self::Blake3 => Digest::Blake3(Box::default()),
            Self::Crc32c => Digest::Crc32c(0),
        }
    }

    /// The digest of all parts one after the other, as lower-case hexadecimal.
    pub(crate) fn of<'a>(self, parts: impl Iterator<Item = &'a [u8]>) -> String {
        let mut digest = self.begin();
        parts.for_each(|part| digest.add(part));
        digest.end()
    }
}

/// A digest under way.
#[derive(Debug)]
pub(crate) enum Digest {
    Sha256(sha2::Sha256),
    Blake3(Box<blake3::Hasher>),
    Crc32c(u32),
}

impl Digest {
    pub(crate) fn add(&mut self, part: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(part),
            Self::Blake3(hasher) => {
                hasher.update(part);
            }
            Self::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, part),
        }
    }

    /// Lower-case hexadecimal.
    pub(crate) fn end(self) -> String {
        match self {
            Self::Sha256(hasher) => hexadecimal(&hasher.finalize()),
            Self::Blake3(hasher) => hasher.finalize().to_hex().to_string(),
            Self::Crc32c(sum) => hexadecimal(&sum.to_be_bytes()),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::Algorithm;

    #[test]
    fn known_answers_however_the_bytes_are_cut() {
        for (algorithm, known) in [
            (
                Algorithm::Sha256,
                "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
            (Algorithm::Crc32c, "e3069283"),
        ] {
            for cut in 0..=9 {
                let (head, tail) = b"123456789".split_at(cut);
                assert_eq!(algorithm.of([head, tail].into_iter()), known);
            }
        }
        assert_eq!(
            Algorithm::Blake3.of(std::iter::empty()),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }
}
