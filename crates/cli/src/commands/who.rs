use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use clap::Args;
use examine::{End, Note, ProcessName, Sandbox, Watch, Watched};
use formats::to_json;
use ledger::Size;
use output::Output;
use render::Stacks;
use supervise::{Event, Orphans, Signals, exit_status, unix_ms};

use crate::arguments::{CaptureArguments, format_of, parse_time};
use crate::commands::kept;
use crate::commands::record::{shell_status, start};
use crate::failure::{Failure, Outcome};
use crate::progress::{Progress, with_time_left};
use crate::remedy::explained;
use crate::{naming, terminal};

/// The time for which a process is watched, if the user gives none.
const WATCHED: Duration = Duration::from_secs(60);
pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat who 4242            which code makes it grow, for 60 s
  rbloat who 4242 --kept     which lines allocate what stays
  rbloat who -- ruby job.rb  of a program, until it ends";

/// The process to watch.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct WatchedArguments {
    /// The process: its id, or a word of its command line
    ///
    /// No other Ruby process may have the word in its command line. NAMESPACE/POD and the name or id of its container are names, too
    #[arg(value_name = "PID")]
    process: Option<String>,
    /// A program to start and watch, with its arguments
    ///
    /// rbloat forwards signals to it, and exits with its status. The result follows its output
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct WhoArguments {
    #[command(flatten)]
    pub(crate) watched: WatchedArguments,
    /// Stop after this time: 60s, 5m
    ///
    /// [default: 60s for a process; a program is watched until it ends] A program that rbloat started then gets SIGTERM
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a flame graph (.html); more than once: other formats
    ///
    /// A page opens in any browser without network. `.json`: the result, for `rbloat report --who` and for speedscope. `.folded`: a line for
    /// each stack, with frames separated by semicolons, and bytes, or objects with --kept. `.pb.gz`: a profile for `go tool pprof`,
    /// Pyroscope and Parca. `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Vec<PathBuf>,
    /// Count page faults every 20 ms instead of sampling them, as rbloat does if the kernel does not allow events
    #[arg(long, hide_short_help = true)]
    pub(crate) poll: bool,
    /// Name the lines that allocate what stays, and not those that make memory grow
    ///
    /// A clock samples new objects while threads run, and rbloat follows them: who makes much garbage and leaks little is not named
    /// for the garbage. [default time: 2m] Lines need CAP_BPF and CAP_PERFMON
    #[arg(long, conflicts_with_all = ["command", "poll"])]
    pub(crate) kept: bool,
    /// The ticks of the clock in a second of each thread's processor time, with --kept
    ///
    /// More find smaller leaks sooner, and slow the process down: 1000 by about 6 %. A process that uses a part of a processor only
    /// gets up to five times as many, and at most 1000
    #[arg(long, value_name = "TICKS", default_value_t = 200, requires = "kept",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rate: u32,
    /// The age from which objects count as kept, with --kept: longer than a request takes
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "kept", value_parser = parse_time,
        hide_short_help = true)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
}

/// The format of a file.
#[derive(Clone, Copy)]
enum Format {
    Page,
    Json,
    Folded,
    Profile,
}

/// The formats by the extensions of file names.
const FORMATS: [(&str, Format); 4] = [
    ("html", Format::Page),
    ("json", Format::Json),
    ("folded", Format::Folded),
    ("pb.gz", Format::Profile),
];

/// The files to write.
pub(crate) struct Files(Vec<(Output, Format)>);

pub(crate) fn run(arguments: &WhoArguments) -> Result<Outcome, Failure> {
    let formats = arguments.output.iter().map(|path| Ok((path, format_of(path, &FORMATS)?)));
    let formats = formats.collect::<Result<Vec<_>, Failure>>()?;
    let open = |(path, format): (&PathBuf, Format)| Ok((Output::open(path)?, format));
    let files = Files(formats.into_iter().map(open).collect::<Result<_, Failure>>()?);
    match &arguments.watched.process {
        Some(name) => {
            let target = naming::process(ProcessName::from(name.as_str()))?;
            let signals = Signals::block(false)?;
            if arguments.kept {
                return kept::run(&target, arguments, files, &signals);
            }
            let how = arguments.capture.options();
            let begun = Watch::begin_with_stacks(&target, how, arguments.poll)?;
            let duration = arguments.duration.or(Some(WATCHED));
            let watched = watch(begun, duration, &signals, None);
            let failed = watched.failed;
            let is_taken = files.take_standard_output();
            print(watched, arguments, files)?;
            if !arguments.json && !is_taken {
                let pid = target.pid().to_string();
                match arguments.output.first() {
                    Some(page) => terminal::suggest(&["xdg-open", &page.display().to_string()])?,
                    None => terminal::suggest(&["rbloat", "who", &pid, "-o", "who.html"])?,
                }
            }
            Ok(if failed { Outcome::Incomplete } else { Outcome::Done })
        }
        None => start_and_watch(arguments, files),
    }
}

