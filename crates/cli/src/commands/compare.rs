use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use diagnosis::{Environment, Setting, Workload};
use examine::AllocatorCall;
use formats::{FailedRun, MissingSetting, TriedSetting, to_json};
use supervise::{Journal, Measured, MeasuredProgram, Orphans, RunPlan, Signals};

use crate::arguments::parse_time;
use crate::comparison_folder::ComparisonFolder;
use crate::failure::{Failure, Outcome};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat compare -- ruby job.rb                    under each allocator
  rbloat compare --with default,trim -- job.rb     under two settings
  rbloat compare --load 'wrk --latency -d10 http://localhost:3000' -- bin/puma";

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// The settings to compare, separated by commas
    ///
    /// They are: default, arena2, jemalloc, jemalloc-background (with background_thread:true), jemalloc-decay1s
    /// (dirty_decay_ms:1000), jemalloc-arena2 (narenas:2), tcmalloc, mimalloc, trim, and gem. By default all that are
    /// installed but jemalloc-decay1s and jemalloc-arena2. The first one is the baseline.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_setting)]
    pub(crate) with: Vec<Setting>,
    /// Also compare a setting of your own: arena1:MALLOC_ARENA_MAX=1
    ///
    /// It sets an environment variable. Repeat this option with the same NAME for further variables
    #[arg(
        long = "set",
        value_name = "NAME:VARIABLE=VALUE",
        value_parser = parse_variable,
        hide_short_help = true
    )]
    pub(crate) variables: Vec<Variable>,
    /// Number of runs under each setting
    ///
    /// One run finds no difference. Three find differences of 10 % if the noise is 1 %. Ten find most differences of
    /// 4 % in noise of 2 %. High confidence takes seven
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// A shell command that puts load on COMMAND
    ///
    /// The load may be on the daemon that COMMAND leaves. It must print the output of `wrk --latency`, or a line of JSON with "requests"
    #[arg(long, value_name = "LINE")]
    pub(crate) load: Option<String>,
    /// Time to wait before the remaining memory is measured
    ///
    /// It begins after the work. jemalloc needs 10 s to return its memory
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_time)]
    pub(crate) settle: Duration,
    /// The folder of rbloat's gem, for the setting gem. [default: the gem that is installed for COMMAND's Ruby]
    #[arg(long, value_name = "FOLDER", hide_short_help = true)]
    pub(crate) gem: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the comparison and its recordings to this folder
    ///
    /// The files are comparison.json, comparison.md, comparison.svg and a recording of each run
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// The program to run, with its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// An environment variable of a setting that the user defines.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) setting: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

