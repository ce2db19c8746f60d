//! Other people's loaders: installed into an environment of their own, each a small script in
//! `benches/peers/`. What cannot be installed is named and left out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::roster::{BUFFERED, Contender, How, Subject, UBCP_COLD, UBCP_WARM};
use super::rounds::{Plan, State};
use crate::python::Venv;
use crate::{repo, run};

/// The peers that are ready to run.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Those that load safetensors (or a conversion of it).
    pub(crate) contenders: Vec<Contender>,
    /// Those that load GGUF, and the file they load.
    gguf: Option<(PathBuf, Vec<Contender>)>,
}

/// PyPI has torch with CUDA only; `torch_cpu.py` makes that importable without CUDA.
const TORCH: [&str; 2] = ["--no-deps", "torch==2.13.0"];
const TORCH_NEEDS: [&str; 8] = [
    "numpy",
    "filelock",
    "typing-extensions",
    "sympy",
    "networkx",
    "jinja2",
    "fsspec",
    "setuptools",
];

/// Installs what is missing, converts the model where a peer has a format of its own.
pub(crate) fn prepare(subject: &Subject) -> Result<Peers> {
    println!("preparing other loaders in .xtask/peers-venv (once: downloads about 700 MB)");
    repo::require_free(&repo::scratch("")?, 8 << 30)?;
    let venv = Venv::ensure("peers-venv")?;
    let mut peers = Peers::default();
    let mut ready = |what: &str, outcome: Result<Vec<Contender>>| match outcome {
        Ok(contenders) => peers.contenders.extend(contenders),
        Err(error) => println!("  without {what}: {error:#}"),
    };
    match torch(&venv) {
        Ok(()) => {
            ready("safetensors", safetensors(&venv));
            ready("Run:ai's streamer", runai(&venv));
            ready("fastsafetensors", fastsafetensors(&venv));
            ready("tensorizer", tensorizer(&venv, subject));
        }
        Err(error) => println!("  without the loaders that need torch: {error:#}"),
    }
    match candle() {
        Ok(contenders) => peers.contenders.extend(contenders),
        Err(error) => println!("  without candle: {error:#}"),
    }
    match gguf(&venv) {
        Ok(ready) => peers.gguf = Some(ready),
        Err(error) => println!("  without the loaders of GGUF: {error:#}"),
    }
    Ok(peers)
}

impl Peers {
    /// The comparison over the GGUF file, if there are loaders for it.
    pub(crate) fn second(&self, state: State, rounds: usize, seed: u64) -> Option<Plan> {
        let (path, loaders) = self.gguf.as_ref()?;
        let ours: &[(&str, &'static [&'static str])] = match state {
            State::Cold => &UBCP_COLD[..4],
            State::Warm => &UBCP_WARM[..4],
        };
        let mut contenders: Vec<Contender> = ours
            .iter()
            .map(|(name, options)| Contender::new(*name, How::Ubcp(options)))
            .collect();
        contenders.push(Contender::new(BUFFERED, How::Own(&["buffered-read"])));
        contenders.extend(loaders.iter().cloned());
        Some(Plan {
            title: format!("{state}, GGUF"),
            state,
            contenders,
            rounds,
            seed,
            primer_bytes: std::fs::metadata(path).ok()?.len() * 2 + (128 << 20),
        })
    }

    /// The GGUF file as the subject.
    pub(crate) fn gguf_subject(&self, other: &Subject) -> Result<Subject> {
        let (path, _) = self.gguf.as_ref().context("no GGUF file was made")?;
        Ok(Subject {
            ubcp: other.ubcp.clone(),
            source: path.clone(),
            files: vec![path.clone()],
            bytes: std::fs::metadata(path)?.len(),
        })
    }
}

fn script(name: &str) -> PathBuf {
    repo::root().join("benches/peers").join(name)
}

fn peer(venv: &Venv, name: &str, file: &str, arguments: &[&str]) -> Contender {
    let mut words = vec![script(file).display().to_string()];
    words.extend(arguments.iter().map(|argument| (*argument).to_string()));
    // Many threads of its own only slow a loader down; its own thread pools are not touched.
    let environment = vec![("OMP_NUM_THREADS".into(), "1".into())];
    let program = venv.program();
    Contender::new(
        name,
        How::Peer {
            program,
            arguments: words,
            environment,
            source: None,
        },
    )
}

fn torch(venv: &Venv) -> Result<()> {
    if venv.has(&["torch"]) {
        return Ok(());
    }
    for (program, package) in [("cc", "gcc"), ("readelf", "binutils"), ("nm", "binutils")] {
        let what = format!("{program} is missing: apt-get install {package}");
        run::which(program).context(what)?;
    }
    println!("  torch, its CPU half");
    venv.install(&TORCH_NEEDS)?;
    venv.install(&TORCH)?;
    let libraries = venv.site_packages()?.join("torch/lib");
    run::captured(venv.python().arg(script("torch_cpu.py")).arg(libraries))
        .context("torch needs CUDA's libraries, and stand-ins cannot be made")?;
    anyhow::ensure!(
        venv.has(&["torch"]),
        "torch was installed and cannot be imported"
    );
    Ok(())
}

