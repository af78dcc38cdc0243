use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use examine::{CaptureOptions, Dumps, KeptLines, ProcessName, Sandbox, SourceName};
use formats::{KeptUnknown, Snapshot, to_json};
use image::Target;
use ledger::Size;
use linux::TickSource;
use linux::proc::wait_until_untraced;

use crate::arguments::{
    CaptureArguments, RetainedArguments, SamplesArguments, parse_size, parse_time,
};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

/// The defaults of `--every` and `--times` for one process.
const EVERY: Duration = Duration::from_secs(60);
const TIMES: u32 = 4;
/// The longest waits for another tracer, such as an agent that captures the process: before the first snapshot, when a debugger is as
/// likely, and before each later one.
const FIRST_WAIT_FOR_TRACER: Duration = Duration::from_secs(5);
const WAIT_FOR_TRACER: Duration = Duration::from_secs(30);

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat diff 4242               take four snapshots, 60 s apart: does it leak?
  rbloat diff 4242 --every 10m   a slow leak, and the lines that made it
  rbloat diff a.rbloat b.rbloat  what grew between two snapshots";

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// Two or more snapshots, core files or processes, oldest first; or one process, of which four snapshots are taken
    ///
    /// Two or three dumps, of `rbloat dump` or ObjectSpace.dump_all, are compared by object: of three, the objects that were born between the
    /// first two and are in the third, with lines and roots.
    #[arg(value_name = "PID|FILE", required = true)]
    sources: Vec<String>,
    /// Time between two snapshots of one process: 60s, 5m [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) every: Option<Duration>,
    /// Number of snapshots [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100))]
    pub(crate) times: Option<u32>,
    /// Exit with 7 if RSS grew by more than this: 50MiB
    ///
    /// The growth is that from the first snapshot to the last one; with --tree, that of the memory of the whole family. For tests of
    /// memory, for example in CI.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    fail_over: Option<u64>,
    /// Compare families of forked processes: do workers lose shared memory?
    ///
    /// Shows how fast the private memory of each worker grows, why pages that it shared were copied, and, if the family grows
    /// steadily, the time until its memory limit. The files are those of `rbloat snapshot --tree`.
    #[arg(long, conflicts_with_all = ["who", "retained", "sysroot"])]
    pub(crate) tree: bool,
    /// Use more ticks for the lines that made what roots keep
    ///
    /// New objects of one process are sampled between at least three snapshots, at the ticks that the kernel has anyway. With --kept there
    /// are as many as of `rbloat who --kept`, which costs the process up to 2 % of a processor. Without CAP_BPF and CAP_PERFMON, and if
    /// the process collects no garbage meanwhile, there are no lines
    #[arg(long, conflicts_with = "tree")]
    kept: bool,
    /// The ticks of the clock in a second of each thread's processor time, with --kept
    #[arg(long, value_name = "TICKS", default_value_t = 200, requires = "kept", hide_short_help = true,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) retained: RetainedArguments,
    #[command(flatten)]
    pub(crate) samples: SamplesArguments,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// For core files: the folder with the files that the processes had mapped, as in `rbloat report`
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    sysroot: Option<PathBuf>,
}

impl DiffArguments {
    /// The number of snapshots of one process.
    fn times(&self) -> u32 {
        self.times.unwrap_or(TIMES)
    }

    /// Complains if memory grew by more than the user allows.
    pub(super) fn grown_too_much(&self, what: &str, bytes: i64) -> Option<Outcome> {
        let grown = u64::try_from(bytes).unwrap_or(0);
        let most = self.fail_over.filter(|&most| grown > most)?;
        let (grown, most) = (Size(grown), Size(most));
        terminal::complain(format!("{what} grew by {grown}, which is more than {most}"));
        Some(Outcome::GrewTooMuch)
    }

    /// Returns true if options are given that are for processes, snapshots and cores.
    pub(super) fn is_of_process(&self) -> bool {
        let repeats = self.every.is_some() || self.times.is_some();
        let limits = self.fail_over.is_some() || self.sysroot.is_some();
        repeats || limits || self.kept || self.retained.retained
    }

