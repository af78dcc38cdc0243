use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use clap::Args;
use diagnosis::{KeptSampling, Shape};
use examine::{GrowthWatch, KeptRecording, KeptWatch, ProcessName};
use formats::{EndReason, Line, RecordingEnd, RecordingStart};
use output::{Output, default_path};
use supervise::{Journal, Orphans, Recorder, RecorderOptions, Searches, Signals, unix_ms};

use crate::arguments::{
    CaptureArguments, check_extension, parse_short_time, parse_time, parse_time_or_never,
};
use crate::failure::{Failure, Outcome};
use crate::recording_view::View;
use crate::{naming, terminal};

/// The first capture of a new program waits, since its heap is still empty.
const FIRST_CAUSES_OF_A_NEW_PROGRAM: Duration = Duration::from_secs(2);

/// The samples in the interval after which growth by code is recorded.
const SAMPLES_PER_GROWTH: u32 = 10;

/// The time between two searches for the causes, if the user gives none.
const CAUSES_EVERY: Duration = Duration::from_secs(30);

/// The time between two results of what stays. Each takes a capture.
const KEPT_EVERY: Duration = Duration::from_secs(600);
/// The sampling of what stays. A recording has more time than an observation, so it has half as many ticks.
const KEPT: KeptSampling = KeptSampling { rate: 100, older_than: Duration::from_secs(30) };

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat record 4242                       record it and its children, until ^C
  rbloat record -o a.jsonl -- ruby app.rb  start a program, and record it
  rbloat report a.jsonl -o a.html          draw the recording";

/// The process to record.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RecordedArguments {
    /// The process: its id, or a word of its command line
    ///
    /// No other Ruby process may have the word in its command line. NAMESPACE/POD and the name or id of its container are names, too
    #[arg(value_name = "PID")]
    pub(crate) process: Option<String>,
    /// A program to start and record, with its arguments
    ///
    /// rbloat forwards signals to it, and exits with its status
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    pub(crate) recorded: RecordedArguments,
    /// The file to write [default: rbloat-PID-TIME.jsonl]
    ///
    /// `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also write the samples as comma-separated values
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) csv: Option<PathBuf>,
    /// Stop recording after this time: 60s, 5m, 1h
    ///
    /// A program that rbloat started then gets SIGTERM
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Time between two samples: 200ms, 1s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_short_time, default_value = "1s")]
    pub(crate) every: Duration,
    /// Time between two searches for the causes; 0 for none
    ///
    /// By default 30s, or longer if they would cost more than 0.3 % of a processor. A time that you give is kept up
    /// to a cost of 5 %
    #[arg(long, value_name = "TIME", value_parser = parse_time_or_never)]
    pub(crate) causes_every: Option<Duration>,
    /// Also record which code makes RSS grow, as `rbloat who`
    ///
    /// It also captures the owners of memory when RSS reaches a new peak. `rbloat report FILE` shows both
    #[arg(long)]
    pub(crate) growth: bool,
    /// Also record which lines allocate what stays, as `rbloat who --kept`
    ///
    /// The process itself is watched, with half as many ticks, and not its children. The result so far is written every 10
    /// minutes, and at the end; each time the process is captured. Without CAP_BPF and CAP_PERFMON, no lines are named
    #[arg(long, conflicts_with = "command")]
    pub(crate) kept: bool,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
}

pub(crate) fn run(arguments: &RecordArguments) -> Result<Outcome, Failure> {
    check_extension(arguments.output.as_deref(), "jsonl")?;
    check_extension(arguments.csv.as_deref(), "csv")?;
    match &arguments.recorded.process {
        Some(name) => {
            let pid = match ProcessName::from(name.as_str()) {
                // It need not be a Ruby process.
                ProcessName::Pid(pid) => linux::check(pid).map(|()| pid)?,
                name => naming::process(name)?.pid(),
            };
            let signals = Signals::block(false)?;
            record(arguments, pid, None, None, &signals)?;
            Ok(Outcome::Done)
        }
        None => start_and_record(arguments),
    }
}

/// Starts a program and records it, for a time if one is given. The program and its orphans continue if the recording
/// fails.
fn start_and_record(arguments: &RecordArguments) -> Result<Outcome, Failure> {
    let signals = Signals::block(true)?;
    let orphans = Orphans::take_in();
    let mut child = start(&arguments.recorded.command)?;
    let pid = child.id().cast_signed();
    let recorded = record(arguments, pid, Some(&mut child), Some(&orphans), &signals);
    if recorded.as_ref().is_ok_and(|end| end.why == EndReason::TimeOver) {
        supervise::terminate(&child);
        terminal::complain("the program was asked to end; waiting for it");
    }
    let status = signals.wait_for(&mut child, &orphans)?;
    recorded?;
    let left: Vec<String> = orphans.look(&[]).iter().map(i32::to_string).collect();
    if !left.is_empty() {
        terminal::complain(format!(
            "processes that the program started are still running: {}",
            left.join(", ")
        ));
    }
    Ok(Outcome::Ended(shell_status(status)))
}