/// Starts a program and watches it until it ends.
fn start_and_watch(arguments: &WhoArguments, files: Files) -> Result<Outcome, Failure> {
    let signals = Signals::block(true)?;
    let orphans = Orphans::take_in();
    let mut child = start(&arguments.watched.command)?;
    let pid = child.id().cast_signed();
    let watched = match Watch::begin(pid, arguments.capture.options(), arguments.poll) {
        Ok(begun) => Ok(watch(begun, arguments.duration, &signals, Some(&mut child))),
        Err(error) if error.is_end() => Ok(Watched {
            who: Watch::nothing(pid, &arguments.watched.command),
            notes: vec![Note::NothingObserved],
            failed: false,
        }),
        Err(error) => Err(error),
    };
    let is_over = watched.as_ref().is_ok_and(|watched| !watched.failed);
    if is_over && exit_status(&mut child)?.is_none() {
        supervise::terminate(&child);
    }
    let status = signals.wait_for(&mut child, &orphans)?;
    let watched = watched?;
    let failed = watched.failed;
    print(watched, arguments, files)?;
    let status = shell_status(status);
    Ok(if failed && status == 0 { Outcome::Incomplete } else { Outcome::Ended(status) })
}

/// Watches until the time is over, a signal arrives, or the process ends.
fn watch(
    watch: Watch,
    duration: Option<Duration>,
    signals: &Signals,
    mut child: Option<&mut Child>,
) -> Watched {
    // The output of a program has the terminal for itself.
    let progress = child.is_none().then(Progress::new);
    let (begin, mut shown) = (Instant::now(), 0);
    let show = |watch: &Watch, left: Duration| {
        let growth = Size(watch.growth_bytes());
        let what = format!("watching process {}, which grew by {growth}; ^C ends it", watch.pid());
        with_time_left(&what, left)
    };
    if let (Some(progress), Some(duration)) = (&progress, duration) {
        progress.show(&show(&watch, duration));
    }
    let watched = watch.run(duration, |watch| {
        let seconds = begin.elapsed().as_secs();
        if let (Some(progress), Some(duration)) = (&progress, duration)
            && seconds > shown
            && begin.elapsed() < duration
        {
            shown = seconds;
            progress.show(&show(watch, duration.saturating_sub(begin.elapsed())));
        }
        let event = signals.next(Duration::ZERO)?;
        match &mut child {
            Some(child) => {
                supervise::pass_on(event, child);
                Ok(exit_status(child)?.map(|_| End::Wanted))
            }
            None if matches!(event, Event::Signal { .. }) => Ok(Some(End::Wanted)),
            None => watch.end_of_process(),
        }
    });
    if let Some(progress) = progress {
        progress.erase();
    }
    watched
}

impl Files {
    /// Enters the sandbox of the result, in which only these files can be written.
    pub(crate) fn enter_sandbox(&self, arguments: &WhoArguments) {
        let pending = self.0.iter().map(|(output, _)| output);
        Sandbox::new(arguments.capture.sandbox.options(), pending).begin();
    }

    /// Returns true if one of them is standard output.
    pub(crate) fn take_standard_output(&self) -> bool {
        self.0.iter().any(|(output, _)| output.is_standard_output())
    }

    /// Writes each file: the stacks, or the result with its JSON document.
    pub(crate) fn write(self, stacks: &Stacks, document: &str) -> Result<(), Failure> {
        for (output, format) in self.0 {
            output.write(&match format {
                Format::Page => stacks.html().into_bytes(),
                Format::Json => stacks.speedscope(document).into_bytes(),
                Format::Folded => stacks.folded().into_bytes(),
                Format::Profile => stacks.profile(unix_ms().saturating_mul(1_000_000)).pprof(),
            })?;
        }
        Ok(())
    }
}

/// Writes the files, and prints the result and the notes. Nothing else can be done afterwards.
fn print(watched: Watched, arguments: &WhoArguments, files: Files) -> Result<(), Failure> {
    let who = &watched.who;
    let is_taken = files.take_standard_output();
    files.enter_sandbox(arguments);
    let document = to_json(who, &render::who_summary(who));
    files.write(&Stacks::of_growth(who), &document)?;
    let text = match arguments.json {
        true => document,
        false => render::who(who, terminal::width()),
    };
    terminal::print_beside(is_taken, &text)?;
    for note in watched.notes {
        terminal::complain(note.sentence(explained));
    }
    Ok(())
}
