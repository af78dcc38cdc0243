use std::path::PathBuf;

use clap::Args;
use examine::{Detail, FamilyMembers, Sandbox, Source, SourceName};
use formats::{Report, to_json};
use ledger::Analyses;
use output::Output;
use render::TextOptions;

use super::family;
use crate::arguments::{RetainedArguments, SamplesArguments, SourceArguments, WasteArguments};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat report 4242                 where the memory of process 4242 is
  rbloat report puma -o report.html  of the only one with this word, as a page
  rbloat report app.rbloat --arenas  of a snapshot, with malloc's arenas";

/// The usage that clap makes is longer than a line.
pub(crate) const USAGE: &str = "\
rbloat report [OPTIONS] <PID|WORD|FILE>
       rbloat report --tree [OPTIONS] <PID|WORD>...
       rbloat report --tree [OPTIONS] --cgroup <PATH>";

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// With --tree: more processes
    #[arg(value_name = "PID|WORD", requires = "tree", hide_short_help = true)]
    pub(crate) more: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page, JSON (.json) or text (.txt)
    ///
    /// The page opens in any browser without network
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Show a row for each of malloc's arenas
    ///
    /// JSON always has them
    #[arg(long)]
    pub(crate) arenas: bool,
    /// Show the interpreter's own memory by kind, gem and file
    ///
    /// Gems and files are those of its bytecode. JSON always has them. Without this option, kinds and gems are shown if the
    /// interpreter is a large part of the process
    #[arg(long, hide_short_help = true)]
    pub(crate) code: bool,
    /// Show the N owners that hold most malloc'ed memory
    ///
    /// [default: 10, in files and JSON 100; without N: 30] With 0, owners are not searched for, which is faster
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "30")]
    owners: Option<usize>,
    /// Report on the whole family of forked processes
    ///
    /// It is one account in which shared memory counts once. The family are the processes that were forked from each other: a
    /// Puma master and its workers. The report shows the
    /// memory that they share, the memory of each, and which memory was copied since the fork. Any member names the family,
    /// and a word names all processes that have it in their command lines
    #[arg(long, conflicts_with_all = ["arenas", "code", "output", "retained", "waste", "who", "sysroot"])]
    tree: bool,
    /// With --tree: the Ruby processes of this control group
    ///
    /// PATH is its folder, or its path as in /proc/PID/cgroup. The report also explains the rest of the group's memory
    #[arg(
        long,
        value_name = "PATH",
        group = "WhichArguments",
        requires = "tree",
        hide_short_help = true
    )]
    pub(crate) cgroup: Option<PathBuf>,
    /// With --tree: also find out how small the family would be if all identical pages were shared
    ///
    /// This reads all memory of the family once more, and keeps only hashes of it
    #[arg(long, requires = "tree", hide_short_help = true)]
    pub(crate) identical: bool,
    #[command(flatten)]
    pub(crate) retained: RetainedArguments,
    #[command(flatten)]
    waste: WasteArguments,
    /// With --waste: show the beginning of the texts of which there are most copies
    ///
    /// They are data of the process, such as names and addresses of its users
    #[arg(long, requires = "waste", conflicts_with_all = ["json", "output"], hide_short_help = true)]
    show_strings: bool,
    #[command(flatten)]
    pub(crate) samples: SamplesArguments,
}

/// The format of a file.
enum Format {
    Page,
    Json,
    Text,
}

impl ReportArguments {
    /// Returns the number of owners to show. 0 means that owners are not searched for.
    pub(crate) fn owners(&self) -> usize {
        let for_people = !self.json && self.output.is_none();
        self.owners.unwrap_or(if for_people { 10 } else { 100 })
    }

