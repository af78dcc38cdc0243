//! `rbloat archive`: the program that it runs, and its answers.

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
    command.arg("archive").arg(folder).arg("--add").arg(kept.path());
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
        let output = rbloat().args(["archive", "any", "--print"]).args(arguments).output().unwrap();
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
    assert_eq!(statements(&all), 4 + QUESTIONS.len(), "four views, and the questions");
    assert_eq!(statements(&printed(&["free"])), 5);
    let as_of = printed(&["free", "--as-of", "2026-11-20"]);
    assert!(as_of.contains("CAST(1795132800000 AS BIGINT) AS as_of_ms"), "{as_of}");
    assert!(printed(&["free"]).contains("CAST(NULL AS DOUBLE) AS price"));
}

#[test]
fn the_engine_runs_in_the_archive_and_its_failure_is_one_of_rbloat() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("it's [an] archive");
    archive(&there, &Kept::of(target.pid()));
    // It answers with no rows.
    let log = folder.path().join("log");
    let script = format!(
        "log='{}'; pwd >\"$log\"; echo \"$@\" >>\"$log\"; tee -a \"$log\" | sed -n 's/^\\.print //p'",
        log.display()
    );
    let engine = program(folder.path(), &script);
    let ask = |engine: &Path, arguments: &[&str]| {
        let mut command = rbloat();
        command.arg("archive").arg(&there).arg("--duckdb").arg(engine).args(arguments);
        command.output().unwrap()
    };
    let output = ask(&engine, &["outliers"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().contains("(no rows)"));
    let text = fs::read_to_string(log).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), there.canonicalize().unwrap().to_str());
    assert!(lines.next().unwrap().contains("-json"));
    assert!(text.contains("read_parquet('looks/*/*/*.parquet'"), "{text}");
    // No allocator with slabs was there.
    assert!(text.contains("CREATE VIEW size_classes AS SELECT NULL::BIGINT AS look"), "{text}");

    let failing = "cat >/dev/null; printf 'no \\033[31mmagic\\n' >&2; exit 7";
    let (status, message) = complaint(&ask(&program(folder.path(), failing), &[]));
    assert_eq!(status, 1);
    assert!(message.contains("could not answer: exit status: 7: no  [31mmagic"), "{message}");
    let (status, message) = complaint(&ask(&program(folder.path(), "cat >/dev/null"), &[]));
    assert_eq!(status, 1);
    assert!(message.contains("0 answers to 11 questions"), "{message}");
    let (status, message) = complaint(&ask(&folder.path().join("none"), &[]));
    assert_eq!(status, 127);
    assert!(message.contains("pip install duckdb-cli"), "{message}");
}

/// The strings of Parquet files went to the terminal as they were, in every format.
#[test]
fn an_archive_of_another_machine_writes_no_escapes() {
    let folder = tempfile::tempdir().unwrap();
    for table in ["looks", "causes", "owners"] {
        fs::create_dir(folder.path().join(table)).unwrap();
    }
    // ESC as DuckDB escapes it, BEL, a character of C1, and one that reverses the direction of text.
    let row = r#"[{"service":"a\\u001b[31m\\u0007\302\233\342\200\256,b","mib":93.6}]"#;
    let script = format!(
        "sed -n 's/^\\.print //p' | while read -r line; do echo \"$line\"; \
         [ \"$line\" = 'rbloat future' ] || printf '{row}\\n'; done"
    );
    let engine = program(folder.path(), &script);
    for (arguments, expected) in [
        (&[][..], "free: "),
        (&["free", "--csv"], "service,mib\n\"a [31m"),
        (&["free", "gems", "--csv"], "# free: "),
        (&["free", "gems", "--json"], "{\n  \"free\": [\n"),
    ] {
        let mut command = rbloat();
        command.arg("archive").arg(folder.path()).args(arguments);
        let output = command.arg("--duckdb").arg(&engine).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(expected), "{text}");
        let is_plain = |it: char| it == '\n' || !it.is_control() && it != '\u{202e}';
        assert!(text.chars().all(is_plain), "{text:?}");
        if arguments.contains(&"--json") {
            let document: Value = serde_json::from_str(&text).unwrap();
            let service = "a\u{1b}[31m\u{7}\u{9b}\u{202e},b";
            assert_eq!(document["gems"][0]["service"], service);
        }
    }
}

#[test]
fn an_archive_without_a_table_gives_no_complete_answer() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("looks")).unwrap();
    let engine = program(folder.path(), "sed -n 's/^\\.print //p'");
    let ask = |question: &str| {
        let mut command = rbloat();
        command.arg("archive").arg(folder.path()).arg(question).arg("--duckdb").arg(&engine);
        command.output().unwrap()
    };
    for (question, table) in [("free", "causes"), ("growth", "owners")] {
        let output = ask(question);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(6));
        assert!(message.contains(&format!("no answer to {question}: ")), "{message}");
        assert!(message.contains(&format!("no folder `{table}`")), "{message}");
    }
    // A fleet may need no remedy.
    assert_eq!(ask("remedies").status.code(), Some(0));
}

