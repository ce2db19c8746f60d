//! x
pub(crate) mod contender;
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args) -> anyhow::Result<std::process::ExitCode> {
    anyhow::bail!("x")
}