fn package(venv: &Venv, modules: &[&str], needs: &[&str], packages: &[&str]) -> Result<()> {
    if venv.has(modules) {
        return Ok(());
    }
    println!("  {}", packages.join(", "));
    if !needs.is_empty() {
        venv.install(needs)?;
    }
    // Without dependencies: theirs name torch, which would bring CUDA in.
    venv.install(&[&["--no-deps"], packages].concat())?;
    anyhow::ensure!(
        venv.has(modules),
        "{} cannot be imported",
        modules.join(", ")
    );
    Ok(())
}

fn safetensors(venv: &Venv) -> Result<Vec<Contender>> {
    package(venv, &["safetensors"], &[], &["safetensors"])?;
    let one = |name, mode| peer(venv, name, "safetensors_load.py", &[mode]);
    Ok(vec![
        one("safetensors mmap, touched", "mmap"),
        one("safetensors clone", "clone"),
        one("safetensors pread", "pread"),
    ])
}

/// The one that is a Rust crate: a program of its own, built outside the workspace.
fn candle() -> Result<Vec<Contender>> {
    let folder = repo::root().join("benches/peers/candle");
    let target = repo::scratch("peers-candle")?;
    let program = target.join("release/candle-load");
    if !program.is_file() {
        println!("  candle (once: some minutes to build)");
    }
    let mut build = run::cargo();
    build
        .args([
            "build",
            "--release",
            "--quiet",
            "--locked",
            "--manifest-path",
        ])
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    run::captured(&mut build).context("candle cannot be built")?;
    let one = |name: &str, mode: &str| {
        Contender::new(
            name,
            How::Peer {
                program: program.clone(),
                arguments: vec![mode.into()],
                environment: Vec::new(),
                source: None,
            },
        )
    };
    Ok(vec![one("candle load", "load"), one("candle mmap", "mmap")])
}

fn runai(venv: &Venv) -> Result<Vec<Contender>> {
    let needs = ["humanize", "numpy"];
    package(
        venv,
        &["runai_model_streamer"],
        &needs,
        &["runai-model-streamer"],
    )?;
    Ok(vec![peer(venv, "runai streamer", "runai_load.py", &[])])
}

fn fastsafetensors(venv: &Venv) -> Result<Vec<Contender>> {
    package(venv, &["fastsafetensors"], &["typer"], &["fastsafetensors"])?;
    Ok(vec![peer(
        venv,
        "fastsafetensors",
        "fastsafetensors_load.py",
        &[],
    )])
}

fn tensorizer(venv: &Venv, subject: &Subject) -> Result<Vec<Contender>> {
    let needs = ["psutil", "protobuf", "boto3", "redis", "hiredis", "libnacl"];
    package(venv, &["tensorizer"], &needs, &["tensorizer"])?;
    let target = repo::scratch("models")?.join("aligned.tensors");
    if !target.is_file() {
        println!("  converting the model to tensorizer's format");
        let mut command = venv.python();
        command
            .arg(script("tensorizer_load.py"))
            .arg("convert")
            .arg(&subject.source)
            .arg(&target);
        run::captured(&mut command)?;
    }
    let one =
        |name, readers| in_own_format(peer(venv, name, "tensorizer_load.py", &[readers]), &target);
    Ok(vec![
        one("tensorizer, 1 reader", "1"),
        one("tensorizer, 4 readers", "4"),
    ])
}

/// A peer that loads a conversion of the model: its file replaces the source.
fn in_own_format(mut contender: Contender, file: &Path) -> Contender {
    if let How::Peer { source, .. } = &mut contender.how {
        *source = Some(file.to_path_buf());
    }
    contender
}

fn gguf(venv: &Venv) -> Result<(PathBuf, Vec<Contender>)> {
    let target = repo::scratch("models")?.join("tinyllama-random.gguf");
    let needs = ["numpy", "pyyaml", "tqdm", "requests"];
    package(venv, &["gguf"], &needs, &["gguf"])?;
    if !target.is_file() {
        println!("  making a GGUF model");
        run::captured(venv.python().arg(script("make_gguf.py")).arg(&target))?;
    }
    let mut all = vec![peer(venv, "gguf (Python), copied", "gguf_load.py", &[])];
    match package(venv, &["xllamacpp"], &[], &["xllamacpp"]) {
        Ok(()) => {
            let one = |name, mode| peer(venv, name, "llama_load.py", &[mode]);
            all.push(one("llama.cpp mmap (lazy)", "mmap"));
            all.push(one("llama.cpp read", "read"));
            all.push(one("llama.cpp direct", "direct"));
        }
        Err(error) => println!("  without llama.cpp: {error:#}"),
    }
    Ok((target, all))
}