pub(crate) fn run(arguments: &CompareArguments) -> Result<Outcome, Failure> {
    // ^C in a terminal also reaches the command. The runs measured so far are reported, and no process is left running.
    let signals = Signals::block(false)?;
    let orphans = Orphans::take_in();
    let (settings, missing) = settings(arguments);
    if settings.is_empty() {
        let needs: Vec<_> =
            missing.iter().map(|it| format!("{} needs {}", it.setting, it.needs)).collect();
        return Err(Failure::NoSetting { needs: needs.join("; ") });
    }
    let mut folder = arguments.output.as_deref().map(ComparisonFolder::create).transpose()?;
    let mut runs = Vec::new();
    let mut failed = Vec::new();
    let mut is_interrupted = false;
    let started = Instant::now();
    let all = arguments.runs as usize * settings.len();
    'measuring: for number in 1..=arguments.runs {
        // In turns, each round beginning with another setting, so that other load on the machine affects all alike.
        for place in 0..settings.len() {
            let (setting, environment) = &settings[(place + number as usize - 1) % settings.len()];
            let done = runs.len() + failed.len();
            say_progress(setting.name(), number, done, all, started.elapsed());
            // Without a recording, the run is measured all the same.
            let recording = folder.as_ref().and_then(|folder| {
                let created = folder.record(setting.name(), number);
                created.inspect_err(|error| terminal::complain(error)).ok()
            });
            let (recording, journal) = recording.unzip();
            let program = start(arguments, setting, environment, journal, &orphans)?;
            let plan = RunPlan {
                setting: setting.name(),
                number,
                load: arguments.load.as_deref(),
                settle: arguments.settle,
                trim: if *setting == Setting::Trim { Some(&trim) } else { None },
            };
            let measured = plan.measure(program, &signals)?;
            if let (Some(folder), Some(recording)) = (&mut folder, recording) {
                folder.keep(recording, matches!(measured, Measured::Run(_)));
            }
            match measured {
                Measured::Run(run) => runs.push(*run),
                Measured::Failed(why) => {
                    failed.push(FailedRun { setting: setting.name().into(), number, why });
                }
                Measured::Interrupted => {
                    is_interrupted = true;
                    break 'measuring;
                }
            }
        }
    }
    if runs.is_empty() {
        let first = failed.into_iter().next();
        return Err(first.map_or(Failure::NothingMeasured, |failed| Failure::NoRun {
            setting: failed.setting,
            why: failed.why,
        }));
    }
    if is_interrupted {
        terminal::complain(format!("interrupted; {} of {all} runs were measured", runs.len()));
    }
    let workload = Workload {
        command: words(arguments),
        load: arguments.load.clone(),
        settle_seconds: arguments.settle.as_secs_f64(),
    };
    let parts = settings.iter().map(|(setting, environment)| TriedSetting {
        setting: setting.name().into(),
        environment: environment.set.clone(),
    });
    let comparison = diagnosis::compare(workload, parts.collect(), missing, runs, failed);
    let written = folder.map_or(Ok(()), |folder| folder.write(&comparison));
    let text = if arguments.json {
        to_json(&comparison, &render::recommendation(&comparison))
    } else if terminal::is_interactive() {
        render::comparison_on_terminal(&comparison, terminal::width())
    } else {
        render::comparison(&comparison)
    };
    // Printed even if the folder could not be written: the comparison may have taken hours.
    terminal::print(&text)?;
    written?;
    if !arguments.json {
        match &arguments.output {
            Some(folder) => {
                let picture = folder.join("comparison.svg").display().to_string();
                terminal::suggest(&["xdg-open", &picture])?;
            }
            None => {
                let command = words(arguments);
                let command = command.iter().map(String::as_str);
                let start = ["rbloat", "compare", "--runs", "7", "-o", "comparison", "--"];
                terminal::suggest(&start.into_iter().chain(command).collect::<Vec<_>>())?;
            }
        }
    }
    let is_whole = comparison.failed.is_empty() && !is_interrupted;
    Ok(if is_whole { Outcome::Done } else { Outcome::Incomplete })
}

