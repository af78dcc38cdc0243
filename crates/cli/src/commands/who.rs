use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use capture::proc::{self, Tree};
use clap::Args;
use formats::{Who, to_json};
use sampler::{Program, Sampler};
use supervise::{Event, Orphans, Signals};

use crate::arguments::{CaptureArguments, ProcessName, parse_time};
use crate::attempts;
use crate::commands::record::{shell_status, start};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::terminal;

/// The time for which a process is watched, if the user gives none.
const WATCHED: Duration = Duration::from_secs(60);
/// The longest wait for samples, after which signals are looked for.
const STEP: Duration = Duration::from_millis(100);
/// The time between two attempts to derive the layouts of a process, at first; each time it doubles.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Attempts for each process.
const MAX_TRIES: u32 = 8;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat who 4242              which code makes it grow, for 60 s
  rbloat who 4242 -o who.html  the same as a flame graph
  rbloat who -- ruby job.rb    of a program, until it ends";

/// The process to watch.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct WatchedArguments {
    /// The process to watch
    #[arg(value_name = "PID")]
    pid: Option<i32>,
    /// A program to start and watch, with its arguments. rbloat forwards signals to it, and exits with its status
    ///
    /// The result follows its output
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct WhoArguments {
    #[command(flatten)]
    pub(crate) watched: WatchedArguments,
    /// Stop after this time: 60s, 5m [default: 60s for a process; a program is watched until it ends]
    ///
    /// A program that rbloat started then gets SIGTERM
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a flame graph, one HTML file that opens in any browser without network
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write the stacks for flame graph tools: a line for each, frames separated by semicolons, and bytes
    #[arg(long, value_name = "FILE")]
    pub(crate) folded: Option<PathBuf>,
    /// Write the stacks for speedscope (JSON)
    #[arg(long, value_name = "FILE")]
    pub(crate) speedscope: Option<PathBuf>,
    /// Count page faults every 20 ms instead of sampling them, as rbloat does if the kernel does not allow events
    #[arg(long)]
    pub(crate) poll: bool,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
}

/// The files to write.
struct Files {
    page: Option<Output>,
    folded: Option<Output>,
    speedscope: Option<Output>,
}

pub(crate) fn run(arguments: &WhoArguments) -> Result<Outcome, Failure> {
    let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
    let files = Files {
        page: open(&arguments.output)?,
        folded: open(&arguments.folded)?,
        speedscope: open(&arguments.speedscope)?,
    };
    match arguments.watched.pid {
        Some(pid) => {
            let pid = crate::process::find(ProcessName::Pid(pid))?;
            let signals = Signals::block(false)?;
            let program = attempts::read_image(pid, arguments.capture, Program::derive)?;
            let duration = arguments.duration.or(Some(WATCHED));
            let mut watch = Watch::begin(pid, arguments, duration)?;
            watch.sampler.learn(&program);
            let who = watch.until_end(&signals, None)?;
            print(&who, arguments.json, files)?;
            Ok(Outcome::Done)
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
    let who = Watch::begin(pid, arguments, arguments.duration)
        .and_then(|watch| watch.until_end(&signals, Some(&mut child)));
    if who.is_ok() && child.try_wait().is_ok_and(|status| status.is_none()) {
        supervise::terminate(&child);
    }
    let status = signals.wait_for(&mut child, &orphans)?;
    print(&who?, arguments.json, files)?;
    Ok(Outcome::Ended(shell_status(status)))
}

/// An observation.
struct Watch {
    pid: i32,
    command: String,
    sampler: Sampler,
    capture: CaptureArguments,
    end: Option<Instant>,
    /// For each process without a known program the time of the next attempt to derive it, and the number of attempts.
    tries: HashMap<i32, (Instant, u32)>,
}

impl Watch {
    fn begin(
        pid: i32,
        arguments: &WhoArguments,
        duration: Option<Duration>,
    ) -> Result<Self, Failure> {
        let members = Tree::new(pid).look();
        let others: Vec<i32> =
            members.iter().map(|member| member.pid).filter(|&it| it != pid).collect();
        Ok(Self {
            pid,
            command: proc::command_line(pid)?,
            sampler: Sampler::begin(pid, &others, arguments.poll)?,
            capture: arguments.capture,
            end: duration.map(|duration| Instant::now() + duration),
            tries: HashMap::new(),
        })
    }

    /// Watches until the time is over, a signal arrives, or the process ends.
    fn until_end(
        mut self,
        signals: &Signals,
        mut child: Option<&mut Child>,
    ) -> Result<Who, Failure> {
        while self.end.is_none_or(|end| Instant::now() < end) {
            self.sampler.step(STEP)?;
            self.derive();
            let event = signals.next(Duration::ZERO)?;
            let has_ended = match &mut child {
                Some(child) => {
                    supervise::pass_on(event, child);
                    child.try_wait().is_ok_and(|status| status.is_some())
                }
                None => matches!(event, Event::Signal { .. }) || !self.lives(),
            };
            if has_ended {
                break;
            }
        }
        Ok(diagnosis::who(self.pid, &self.command, &self.sampler.end()))
    }

    /// A process lives on if its main thread ends and others do not.
    fn lives(&self) -> bool {
        let main = proc::thread_state(self.pid, self.pid);
        main.is_some_and(|state| !matches!(state, 'Z' | 'X'))
            || proc::threads(self.pid).is_ok_and(|threads| !threads.is_empty())
    }

    /// Derives the layouts of processes that have begun to run another program. Until Ruby is ready, that fails.
    fn derive(&mut self) {
        let now = Instant::now();
        for pid in self.sampler.unknown_processes() {
            let (next, tries) = self.tries.entry(pid).or_insert((now + FIRST_RETRY, 0));
            if now < *next || *tries >= MAX_TRIES {
                continue;
            }
            *tries += 1;
            *next = now + FIRST_RETRY * (1 << *tries);
            let is_ruby = capture::look(pid).is_ok_and(|image| ruby::find(&image).is_some());
            if !is_ruby {
                continue;
            }
            if let Ok(program) = attempts::read_image(pid, self.capture, Program::derive) {
                self.sampler.learn(&program);
            }
        }
    }
}

fn print(who: &Who, json: bool, files: Files) -> Result<(), Failure> {
    let outputs = [
        (files.page, render::who_html as fn(&Who) -> String),
        (files.folded, render::folded),
        (files.speedscope, render::speedscope),
    ];
    for (output, text) in outputs {
        if let Some(output) = output {
            output.write(text(who).as_bytes())?;
        }
    }
    let text = match json {
        true => to_json(who, &render::who_summary(who)),
        false => render::who(who, terminal::width()),
    };
    Ok(terminal::print(&text)?)
}
