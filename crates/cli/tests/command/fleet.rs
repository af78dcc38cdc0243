//! `rbloat fleet`: the program that it runs, and its answers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use archive::QUESTIONS;
use serde_json::Value;
use testkit::Target;

use crate::snapshots::Kept;
use crate::{complaint, rbloat};

/// Makes an archive with a snapshot.
fn archive(folder: &Path, kept: &Kept) {
    let mut command = rbloat();
    command.arg("export").arg(kept.path()).arg("-o").arg(folder);
    command.args(["--service", "o'shop", "--limit", "1GiB"]);
    assert!(command.output().unwrap().status.success());
}

/// A program that stands in for DuckDB.
fn program(folder: &Path, script: &str) -> std::path::PathBuf {
    let path = folder.join("engine");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_sql_is_printed_for_other_engines() {
    let printed = |arguments: &[&str]| {
        let output = rbloat().args(["fleet", "any", "--print"]).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = printed(&["--price", "4.5", "--since", "2026-11-20", "--window", "2d"]);
    assert!(all.contains("CAST(4.5e0 AS DOUBLE) AS price"), "{all}");
    assert!(all.contains("CAST(1795132800000 AS BIGINT) AS since_ms"), "{all}");
    assert!(all.contains("CAST(172800000 AS BIGINT) AS window_ms"), "{all}");
    for question in &QUESTIONS {
        assert!(all.contains(question.sql.trim_end()), "{}", question.name);
    }
    let statements = |text: &str| text.split(";\n\n").filter(|it| !it.is_empty()).count();
    assert_eq!(statements(&all), 3 + QUESTIONS.len(), "three views, and the questions");
    assert_eq!(statements(&printed(&["waste"])), 4);
    assert!(printed(&["waste"]).contains("CAST(NULL AS DOUBLE) AS price"));
}

#[test]
fn the_engine_runs_in_the_archive_and_its_failure_is_one_of_rbloat() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("it's [an] archive");
    archive(&there, &Kept::of(target.pid()));
    let engine = program(folder.path(), "pwd; echo \"$@\"; cat");
    let ask = |engine: &Path, arguments: &[&str]| {
        let mut command = rbloat();
        command.arg("fleet").arg(&there).arg("--duckdb").arg(engine).args(arguments);
        command.output().unwrap()
    };
    let output = ask(&engine, &["outliers", "--format", "csv"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), there.canonicalize().unwrap().to_str());
    assert!(lines.next().unwrap().contains("-csv"));
    assert!(text.contains("read_parquet('looks/*/*/*.parquet'"), "{text}");
    // No allocator with slabs was there.
    assert!(text.contains("CREATE VIEW size_classes AS SELECT NULL::BIGINT AS look"), "{text}");

    let (status, message) = complaint(&ask(&program(folder.path(), "exit 7"), &[]));
    assert_eq!(status, 1);
    assert!(message.contains("could not answer"), "{message}");
    let (status, message) = complaint(&ask(&folder.path().join("none"), &[]));
    assert_eq!(status, 127);
    assert!(message.contains("pip install duckdb-cli"), "{message}");
}

#[test]
fn a_folder_without_an_archive_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (status, message) = complaint(&rbloat().arg("fleet").arg(folder.path()).output().unwrap());
    assert_eq!(status, 3);
    assert!(message.contains("`rbloat export` makes an archive"), "{message}");
}

#[test]
fn duckdb_answers_with_the_figures_of_the_report() {
    if std::process::Command::new("duckdb").arg("-version").output().is_err() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let report = kept.read().report;
    let folder = tempfile::tempdir().unwrap();
    archive(folder.path(), &kept);
    let ask = |question: &str| -> Vec<Value> {
        let mut command = rbloat();
        command.args(["fleet", "--format", "json", "--price", "1024"]);
        let output = command.arg(folder.path()).arg(question).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let tenths = |bytes: u64| (bytes as f64 / (1_u64 << 30) as f64 * 10.0).floor() / 10.0;

    let [waste] = &ask("waste")[..] else { panic!("one service") };
    assert_eq!(waste["service"], "o'shop");
    assert_eq!(waste["processes"], 1);
    assert_eq!(waste["rss_gib"].as_f64(), Some(tenths(report.process.rss_bytes)));
    let free =
        ["malloc.unreturned", "malloc.muzzy", "malloc.fragmented", "malloc.cached", "malloc.top"];
    let rows = report.causes.iter().filter(|row| free.contains(&row.cause.name()));
    let free: u64 = rows.map(|row| row.bytes).sum();
    assert_eq!(waste["free_malloc_gib"].as_f64(), Some(tenths(free)));
    // At this price, a MiB costs 1.
    assert!(waste["cost"].as_f64().unwrap() >= (free >> 20) as f64);

    let remedies = ask("remedies");
    for advice in &report.advice {
        let name = serde_json::to_value(advice).unwrap()["action"].clone();
        let rows = remedies.iter().filter(|row| row["remedy"] == name);
        assert_eq!(rows.count(), 2, "the service, and all");
    }
    for question in &QUESTIONS {
        ask(question.name);
    }
}
