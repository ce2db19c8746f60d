//! candle, the way its models are read. usage: candle-load MODE SOURCE
//!
//! load: each file read whole, its tensors copied out of it
//! mmap: tensors copied out of the mapped files, as `VarBuilder` does
//!
//! unsafe: calls `getrusage`, and maps files that nobody changes.
//!
//! Prints what `../common.py` says, measured the same way: the load alone, start-up excluded.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::safetensors::{BufferedSafetensors, Load, MmapedSafetensors};
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::TensorView;

fn files_of(source: &Path) -> Result<Vec<PathBuf>> {
    if source.is_file() {
        return Ok(vec![source.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("no safetensors files");
    }
    Ok(files)
}

/// Resident bytes now.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .context("no resident pages in /proc/self/statm")?
        .parse()?;
    Ok(pages * 4096)
}

/// User and system seconds, and the peak of resident bytes.
fn usage() -> (f64, f64, i64) {
    // SAFETY: all zeros are a valid `rusage`, and the kernel only writes it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (
        seconds(usage.ru_utime),
        seconds(usage.ru_stime),
        usage.ru_maxrss * 1024,
    )
}

/// A copy of the tensor; one of a type that candle does not know, of its bytes.
fn tensor(view: &TensorView<'_>) -> Result<Tensor> {
    let bytes = view.data();
    let known = DType::try_from(view.dtype()).is_ok();
    Ok(if known {
        view.load(&Device::Cpu)?
    } else {
        Tensor::from_raw_buffer(bytes, DType::U8, &[bytes.len()], &Device::Cpu)?
    })
}

fn tensors(mode: &str, files: &[PathBuf]) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    match mode {
        "load" => {
            for file in files {
                // What `load` does, but for types that it does not know.
                let read = BufferedSafetensors::new(std::fs::read(file)?)?;
                for (_, view) in read.tensors() {
                    tensors.push(tensor(&view)?);
                }
            }
        }
        "mmap" => {
            // SAFETY: nobody changes the files meanwhile.
            let mapped = unsafe { MmapedSafetensors::multi(files)? };
            for (_, view) in mapped.tensors() {
                tensors.push(tensor(&view)?);
            }
        }
        other => bail!("no such mode: {other}"),
    }
    Ok(tensors)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, source] = arguments.as_slice() else {
        bail!("usage: candle-load load|mmap SOURCE");
    };
    let files = files_of(Path::new(source)).with_context(|| source.clone())?;
    let base = resident()?;
    let (user, sys, _) = usage();
    let started = Instant::now();
    let tensors = tensors(mode, &files)?;
    let seconds = started.elapsed().as_secs_f64();
    let (user_after, sys_after, peak) = usage();
    let bytes: usize = tensors
        .iter()
        .map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes())
        .sum();
    println!(
        "{{\"seconds\":{seconds},\"bytes\":{bytes},\"cpu_user\":{},\"cpu_sys\":{},\
         \"peak_rss\":{peak},\"base_rss\":{base}}}",
        user_after - user,
        sys_after - sys,
    );
    Ok(())
}
