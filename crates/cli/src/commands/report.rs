use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use examine::{Detail, FamilyMembers, ProcessName, Sandbox, Source, SourceName};
use formats::{Platform, Report, to_json};
use ledger::Analyses;
use output::Output;
use render::TextOptions;

use super::{family, recordings};
use crate::arguments::{
    PlatformName, RetainedArguments, SamplesArguments, SourceArguments, WasteArguments, format_of,
    parse_long_time, parse_size,
};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat report 4242                 where the memory of process 4242 is
  rbloat report puma -o report.html  a page, of the process matching puma
  rbloat report a.jsonl --fit=2GiB   of a recording: how many workers fit?";

/// The usage that clap makes is longer than a line.
pub(crate) const USAGE: &str = "\
rbloat report [OPTIONS] <PID|WORD|FILE>
       rbloat report --tree [OPTIONS] <PID|WORD>...
       rbloat report --tree [OPTIONS] --cgroup <PATH>
       rbloat report [--fit[=<LIMIT>]] [-o <FILE>] [--json] <RECORDING>...";

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// With --tree: more processes; after a recording (.jsonl): more recordings
    #[arg(value_name = "PID|WORD|RECORDING", hide_short_help = true)]
    pub(crate) more: Vec<String>,
    /// Write a page, JSON (.json) or text (.txt)
    ///
    /// The page opens in any browser without network. `-` is standard output. Of recordings it is a picture (.html, .svg or .png) of their memory with limits, OOM
    /// kills and falls, and below it the causes of each
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) wanted: WantedArguments,
}

/// The contents of a report on a process. A recording has no such choice.
#[derive(Debug, Default, PartialEq, Args)]
pub(crate) struct WantedArguments {
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the advice as changes that can be pasted
    ///
    /// rbloat finds out how the process was started (Dockerfile, Kubernetes, systemd, Heroku, Procfile or shell) and configured (Puma,
    /// Sidekiq, Rails, Bundler). PLATFORM overrides that: container (lines of a Dockerfile), kubernetes, systemd, systemd-user (a service of
    /// a user), heroku, procfile (lines of .env beside it) or shell. For each step it prints the saving if that is known, the costs, the lines to
    /// paste, and a way to check the effect. Nothing is changed
    #[arg(
        long,
        value_name = "PLATFORM",
        num_args = 0..=1,
        require_equals = true,
        hide_possible_values = true,
        conflicts_with_all = ["json", "arenas", "code"]
    )]
    fix: Option<Option<PlatformName>>,
    /// Of recordings: how many workers fit into a memory limit
    ///
    /// LIMIT is a size such as 2GiB [default: the limit of the control group]. The answer needs the recording of a server with
    /// two workers or more, under load, until their memory is stable. Of a process, it has what there is now, and the time to record. With
    /// -o it is a chart (.html, .svg or .png)
    #[arg(
        long,
        value_name = "LIMIT",
        num_args = 0..=1,
        require_equals = true,
        value_parser = parse_limit,
        hide_short_help = true,
        conflicts_with_all = ["fix", "arenas", "code"]
    )]
    fit: Option<Option<u64>>,
    /// With --fit on recordings: the time for which the workers stay below the limit [default: 24h]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_long_time, requires = "fit", hide_short_help = true)]
    fit_for: Option<Duration>,
    /// Show a row for each of malloc's arenas
    ///
    /// JSON always has them
    #[arg(long, hide_short_help = true)]
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
    #[arg(long, conflicts_with_all = ["arenas", "code", "output", "retained", "waste", "who", "sysroot", "fix"])]
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

/// Parses a memory limit.
fn parse_limit(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes > 0 { Ok(bytes) } else { Err("a limit is above 0; write a size as 2GiB".into()) }
}

/// The format of a file.
#[derive(Clone, Copy)]
enum Format {
    Page,
    Json,
    Text,
}

/// The formats by the extensions of file names.
const FORMATS: [(&str, Format); 3] =
    [("html", Format::Page), ("json", Format::Json), ("txt", Format::Text)];