/// The words of the command.
fn words(arguments: &CompareArguments) -> Vec<String> {
    arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The settings that can be tried, with their environments, and the settings that cannot.
fn settings(arguments: &CompareArguments) -> (Vec<(Setting, Environment)>, Vec<MissingSetting>) {
    let options = std::env::var("RUBYOPT").unwrap_or_default();
    let wanted = wanted(arguments);
    let gem = wanted.contains(&Setting::Gem).then(|| gem(arguments));
    let mut settings = Vec::new();
    let mut missing = Vec::new();
    for setting in wanted {
        let folder = gem.as_ref().and_then(|gem| gem.as_deref().ok());
        if let Some(environment) = setting.environment(folder, &options) {
            settings.push((setting, environment));
            continue;
        }
        let needs = match (&setting, &gem) {
            (Setting::Gem, Some(Err(needs))) => needs.as_str(),
            _ => setting.needs().unwrap_or_default(),
        };
        missing.push(MissingSetting { setting: setting.name().into(), needs: needs.into() });
    }
    (settings, missing)
}

/// The folder of rbloat's gem. The error is the requirement that is missing.
fn gem(arguments: &CompareArguments) -> Result<PathBuf, String> {
    match &arguments.gem {
        Some(folder) => folder
            .canonicalize()
            .map_err(|error| format!("the gem's folder (--gem {}: {error})", folder.display())),
        None => supervise::installed_gem(&arguments.command),
    }
}

/// The requested settings, then the user's own, each once: otherwise a setting would be compared with itself.
fn wanted(arguments: &CompareArguments) -> Vec<Setting> {
    let named = if arguments.with.is_empty() { Setting::usual() } else { arguments.with.clone() };
    let mut wanted: Vec<Setting> = Vec::new();
    for setting in named {
        if !wanted.contains(&setting) {
            wanted.push(setting);
        }
    }
    for Variable { setting, name, value } in &arguments.variables {
        let variable = (name.clone(), value.clone());
        let own = wanted.iter_mut().find_map(|it| match it {
            Setting::Own(name, variables) if name == setting => Some(variables),
            _ => None,
        });
        match own {
            Some(variables) => variables.push(variable),
            None => wanted.push(Setting::Own(setting.clone(), vec![variable])),
        }
    }
    wanted
}

/// Prints progress to standard error.
fn say_progress(setting: &str, number: u32, done: usize, all: usize, elapsed: Duration) {
    let left = if done == 0 {
        String::new()
    } else {
        let seconds = elapsed.as_secs_f64() / done as f64 * (all - done) as f64;
        format!(", about {:.0} s left", seconds.ceil())
    };
    if !terminal::is_quiet() {
        terminal::complain(format!("{} of {all}: {setting}, run {number}{left}", done + 1));
    }
}

/// Starts the program under a setting, and records it if there is a journal.
fn start<'a>(
    arguments: &CompareArguments,
    setting: &Setting,
    environment: &Environment,
    journal: Option<Journal>,
    orphans: &'a Orphans,
) -> Result<MeasuredProgram<'a>, Failure> {
    let is_server = arguments.load.is_some();
    let mut program =
        MeasuredProgram::start(&arguments.command, environment, orphans, is_server, |error| {
            terminal::complain(&error);
        })?;
    if let Some(journal) = journal {
        program.record(journal, words(arguments), setting.name());
    }
    Ok(program)
}

/// Trims every Ruby process of a program. Returns true if there was one.
fn trim(program: &MeasuredProgram<'_>) -> bool {
    let trimmed = program.pids().filter(|&pid| {
        let Ok(Some(target)) = examine::ruby(pid) else { return false };
        AllocatorCall::find(&target).and_then(|call| examine::trim(&call)).is_ok()
    });
    trimmed.count() > 0
}

fn parse_setting(name: &str) -> Result<Setting, String> {
    Setting::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = Setting::ALL.iter().map(Setting::name).collect();
        format!("no such setting; the settings are {}", names.join(", "))
    })
}

fn parse_variable(text: &str) -> Result<Variable, String> {
    let (setting, assignment) =
        text.split_once(':').ok_or("it must begin with the name of the setting and a colon")?;
    let (name, value) = assignment.split_once('=').ok_or("VARIABLE=VALUE must follow the colon")?;
    // The name appears in a cell of a Markdown table.
    let is_plain = |it: char| it.is_alphanumeric() || " -_.+".contains(it);
    if !setting.starts_with(char::is_alphanumeric) || !setting.chars().all(is_plain) {
        let rule = "letters, digits, spaces or -_.+, the first one a letter or digit";
        return Err(format!("the setting needs a name of {rule}"));
    }
    if Setting::by_name(setting).is_some() {
        return Err(format!("{setting} is a built-in setting; choose another name"));
    }
    if name.is_empty() {
        return Err("the variable needs a name".into());
    }
    let (setting, name, value) = (setting.into(), name.into(), value.into());
    Ok(Variable { setting, name, value })
}
