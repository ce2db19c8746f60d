//! Which model a folder holds: one set of files, or an error that names the choices. Looks at
//! names only; opens no file and knows no format's inside.
//!
//! What folders contain in practice: one `model.safetensors`; shards with an index; shards
//! without one; several indices for variants (`model.fp16.safetensors.index.json`); sharded and
//! consolidated files side by side (the same weights twice, under other names); several GGUF
//! quantisations; an adapter beside its base model; subfolders with a model each. More than one
//! set is never guessed at.

use crate::error::{Error, ErrorKind, Result};
use crate::file::Folder;
use crate::format::Format;
use crate::limits::MAX_SHARDS;
use crate::shard_name::ShardName;
use std::collections::{BTreeMap, HashSet};

const INDEX_SUFFIX: &str = ".safetensors.index.json";
const SAFETENSORS: &str = ".safetensors";
const GGUF: &str = ".gguf";

/// One model of a folder, by the names of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// Shards that this index names.
    Index(String),
    /// One file, or numbered safetensors shards in order.
    Files(Vec<String>),
    /// The first part of a GGUF split, or a single GGUF file.
    Gguf(String),
}

impl Candidate {
    /// The name to give in place of the folder.
    fn name(&self) -> &str {
        match self {
            Self::Index(name) | Self::Gguf(name) => name,
            Self::Files(names) => names.first().map_or("", String::as_str),
        }
    }
}

/// Finds the folder's only model. `shards_of` reads an index and tells which files it names.
/// `format` restricts the search.
pub(crate) fn find(
    folder: &Folder,
    format: Option<Format>,
    shards_of: impl FnMut(&str) -> Result<Vec<String>>,
) -> Result<Candidate> {
    let names = folder.names()?;
    find_in(&names, format, shards_of, |name| folder.is_folder(name))
        .map_err(|error| error.at_path(folder.path()))
}

fn find_in(
    names: &[String],
    format: Option<Format>,
    mut shards_of: impl FnMut(&str) -> Result<Vec<String>>,
    is_folder: impl Fn(&str) -> bool,
) -> Result<Candidate> {
    let visible = || {
        names
            .iter()
            .map(String::as_str)
            .filter(|name| !name.starts_with('.'))
    };
    let wanted = |one: Format| format.is_none_or(|format| format == one);
    let of = |one: Format, suffix: &'static str| {
        visible().filter(move |name| wanted(one) && name.ends_with(suffix))
    };
    let mut indexed = Vec::new();
    let mut candidates = Vec::new();
    let mut incomplete = Vec::new();
    for name in of(Format::Safetensors, INDEX_SUFFIX) {
        let shards = shards_of(name)?;
        // What lies in folders below is not listed here.
        if shards
            .iter()
            .any(|shard| !shard.contains('/') && names.binary_search(shard).is_err())
        {
            incomplete.push(name.to_owned());
        }
        indexed.extend(shards);
        candidates.push(Candidate::Index(name.to_owned()));
    }
    indexed.sort_unstable();
    let loose = |name: &&str| {
        indexed
            .binary_search_by(|known| known.as_str().cmp(name))
            .is_err()
    };
    let safetensors = of(Format::Safetensors, SAFETENSORS).filter(loose);
    let lacking = |set: &[String], extension| {
        let first = set.first()?;
        let shard = ShardName::parse(first, extension)?;
        ((set.len() as u64) < shard.count).then(|| first.clone())
    };
    for set in sets(safetensors, SAFETENSORS) {
        incomplete.extend(lacking(&set, SAFETENSORS));
        candidates.push(Candidate::Files(set));
    }
    for set in sets(of(Format::Gguf, GGUF), GGUF) {
        incomplete.extend(lacking(&set, GGUF));
        candidates.extend(set.into_iter().next().map(Candidate::Gguf));
    }
    candidates.sort_by(|a, b| a.name().cmp(b.name()));
    match candidates.len() {
        0 => Err(nothing(&visible().collect::<Vec<_>>(), is_folder)),
        1 => {
            let only = candidates.swap_remove(0);
            if let Candidate::Files(set) = &only {
                check_complete(set, SAFETENSORS)?;
            }
            if let Candidate::Gguf(first) = &only {
                check_first(first)?;
            }
            Ok(only)
        }
        _ => Err(ambiguous(&candidates, &incomplete)),
    }
}

