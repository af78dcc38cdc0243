use std::path::Path;
use std::time::{Duration, Instant};

use diagnosis::{Environment, Setting, Workload};
use formats::{FailedRun, MissingSetting, Run, TriedSetting, to_json};
use supervise::{Loaded, Orphans, Signals, Until, Used, Work, parse_load};

use crate::allocator_call::AllocatorCall;
use crate::arguments::{CompareArguments, Variable};
use crate::comparison_folder::ComparisonFolder;
use crate::failure::{Failure, Outcome};
use crate::{terminal, trimming};

/// How long a command may take to be ready for its load, where it is never idle.
const BOOT: Duration = Duration::from_secs(60);
/// No work takes longer, nor does a load.
const WORK: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn run(arguments: &CompareArguments) -> Result<Outcome, Failure> {
    // The command gets ^C from the terminal too; what was measured until then is kept, and no process is left running.
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
        // In turns, and each time another one first: what the machine does meanwhile meets all alike.
        for place in 0..settings.len() {
            let (setting, environment) = &settings[(place + number as usize - 1) % settings.len()];
            let done = runs.len() + failed.len();
            say_progress(setting.name(), number, done, all, started.elapsed());
            let recording = folder.as_ref().map(|it| it.recording(setting.name(), number));
            let work = start(arguments, setting, environment, recording.as_deref(), &orphans)?;
            let measured = measure(arguments, setting, number, work, &signals)?;
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
        anstream::eprintln!("rbloat: interrupted; {} of {all} runs were measured", runs.len());
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
    } else {
        render::comparison(&comparison)
    };
    // It took hours maybe, and is told also where it cannot be written any more.
    terminal::print(&text)?;
    written?;
    let is_whole = comparison.failed.is_empty() && !is_interrupted;
    Ok(if is_whole { Outcome::Done } else { Outcome::Incomplete })
}

/// The words of the command.
fn words(arguments: &CompareArguments) -> Vec<String> {
    arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The settings that can be tried, with their environments, and those that cannot.
fn settings(arguments: &CompareArguments) -> (Vec<(Setting, Environment)>, Vec<MissingSetting>) {
    let options = std::env::var("RUBYOPT").unwrap_or_default();
    let gem = arguments.gem.as_ref().and_then(|gem| gem.canonicalize().ok());
    let mut settings = Vec::new();
    let mut missing = Vec::new();
    for setting in wanted(arguments) {
        match setting.environment(gem.as_deref(), &options) {
            Some(environment) => settings.push((setting, environment)),
            None => missing.push(MissingSetting {
                setting: setting.name().into(),
                needs: setting.needs().unwrap_or_default().into(),
            }),
        }
    }
    (settings, missing)
}

/// The settings that are asked for, then the user's own, each once: named twice, it would be held against itself.
fn wanted(arguments: &CompareArguments) -> Vec<Setting> {
    let named = if arguments.with.is_empty() { &Setting::ALL[..] } else { &arguments.with };
    let mut wanted: Vec<Setting> = Vec::new();
    for setting in named {
        if !wanted.contains(setting) {
            wanted.push(setting.clone());
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

/// On standard error, which is no part of the result.
fn say_progress(setting: &str, number: u32, done: usize, all: usize, elapsed: Duration) {
    let left = if done == 0 {
        String::new()
    } else {
        let seconds = elapsed.as_secs_f64() / done as f64 * (all - done) as f64;
        format!(", some {:.0} s left", seconds.ceil())
    };
    anstream::eprintln!("rbloat: {} of {all}: {setting}, run {number}{left}", done + 1);
}

/// What came of a run.
enum Measured {
    Run(Box<Run>),
    Failed(String),
    Interrupted,
}

/// Starts the work under a setting, and writes down its run, where that is wanted.
fn start<'a>(
    arguments: &CompareArguments,
    setting: &Setting,
    environment: &Environment,
    recording: Option<&Path>,
    orphans: &'a Orphans,
) -> Result<Work<'a>, Failure> {
    let is_server = arguments.load.is_some();
    let mut work = Work::start(&arguments.command, environment, orphans, is_server, |error| {
        anstream::eprintln!("rbloat: {error}");
    })?;
    if let Some(path) = recording {
        work.record(path, words(arguments), setting.name());
    }
    Ok(work)
}

fn measure(
    arguments: &CompareArguments,
    setting: &Setting,
    number: u32,
    mut work: Work<'_>,
    signals: &Signals,
) -> Result<Measured, Failure> {
    let boot = if arguments.load.is_some() { BOOT } else { WORK };
    let until = work.watch(boot, true, signals)?;
    let done = match until {
        Until::Idle(since) => since,
        _ => Instant::now(),
    };
    let mut load = None;
    let mut wall = work.since_start(done);
    let mut before = work.used();
    if let Some(line) = &arguments.load
        && matches!(until, Until::Idle(_) | Until::Over)
    {
        match work.put_load(line, signals)? {
            Loaded::Interrupted => return Ok(Measured::Interrupted),
            Loaded::Failed(why) => return Ok(Measured::Failed(why)),
            Loaded::Done(took, printed) => match parse_load(&printed) {
                Ok(measured) => (load, wall) = (Some(measured), took),
                Err(error) => return Ok(Measured::Failed(error.to_string())),
            },
        }
    } else {
        before = Used::default();
    }
    if until == Until::Interrupted {
        return Ok(Measured::Interrupted);
    }
    if let Some(why) = work.complaint() {
        return Ok(Measured::Failed(why));
    }
    if until == Until::Ended && arguments.load.is_some() {
        return Ok(Measured::Failed("it ended before the load could begin".into()));
    }
    let used = work.used();
    let rss_end_bytes = work.rss_bytes();
    let peak = work.samples.iter().map(|sample| sample.rss_bytes).max().unwrap_or(0);
    let mut rss_settled_bytes = None;
    if until != Until::Ended {
        if *setting == Setting::Trim && !trim(&work) {
            let why = "`rbloat trim` did nothing: no process of it is a Ruby that can be trimmed";
            return Ok(Measured::Failed(why.into()));
        }
        match work.watch(arguments.settle, false, signals)? {
            Until::Interrupted => return Ok(Measured::Interrupted),
            Until::Ended => {}
            Until::Idle(_) | Until::Over => rss_settled_bytes = Some(work.rss_bytes()),
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Measured::Run(Box::new(Run {
        setting: setting.name().into(),
        number,
        rss_peak_bytes: peak.max(rss_end_bytes),
        rss_end_bytes,
        rss_settled_bytes,
        wall_ms: ms(wall),
        user_ms: ms(used.user.saturating_sub(before.user)),
        system_ms: ms(used.system.saturating_sub(before.system)),
        minor_faults: used.minor_faults.saturating_sub(before.minor_faults),
        major_faults: used.major_faults.saturating_sub(before.major_faults),
        load,
        samples: std::mem::take(&mut work.samples),
    })))
}

/// Trims every Ruby process of the work. Returns true if there was one.
fn trim(work: &Work<'_>) -> bool {
    let trimmed = work.pids().filter(|&pid| {
        let is_ruby = capture::look(pid).is_ok_and(|image| ruby::find(&image).is_some());
        is_ruby && AllocatorCall::find(pid).and_then(|call| trimming::trim(pid, &call)).is_ok()
    });
    trimmed.count() > 0
}
