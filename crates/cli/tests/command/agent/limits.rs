//! Snapshots of processes near a memory limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{ControlGroup, Target};

use formats::{CaptureMethod, FindingKind, FindingRow};

use super::{Agent, TakingServer, wait_until};
use crate::rbloat;

/// A process in a control group. It has other memory at the beginning, and leaks: fast up to 84 % of the limit, then slowly, and when
/// the file `more` exists, until it is killed.
fn leak(group: &ControlGroup, limit: u64, more: &Path) -> Target {
    group.limit(limit);
    let code = format!(
        "Process.setproctitle('agentleak ')
         module Leaks; ALL = []; end
         $kept = Array.new(200_000) {{ |i| [i] }}
         def leak(bytes) = Leaks::ALL << 'x' * bytes
         def rss = File.read('/proc/self/statm').split[1].to_i * 4096
         GC.start; puts 'ready {{}}'; $stdout.flush
         until File.exist?('{}')
           next leak(1_000_000) if rss < {limit} * 0.84
           leak(200_000) if rss < {limit} * 0.97
           sleep 0.2
         end
         loop {{ leak(200_000); sleep 0.02 }}",
        more.display()
    );
    Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", &code])))
}

/// The files in a folder whose names contain these words.
fn files(folder: &Path, words: [&str; 2]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| words.iter().all(|word| path.to_string_lossy().contains(word))).collect()
}

