//! The command line: what can be asked, and what does not go together by itself. What needs
//! the model to be judged is judged in `via` and `destination`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::digest::Algorithm;
use crate::exit::{CODES_HELP, Failure};
use crate::size;

/// Examples, for help and man page.
pub(crate) const EXAMPLES: &str = "\
Examples:
  ubcp model.safetensors shm:llm            load it; readers map /dev/shm/ubio.llm
  ubcp ~/models/llama-70b shm:llm --verify  a folder of shards becomes one file
  ubcp model.gguf host: --json --repeat 5   measure, in memory that is gone at exit
  ubcp model.safetensors --list             only the tensor table
  ubcp big.bin shm:big --digest sha256      any file, as it is
  ubcp shm:llm model.safetensors            and back to a disk
  ubcp 'nvme:/dev/ng0n1?len=4G' shm:llm     blocks of an NVMe namespace
  ubcp vfio:0000:01:00.0/1 bar:0000:02:00.0/2   into another function's BAR
  ubcp 'nvme:emulated?file=disk.img' host:  the same queues without the hardware";

const ABOUT: &str = "Copies model files into memory through fixed windows";

const LONG_ABOUT: &str = "\
Copies model files into memory through fixed windows.

SRC is a safetensors or GGUF file, a folder with a model (Hugging Face's cache included), an \
index JSON, any other file (taken as bytes), shm:NAME, or blocks of an NVMe namespace: \
nvme:/dev/ngXnY (the kernel's passthrough), vfio:FUNCTION/NAMESPACE (queues of our own on a drive \
bound to vfio-pci), nvme:emulated?file=PATH (a controller emulated over a file). DST is shm:NAME, \
which becomes /dev/shm/ubio.NAME when all of it is there; host:, which is memory that is gone at \
exit; bar:FUNCTION/BAR or bar:FUNCTION/p2pmem, the memory of a PCI function; or a file, when SRC \
is shm:NAME. A file whose name begins with shm:, host:, nvme:, vfio: or bar: is written ./shm:NAME.";

/// What no single option says.
pub(crate) const NOTES: &str = "\
SIZE is a number of bytes with an optional binary unit: 4096, 64K, 4MiB, 1G.

A named result is a valid file of the model's format; of several files' metadata it has the \
first's. It appears only when it is complete, and replaces what had the name before; readers that \
mapped that keep it. It gives nobody rights that SRC, or what it replaces, does not give. A file DST that is a \
symbolic link is replaced too, not followed. A file that is written, replaced or removed while it \
is read fails the load; whether blocks of a drive are, nobody can tell.

seconds runs from the program's first instruction (in repeated runs: from the begin of that \
load) to the last byte visible: opening, reservation and page faults included, dropping caches \
(--cold), verification and digest not. bytes are those that came from the source: of whole files \
where the result has their layout (--json: layout image), else of tensors (placed). On its own \
ubcp keeps the layout where nothing speaks against it: --tensors, --order layer, --align, or \
several files that become one.

With --via map nobody may cut or write SRC while it is used: where that cannot be held off, \
cutting it ends ubcp by SIGBUS, without a word.

Blocks are taken as bytes: ?offset=SIZE&len=SIZE says which, block=4096 how large emulated blocks \
are. Whoever may open the device may read every file on the drive; a named result is its owner's \
alone, that of an emulated drive whose the file is. A bar: takes one file, or blocks, as they are; what it holds is gone when somebody else \
writes there. Before memory of a function is used, reads have to land there, or it is refused. \
After --timeout the load fails; the drive's memory stays in use until it answers.

A digest is over the tensors' bytes in file order, whatever the order and the way of the load; \
of blocks, and of a file in a bar:, over all bytes. --verify reads the source once more; what \
went to a bar:, and blocks, by the same engine into host memory.

