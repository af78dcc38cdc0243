//! The rbloat command on real processes.

mod advice;
mod agent;
mod archive;
mod archive_answers;
mod archive_questions;
mod busy;
mod cases;
mod collections;
mod compares;
mod containers;
mod cores;
mod diffs;
mod dump;
mod errors;
mod family;
mod files;
mod fits;
mod fix;
mod groups;
mod harmless;
mod healthy;
mod help;
mod hostile;
mod images;
mod interpreter;
mod interruptions;
mod isolation;
mod jemalloc;
mod maps;
mod next;
mod orphans;
mod outputs;
mod owners;
mod pages;
mod plots;
mod programs;
mod record;
mod retained;
mod sandbox;
mod scenarios;
mod servers;
mod snapshots;
mod survival;
mod swap;
mod threads;
mod top;
mod trim;
mod truth;
mod uses;
mod waste;
mod who;

use std::process::{Command, Output};

use formats::{Content, Report};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// The rbloat command, without colours regardless of the terminal.
///
/// RBLOAT_TEST_BINARY names a statically linked one that runs where the targets run.
fn rbloat() -> Command {
    let mut command = match std::env::var_os("RBLOAT_TEST_BINARY") {
        Some(binary) => testkit::command(binary),
        None => Command::new(env!("CARGO_BIN_EXE_rbloat")),
    };
    command.env("NO_COLOR", "1");
    command
}

/// The rbloat command with a limit, as arguments of ulimit.
fn limited(limit: &str) -> Command {
    let rbloat = rbloat();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]);
    command.arg(rbloat.get_program()).args(rbloat.get_args()).env("NO_COLOR", "1");
    command
}

/// Runs `rbloat report PID` with further arguments, with a pause that is long enough on a machine that is busy with
/// other tests.
fn run(pid: i32, arguments: &[&str]) -> Output {
    let patient = ["report", &pid.to_string(), "--max-pause", "10s"];
    rbloat().args(patient).args(arguments).output().unwrap()
}

/// The report on a process; it must be complete.
fn report(pid: i32) -> Report {
    report_of(&run(pid, &["--json"]))
}

/// The report that was printed as JSON; it must be complete.
fn report_of(output: &Output) -> Report {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}{}", String::from_utf8_lossy(&output.stdout));
    document(&output.stdout)
}

/// The content of a document that was printed as JSON. It must agree with the JSON Schema of its kind.
#[track_caller]
fn document<T: Content + JsonSchema + DeserializeOwned>(json: &[u8]) -> T {
    let document: serde_json::Value = serde_json::from_slice(json).unwrap();
    let validator = jsonschema::validator_for(&formats::schema::<T>()).unwrap();
    let errors: Vec<_> = validator
        .iter_errors(&document)
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    serde_json::from_value(document).unwrap()
}

/// The exit status, and the only line on standard error.
fn complaint(output: &Output) -> (i32, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), text)
}

/// The bytes of one row.
fn bytes(report: &Report, cause: &str) -> u64 {
    let row = report.causes.iter().find(|row| row.cause.name() == cause);
    row.unwrap_or_else(|| panic!("no row {cause}")).bytes
}