#[test]
fn a_snapshot_is_saved_before_the_kernel_kills_a_process() {
    let Some(group) = ControlGroup::make() else { return };
    let outer = tempfile::tempdir().unwrap();
    let (folder, more) = (outer.path().join("snapshots"), outer.path().join("more"));
    let store = TakingServer::start("201 Created");
    let push = format!("snapshots=http://{}/shop?sig=1", store.address);
    let intervals = ["--every", "1s", "--causes-every", "1h"];
    let collector = TakingServer::start("200 OK");
    let logs = format!("otlp=http://{}", collector.address);
    let archive = outer.path().join("archive");
    let archived = ["--archive", archive.to_str().unwrap()];
    let outputs = ["--snapshots", folder.to_str().unwrap(), "--push", &push, "--push", &logs];
    let outputs = [&outputs[..], &archived].concat();
    let agent = Agent::start(&group, &[&intervals[..], &outputs].concat());
    let wait = "puts 'ready {}'; $stdout.flush; $stdin.read";
    let other =
        Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", wait])));
    let target = leak(&group, 300 << 20, &more);
    let pid = i64::from(target.pid());
    wait_until("a snapshot", || !files(&folder, ["agentleak", ".rbloat"]).is_empty());
    // The capture itself kills nothing.
    assert_eq!(group.kills(), 0);
    wait_until("its growth is observed", || {
        agent.samples("rbloat_growth_observed", "").into_values().sum::<f64>() == 1.0
    });
    std::fs::write(&more, "").unwrap();
    wait_until("the kernel kills it", || group.kills() > 0);
    // Nobody has waited for it yet. The other process was taken for the one that was killed.
    wait_until("it has no memory", || {
        agent.samples("rbloat_resident_bytes{", "agentleak").values().sum::<f64>() == 0.0
    });
    drop(target);
    drop(other);
    wait_until("the code that made it grow", || {
        !files(&folder, ["agentleak", ".who.json"]).is_empty()
    });

    for snapshot in files(&folder, ["agentleak", ".rbloat"]) {
        let report =
            crate::report_of(&rbloat().args(["report", "--json"]).arg(&snapshot).output().unwrap());
        let largest = &report.owners.as_ref().unwrap()[0];
        assert_eq!(largest.owner, "String", "{largest:?}");
        assert!(largest.bytes() > 100 << 20, "{largest:?}");
        let path = largest.kept_by[0].path.as_deref().unwrap();
        assert!(path.starts_with("Leaks::ALL"), "{path}");
        let has_reason = |it: &FindingRow| matches!(it.kind, FindingKind::GroupAlarm { .. });
        assert!(report.findings.iter().any(has_reason), "{:?}", report.findings);
    }
    let who = &files(&folder, ["agentleak", ".who.json"])[0];
    let who: formats::Who = crate::document(&std::fs::read(who).unwrap());
    assert!(who.growth_bytes > 1 << 20, "{who:?}");
    assert!(who.methods.iter().any(|it| it.method.contains("leak")), "{:?}", who.methods);
    // The answer says that the process was killed, and which others there were.
    wait_until("the kill is in the latest snapshot", || {
        let mut snapshots = files(&folder, ["agentleak", ".rbloat"]);
        snapshots.sort();
        let text = rbloat().arg("report").arg(snapshots.last().unwrap()).output().unwrap().stdout;
        let text = String::from_utf8(text).unwrap().replace('\n', " ");
        text.contains(" UTC: its control group")
            && text.contains("other processes in it: ")
            && text.contains("after this capture the kernel killed")
    });
    let written = agent.samples("rbloat_snapshots_total", "outcome=\"written\"");
    assert!(written.values().sum::<f64>() >= 1.0, "{written:?}");

    // There is a log record for each snapshot, and for the kill.
    let (mut records, mut metrics) = (Vec::new(), Vec::new());
    wait_until("the kill is logged", || {
        for (head, body) in collector.requests.try_iter() {
            if head.starts_with("POST /v1/metrics HTTP/1.1") {
                metrics.push(String::from_utf8(body).unwrap());
                continue;
            }
            assert!(head.starts_with("POST /v1/logs HTTP/1.1"), "{head}");
            assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            records.push(body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0].clone());
        }
        let text = |record: &serde_json::Value| record["body"]["stringValue"].to_string();
        records.iter().any(|it| text(it).contains("the kernel killed"))
            && records.iter().any(|it| text(it).contains("its control group uses"))
    });
    for record in &records {
        let attributes = record["attributes"].as_array().unwrap();
        let attribute =
            |key: &str| attributes.iter().find(|it| it["key"] == key).unwrap()["value"].clone();
        let file = attribute("rbloat.file")["stringValue"].as_str().unwrap().to_owned();
        assert!(Path::new(&file).exists() && file.contains("agentleak"), "{file}");
        let text = record["body"]["stringValue"].as_str().unwrap();
        let is_kill = text.contains("the kernel killed");
        assert_eq!(record["severityText"], if is_kill { "ERROR" } else { "WARN" });
    }

    // It gets the metrics, too, each minute.
    assert!(metrics[0].contains("rbloat_agent_cpu_seconds"), "{}", metrics[0]);

    // Each file of the folder is on the server, too.
    let mut pushed = BTreeMap::new();
    wait_until("the files are pushed", || {
        for (head, body) in store.requests.try_iter() {
            assert!(head.starts_with("PUT /shop/") && head.contains("?sig=1 HTTP/1.1"), "{head}");
            assert!(
                head.to_lowercase().contains("content-type: application/octet-stream"),
                "{head}"
            );
            let name = head["PUT /shop/".len()..].split('?').next().unwrap().to_owned();
            pushed.insert(name, body);
        }
        // The kill was added to a snapshot, which was pushed again.
        let is_pushed = |(name, bytes): (&String, &Vec<u8>)| {
            std::fs::read(folder.join(name)).unwrap() == *bytes
        };
        files(&folder, ["agentleak", ""]).len() == pushed.len() && pushed.iter().all(is_pushed)
    });
    wait_until("all are counted", || {
        let accepted =
            agent.samples("rbloat_pushes_total", "to=\"snapshots\",outcome=\"accepted\"");
        accepted.values().sum::<f64>() > pushed.len() as f64
    });
    agent.end();
    // It writes the archive once an hour, and at its end.
    assert!(archive.join("kills").is_dir(), "{archive:?}");
    if Command::new("duckdb").arg("-version").output().is_err() {
        return testkit::skip("there is no duckdb; `scripts/duckdb` installs it");
    }
    // One of the files has the kill, too.
    let added = outer.path().join("added");
    let mut add = rbloat();
    add.arg("archive").arg(&added).arg("--add").args(files(&folder, ["agentleak", ".rbloat"]));
    assert!(add.output().unwrap().status.success());
    let output = rbloat().arg("archive").arg(&added).args(["kills", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [row] = &answer["kills"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&row["role"], &row["owner"]), (&"agentleak".into(), &"String".into()));
    assert_eq!((row["pid"].as_i64(), row["limit_mib"].as_f64()), (Some(pid), Some(300.0)));
    assert!(row["path"].as_str().unwrap().starts_with("Leaks::ALL"), "{row}");
    assert!(row["used_mib"].as_f64().is_some_and(|it| (250.0..=300.0).contains(&it)), "{row}");
    assert!(row["seconds"].as_f64().is_some_and(|it| it >= 0.0), "{row}");
}

