//! The arguments of `compare`, `record` and `plot`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use diagnosis::Setting;

use crate::arguments::source::CaptureArguments;
use crate::arguments::time::{parse_short_time, parse_time, parse_time_or_never};

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// The settings to compare, separated by commas: default, arena2, jemalloc, tcmalloc, mimalloc, trim, gem. The
    /// first one is the baseline. [default: all that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_setting)]
    pub(crate) with: Vec<Setting>,
    /// Also compare a setting of your own, which sets an environment variable: arena1:MALLOC_ARENA_MAX=1. Repeat this
    /// option with the same NAME for further variables
    #[arg(long = "set", value_name = "NAME:VARIABLE=VALUE", value_parser = parse_variable)]
    pub(crate) variables: Vec<Variable>,
    /// Number of runs under each setting. Three are enough for medium confidence, four for high
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// A shell command that puts load on COMMAND, or on the daemon that it leaves. It must print the output of `wrk
    /// --latency`, or a line of JSON with "requests"
    #[arg(long, value_name = "LINE")]
    pub(crate) load: Option<String>,
    /// Time to wait after the work before the remaining memory is measured. jemalloc needs 10 s to return its memory
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_time)]
    pub(crate) settle: Duration,
    /// The folder of rbloat's gem, which the setting gem needs
    #[arg(long, value_name = "FOLDER")]
    pub(crate) gem: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write comparison.json, comparison.md, comparison.svg and a recording of each run to this folder
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// The program to run, with its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn parse_setting(name: &str) -> Result<Setting, String> {
    Setting::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = Setting::ALL.iter().map(Setting::name).collect();
        format!("no such setting; the settings are {}", names.join(", "))
    })
}

/// An environment variable of a setting that the user defines.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) setting: String,
    pub(crate) name: String,
    pub(crate) value: String,
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

/// The process to record.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RecordedArguments {
    /// The process to record
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<i32>,
    /// A program to start and record, with its arguments. rbloat forwards signals to it, and exits with its status
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    pub(crate) recorded: RecordedArguments,
    /// The file to write [default: rbloat-PID-TIME.jsonl]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also write the samples as comma-separated values
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Stop recording after this time: 60s, 5m, 1h. A program that rbloat started continues
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Time between two samples: 200ms, 1s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_short_time, default_value = "1s")]
    pub(crate) every: Duration,
    /// Time between two searches for the causes; 0 for none
    #[arg(long, value_name = "TIME", value_parser = parse_time_or_never, default_value = "30s")]
    pub(crate) causes_every: Duration,
    /// Also print the confidence intervals of the growth rate
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
}

#[derive(Debug, Args)]
pub(crate) struct PlotArguments {
    /// Recordings, finished or not
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture to write, as .html, .svg or .png
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also print the confidence intervals of the growth rate
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