With --json an error is an object too, {\"error\": {kind, exit_code, message, path, remedy}}, on \
standard output; the line on standard error stays.

A first SIGINT or SIGTERM cancels the load and waits for the devices; a second one ends at once.";

/// Copies model files into memory through fixed windows.
#[derive(Debug, Parser)]
#[command(
    name = "ubcp",
    version,
    about = ABOUT,
    long_about = LONG_ABOUT,
    override_usage = "ubcp [OPTIONS] <SRC> <DST>\n       ubcp [OPTIONS] --list <SRC>",
    after_help = format!("{EXAMPLES}\n\n{CODES_HELP}"),
    after_long_help = format!("{NOTES}\n\n{EXAMPLES}\n\n{CODES_HELP}"),
    max_term_width = 100,
)]
pub(crate) struct Args {
    /// A model file, folder or index, any other file, shm:NAME, or nvme:/vfio: blocks
    #[arg(value_name = "SRC", required_unless_present_any = ["completions", "man"])]
    pub(crate) src: Option<OsString>,

    /// shm:NAME, host:, bar:FUNCTION/BAR, or a file when SRC is shm:NAME
    #[arg(value_name = "DST", required_unless_present_any = ["list", "completions", "man"])]
    pub(crate) dst: Option<OsString>,

    /// Only tensors whose whole name matches: *, ?, [a-f], {a,b}; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = "What to load")]
    pub(crate) tensors: Vec<String>,

    /// The order in which tensors are read and become visible
    #[arg(long, value_enum, default_value_t, help_heading = "What to load")]
    pub(crate) order: Order,

    /// Refuse symbolic links, SRC itself included: for folders you do not trust
    #[arg(long, help_heading = "What to load")]
    pub(crate) no_follow: bool,

    /// Print the tensor table of SRC and load nothing
    #[arg(
        long,
        help_heading = "What to load",
        conflicts_with_all = ["dst", "verify", "digest", "trace", "repeat"]
    )]
    pub(crate) list: bool,

    /// How bytes reach the destination
    #[arg(long, value_enum, default_value_t, help_heading = "How to load")]
    pub(crate) via: Via,

    /// How bytes leave the storage
    #[arg(long, value_enum, default_value_t, help_heading = "How to load")]
    pub(crate) route: Route,

    /// Align every tensor to this (host: and GGUF) [default: 256 for host:]
    #[arg(
        long,
        value_name = "SIZE",
        allow_negative_numbers = true,
        value_parser = alignment,
        help_heading = "How to load"
    )]
    pub(crate) align: Option<u64>,

    /// Anything less than the best way is an error
    #[arg(long, help_heading = "How to load")]
    pub(crate) strict: bool,

    /// Load this often, up to 100000, each time into fresh memory; the last result is published
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        help_heading = "How to load"
    )]
    pub(crate) repeat: Option<u32>,

    /// Drop the source's pages from the page cache before each load, to measure cold
    #[arg(long, help_heading = "How to load")]
    pub(crate) cold: bool,

    /// Reread the source through the page cache and compare before anything is published
    #[arg(long, help_heading = "Checks")]
    pub(crate) verify: bool,

    /// Digest of the loaded tensors' bytes in file order (of a plain file: of its bytes)
    #[arg(long, value_enum, value_name = "ALGORITHM", help_heading = "Checks")]
    pub(crate) digest: Option<Algorithm>,

    /// Print one JSON object (with --repeat an array of them, with --list one of tensors), also for errors
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Print no summary, and no progress unless that is asked for (--progress always)
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,

    /// Show progress on standard error
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        help_heading = "Output"
    )]
    pub(crate) progress: ProgressWhen,

    /// Write a trace of fills, flushes and stalls for Perfetto or chrome://tracing; only an older
    /// trace is written over
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) trace: Option<PathBuf>,

    /// Print completions for this shell
    #[arg(
        long,
        value_enum,
        value_name = "SHELL",
        exclusive = true,
        help_heading = "Output"
    )]
    pub(crate) completions: Option<clap_complete::Shell>,

    /// Print the man page
    #[arg(long, exclusive = true, help_heading = "Output")]
    pub(crate) man: bool,

    #[command(flatten)]
    pub(crate) nvme: Nvme,

    #[command(flatten)]
    pub(crate) advanced: Advanced,
}