    /// Begins to sample the new objects of a process, if it is captured often enough. Only with `--kept` are a refusal and an error
    /// reported.
    fn sampled(
        &self,
        target: &Target,
        how: CaptureOptions,
    ) -> Result<Option<Result<KeptLines, KeptUnknown>>, Failure> {
        let source = if self.kept { TickSource::Any } else { TickSource::Kernel };
        if self.times() < 3 {
            return Ok(None);
        }
        let begun = KeptLines::begin(target, how, self.rate, source);
        if !self.kept {
            return Ok(begun.ok());
        }
        let begun = begun?;
        if let Err(refused) = &begun {
            terminal::complain(render::no_lines(*refused));
        }
        Ok(Some(begun))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, SourceName)> {
        let name = |source: &str| SourceName::of(source, self.sysroot.as_deref());
        self.sources.iter().map(move |source| (source.as_str(), name(source)))
    }
}

pub(crate) fn run(arguments: &DiffArguments) -> Result<Outcome, Failure> {
    if arguments.tree {
        return super::family_diff::run(arguments);
    }
    if arguments.kept && arguments.times == Some(2) {
        return Err(Failure::KeptOfTwo);
    }
    if let Some(dumps) = Dumps::open(arguments.names())? {
        return super::dump::diff(dumps, arguments);
    }
    let names: Vec<_> = arguments.names().collect();
    let samples = arguments.samples.read()?;
    // The last source may be a process that will be captured in hours.
    if let (Some(samples), Some((_, SourceName::Process(name)))) = (&samples, names.last()) {
        samples.check(naming::process(name.clone())?.pid())?;
    }
    let repeats = arguments.every.is_some() || arguments.times.is_some();
    let (how, retained) = (arguments.capture.options(), arguments.retained.retained);
    let sandbox = Sandbox::new(how.sandbox, []);
    let mut profile = None;
    let snapshots = match &names[..] {
        [(_, SourceName::Process(name))] => {
            if let ProcessName::Pid(pid) = *name {
                wait_for_tracer(pid, FIRST_WAIT_FOR_TRACER);
            }
            // Another process may have that name later.
            let target = naming::process(name.clone())?;
            let pid = target.pid();
            let name = SourceName::Process(ProcessName::Pid(pid));
            let mut lines = arguments.sampled(&target, how)?.and_then(|begun| match begun {
                Ok(lines) => Some(lines),
                Err(refused) => {
                    profile = Some(Err(refused));
                    None
                }
            });
            // The next capture needs all rights again.
            let earlier = Sandbox::of_analyses(how.sandbox);
            watch(arguments, |number| {
                let longest = if number > 1 { WAIT_FOR_TRACER } else { FIRST_WAIT_FOR_TRACER };
                wait_for_tracer(pid, longest);
                let is_last = number == arguments.times();
                let progress = Progress::new();
                if let Some(lines) = lines.take_if(|_| is_last) {
                    let source = naming::source(name.clone())?;
                    let (snapshot, made) = lines.end(source, how, retained, &sandbox, &progress)?;
                    progress.erase();
                    profile = made.map_err(terminal::complain).ok();
                    return Ok(snapshot);
                }
                let source = naming::source(name.clone())?;
                let snapshot = source.snapshot(how, retained, &earlier, &progress)?;
                match unread(pid, &snapshot) {
                    // It needs a longer pause, or another way, from the beginning.
                    Some(failure) if number == 1 => Err(failure),
                    _ => Ok(snapshot),
                }
            })
            .and_then(|snapshots| with_enough_read(pid, snapshots))?
        }
        [_] => return Err(Failure::OneSource),
        _ if arguments.kept => return Err(Failure::KeptOfMany),
        many if repeats => return Err(Failure::ManySources(many.len())),
        _ => {
            let open = |(_, name): &(&str, SourceName)| naming::source(name.clone());
            let sources = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            let progress = Progress::new();
            let snapshots = examine::snapshots(sources, how, retained, &sandbox, &progress)?;
            let texts = names.iter().map(|(text, _)| linux::one_line(text));
            let snapshots: Vec<_> = texts.zip(snapshots).collect();
            if let Some((name, _)) = snapshots.iter().find(|it| !is_read(it)) {
                return Err(Failure::NotRead(name.clone()));
            }
            snapshots
        }
    };
    sandbox.begin();
    check_comparable(&snapshots)?;
    let last_read = snapshots.iter().rfind(|it| is_read(it));
    let is_sampled =
        matches!(&profile, Some(made) if !made.as_ref().is_err_and(|it| it.is_refusal()));
    let is_complete =
        (is_sampled || !arguments.kept) && snapshots.iter().all(|it| it.1.report.is_complete());
    let mut diff = diagnosis::growth(&snapshots);
    if let (Some(samples), Some((_, last))) = (samples, snapshots.last()) {
        diff.made_by = Some(diagnosis::made_by(last, &samples.of(last)?));
    }
    if let (Some(profile), Some((_, last))) = (&profile, last_read) {
        diagnosis::add_lines(&mut diff, profile, last);
    }
    let text = if arguments.json {
        to_json(&diff, &render::words::diff_verdict(&diff).summary)
    } else {
        render::diff(&diff, terminal::width())
    };
    terminal::print(&text)?;
    if let (false, Some((argument, last))) = (arguments.json, names.last()) {
        let is_process = matches!(last, SourceName::Process(_));
        let pid = snapshots.last().map(|(_, snapshot)| snapshot.report.process.pid.to_string());
        let words = match &pid {
            Some(pid) if is_process => render::words::command_after_diff(&diff, pid),
            _ => vec!["report", *argument],
        };
        terminal::suggest(&[&["rbloat"][..], &words].concat())?;
    }
    let outcome = if is_complete { Outcome::Done } else { Outcome::Incomplete };
    Ok(arguments.grown_too_much("RSS", diagnosis::rss_growth(&diff)).unwrap_or(outcome))
}