impl ReportArguments {
    /// Returns the number of owners to show. 0 means that owners are not searched for.
    pub(crate) fn owners(&self) -> usize {
        let for_people = !self.wanted.json && self.output.is_none();
        self.wanted.owners.unwrap_or(if for_people { 10 } else { 100 })
    }
}

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    if arguments.wanted.tree && arguments.wanted.fit.is_none() {
        return run_family(arguments);
    }
    if let Some(files) = recordings_among(arguments)? {
        let sandbox = arguments.source.capture.sandbox.options();
        let (output, json) = (arguments.output.as_deref(), arguments.wanted.json);
        return match arguments.wanted.fit {
            Some(limit) => {
                recordings::fit(&files, (limit, arguments.wanted.fit_for), output, json, sandbox)
            }
            None => recordings::run(&files, output, json, sandbox),
        };
    }
    if let Some(limit) = arguments.wanted.fit {
        return run_fit(arguments, limit);
    }
    if !arguments.more.is_empty() {
        return Err(Failure::ManyReports);
    }
    let format = match arguments.output.as_deref() {
        // The lines to paste are text.
        Some(path) if arguments.wanted.fix.is_some() => format_of(path, &FORMATS[2..])?,
        Some(path) if !arguments.wanted.json => format_of(path, &FORMATS)?,
        _ => Format::Json,
    };
    let owners = arguments.owners();
    let source = naming::source(arguments.source.name()?)?;
    let wanted = [
        ("--retained", arguments.wanted.retained.retained),
        ("--waste", arguments.wanted.waste.waste),
    ];
    if let Some((option, _)) = wanted.into_iter().find(|(_, is_wanted)| owners == 0 && *is_wanted) {
        return Err(Failure::NeedsOwners(option));
    }
    if arguments.wanted.show_strings && matches!(source, Source::Snapshot(_)) {
        return Err(Failure::NoTexts);
    }
    let (argument, is_process) = (source.argument(), matches!(source, Source::Process(_)));
    let samples = arguments.wanted.samples.read()?;
    let (retained_sizes, contents) =
        (arguments.wanted.retained.retained, arguments.wanted.waste.waste);
    let analyses = Analyses {
        memory_map: samples.is_some(),
        retained_sizes,
        contents,
        texts: arguments.wanted.show_strings,
        ..Analyses::default()
    };
    let detail = Detail { owners: owners > 0 || arguments.wanted.code, analyses, family: true };
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
    let next = match arguments.wanted.fix {
        // A snapshot before the change shows its effect: `rbloat diff`.
        Some(_) => vec![if is_process { "snapshot" } else { "report" }, &argument],
        None => render::words::command_after(&report, &argument, is_process),
    };
    let suggest_next = || terminal::suggest(&[&["rbloat"], next.as_slice()].concat());
    let options = TextOptions {
        width: terminal::width(),
        arenas: arguments.wanted.arenas,
        code: arguments.wanted.code,
        waste: contents,
    };
    let text = |report: &Report| match arguments.wanted.fix {
        Some(platform) => render::fix(report, platform.map(Platform::from), options.width),
        None => render::report(report, options),
    };
    if let (Some(output), Some(path)) = (output, &arguments.output) {
        let is_taken = output.is_standard_output();
        let text = match format {
            Format::Page => render::report_html(&report),
            Format::Json => json(&report),
            Format::Text => terminal::without_colours(&text(&report)),
        };
        output.write(text.as_bytes())?;
        if !is_taken {
            terminal::print(&render::written(path))?;
            match format {
                Format::Page => terminal::suggest(&["xdg-open", &path.display().to_string()])?,
                _ => suggest_next()?,
            }
        }
    } else if arguments.wanted.json {
        terminal::print(&json(&report))?;
    } else {
        terminal::print(&text(&report))?;
        suggest_next()?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

fn json(report: &Report) -> String {
    to_json(report, &render::words::verdict(report).summary)
}

/// Returns the files if the sources are recordings, by their names.
fn recordings_among(arguments: &ReportArguments) -> Result<Option<Vec<PathBuf>>, Failure> {
    let mut files = Vec::new();
    let names = names(arguments)?;
    for name in &names {
        match name {
            SourceName::File { path, .. } if path.extension() == Some("jsonl".as_ref()) => {
                files.push(path.clone());
            }
            // It does not exist.
            SourceName::Process(ProcessName::Command(word)) if word.ends_with(".jsonl") => {
                files.push(word.into());
            }
            _ => {}
        }
    }
    match files.len() {
        0 => return Ok(None),
        number if number < names.len() => return Err(Failure::NotOnlyRecordings),
        _ => {}
    }
    let WantedArguments { json, fit, fit_for, .. } = arguments.wanted;
    let wanted = WantedArguments { json, fit, fit_for, ..WantedArguments::default() };
    let is_plain = arguments.wanted == wanted && arguments.source.is_plain();
    if is_plain { Ok(Some(files)) } else { Err(Failure::NeedlessOfRecording) }
}

/// Reports on a family.
/// Prints how many workers the family of a process may have, as far as one look shows it.
fn run_fit(arguments: &ReportArguments, limit: Option<u64>) -> Result<Outcome, Failure> {
    let WantedArguments { json, fit, tree, .. } = arguments.wanted;
    let wanted = WantedArguments { json, fit, tree, ..WantedArguments::default() };
    let is_plain = arguments.wanted == wanted && arguments.source.is_plain();
    let (SourceName::Process(name), true, true) =
        (arguments.source.name()?, is_plain, arguments.more.is_empty())
    else {
        return Err(Failure::FitOfOther);
    };
    let sandbox = arguments.source.capture.sandbox.options();
    let process = naming::process(name)?;
    recordings::fit_now(&process, limit, arguments.output.as_deref(), json, sandbox)
}

fn run_family(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let how = arguments.source.capture.options();
    let detail = if arguments.owners() > 0 { Detail::OWNERS } else { Detail::CAUSES };
    let family = match file(arguments)? {
        Some(file) => {
            let file = family::file(file)?;
            Sandbox::new(how.sandbox, []).run(|| file.family())?
        }
        None => {
            let members = match &arguments.wanted.cgroup {
                Some(path) => FamilyMembers::of_group(path)?,
                None => family::members_of(&names(arguments)?)?,
            };
            family::account(members, how, detail, arguments.wanted.identical)?
        }
    };
    terminal::print(&match arguments.wanted.json {
        true => to_json(&family, &render::family_summary(&family)),
        false => render::family(&family, terminal::width()),
    })?;
    if let (false, Some(largest)) =
        (arguments.wanted.json, family.members.iter().max_by_key(|member| member.private_bytes))
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
    if arguments.wanted.cgroup.is_some() || !arguments.more.is_empty() {
        return Ok(None);
    }
    let name = arguments.source.name()?;
    Ok(matches!(name, SourceName::File { .. }).then_some(name))
}