/// How blocks of a namespace are read.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Blocks of a namespace (nvme: and vfio:)")]
pub(crate) struct Nvme {
    /// Fail when the drive takes longer for one read, seconds, up to a day [default: 60]
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=86_400)
    )]
    pub(crate) timeout: Option<u32>,

    /// Poll for completions instead of waiting for interrupts: less latency, a busy core
    #[arg(long)]
    pub(crate) poll: bool,

    /// Queue pairs, up to 64 (vfio: and emulated) [default: 1]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub(crate) queues: Option<u16>,

    /// Name memory by PRP lists also where the drive takes SGLs (vfio: and emulated)
    #[arg(long)]
    pub(crate) prp: bool,
}

impl Nvme {
    /// An option that was given and is about queues of our own.
    pub(crate) fn of_own_queues(&self) -> Option<&'static str> {
        let given = [(self.queues.is_some(), "--queues"), (self.prp, "--prp")];
        first_given(&given)
    }

    /// Any that was given.
    pub(crate) fn any(&self) -> Option<&'static str> {
        let given = [(self.timeout.is_some(), "--timeout"), (self.poll, "--poll")];
        first_given(&given).or_else(|| self.of_own_queues())
    }
}

fn first_given(options: &[(bool, &'static str)]) -> Option<&'static str> {
    let mut given = options.iter().filter(|(given, _)| *given);
    given.next().map(|(_, name)| *name)
}

/// What rarely needs to be touched.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Advanced")]
pub(crate) struct Advanced {
    /// How many windows, up to 4096
    #[arg(
        long,
        value_name = "N",
        default_value_t = ubio::limits::DEFAULT_WINDOWS,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(ubio::limits::MAX_WINDOWS))
    )]
    pub(crate) windows: u16,

    /// Bytes of each window: a multiple of 4 KiB, at most 128 MiB
    #[arg(
        long,
        value_name = "SIZE",
        default_value = WINDOW_SIZE,
        allow_negative_numbers = true,
        value_parser = window_size
    )]
    pub(crate) window_size: u32,

    /// Largest single read, to begin with [default: 1MiB through windows, 4MiB in place]
    #[arg(
        long,
        value_name = "SIZE",
        allow_negative_numbers = true,
        value_parser = command_size
    )]
    pub(crate) command_size: Option<u32>,

    /// Reads in flight, to begin with, up to 128 [default: 3 through windows, 6 in place]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(ubio::limits::DIRECT_DEPTH))
    )]
    pub(crate) depth: Option<u16>,

    /// Keep --command-size and --depth instead of adapting them to the device
    #[arg(long)]
    pub(crate) no_tune: bool,

    /// Threads that copy, up to 1024 [default: by the number of cores]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub(crate) workers: Option<u16>,

    /// Do not put windows on huge pages
    #[arg(long)]
    pub(crate) no_huge: bool,

    /// Fault host: memory in before the clock starts, to measure without it
    #[arg(long)]
    pub(crate) prefault: bool,

    /// Read with threads instead of io_uring
    #[arg(long)]
    pub(crate) no_uring: bool,
}

/// `--order`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// As in the files
    #[default]
    File,
    /// As a forward pass uses them
    Layer,
}

/// `--via`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// The better one of these, for this source and destination
    #[default]
    Auto,
    /// Through windows, each tensor placed and aligned
    Ub,
    /// Straight into the destination, in the file's own layout
    InPlace,
    /// The page cache itself, mapped (host: only; a file that is cut meanwhile ends readers)
    Map,
}

/// `--route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Route {
    /// What is in the page cache from there, all else direct
    #[default]
    Auto,
    /// All of it direct
    Direct,
    /// All of it through the page cache
    Cached,
    /// One thread, buffered reads, a copy: for comparison
    Traditional,
}

