//! GGUF files that lie about counts, lengths, alignments and places.

use std::path::{Path, PathBuf};

use crate::bad_input::{Case, check, file};
use crate::models::{Gguf, info, pair};

/// A GGUF file with `lie` told in it.
fn gguf(folder: &Path, lie: impl FnOnce(&mut Gguf)) -> PathBuf {
    let mut gguf = Gguf::default();
    lie(&mut gguf);
    file(folder, "model.gguf", &gguf.bytes())
}

const GGUF: &[Case] = &[
    Case {
        name: "tensor-count-lies",
        make: |folder| gguf(folder, |gguf| gguf.tensor_count = Some(u64::MAX)),
        words: &["model.gguf"],
    },
    Case {
        name: "pair-count-lies",
        make: |folder| gguf(folder, |gguf| gguf.pair_count = Some(1 << 40)),
        words: &["model.gguf"],
    },
    Case {
        name: "string-length-lies",
        make: |folder| {
            let lie = [u64::MAX.to_le_bytes().as_slice(), b"abc"].concat();
            gguf(folder, |gguf| {
                gguf.pairs = vec![pair("general.name", 8, &lie)]
            })
        },
        words: &["model.gguf"],
    },
    Case {
        name: "array-length-lies",
        make: |folder| {
            let lie = [4u32.to_le_bytes().as_slice(), &u64::MAX.to_le_bytes()].concat();
            gguf(folder, |gguf| {
                gguf.pairs = vec![pair("tokenizer.list", 9, &lie)]
            })
        },
        words: &["model.gguf"],
    },
    Case {
        name: "alignment-0",
        make: |folder| gguf(folder, |gguf| gguf.pairs.push(alignment(0))),
        words: &["alignment"],
    },
    Case {
        name: "alignment-no-power-of-two",
        make: |folder| gguf(folder, |gguf| gguf.pairs.push(alignment(48))),
        words: &["alignment"],
    },
    Case {
        name: "tensor-out-of-range",
        make: |folder| {
            gguf(folder, |gguf| {
                gguf.infos = vec![info("w", &[64], 0, 1 << 40)]
            })
        },
        words: &["model.gguf"],
    },
    Case {
        name: "dimension-overflow",
        make: |folder| {
            gguf(folder, |gguf| {
                gguf.infos = vec![info("w", &[1 << 40, 1 << 40], 0, 0)]
            })
        },
        words: &["model.gguf"],
    },
    Case {
        name: "same-name-twice",
        make: |folder| {
            gguf(folder, |gguf| {
                gguf.infos = vec![info("w", &[64], 0, 0), info("w", &[64], 0, 256)]
            })
        },
        words: &["\"w\""],
    },
    Case {
        name: "unknown-type",
        make: |folder| gguf(folder, |gguf| gguf.infos = vec![info("w", &[64], 4096, 0)]),
        words: &["4096"],
    },
    Case {
        name: "unknown-version",
        make: |folder| gguf(folder, |gguf| gguf.version = 77),
        words: &["77"],
    },
    Case {
        name: "gguf-cut-in-data",
        make: |folder| {
            let bytes = Gguf::default().bytes();
            file(folder, "model.gguf", &bytes[..bytes.len() - 100])
        },
        words: &["model.gguf"],
    },
    Case {
        name: "gguf-cut-in-header",
        make: |folder| file(folder, "model.gguf", &Gguf::default().bytes()[..30]),
        words: &["model.gguf"],
    },
];

fn alignment(bytes: u32) -> Vec<u8> {
    pair("general.alignment", 4, &bytes.to_le_bytes())
}

#[test]
fn broken_gguf() {
    check(GGUF);
}