/// Starts a program in rbloat's own environment.
pub(crate) fn start(command: &[OsString]) -> Result<Child, Failure> {
    let (program, words) = command.split_first().expect("clap requires a program");
    linux::unblock_signals(Command::new(program).args(words))
        .spawn()
        .map_err(|source| supervise::Error::NotStarted { program: program.into(), source }.into())
}

/// Returns the exit status as in a shell: 128 plus the signal's number if a signal ended the program.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn record(
    arguments: &RecordArguments,
    pid: i32,
    child: Option<&mut Child>,
    orphans: Option<&Orphans>,
    signals: &Signals,
) -> Result<RecordingEnd, Failure> {
    let unix_ms = unix_ms();
    let path = arguments.output.clone().unwrap_or_else(|| default_path(&pid.to_string(), "jsonl"));
    let csv = arguments.csv.as_deref().map(Output::open).transpose()?;
    let file = Output::open(&path)?;
    // The output of a program that rbloat started has the terminal for itself, and so has a recording.
    let is_taken = child.is_some()
        || [Some(&file), csv.as_ref()].into_iter().flatten().any(Output::is_standard_output);
    let csv = csv.map(Output::publish).transpose()?;
    let mut journal = Journal::new(file.publish()?, csv)?;
    let words =
        |words: &[OsString]| words.iter().map(|it| it.to_string_lossy().into_owned()).collect();
    let causes_every =
        Some(arguments.causes_every.unwrap_or(CAUSES_EVERY)).filter(|every| !every.is_zero());
    let start = RecordingStart {
        rbloat: env!("CARGO_PKG_VERSION").into(),
        unix_ms,
        pid,
        command: child.is_some().then(|| words(&arguments.recorded.command)),
        every_ms: arguments.every.as_millis() as u64,
        causes_every_ms: causes_every.map(|every| every.as_millis() as u64),
        label: None,
    };
    journal.write(&Line::Start(start))?;
    let how = arguments.capture.options();
    let interval = arguments.every * SAMPLES_PER_GROWTH;
    let growth = match arguments.growth.then(|| GrowthWatch::begin(pid, how, interval)) {
        // The recording has the program's end.
        Some(Err(failure)) if failure.is_end() && child.is_some() => None,
        growth => growth.transpose()?,
    };
    let begin_kept = || -> Result<_, Failure> {
        Ok(KeptWatch::begin(&naming::process(ProcessName::Pid(pid))?, how, KEPT)?)
    };
    let kept = arguments.kept.then(begin_kept).transpose()?;
    let refused = kept.as_ref().and_then(KeptWatch::refused);
    refused.map(render::no_lines).into_iter().for_each(terminal::complain);
    let mut view = View::new(
        how,
        is_taken,
        growth,
        kept.map(|it| KeptRecording::begin(KEPT_EVERY, || Ok(it))),
    );
    view.print(&format!("recording process {pid} into {}", path.display()));
    let options = RecorderOptions {
        every: arguments.every,
        causes_every,
        causes_are_requested: arguments.causes_every.is_some(),
        first_causes: if child.is_some() { FIRST_CAUSES_OF_A_NEW_PROGRAM } else { Duration::ZERO },
        peaks: arguments.growth,
        duration: arguments.duration,
    };
    let mut recorder = Recorder::new(options, pid, orphans, journal, &mut view);
    let end = recorder.run(child, signals)?;
    let series = recorder.series();
    let stable_point = render::stable_point(series);
    let is_growing = matches!(series.stable_point().shape, Shape::Growth { .. });
    let is_family = series.max_processes() > 1;
    let searches = recorder.searches();
    view.print(&render::recording_end(pid, &end));
    if let Some(Searches { made, planned, limited_to }) = searches
        && made < planned
    {
        view.print(&render::fewer_searches(made, planned, limited_to));
    }
    view.print(&stable_point);
    let kept = view.kept().map(|it| render::kept(it, terminal::width()));
    kept.into_iter().for_each(|kept| view.print(&kept));
    if let Some(failure) = view.kept_failure() {
        terminal::complain(failure);
    }
    let picture = path.with_extension("html").display().to_string();
    if !is_taken {
        let (process, path) = (pid.to_string(), path.display().to_string());
        let next: &[&str] = match end.why {
            EndReason::TargetEnded => &["report", &path, "-o", &picture],
            _ if !is_growing => &["report", &path, "-o", &picture],
            _ if is_family => &["diff", "--tree", &process],
            _ => &["diff", &process],
        };
        terminal::suggest(&[&["rbloat"], next].concat())?;
    }
    Ok(end)
}
