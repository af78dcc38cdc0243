use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use archive::{FUTURE, QUESTIONS, Question, Settings, VIEWS};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use render::Answer;

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
    /// Leave out later snapshots, as a machine with a wrong clock has them [default: now]
    #[arg(long, value_name = "DATE", value_parser = parse_date, hide_short_help = true)]
    as_of: Option<SystemTime>,
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
    /// Lines with commas, below a title if there are several questions.
    Csv,
    /// An object with an array of rows for each question.
    Json,
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "write a price as 4.5".to_owned())
}

pub(crate) fn run(arguments: &FleetArguments) -> Result<Outcome, Failure> {
    if arguments.print {
        terminal::print(&arguments.sql(&arguments.asked(), |question| question.sql.to_owned()))?;
        return Ok(Outcome::Done);
    }
    let has = |table: &str| arguments.archive.join(table).is_dir();
    if !has("looks") {
        return Err(Failure::NoArchive { path: arguments.archive.clone() });
    }
    let asked = arguments.asked();
    let views = archive::duckdb_views(|table| has(table.name));
    let questions: Vec<_> = [FUTURE].into_iter().chain(asked.iter().copied()).collect();
    let statements =
        arguments.sql(&questions, |question| render::duckdb_mark(question.name) + question.sql);
    let mut answers = answers(arguments, views + &statements, questions.len())?;
    complain_of_the_future(&answers.remove(0));
    terminal::print(&arguments.text(&asked, &answers))?;
    // Every process has causes, and all but very large ones have owners. Others may need no remedy.
    let lacks = |table: &&str| !has(table) && asked.iter().any(|question| question.reads(table));
    let missing: Vec<_> = ["causes", "owners"].into_iter().filter(lacks).collect();
    for table in &missing {
        let names = asked.iter().filter(|question| question.reads(table)).map(|it| it.name);
        let names = names.collect::<Vec<_>>().join(" and ");
        terminal::complain(format!("no answer to {names}: the archive has no folder `{table}`"));
    }
    Ok(if missing.is_empty() { Outcome::Done } else { Outcome::Incomplete })
}

/// Complains of the machines whose snapshots are left out.
fn complain_of_the_future(answer: &Answer) {
    for row in answer.cells() {
        if let [node, snapshots] = &row[..] {
            let node = if node.is_empty() { "unknown" } else { node };
            terminal::complain(format!(
                "snapshots that are dated later than now, or than --as-of, are left out: {snapshots} of the machine {node}"
            ));
        }
    }
}

impl FleetArguments {
    /// The questions.
    fn asked(&self) -> Vec<Question> {
        let is_asked = |question: &Question| {
            self.questions.is_empty() || self.questions.iter().any(|name| name == question.name)
        };
        QUESTIONS.into_iter().filter(is_asked).collect()
    }

    /// Returns the statements of the questions, each as `text` writes it.
    fn sql(&self, questions: &[Question], text: impl Fn(&Question) -> String) -> String {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let since_1970 = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, milliseconds);
        let settings = Settings {
            price: self.price,
            since_ms: self.since.map(since_1970),
            as_of_ms: since_1970(self.as_of.unwrap_or_else(SystemTime::now)),
            window_ms: milliseconds(self.window),
        };
        let questions = questions.iter().map(text);
        let views = VIEWS.into_iter().map(str::to_owned);
        let statements = [settings.view()].into_iter().chain(views).chain(questions);
        statements.map(|statement| format!("{};\n\n", statement.trim_end())).collect()
    }

    /// Returns the answers in the format that is wanted.
    fn text(&self, asked: &[Question], answers: &[Answer]) -> String {
        let both = || asked.iter().zip(answers);
        match self.format {
            Format::Table => both()
                .map(|(question, answer)| {
                    let title = format!("{}: {}", question.name, question.title());
                    answer.table(&title, terminal::width())
                })
                .collect(),
            Format::Csv if asked.len() == 1 => answers.iter().map(Answer::csv).collect(),
            Format::Csv => both()
                .map(|(question, answer)| {
                    format!("# {}: {}\n{}\n", question.name, question.title(), answer.csv())
                })
                .collect(),
            Format::Json => {
                let entry = |answer: &Answer| format!("  \"{}\": {}", answer.name, answer.json());
                let entries: Vec<_> = answers.iter().map(entry).collect();
                format!("{{\n{}\n}}\n", entries.join(",\n"))
            }
        }
    }
}

/// The most that DuckDB may print, in bytes. Answers have some dozen rows.
const MAX_ANSWER: u64 = 16 << 20;

/// Runs the statements by DuckDB, and returns its answers to so many questions. Nothing that it prints reaches the terminal as it is.
fn answers(
    arguments: &FleetArguments,
    statements: String,
    count: usize,
) -> Result<Vec<Answer>, Failure> {
    let program = &arguments.duckdb;
    let not_started = |source| Failure::NoEngine { program: program.clone(), source };
    // A path with a slash is meant from here, but the program starts in the archive, where the paths in the SQL begin.
    let absolute = match program.parent() {
        Some(folder) if folder != Path::new("") => std::path::absolute(program)?,
        _ => program.clone(),
    };
    let mut engine = Command::new(absolute)
        .args(["-no-init", "-batch", "-bail", "-json"])
        .current_dir(&arguments.archive)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    let (mut input, output) = (engine.stdin.take(), engine.stdout.take());
    let errors = engine.stderr.take();
    // If it ends early, its own message has the reason.
    let write = move || input.as_mut().map(|input| input.write_all(statements.as_bytes()));
    let (output, errors) = std::thread::scope(|scope| {
        scope.spawn(write);
        let errors = scope.spawn(|| text_of(errors));
        let output = text_of(output);
        (output, errors.join().unwrap_or_default())
    });
    let status = engine.wait()?;
    if !status.success() {
        let reason = errors.trim().to_owned();
        return Err(Failure::NoAnswer { program: program.clone(), status, reason });
    }
    let odd = |reason| Failure::OddAnswer { program: program.clone(), reason };
    let answers = render::answers(&output).map_err(|error| odd(error.to_string()))?;
    match answers.len() == count {
        true => Ok(answers),
        false => Err(odd(format!("it has {} answers to {count} questions", answers.len()))),
    }
}

/// Reads what a program prints, up to a length at which the pipe is closed.
fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(MAX_ANSWER).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