/// The code that touches memory last need not be the one that keeps it. After a kill, only what was saved before tells the line.
#[test]
fn the_lines_that_keep_memory_are_saved_before_the_kernel_kills_a_process() {
    if !testkit::is_nightly("objects must be 30 s old, and results are a minute apart") {
        return;
    }
    let Some(group) = ControlGroup::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let agent = Agent::start(
        &group,
        &["--every", "1s", "--causes-every", "1h", "--snapshots", path, "--kept"],
    );
    group.limit(300 << 20);
    let code = "Process.setproctitle('agentkeeps ')
         module Leaks; ALL = []; end
         Event = Struct.new(:text)
         $kept = Array.new(200_000) { |i| [i] }
         def rss = File.read('/proc/self/statm').split[1].to_i * 4096
         def leak
           event = Event.new('x' * 2_000)
           60.times { |i| event.text.size + i }
           Leaks::ALL << event
         end
         4.times { GC.start }; puts 'ready {}'; $stdout.flush
         $kept << 'x' * 100_000 while rss < 240 << 20
         Thread.new { $stdin.read; loop { $kept << 'x' * 200_000 } }
         loop { 20.times { leak if rss < 285 << 20 }; Array.new(20_000) { |i| \"item #{i}\" } }";
    let target =
        Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", code])));
    wait_until("the lines", || !files(folder.path(), ["agentkeeps", ".kept.json"]).is_empty());
    assert!(!target.finish(), "it is killed");
    let kept = &files(folder.path(), ["agentkeeps", ".kept.json"])[0];
    let kept: formats::Kept = crate::document(&std::fs::read(kept).unwrap());
    assert_eq!(kept.unknown, None, "{kept:#?}");
    let roots = kept.rows.iter().filter_map(|it| it.root.as_deref());
    let growing = kept.growing.iter().map(|it| it.root.as_str());
    assert!(roots.chain(growing).any(|it| it == "Leaks::ALL"), "{kept:#?}");
    agent.end();
}

/// A copy of a process that fills its group at once came too late. While it is paused, it fills nothing.
#[test]
fn a_process_that_rushes_to_its_limit_is_paused_for_a_snapshot() {
    let Some(group) = ControlGroup::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let agent = Agent::start(&group, &["--causes-every", "1h", "--snapshots", path]);
    group.limit(400 << 20);
    let code = "Process.setproctitle('agentrush ')
                module Work; DONE = 'x' * 210_000_000; end
                GC.start; puts 'ready {}'; $stdout.flush
                Thread.new { $stdin.read; exit }
                loop { more = 'x' * 120_000_000; sleep 0.1; more = nil; GC.start; sleep 0.3 }";
    let target =
        Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", code])));
    // A slower look may have found that it grows, too.
    wait_until("it is paused", || {
        files(folder.path(), ["agentrush", ".rbloat"]).iter().any(|snapshot| {
            let output = rbloat().args(["report", "--json"]).arg(snapshot).output().unwrap();
            let report = crate::report_of(&output);
            // No copy was tried before.
            let is_paused = report.capture.method == CaptureMethod::Freeze;
            is_paused && report.capture.reason == "as requested" && report.owners.is_some()
        })
    });
    agent.end();
    assert!(target.finish(), "it lives on");
    assert_eq!(group.kills(), 0);
}

/// Its snapshots had the name `ruby`: it got its title after the latest reading.
#[test]
fn a_process_that_fills_its_group_after_it_got_a_title_has_this_name() {
    let Some(group) = ControlGroup::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let more = folder.path().join("more");
    let options = ["--every", "1m", "--causes-every", "1h", "--snapshots", path];
    group.limit(400 << 20);
    let code = format!(
        "puts 'ready {{}}'; $stdout.flush
         Thread.new {{ $stdin.read; exit }}
         sleep 0.01 until File.exist?('{}')
         Process.setproctitle('agenttitle '); kept = []
         34.times {{ kept << 'x' * 10_000_000; sleep 0.01 }}
         sleep",
        more.display()
    );
    let target =
        Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", &code])));
    let agent = Agent::start(&group, &options);
    agent.await_samples("rbloat_processes{", "role=\"ruby\"");
    std::fs::write(&more, "").unwrap();
    wait_until("a snapshot", || !files(folder.path(), ["", ".rbloat"]).is_empty());
    for snapshot in files(folder.path(), ["", ".rbloat"]) {
        assert!(snapshot.to_string_lossy().contains("agenttitle"), "{snapshot:?}");
    }
    agent.end();
    assert!(target.finish());
}

/// A process that filled its group at once left nothing.
#[test]
fn a_process_that_is_killed_at_once_leaves_its_latest_capture() {
    let Some(group) = ControlGroup::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let agent = Agent::start(&group, &[&intervals[..], &["--snapshots", path]].concat());
    group.limit(200 << 20);
    let code = "Process.setproctitle('agentsudden '); $kept = Array.new(300_000) { |i| 'x' * 50 }; GC.start
                puts 'ready {}'; $stdout.flush; $stdin.read; $kept << 'x' * 400_000_000";
    let target =
        Target::start(&mut group.command(testkit::ruby().args(["--disable-gems", "-e", code])));
    agent.await_samples("rbloat_owner_bytes{", "role=\"agentsudden\"");
    assert!(!target.finish(), "it is killed");
    // It may have been seen while it filled the group.
    wait_until("an answer", || !files(folder.path(), ["agentsudden", ""]).is_empty());
    if let [page] = &files(folder.path(), ["agentsudden", ".html"])[..] {
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("after this capture the kernel killed"), "{page}");
        assert!(page.contains("agentsudden") && page.contains("String"), "{page}");
        let killed =
            agent.samples("rbloat_snapshots_total", "reason=\"killed\",outcome=\"written\"");
        assert!(killed.values().sum::<f64>() <= 1.0);
    }
    agent.end();
}

/// The count went with the last process of the group, so Prometheus saw one kill of four.
#[test]
fn kills_are_counted_when_the_group_is_empty_or_gone() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &["--every", "1s"]);
    let inner = group.inner("kills");
    inner.limit(100 << 20);
    let kills = || agent.samples("rbloat_group_oom_kills_total", "kills").into_values().next();
    for count in [1.0, 2.0] {
        let code =
            "puts 'ready {}'; $stdout.flush; $stdin.read; a = []; loop { a << 'x' * 1_000_000 }";
        let target =
            Target::start(&mut inner.command(testkit::ruby().args(["--disable-gems", "-e", code])));
        wait_until("it is listed", || {
            agent.samples("rbloat_processes{", "kills").values().sum::<f64>() > 0.0
        });
        assert_eq!(kills(), Some(count - 1.0));
        assert!(!target.finish(), "it is killed");
        wait_until("the kill is counted", || kills() == Some(count));
    }
    // There is no process in it any more.
    wait_until("it is gone", || agent.samples("rbloat_processes{", "kills").is_empty());
    drop(inner);
    assert_eq!(kills(), Some(2.0));
    assert!(agent.samples("rbloat_group_usage_bytes{", "kills").is_empty());
    agent.end();
}

