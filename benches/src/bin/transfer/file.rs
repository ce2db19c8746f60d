//! The file that is read when none is given: random content, made once, kept.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use crate::Result;

/// Makes (or finds) a file of `len_bytes` beside the program.
pub(crate) fn make(len_bytes: u64) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().ok_or("the program has no folder")?;
    let path = folder.join(format!("transfer-{len_bytes}.bin"));
    if std::fs::metadata(&path).is_ok_and(|found| found.len() == len_bytes) {
        return Ok(path);
    }
    eprintln!("making {} ...", path.display());
    let unfinished = path.with_extension("part");
    let mut file = File::create(&unfinished)?;
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut left = len_bytes;
    let mut part = Vec::with_capacity(1 << 20);
    while left > 0 {
        part.clear();
        while part.len() < 1 << 20 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            part.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
        }
        let now = usize::try_from(left)?.min(part.len());
        file.write_all(&part[..now])?;
        left -= now as u64;
    }
    file.sync_all()?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}