    /// Returns the format of the file.
    fn format(&self) -> Format {
        let extension = self.output.as_ref().and_then(|path| path.extension()?.to_str());
        match extension {
            _ if self.json => Format::Json,
            Some("json") => Format::Json,
            Some("txt") => Format::Text,
            _ => Format::Page,
        }
    }
}

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    if arguments.tree {
        return run_family(arguments);
    }
    let owners = arguments.owners();
    let source = naming::source(arguments.source.name()?)?;
    let wanted = [("--retained", arguments.retained.retained), ("--waste", arguments.waste.waste)];
    if let Some((option, _)) = wanted.into_iter().find(|(_, is_wanted)| owners == 0 && *is_wanted) {
        return Err(Failure::NeedsOwners(option));
    }
    if arguments.show_strings && matches!(source, Source::Snapshot(_)) {
        return Err(Failure::NoTexts);
    }
    let (argument, is_process) = (source.argument(), matches!(source, Source::Process(_)));
    let samples = arguments.samples.read()?;
    let (retained_sizes, contents) = (arguments.retained.retained, arguments.waste.waste);
    let texts = arguments.show_strings;
    let analyses = Analyses { memory_map: samples.is_some(), retained_sizes, contents, texts };
    let detail = Detail { owners: owners > 0 || arguments.code, analyses, family: true };
    let output = arguments.output.as_deref().map(Output::open).transpose()?;
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, &output);
    let mut snapshot = source.account(how, detail, &sandbox, &Progress::new())?;
    if let Some(samples) = samples {
        let who = samples.of(&snapshot)?;
        diagnosis::name_code(&mut snapshot, &who);
    }
    let mut report = snapshot.report.brief(owners);
    if owners == 0 {
        report.owners = None;
    }
    let command = render::words::command_after(&report, is_process);
    let options = TextOptions {
        width: terminal::width(),
        arenas: arguments.arenas,
        code: arguments.code,
        waste: contents,
    };
    let text = |report: &Report| render::report(report, options);
    if let (Some(output), Some(path)) = (output, &arguments.output) {
        let is_file = output.is_file();
        let format = arguments.format();
        let text = match format {
            Format::Page => render::report_html(&report),
            Format::Json => json(&report),
            Format::Text => terminal::without_colours(&text(&report)),
        };
        output.write(text.as_bytes())?;
        if is_file {
            terminal::print(&render::written_report(path))?;
            match format {
                Format::Page => terminal::suggest(&["xdg-open", &path.display().to_string()])?,
                _ => terminal::suggest(&["rbloat", command, &argument])?,
            }
        }
    } else if arguments.json {
        terminal::print(&json(&report))?;
    } else {
        terminal::print(&text(&report))?;
        terminal::suggest(&["rbloat", command, &argument])?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

fn json(report: &Report) -> String {
    to_json(report, &render::words::verdict(report).summary)
}

/// Reports on a family.
fn run_family(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let how = arguments.source.capture.options();
    let detail = if arguments.owners() > 0 { Detail::OWNERS } else { Detail::CAUSES };
    let family = match file(arguments)? {
        Some(file) => {
            let file = family::file(file)?;
            Sandbox::new(how.sandbox, []).run(|| file.family())?
        }
        None => {
            let members = match &arguments.cgroup {
                Some(path) => FamilyMembers::of_group(path)?,
                None => family::members_of(&names(arguments)?)?,
            };
            family::account(members, how, detail, arguments.identical)?
        }
    };
    terminal::print(&match arguments.json {
        true => to_json(&family, &render::family_summary(&family)),
        false => render::family(&family, terminal::width()),
    })?;
    if let (false, Some(largest)) =
        (arguments.json, family.members.iter().max_by_key(|member| member.private_bytes))
    {
        terminal::suggest(&["rbloat", "report", &largest.pid.to_string()])?;
    }
    Ok(family::outcome(&family))
}

fn names(arguments: &ReportArguments) -> Result<Vec<SourceName>, Failure> {
    let more = arguments.more.iter().map(|word| SourceName::of(word, None));
    Ok(std::iter::once(arguments.source.name()?).chain(more).collect())
}

/// Returns the file with a family if one is given, alone.
fn file(arguments: &ReportArguments) -> Result<Option<SourceName>, Failure> {
    if arguments.cgroup.is_some() || !arguments.more.is_empty() {
        return Ok(None);
    }
    let name = arguments.source.name()?;
    Ok(matches!(name, SourceName::File { .. }).then_some(name))
}
