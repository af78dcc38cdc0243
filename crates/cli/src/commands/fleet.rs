use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use archive::{QUESTIONS, Question, Settings, VIEWS};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};

use crate::arguments::{parse_date, parse_long_time};
use crate::failure::{Failure, Outcome};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat fleet archive                            answer all questions
  rbloat fleet archive waste --price 4.5          money for a GiB and month
  rbloat fleet archive growth --since 2026-11-20  what grew since a deploy";

#[derive(Debug, Args)]
pub(crate) struct FleetArguments {
    /// The folder of the archive
    #[arg(value_name = "DIR")]
    archive: PathBuf,
    /// The questions [default: all]
    #[arg(value_name = "QUESTION", value_parser = PossibleValuesParser::new(QUESTIONS.map(|it| it.name)))]
    questions: Vec<String>,
    /// The price of a GiB of memory for a month, in any currency
    #[arg(long, value_name = "NUMBER", value_parser = parse_price)]
    price: Option<f64>,
    /// The time of a deploy: 2026-11-20 or 2026-11-20T14:00:00Z
    ///
    /// `growth` compares with the window before it. [default: a window before the latest snapshot]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    since: Option<SystemTime>,
    /// Processes without a snapshot in this time have ended
    ///
    /// It counts back from the latest snapshot in the archive. Growth is also measured in this time.
    #[arg(long, value_name = "TIME", value_parser = parse_long_time, default_value = "1d")]
    window: Duration,
    /// The format of the answers
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print the SQL instead of running it
    #[arg(long)]
    print: bool,
    /// The program of DuckDB
    #[arg(long, value_name = "PROGRAM", default_value = "duckdb", hide_short_help = true)]
    duckdb: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A title and a table for each question.
    Table,
    /// Lines with commas.
    Csv,
    /// An array of objects for each question.
    Json,
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "write a price as 4.5".to_owned())
}

pub(crate) fn run(arguments: &FleetArguments) -> Result<Outcome, Failure> {
    if arguments.print {
        terminal::print(&arguments.sql(|question| question.sql.to_owned()))?;
        return Ok(Outcome::Done);
    }
    let has = |table: &str| arguments.archive.join(table).is_dir();
    if !has("looks") {
        return Err(Failure::NoArchive { path: arguments.archive.clone() });
    }
    let views = archive::duckdb_views(|table| has(table.name));
    let answers = arguments.sql(|question| match arguments.format {
        Format::Table => {
            format!(".print \"{}: {}\"\n{}", question.name, question.title(), question.sql)
        }
        Format::Csv | Format::Json => question.sql.to_owned(),
    });
    answer(arguments, &(views + &answers))?;
    Ok(Outcome::Done)
}

impl FleetArguments {
    /// Returns the statements of the questions, each as `text` writes it.
    fn sql(&self, text: impl Fn(&Question) -> String) -> String {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let since = self.since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        let settings = Settings {
            price: self.price,
            since_ms: since.map(milliseconds),
            window_ms: milliseconds(self.window),
        };
        let is_asked = |question: &&Question| {
            self.questions.is_empty() || self.questions.iter().any(|name| name == question.name)
        };
        let questions = QUESTIONS.iter().filter(is_asked).map(text);
        let views = VIEWS.into_iter().map(str::to_owned);
        let statements = [settings.view()].into_iter().chain(views).chain(questions);
        statements.map(|statement| format!("{};\n\n", statement.trim_end())).collect()
    }
}

/// Runs the statements by DuckDB, which prints the answers.
fn answer(arguments: &FleetArguments, statements: &str) -> Result<(), Failure> {
    let format = match arguments.format {
        Format::Table => "-box",
        Format::Csv => "-csv",
        Format::Json => "-json",
    };
    let program = &arguments.duckdb;
    let not_started = |source| Failure::NoEngine { program: program.clone(), source };
    // A path with a slash is meant from here, but the program starts in the archive, where the paths in the SQL begin.
    let absolute = match program.parent() {
        Some(folder) if folder != Path::new("") => std::path::absolute(program)?,
        _ => program.clone(),
    };
    let mut engine = Command::new(absolute)
        .args(["-no-init", "-batch", "-bail", "-nullvalue", "", format])
        .current_dir(&arguments.archive)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    let written = engine.stdin.take().expect("it is a pipe").write_all(statements.as_bytes());
    let status = engine.wait()?;
    match written {
        // Its own message says why it has ended.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    if status.success() {
        return Ok(());
    }
    Err(Failure::NoAnswer { program: program.clone(), status })
}