/// Waits for another tracer of the process, and prints that.
fn wait_for_tracer(pid: i32, longest: Duration) {
    if !wait_until_untraced(pid, Duration::ZERO) {
        let seconds = longest.as_secs();
        terminal::complain(format!(
            "another process traces process {pid}: waiting for it, {seconds} s at most"
        ));
        wait_until_untraced(pid, longest);
    }
}

/// Reports the snapshots of a process that were not read. Fails if there are not two others: RSS alone says little.
fn with_enough_read(
    pid: i32,
    snapshots: Vec<(String, Snapshot)>,
) -> Result<Vec<(String, Snapshot)>, Failure> {
    let mut left = snapshots.len();
    for (name, snapshot) in &snapshots {
        let Some(failure) = unread(pid, snapshot) else { continue };
        left -= 1;
        if left < 2 {
            return Err(failure);
        }
        terminal::complain(format!("{name}: {failure}"));
    }
    Ok(snapshots)
}

fn is_read((_, snapshot): &(String, Snapshot)) -> bool {
    snapshot.report.capture.unread.is_none()
}

/// The reason why the memory of a process was not read; `None` if it was.
fn unread(pid: i32, snapshot: &Snapshot) -> Option<Failure> {
    let capture = &snapshot.report.capture;
    let no_copy = capture.no_copy;
    capture.unread.map(|unread| examine::Error::Unread { pid, unread, no_copy }.into())
}

/// Fails if memory that was not read in one of these snapshots would seem to shrink or to grow.
fn check_comparable(snapshots: &[(String, Snapshot)]) -> Result<(), Failure> {
    let read: Vec<_> = snapshots.iter().filter(|it| is_read(it)).collect();
    for pair in read.windows(2) {
        let [(of, earlier), (with, later)] = pair else { unreachable!("pairs") };
        let [earlier, later] = [&earlier.report, &later.report];
        let parts = [
            ("the memory of malloc", earlier.malloc.is_some(), later.malloc.is_some()),
            ("the objects of Ruby", earlier.ruby.is_some(), later.ruby.is_some()),
        ];
        if let Some((what, ..)) = parts.into_iter().find(|(_, earlier, later)| earlier != later) {
            return Err(Failure::NotComparable { of: of.clone(), with: with.clone(), what });
        }
    }
    Ok(())
}

/// Takes something at intervals, by the number of the snapshot. If it cannot be taken any more, such as after the end of the process, those so far are compared.
pub(super) fn watch<T>(
    arguments: &DiffArguments,
    mut take: impl FnMut(u32) -> Result<T, Failure>,
) -> Result<Vec<(String, T)>, Failure> {
    let every = arguments.every.unwrap_or(EVERY);
    let times = arguments.times();
    let started = Instant::now();
    if arguments.every.is_none() && terminal::shows_progress() {
        let seconds = (every * (times - 1)).as_secs();
        terminal::print_error(&format!(
            "taking {times} snapshots over {seconds} s; press ^C to cancel\n"
        ));
    }
    let mut snapshots = Vec::new();
    for number in 1..=times {
        let due = started + every * (number - 1);
        let progress = Progress::new();
        progress.wait_until(due, &format!("waiting for snapshot {number} of {times}"));
        progress.erase();
        match take(number) {
            Ok(snapshot) => snapshots.push((format!("snapshot {number}"), snapshot)),
            Err(failure) if snapshots.len() >= 2 => {
                terminal::complain(format!("snapshot {number} of {times}: {failure}"));
                break;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(snapshots)
}