/// Three processes with dates of another year hid all others.
#[test]
fn snapshots_of_the_future_are_left_out() {
    if std::process::Command::new("duckdb").arg("-version").output().is_err() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    archive(folder.path(), &Kept::of(target.pid()));
    let ask = |as_of: &str| {
        let mut command = rbloat();
        command.args(["archive", "--json", "--as-of", as_of]);
        let output = command.arg(folder.path()).arg("free").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        (document["free"].as_array().unwrap().len(), message)
    };
    assert_eq!(ask("2200-01-01"), (1, String::new()));
    let (rows, message) = ask("2001-01-01");
    assert!(rows == 0 && message.contains("are left out: 1 of the machine unknown"), "{message}");
}

#[test]
fn a_folder_without_an_archive_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (status, message) =
        complaint(&rbloat().arg("archive").arg(folder.path()).output().unwrap());
    assert_eq!(status, 3);
    assert!(message.contains("--add makes an archive"), "{message}");
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
        command.args(["archive", "--json", "--price", "1024"]);
        let output = command.arg(folder.path()).arg(question).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        document[question].as_array().unwrap().clone()
    };
    let tenths = |bytes: u64| (bytes as f64 / (1_u64 << 20) as f64 * 10.0).round() / 10.0;

    let [row] = &ask("free")[..] else { panic!("one service") };
    assert_eq!(row["service"], "o'shop");
    assert_eq!(row["processes"], 1);
    assert_eq!(row["rss_mib"].as_f64(), Some(tenths(report.process.rss_bytes)));
    let free =
        ["malloc.unreturned", "malloc.muzzy", "malloc.fragmented", "malloc.cached", "malloc.top"];
    let rows = report.causes.iter().filter(|row| free.contains(&row.cause.name()));
    let free: u64 = rows.map(|row| row.bytes).sum();
    assert_eq!(row["free_malloc_mib"].as_f64(), Some(tenths(free)));
    // At this price, a MiB costs 1.
    assert!(row["cost"].as_f64().unwrap() >= (free >> 20) as f64);

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

/// Two containers of `steady` have 2 GiB and need 480 MiB each, since a worker had 300 MiB once.
#[test]
fn limits_above_what_containers_need_are_spare() {
    if std::process::Command::new("duckdb").arg("-version").output().is_err() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    const LOOKS: &str = "CREATE TABLE looks AS
        WITH processes (service, pod, process, role, first, mib, growth, most) AS (VALUES
            ('steady', 'a', 1, 'w 1', 0, 100, 0, 1024), ('steady', 'a', 2, 'w 2', 0, 100, 0, 1024),
            ('steady', 'b', 3, 'w 1', 0, 100, 0, 1024), ('steady', 'b', 4, 'w 2', 0, 100, 0, 1024),
            ('slow', 'a', 5, 'w 1', 0, 100, 0.0625, 1024), ('leaks', 'a', 6, 'w 1', 0, 100, 10, 1024),
            ('young', 'a', 7, 'w 1', 40, 100, 0, 1024), ('tight', 'a', 8, 'w 1', 0, 900, 0, 1024),
            ('free', 'a', 9, 'w 1', 0, 100, 0, NULL),
            ('replaced', 'a', 10, 'w 1', 0, 200, 0, 1024), ('replaced', 'a', 11, 'w 1', 40, 100, 0, 1024),
            ('tmpfs', 'a', 12, 'w 1', 0, 100, 0, 1024))
        SELECT row_number() OVER () AS look, process, 1700000000000 + hour * 3600000 AS unix_ms,
            (hour - first) * 3600000 AS uptime_ms, service, 'n' AS node, '' AS namespace, pod, '' AS container, role,
            (CASE WHEN process = 4 AND hour = 5 THEN 300 ELSE mib + growth * hour END * 1048576)::BIGINT AS rss_bytes,
            NULL::BIGINT AS pss_bytes, most * 1048576 AS limit_bytes,
            CASE WHEN service = 'tmpfs' AND hour = 5 THEN 700 * 1048576 END AS used_bytes, DATE '2026-11-20' AS dt
        FROM processes, generate_series(0, 47) hours (hour)
        WHERE hour >= first AND (process <> 10 OR hour < 40);\n";
    let mut command = rbloat();
    command.args(["archive", "any", "spare", "--print", "--price", "1024"]);
    let printed = command.args(["--as-of", "2100-01-01"]).output().unwrap();
    let sql = LOOKS.to_owned() + &String::from_utf8(printed.stdout).unwrap();
    let output = std::process::Command::new("duckdb").args(["-json", "-c", &sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let row = |it: &Value| {
        let figure = |name: &str| it[name].as_f64().unwrap();
        let figures = ["containers", "limit_mib", "need_mib", "cost"].map(figure);
        (it["service"].as_str().unwrap().to_owned(), figures)
    };
    // 2048 - 2 × 1.2 × (100 + 300); 1024 - 1.2 × 200, of a worker that was replaced; 1024 - 1.2 × 102.9 - 720 × 0.0625.
    let rows: Vec<_> = rows.iter().map(row).collect();
    // Of `tmpfs`, the container used 700 MiB once.
    let expected = [
        ("steady", [2.0, 1024.0, 480.0, 1088.0]),
        ("slow", [1.0, 1024.0, 169.0, 855.48]),
        ("replaced", [1.0, 1024.0, 240.0, 784.0]),
        ("tmpfs", [1.0, 1024.0, 840.0, 184.0]),
    ];
    assert_eq!(rows, expected.map(|(service, figures)| (service.to_owned(), figures)));
}
