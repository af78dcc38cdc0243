//! What runs for a while: comparisons and recordings, and what is drawn of these.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use diagnosis::Setting;

use crate::arguments::source::CaptureArguments;
use crate::arguments::time::{parse_short_time, parse_time, parse_time_or_never};

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// What to compare, with commas: default, arena2, jemalloc, tcmalloc, mimalloc, trim, gem. The first is what the
    /// others are held against. [default: all that are installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_setting)]
    pub(crate) with: Vec<Setting>,
    /// A variable of a setting of your own, which is compared as well: arena1:MALLOC_ARENA_MAX=1. Once for each
    /// variable
    #[arg(long = "set", value_name = "NAME:VARIABLE=VALUE", value_parser = parse_variable)]
    pub(crate) variables: Vec<Variable>,
    /// How often each runs: with three a difference can be told from noise, with five for sure
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// A load on COMMAND, or on the daemon that it leaves: a line of shell that prints what wrk prints (--latency), or a
    /// line of JSON
    #[arg(long, value_name = "LINE")]
    pub(crate) load: Option<String>,
    /// How long to wait after the work before what is left is measured: jemalloc needs 10 s to give back
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = parse_time)]
    pub(crate) settle: Duration,
    /// The folder of rbloat's gem, for the setting gem
    #[arg(long, value_name = "FOLDER")]
    pub(crate) gem: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write comparison.json, comparison.md, comparison.svg and a recording of each run into this folder
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// The work
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn parse_setting(name: &str) -> Result<Setting, String> {
    Setting::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = Setting::ALL.iter().map(Setting::name).collect();
        format!("there is no such setting; there are {}", names.join(", "))
    })
}

/// A variable of the environment that a setting of the user's makes.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) setting: String,
    pub(crate) name: String,
    pub(crate) value: String,
}

fn parse_variable(text: &str) -> Result<Variable, String> {
    let (setting, assignment) =
        text.split_once(':').ok_or("a setting's name and a colon come first")?;
    let (name, value) = assignment.split_once('=').ok_or("it is VARIABLE=VALUE")?;
    // It stands in the cell of a table.
    let is_plain = |it: char| it.is_alphanumeric() || " -_.+".contains(it);
    if !setting.starts_with(char::is_alphanumeric) || !setting.chars().all(is_plain) {
        return Err("the setting needs a name of letters and digits".into());
    }
    if Setting::by_name(setting).is_some() {
        return Err(format!("{setting} is a setting already: take another name"));
    }
    if name.is_empty() {
        return Err("the variable needs a name".into());
    }
    let (setting, name, value) = (setting.into(), name.into(), value.into());
    Ok(Variable { setting, name, value })
}

/// What is recorded.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RecordedArguments {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<i32>,
    /// A program to start, with its arguments; signals and its exit status are passed on
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
    /// Write the samples as comma-separated values too
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Stop recording after this time: 60s, 5m, 1h; a program that was started runs on
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<Duration>,
    /// Count after each such time: 200ms, 1s, 1m
    #[arg(long, value_name = "TIME", value_parser = parse_short_time, default_value = "1s")]
    pub(crate) every: Duration,
    /// Look for the causes after each such time; with 0 never
    #[arg(long, value_name = "TIME", value_parser = parse_time_or_never, default_value = "30s")]
    pub(crate) causes_every: Duration,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
}

#[derive(Debug, Args)]
pub(crate) struct PlotArguments {
    /// Files that `rbloat record` wrote, or still writes
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture to write; the end of its name says as what: .html, .svg or .png
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
