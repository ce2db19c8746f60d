//! The man page and the shell completions, both made from the command line's definition.

use clap::CommandFactory;

use crate::args::{Args, EXAMPLES, NOTES};
use crate::exit::{CODES_HELP, Failure};
use crate::output;

/// Prints the completions for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "ubcp", &mut script);
    output::write(|out| out.write_all(&script))
}

/// Prints the man page. Tables keep their lines, which the generator's own rendering of the
/// help text would fill.
pub(crate) fn man() -> Result<(), Failure> {
    let man = clap_mangen::Man::new(Args::command());
    output::write(|mut out| {
        man.render_title(&mut out)?;
        man.render_name_section(&mut out)?;
        man.render_synopsis_section(&mut out)?;
        man.render_description_section(&mut out)?;
        man.render_options_section(&mut out)?;
        writeln!(out, ".SH NOTES\n{}", NOTES.replace("\n\n", "\n.PP\n"))?;
        for (head, text) in [("EXAMPLES", EXAMPLES), ("EXIT STATUS", CODES_HELP)] {
            // The first line is the heading of the help text.
            let lines = text
                .split_once('\n')
                .map_or(text, |(_heading, lines)| lines);
            writeln!(out, ".SH {head}\n.nf\n{lines}\n.fi")?;
        }
        man.render_version_section(&mut out)
    })
}