/// Names the models there are, and which of them lack files.
fn ambiguous(candidates: &[Candidate], incomplete: &[String]) -> Error {
    // What lacks something first: the list may be cut.
    let (lacking, whole): (Vec<_>, Vec<_>) = candidates
        .iter()
        .map(Candidate::name)
        .partition(|name| incomplete.iter().any(|known| known == name));
    let described: Vec<String> = lacking
        .iter()
        .map(|name| format!("{name} (shards are missing)"))
        .collect();
    let listed: Vec<&str> = described.iter().map(String::as_str).chain(whole).collect();
    let detail = format!(
        "the folder holds {} models: {}",
        listed.len(),
        shorten(&listed)
    );
    let remedy = if incomplete.is_empty() {
        "name one of these files instead of the folder"
    } else {
        "fetch what is missing, remove what does not belong to the model, or name one of these \
         files instead of the folder"
    };
    Error::new(ErrorKind::Ambiguous, detail, remedy)
}

/// Groups numbered shards by what they have in common, in order of their numbers; every other
/// name is a set of its own.
fn sets<'a>(names: impl Iterator<Item = &'a str>, extension: &'a str) -> Vec<Vec<String>> {
    let mut numbered: BTreeMap<_, Vec<(u64, String)>> = BTreeMap::new();
    let mut all = Vec::new();
    for name in names {
        match ShardName::parse(name, extension) {
            Some(shard) => {
                numbered
                    .entry(shard.set())
                    .or_default()
                    .push((shard.number, name.to_owned()));
            }
            None => all.push(vec![name.to_owned()]),
        }
    }
    for mut set in numbered.into_values() {
        set.sort_unstable();
        all.push(set.into_iter().map(|(_, name)| name).collect());
    }
    all
}

/// Checks that numbered names are exactly 1 to their count.
fn check_complete(set: &[String], extension: &str) -> Result<()> {
    let Some(first) = set
        .first()
        .and_then(|name| ShardName::parse(name, extension))
    else {
        return Ok(());
    };
    if first.number == 0 {
        return Err(Error::new(
            ErrorKind::Malformed,
            "the shards are numbered from 0, not from 1 to their count",
            "rename them, or write an index",
        ));
    }
    if first.count > MAX_SHARDS as u64 {
        let detail = format!("{} claims {} shards", first.part(first.number), first.count);
        return Err(Error::new(
            ErrorKind::TooLarge,
            detail,
            "rename the file if it is no shard",
        ));
    }
    let present: HashSet<&str> = set.iter().map(String::as_str).collect();
    let missing: Vec<String> = (1..=first.count)
        .map(|number| first.part(number))
        .filter(|part| !present.contains(part.as_str()))
        .collect();
    if !missing.is_empty() {
        let listed: Vec<&str> = missing.iter().map(String::as_str).collect();
        return Err(Error::new(
            ErrorKind::Incomplete,
            format!(
                "{} of {} shards are missing: {}",
                missing.len(),
                first.count,
                shorten(&listed)
            ),
            "fetch the missing files, or name one shard to load it alone",
        ));
    }
    if set.len() as u64 != first.count {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!(
                "the shards are {} files numbered outside 1 to {}",
                set.len(),
                first.count
            ),
            "remove the files that do not belong to the model",
        ));
    }
    Ok(())
}

fn check_first(name: &str) -> Result<()> {
    match ShardName::parse(name, GGUF) {
        Some(shard) if shard.number != 1 => Err(Error::new(
            ErrorKind::Incomplete,
            format!("the first part is missing: {}", shard.part(1)),
            "fetch the missing file",
        )),
        _ => Ok(()),
    }
}

fn nothing(names: &[&str], is_folder: impl Fn(&str) -> bool) -> Error {
    const PICKLED: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".h5"];
    let pickled: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| PICKLED.iter().any(|extension| name.ends_with(extension)))
        .collect();
    if !pickled.is_empty() {
        return Error::new(
            ErrorKind::NotAModel,
            format!(
                "no safetensors or GGUF file here, only {}",
                shorten(&pickled)
            ),
            "convert the model to safetensors, or name a file to move it as raw bytes",
        );
    }
    let folders: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| is_folder(name))
        .collect();
    if folders.is_empty() {
        Error::new(
            ErrorKind::NotAModel,
            format!("no safetensors or GGUF file among {} entries", names.len()),
            "name a model's folder, or a file to move it as raw bytes",
        )
    } else {
        Error::new(
            ErrorKind::NotAModel,
            format!(
                "no safetensors or GGUF file here; there are folders: {}",
                shorten(&folders)
            ),
            "name the folder that holds the model (in a cache: snapshots/REVISION)",
        )
    }
}

/// The first few names, and how many more there are.
pub(crate) fn shorten(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names
        .iter()
        .take(SHOWN)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}
