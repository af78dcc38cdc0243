//! Answers questions about an archive, by DuckDB.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use archive::{FUTURE, QUESTIONS, Question, Settings, VIEWS};
use clap::Args;
use render::Answer;

use crate::arguments::{parse_date, parse_long_time};
use crate::failure::{Failure, Outcome};
use crate::terminal;

/// The settings of the questions, and the form of the answers.
#[derive(Debug, Args)]
pub(crate) struct AskArguments {
    /// The price of a GiB for a month, in any currency
    #[arg(long, value_name = "NUMBER", value_parser = parse_price)]
    price: Option<f64>,
    /// The time of a deploy: 2026-11-20
    ///
    /// Or 2026-11-20T14:00:00Z. `growth` and `changes` compare with the window before it. [default: a window before the latest snapshot]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    since: Option<SystemTime>,
    /// Processes without a snapshot in this time have ended [default: 1d]
    ///
    /// It counts back from the latest snapshot in the archive. Growth is also measured in this time.
    #[arg(long, value_name = "TIME", value_parser = parse_long_time, hide_short_help = true)]
    window: Option<Duration>,
    /// Leave out later snapshots, as a machine with a wrong clock has them [default: now]
    #[arg(long, value_name = "DATE", value_parser = parse_date, hide_short_help = true)]
    as_of: Option<SystemTime>,
    /// Print the answers as JSON
    ///
    /// It is an object with an array of rows for each question
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print the answers as lines with commas
    ///
    /// There is a title above them if there are several questions
    #[arg(long)]
    csv: bool,
    /// Print the SQL instead of running it
    #[arg(long)]
    print: bool,
    /// The program of DuckDB [default: duckdb]
    #[arg(long, value_name = "PROGRAM", hide_short_help = true)]
    duckdb: Option<PathBuf>,
}

/// The window, if the user gives none.
const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// An archive, and what is asked about it.
pub(super) struct Inquiry<'a> {
    pub(super) archive: &'a Path,
    /// The names of the questions; none for all of them.
    pub(super) questions: &'a [String],
    pub(super) arguments: &'a AskArguments,
}

fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "write a price as 4.5".to_owned())
}

/// Prints the answers, or the SQL.
pub(super) fn run(inquiry: &Inquiry<'_>) -> Result<Outcome, Failure> {
    if inquiry.arguments.print {
        terminal::print(&inquiry.sql(&inquiry.asked(), |question| question.sql.to_owned()))?;
        return Ok(Outcome::Done);
    }
    let has = |table: &str| inquiry.archive.join(table).is_dir();
    if !has("looks") && !has("kills") {
        return Err(Failure::NoArchive { path: inquiry.archive.to_owned() });
    }
    let asked = inquiry.asked();
    let views = archive::duckdb_views(|table| has(table.name));
    let questions: Vec<_> = [FUTURE].into_iter().chain(asked.iter().copied()).collect();
    let statements =
        inquiry.sql(&questions, |question| render::duckdb_mark(question.name) + question.sql);
    let mut answers = answers(inquiry, views + &statements, questions.len())?;
    complain_of_the_future(&answers.remove(0));
    terminal::print(&inquiry.text(&asked, &answers))?;
    // Every process has causes, and all but very large ones have owners. Others may need no remedy. An agent has kills before its first
    // snapshots.
    let reads = |question: &Question, table: &str| match table {
        "looks" => question.reads_looks(),
        _ => has("looks") && question.reads(table),
    };
    let lacks = |table: &&str| !has(table) && asked.iter().any(|question| reads(question, table));
    let missing: Vec<_> = ["looks", "causes", "owners"].into_iter().filter(lacks).collect();
    for table in &missing {
        let names = asked.iter().filter(|question| reads(question, table)).map(|it| it.name);
        let names = names.collect::<Vec<_>>().join(", ");
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

impl Inquiry<'_> {
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
        let AskArguments { price, since, as_of, window, .. } = self.arguments;
        let settings = Settings {
            price: *price,
            since_ms: since.map(since_1970),
            as_of_ms: since_1970(as_of.unwrap_or_else(SystemTime::now)),
            window_ms: milliseconds(window.unwrap_or(WINDOW)),
        };
        let questions = questions.iter().map(text);
        let views = VIEWS.into_iter().map(str::to_owned);
        let statements = [settings.view()].into_iter().chain(views).chain(questions);
        statements.map(|statement| format!("{};\n\n", statement.trim_end())).collect()
    }

    /// Returns the answers in the format that is wanted.
    fn text(&self, asked: &[Question], answers: &[Answer]) -> String {
        let both = || asked.iter().zip(answers);
        if self.arguments.json {
            let entry = |answer: &Answer| format!("  \"{}\": {}", answer.name, answer.json());
            let entries: Vec<_> = answers.iter().map(entry).collect();
            return format!("{{\n{}\n}}\n", entries.join(",\n"));
        }
        let title = |question: &Question| format!("{}: {}", question.name, question.title());
        match (self.arguments.csv, asked.len()) {
            (false, _) => both()
                .map(|(question, answer)| answer.table(&title(question), terminal::width()))
                .collect(),
            (true, 1) => answers.iter().map(Answer::csv).collect(),
            (true, _) => both()
                .map(|(question, answer)| format!("# {}\n{}\n", title(question), answer.csv()))
                .collect(),
        }
    }
}

/// The most that DuckDB may print, in bytes. Answers have some dozen rows.
const MAX_ANSWER: u64 = 16 << 20;

/// Runs the statements by DuckDB, and returns its answers to so many questions. Nothing that it prints reaches the terminal as it is.
fn answers(
    inquiry: &Inquiry<'_>,
    statements: String,
    count: usize,
) -> Result<Vec<Answer>, Failure> {
    let program = inquiry.arguments.duckdb.clone().unwrap_or_else(|| "duckdb".into());
    let not_started = |source| Failure::NoEngine { program: program.clone(), source };
    // A path with a slash is meant from here, but the program starts in the archive, where the paths in the SQL begin.
    let absolute = match program.parent() {
        Some(folder) if folder != Path::new("") => std::path::absolute(&program)?,
        _ => program.clone(),
    };
    let mut engine = Command::new(absolute)
        .args(["-no-init", "-batch", "-bail", "-json"])
        .current_dir(inquiry.archive)
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