/// `--progress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// When standard error is a terminal
    #[default]
    Auto,
    /// Also into a file or pipe, line by line
    Always,
    /// Never
    Never,
}

/// The library's defaults as SIZE arguments (a test compares them).
const WINDOW_SIZE: &str = "1MiB";

const PAGE_BYTES: u64 = 4096;

fn alignment(text: &str) -> Result<u64, String> {
    let most = fs_adapter::limits::MAX_ALIGNMENT;
    let bytes = size::parse(text)?;
    if bytes.is_power_of_two() && bytes <= most {
        Ok(bytes)
    } else {
        let most = size::human(most);
        Err(format!(
            "an alignment is a power of two up to {most}, for example 256 or 4K"
        ))
    }
}

/// Most bytes of one window.
pub(crate) const MAX_WINDOW_BYTES: u64 = 128 << 20;

fn window_size(text: &str) -> Result<u32, String> {
    pages(
        size::parse(text)?,
        MAX_WINDOW_BYTES,
        "a window",
        WINDOW_SIZE,
    )
}

fn command_size(text: &str) -> Result<u32, String> {
    let most = ubio::limits::MAX_COMMAND_BYTES.into();
    pages(size::parse(text)?, most, "a read", "1MiB")
}

fn pages(bytes: u64, most: u64, what: &str, example: &str) -> Result<u32, String> {
    match u32::try_from(bytes) {
        Ok(fits) if bytes > 0 && bytes.is_multiple_of(PAGE_BYTES) && bytes <= most => Ok(fits),
        _ => Err(format!(
            "{what} takes a multiple of 4 KiB up to {}, for example {example}",
            size::human(most)
        )),
    }
}

impl Args {
    /// What the options say together, before anything is opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let advanced = &self.advanced;
        let pool = u64::from(advanced.windows) * u64::from(advanced.window_size);
        let half = memory_bytes() / 2;
        if pool > half {
            return Err(Failure::usage(
                format!(
                    "{} windows of {} are {}, more than half of this machine's memory",
                    advanced.windows,
                    size::human(advanced.window_size.into()),
                    size::human(pool)
                ),
                format!(
                    "use fewer (--windows) or smaller (--window-size) ones; the default is {} of \
                     {WINDOW_SIZE}",
                    ubio::limits::DEFAULT_WINDOWS
                ),
            ));
        }
        Ok(())
    }
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// A usage error of clap's, on one line.
pub(crate) fn one_line(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let body = text.split("\n\nUsage:").next().unwrap_or(&text);
    let body = body
        .split("\n\nFor more information")
        .next()
        .unwrap_or(body);
    let body = body.strip_prefix("error: ").unwrap_or(body);
    let body = body.replace("\n\n  tip:", ";");
    let message = body.split_whitespace().collect::<Vec<_>>().join(" ");
    Failure::usage(message, "ubcp --help lists the options, with examples")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_shown_are_the_librarys() {
        let windows = window_size(WINDOW_SIZE).expect("a size");
        assert_eq!(windows, ubio::limits::DEFAULT_WINDOW_BYTES);
        let help = <Args as clap::CommandFactory>::command()
            .render_long_help()
            .to_string();
        let size = |bytes: u32| size::human(bytes.into()).replace(' ', "");
        let commands = format!(
            "[default: {} through windows, {} in place]",
            size(ubio::limits::FIRST_COMMAND_BYTES),
            size(ubio::limits::FIRST_IN_PLACE_COMMAND_BYTES),
        );
        let depths = format!(
            "[default: {} through windows, {} in place]",
            ubio::limits::FIRST_DEPTH,
            ubio::limits::FIRST_IN_PLACE_DEPTH,
        );
        assert!(help.contains(&commands), "{commands}");
        assert!(help.contains(&depths), "{depths}");
    }
}
