//! Answers of `rbloat archive` to questions about archives with known rows.

use std::fs;
use std::path::Path;
use std::process::Command;

use archive::{KEYS, Kind, TABLES};
use serde_json::{Value, json};

use crate::rbloat;

const HOUR_MS: u64 = 3_600_000;
/// 2026-11-20 in UTC.
const DAY_MS: u64 = 1_795_132_800_000;
const MIB: u64 = 1 << 20;

/// A row of a table: some columns with their values in SQL. Others are 0, empty or true.
type Row = Vec<(&'static str, String)>;

/// Writes these rows of a table of the service `shop`, by DuckDB.
fn write(folder: &Path, table: &str, day: &str, rows: &[Row]) {
    let columns = TABLES.iter().find(|it| it.name == table).unwrap().columns;
    let row = |row: &Row| {
        let value = |column: &archive::Column| {
            let default = match column.kind {
                Kind::Integer => "0",
                Kind::Text => "''",
                Kind::Flag => "true",
            };
            let given = row.iter().find(|(name, _)| *name == column.name);
            let value = given.map_or(default, |(_, value)| value);
            format!("CAST({value} AS {}) AS {}", column.kind.sql(), column.name)
        };
        let values: Vec<_> = KEYS.iter().chain(columns).map(value).collect();
        format!("SELECT {}", values.join(", "))
    };
    let place = folder.join(format!("{table}/dt={day}/service=shop"));
    fs::create_dir_all(&place).unwrap();
    let rows: Vec<_> = rows.iter().map(row).collect();
    let sql = format!(
        "COPY ({}) TO '{}' (FORMAT parquet)",
        rows.join(" UNION ALL "),
        place.join("rows.parquet").display()
    );
    let output = Command::new("duckdb").args(["-c", &sql]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A snapshot of a process: the hour of the day, the number of the process, its age in hours, and its bytes by cause.
type Look<'a> = (u64, u64, u64, &'a [(&'a str, u64)]);

/// Writes the snapshots of processes of one day.
fn write_looks(folder: &Path, day: &str, at: &[Look<'_>]) {
    let day_ms = DAY_MS + 24 * HOUR_MS * (day[8..].parse::<u64>().unwrap() - 20);
    let keys = |&(hour, process, ..): &Look<'_>| -> Row {
        let look = day_ms + hour * HOUR_MS + process;
        vec![
            ("look", look.to_string()),
            ("process", process.to_string()),
            ("unix_ms", (day_ms + hour * HOUR_MS).to_string()),
        ]
    };
    let look = |it: &Look<'_>| {
        let rss: u64 = it.3.iter().map(|(_, bytes)| bytes).sum();
        let more = [("uptime_ms", it.2 * HOUR_MS), ("rss_bytes", rss)];
        keys(it).into_iter().chain(more.map(|(name, value)| (name, value.to_string()))).collect()
    };
    write(folder, "looks", day, &at.iter().map(look).collect::<Vec<_>>());
    let causes = at.iter().flat_map(|it| {
        it.3.iter().map(move |(cause, bytes)| {
            let more = [("cause", format!("'{cause}'")), ("bytes", bytes.to_string())];
            keys(it).into_iter().chain(more).collect()
        })
    });
    write(folder, "causes", day, &causes.collect::<Vec<_>>());
}

fn ask(folder: &Path, question: &str, options: &[&str]) -> Value {
    let mut command = rbloat();
    command.args(["archive", "--json"]).arg(folder).arg(question).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document[question].clone()
}

fn has_duckdb() -> bool {
    Command::new("duckdb").arg("-version").output().is_ok()
}

/// A process of a service has 100 MiB, and 10 MiB more with each hour. Those since the deploy have freed memory less.
#[test]
fn processes_before_and_after_a_deploy_are_compared_at_the_same_age() {
    if !has_duckdb() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let folder = tempfile::tempdir().unwrap();
    let before =
        |hour: u64| [("ruby.live_slots", (100 + 10 * hour) * MIB), ("malloc.unreturned", 80 * MIB)];
    let after = |hour: u64| [("ruby.live_slots", (100 + 10 * hour) * MIB)];
    let (old, new): (Vec<_>, Vec<_>) = ((0..20).map(before).collect(), (0..4).map(after).collect());
    let old: Vec<_> = (0..20).map(|hour| (hour, 1, hour, &old[hour as usize][..])).collect();
    write_looks(folder.path(), "2026-11-20", &old);
    // Two processes, which have run for three hours.
    let new: Vec<_> = [2, 3]
        .into_iter()
        .flat_map(|process| (0..4).map(move |hour| (process, hour)))
        .map(|(process, hour)| (hour, process, hour, &new[hour as usize][..]))
        .collect();
    write_looks(folder.path(), "2026-11-21", &new);
    let row = |cause: &str, before: f64, after: f64, change: f64| {
        json!({
            "service": "shop", "cause": cause, "hours": 3.0, "processes_before": 1, "processes": 2, "before_mib": before,
            "after_mib": after, "change_of_all_mib": change
        })
    };
    // The later hours of the old process would have made it worse.
    let expected =
        [row("(all)", 195.0, 115.0, -160.0), row("malloc.unreturned", 80.0, 0.0, -160.0)];
    assert_eq!(ask(folder.path(), "changes", &["--since", "2026-11-21"]), json!(expected));
    // Nothing has started since then.
    assert_eq!(ask(folder.path(), "changes", &["--since", "2026-11-22"]), json!([]));

    let day = |day: &str, processes: u64, rss: f64, free: f64, percent: f64| {
        json!({
            "service": "shop", "day": day, "processes": processes, "rss_mib": rss, "free_mib": free, "unreachable_mib": 0.0,
            "percent": percent
        })
    };
    let expected = [day("2026-11-20", 1, 275.0, 80.0, 29.0), day("2026-11-21", 2, 115.0, 0.0, 0.0)];
    assert_eq!(ask(folder.path(), "days", &[]), json!(expected));
}

/// The name of a class is not enough to find the code that keeps its objects.
#[test]
fn growth_since_a_deploy_has_the_path() {
    if !has_duckdb() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let folder = tempfile::tempdir().unwrap();
    let row = |look: u64, hour: u64, mib: u64, path: &str| -> Row {
        vec![
            ("look", look.to_string()),
            ("process", look.to_string()),
            ("unix_ms", (DAY_MS + hour * HOUR_MS).to_string()),
            ("owner", "'String'".to_owned()),
            ("kind", "'class'".to_owned()),
            ("path", path.to_owned()),
            ("slot_bytes", (mib * MIB).to_string()),
            ("resident_bytes", "0".to_owned()),
        ]
    };
    let looks = [(1, 20), (2, 30), (3, 31), (4, 32), (5, 33)];
    let times = looks.map(|(look, hour)| row(look, hour, 0, "NULL"));
    write(folder.path(), "looks", "2026-11-20", &times[..1]);
    write(folder.path(), "looks", "2026-11-21", &times[1..]);
    write(folder.path(), "owners", "2026-11-20", &[row(1, 20, 10, "'OLD → Array → String'")]);
    let after = [
        row(2, 30, 30, "'NEW → Array → String'"),
        row(3, 31, 30, "'NEW → Array → String'"),
        row(4, 32, 30, "NULL"),
        row(5, 33, 30, "'OLD → Array → String'"),
    ];
    write(folder.path(), "owners", "2026-11-21", &after);
    let expected = json!([{
        "service": "shop", "owner": "String", "kind": "class", "processes": 4, "before_mib": 10.0, "after_mib": 30.0,
        "growth_of_all_mib": 80.0, "path": "NEW → Array → String"
    }]);
    assert_eq!(ask(folder.path(), "growth", &["--since", "2026-11-21"]), expected);
}

/// An agent has kills before its first hourly snapshots.
#[test]
fn an_archive_that_has_kills_only_answers_what_was_killed() {
    if !has_duckdb() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let folder = tempfile::tempdir().unwrap();
    let row = vec![
        ("unix_ms", (DAY_MS + 90 * 60_000).to_string()),
        ("pod", "'shop-1'".to_owned()),
        ("rss_bytes", (300 * MIB).to_string()),
        ("limit_bytes", (320 * MIB).to_string()),
    ];
    write(folder.path(), "kills", "2026-11-20", &[row]);
    let answer = ask(folder.path(), "kills", &[]);
    let kill = &answer[0];
    assert_eq!((&kill["pod"], &kill["time"]), (&json!("shop-1"), &json!("01:30")), "{answer}");
    assert_eq!((&kill["rss_mib"], &kill["limit_mib"]), (&json!(300.0), &json!(320.0)));

    let mut command = rbloat();
    let output = command.args(["archive", "--json"]).arg(folder.path()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{message}");
    assert!(message.contains("no answer to free, remedies, growth, "), "{message}");
    assert!(message.ends_with("the archive has no folder `looks`\n"), "{message}");
    assert!(!message.contains("kills"), "{message}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["kills"], &document["free"]), (&answer, &json!([])));
}

/// A pod with 100 MiB of Ruby was 90 hours from its limit, and was killed after ten: the rest were files in memory.
#[test]
fn what_a_container_uses_counts_for_its_limit_also_if_it_is_not_ruby() {
    if !has_duckdb() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    let folder = tempfile::tempdir().unwrap();
    let row = |hour: u64| -> Row {
        vec![
            ("look", hour.to_string()),
            ("process", "1".to_owned()),
            ("unix_ms", (DAY_MS + hour * HOUR_MS).to_string()),
            ("uptime_ms", (10 * HOUR_MS).to_string()),
            ("rss_bytes", ((50 + 10 * hour) * MIB).to_string()),
            ("pss_bytes", "NULL".to_owned()),
            ("limit_bytes", (1000 * MIB).to_string()),
            ("used_bytes", ((850 + 10 * hour) * MIB).to_string()),
        ]
    };
    write(folder.path(), "looks", "2026-11-20", &(0..6).map(row).collect::<Vec<_>>());
    let figures = || {
        let answer = ask(folder.path(), "limits", &[]);
        ["used_mib", "limit_mib", "hours"].map(|name| answer[0][name].as_f64().unwrap_or(-1.0))
    };
    assert_eq!(figures(), [900.0, 1000.0, 10.0]);

    // Files of an earlier version lack the column.
    let days = folder.path().join("looks");
    let (new, old) = (days.join("dt=2026-11-20"), days.join("dt=2026-11-19"));
    fs::create_dir_all(old.join("service=shop")).unwrap();
    let file = |day: &Path| day.join("service=shop/rows.parquet").display().to_string();
    let sql = format!(
        "COPY (SELECT * EXCLUDE (used_bytes) FROM read_parquet('{}', hive_partitioning = false)) TO '{}' (FORMAT parquet)",
        file(&new),
        file(&old)
    );
    assert!(Command::new("duckdb").args(["-c", &sql]).status().unwrap().success());
    assert_eq!(figures()[1], 1000.0);
    fs::remove_dir_all(&new).unwrap();
    assert_eq!(figures(), [100.0, 1000.0, 90.0]);
}