/// Two groups without a container's name were one series.
#[test]
fn groups_without_other_names_have_their_paths() {
    let Some(group) = ControlGroup::make() else { return };
    let inner = ["first", "second"].map(|name| group.inner(name));
    let targets = inner.each_ref().map(|inner| {
        let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
        inner.adopt(target.pid());
        target
    });
    let limits = [1_u64 << 30, 2 << 30];
    inner.iter().zip(limits).for_each(|(inner, limit)| inner.limit(limit));
    let agent = Agent::start(&group, &["--every", "1s"]);
    for (name, limit) in ["first", "second"].into_iter().zip(limits) {
        let found = agent.await_samples("rbloat_group_limit_bytes{", name);
        assert!(found.keys().all(|labels| labels.contains("container=\"/")), "{found:?}");
        assert_eq!(found.into_values().collect::<Vec<_>>(), [limit as f64]);
    }
    agent.end();
    assert!(targets.into_iter().all(Target::finish));
}

#[test]
fn a_snapshot_that_a_full_disk_does_not_take_is_counted() {
    let Some(group) = ControlGroup::make() else { return };
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("full");
    std::fs::create_dir(&folder).unwrap();
    // A file system that only the agent sees.
    let mount = "mount -t tmpfs -o size=4k none \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", mount]).arg(&folder).arg(rbloat().get_program());
    command.args(["agent", "--listen", "127.0.0.1:0", "--max-pause", "10s", "--every", "1s"]);
    command.arg("--cgroup").arg(group.folder()).arg("--snapshots").arg(&folder);
    let probe =
        Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none"]).arg(&folder).status();
    if !probe.is_ok_and(|status| status.success()) {
        testkit::skip("no file system can be mounted here");
        return;
    }
    let agent = Agent::spawn(&mut command);
    let target = leak(&group, 300 << 20, &outer.path().join("more"));
    wait_until("the full disk is noticed", || {
        let outcome = "outcome=\"not_written\"";
        agent.samples("rbloat_snapshots_total", outcome).into_values().sum::<f64>() >= 1.0
    });
    assert_eq!(agent.get("/healthz").1, "ok\n");
    assert_eq!(group.kills(), 0);
    agent.end();
    drop(target);
}

#[test]
fn snapshots_that_are_not_taken_cannot_be_pushed() {
    let push = ["agent", "--listen", "127.0.0.1:0", "--push", "snapshots=http://127.0.0.1:1/"];
    let output = rbloat().args(push).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("there are no snapshots to push: add --snapshots DIR"), "{text}");
}
