//! `rbloat report --fit`: how many workers fit into a limit.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use formats::{Fit, FitBasis, FitDoubt};
use ledger::Cause;
use tempfile::TempDir;

use crate::record::Recorder;
use crate::{document, rbloat};

const MIB: u64 = 1 << 20;

/// Writes a recording of a master with two workers for 15 minutes, as a recorder would. `title` is what the workers call themselves.
fn synthetic(folder: &Path, title: &str) -> PathBuf {
    let mut text = String::new();
    let start = r#"{"schema":1,"kind":"start","rbloat":"0.1.0","unix_ms":0,"pid":7,"command":null,"every_ms":1000,"causes_every_ms":null}"#;
    writeln!(text, "{start}").unwrap();
    for (pid, parent, name) in [(7, 1, "puma 6 [shop]"), (8, 7, title), (9, 7, title)] {
        let command = serde_json::to_string(name).unwrap();
        writeln!(
            text,
            r#"{{"schema":1,"kind":"process","t_ms":0,"pid":{pid},"parent":{parent},"started_ticks":{pid},"command":{command}}}"#
        )
        .unwrap();
    }
    for second in 0..900_u64 {
        let private = |pid: u64| match pid {
            7 => 5 * MIB,
            _ => 100 * MIB + (second * 7 + pid) % 5 * 4096,
        };
        let processes: Vec<String> = (7..=9)
            .map(|pid| {
                format!(
                    r#"{{"pid":{pid},"started_ticks":{pid},"state":"S","rss_bytes":{},"pss_bytes":{},"uss_bytes":{},"swap_bytes":0,"user_ms":{},"system_ms":0,"minor_faults":0,"major_faults":0,"threads":7}}"#,
                    private(pid) + 60 * MIB,
                    private(pid) + 20 * MIB,
                    private(pid),
                    second * 100,
                )
            })
            .collect();
        let all: u64 = (7..=9).map(private).sum();
        writeln!(
            text,
            r#"{{"schema":1,"kind":"sample","t_ms":{},"exact":true,"rss_bytes":{},"pss_bytes":{},"uss_bytes":{all},"swap_bytes":0,"processes":[{}],"group":{{"usage_bytes":{},"limit_bytes":{},"cache_bytes":0,"oom_kills":0}},"recorder_cpu_ms":1.5}}"#,
            second * 1000,
            all + 180 * MIB,
            all + 60 * MIB,
            processes.join(","),
            all + 63 * MIB,
            700 * MIB,
        )
        .unwrap();
    }
    let path = folder.join("shop.jsonl");
    fs::write(&path, text).unwrap();
    path
}

fn fit(path: &Path, options: &[&str]) -> std::process::Output {
    rbloat().arg("report").arg(path).args(options).output().unwrap()
}

#[test]
fn a_recording_tells_how_many_workers_fit() {
    let folder = TempDir::new().unwrap();
    let path = synthetic(folder.path(), "puma: cluster worker 1: 7 [shop]");
    let output = fit(&path, &["--fit=1GiB"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("8 workers with 7 threads each fit into 1024.0 MiB; 9 do with "),
        "{text}"
    );
    assert!(text.contains("\n    workers 8\n") && text.contains("MemoryMax=1024M"), "{text}");
    let text = fit(&path, &["--fit=1GiB", "--for", "1h"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("stay below LIMIT for 60 min"));
    // The limit of the control group.
    let of_group: Fit = document(&fit(&path, &["--fit", "--json"]).stdout);
    assert_eq!((of_group.limit_bytes, of_group.max_workers), (Some(700 * MIB), Some(5)));
    assert_eq!(of_group.model.unwrap().basis, FitBasis::Mean);
    // A report on the same recording suggests it.
    let shown = crate::next::on_a_terminal("report shop.jsonl", folder.path());
    assert!(shown.trim_end().ends_with("Next: rbloat report shop.jsonl --fit"), "{shown}");
}

#[test]
fn the_result_is_written_in_each_format() {
    let folder = TempDir::new().unwrap();
    let path = synthetic(folder.path(), "puma: cluster worker 1: 7 [shop]");
    for (name, start) in [
        ("fit.svg", "<?xml"),
        ("fit.html", "<!doctype html>"),
        ("fit.json", "{"),
        ("fit.png", "\u{fffd}PNG"),
    ] {
        let file = folder.path().join(name);
        let output = fit(&path, &["--fit", "-o", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let written = fs::read(&file).unwrap();
        assert!(String::from_utf8_lossy(&written).starts_with(start), "{name}");
    }
}

#[test]
fn hostile_titles_stay_in_their_place() {
    let folder = TempDir::new().unwrap();
    let title = format!("<script>\u{1b}[2J{}", "x".repeat(100_000));
    let path = synthetic(folder.path(), &title);
    let output = fit(&path, &["--fit"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.len() < 5000 && !text.contains("\u{1b}[2J"), "{text}");
    let json: Fit = document(&fit(&path, &["--fit", "--json"]).stdout);
    assert!(json.role.chars().count() <= 40, "{}", json.role);
}

/// Two real workers, for a second: their memory may still change.
#[test]
fn a_short_recording_is_no_answer() {
    let target = testkit::Target::scenario("family", &["idle", "write"]);
    let recorder = Recorder::of(&target, &["--every", "50ms", "--causes-every", "0"]);
    recorder.wait_for(|it| it.samples().filter(|sample| sample.exact).count() > 12);
    let json: Fit = document(&fit(&recorder.path, &["--fit=1GiB", "--json"]).stdout);
    assert!(json.doubt.is_some() && json.max_workers.is_none() && json.model.is_none(), "{json:?}");
    assert_eq!(json.workers, 2, "{json:?}");
    assert_ne!(json.doubt, Some(FitDoubt::NoWorkers));
    assert!(target.finish());
}

/// The private memory of a process, as the kernel tells it.
fn private_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("Private_"));
    let kib = rows.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
    kib.sum::<u64>() * 1024
}

#[test]
fn one_look_at_a_process_tells_what_there_is_and_what_to_do() {
    let target = testkit::Target::scenario("family", &["idle", "write"]);
    let pids = target.truth["children"].as_array().unwrap();
    let [idle, write] = [0, 1].map(|at| pids[at].as_u64().unwrap() as u32);
    let each = [idle, write].map(private_bytes);
    let of = |pid: &str, options: &[&str]| {
        rbloat().args(["report", pid, "--json"]).args(options).output().unwrap()
    };
    let master = target.pid().to_string();
    // Any member names the family.
    for pid in [&master, &write.to_string()] {
        for options in [&["--fit=4GiB"][..], &["--fit=4GiB", "--tree"]] {
            let fit: Fit = document(&of(pid, options).stdout);
            assert_eq!((fit.doubt, fit.max_workers), (Some(FitDoubt::OneLook), None), "{fit:?}");
            let now = fit.now.unwrap();
            let [least, most] = [each[0].min(each[1]), each[0].max(each[1])];
            let is_near = |bytes: u64, truth: u64| bytes.abs_diff(truth) <= MIB;
            assert!(is_near(now.least_bytes, least) && is_near(now.most_bytes, most), "{now:?}");
            let exceeding = (4096 * MIB - now.fixed_bytes) * 2 / (now.least_bytes + now.most_bytes);
            assert_eq!((now.workers, now.above_limit), (2, Some(exceeding + 1)), "{now:?}");
        }
    }
    let text = rbloat().args(["report", &master, "--fit=4GiB"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for part in
        ["Cannot tell yet: one look", "Record for 10 minutes under load", "At the last look: "]
    {
        assert!(text.contains(part), "{text}");
    }
    let folder = TempDir::new().unwrap();
    let shown = crate::next::on_a_terminal(&format!("report {master} --fit"), folder.path());
    let next = format!("Next: rbloat record --for 10m {master} -o fit.jsonl");
    assert!(shown.trim_end().ends_with(&next), "{shown}");
    // A process that forked nothing.
    let alone = testkit::Target::scenario("healthy", &[]);
    let fit: Fit = document(&of(&alone.pid().to_string(), &["--fit=4GiB"]).stdout);
    assert_eq!((fit.doubt, fit.now), (Some(FitDoubt::NoWorkers), None), "{fit:?}");
    assert!(target.finish());
}

/// One worker more than a look says to have more than the limit is killed, since pages of files take less, and two fewer are not.
#[test]
fn the_kernel_agrees_on_the_workers_that_have_more_than_the_limit() {
    // Strings of a MiB have mappings of their own. The kernel may kill a worker before it is ready.
    const PROGRAM: &str = r#"
        puts "ready {}"
        $stdout.flush
        left = Integer($stdin.gets)
        shared = Array.new(40) { "s" * (1 << 20) }
        GC.disable
        (ready, write), (ended, ends) = IO.pipe, IO.pipe
        left.times do
          fork do
            ends.close
            own = Array.new(50) { "w" * (1 << 20) }
            write << "."
            ended.read
            exit!(0)
          end
        end
        until left <= 0
          left -= ready.readpartial(99).size if IO.select([ready], nil, nil, 0.05)
          left -= 1 while (Process.wait(-1, Process::WNOHANG) rescue nil)
        end
        puts "ready {}"
        $stdout.flush
        $stdin.gets
    "#;
    let run = |workers: u64| {
        let group = testkit::ControlGroup::make()?;
        group.limit(300 * MIB);
        let mut target = testkit::Target::bare_ruby(PROGRAM);
        group.adopt(target.pid());
        target.tell(&workers.to_string());
        target.next_truth();
        Some((target, group))
    };
    let Some((target, _group)) = run(2) else { return };
    let pid = target.pid().to_string();
    let output = rbloat().args(["report", &pid, "--fit", "--json"]).output().unwrap();
    let fit: Fit = document(&output.stdout);
    let now = fit.now.unwrap();
    assert_eq!((fit.limit_bytes, now.workers), (Some(300 * MIB), 2), "{now:?}");
    assert!((50 * MIB..60 * MIB).contains(&now.least_bytes), "{now:?}");
    let above_limit = now.above_limit.unwrap();
    let kills = |workers: u64| run(workers).map(|(_, group)| group.kills());
    assert_eq!(
        [above_limit + 1, above_limit - 2].map(|it| kills(it) > Some(0)),
        [true, false],
        "{now:?}"
    );
}

/// Ten threads of each worker have filled some of their stacks.
#[test]
fn a_recording_with_captures_tells_what_the_stacks_of_a_thread_take() {
    const PROGRAM: &str = r#"
        (deep, write), (ended, ends) = IO.pipe, IO.pipe
        2.times do
          fork do
            ends.close
            queue = Queue.new
            # C code of all versions calls this block.
            bottom = lambda { |depth| depth.zero? ? (queue << 1; sleep) : { 1 => 2 }.each_pair { bottom.(depth - 1) } }
            10.times { Thread.new { bottom.(400) } }
            10.times { queue.pop }
            write << "."
            ended.read
            exit!(0)
          end
        end
        deep.read(2)
        puts "ready {}"
        $stdout.flush
        $stdin.gets
    "#;
    let target = testkit::Target::ruby(PROGRAM);
    let recorder = Recorder::of(&target, &["--every", "50ms", "--causes-every", "1s"]);
    let workers = |it: &formats::Recording| {
        let pids: std::collections::BTreeSet<i32> = it.causes().map(|it| it.pid).collect();
        pids.len() == 3
    };
    let recording = recorder.wait_for(workers);
    let stacks = |pid: i32| {
        let causes = recording.causes().filter(|it| it.pid == pid).last().unwrap();
        let rows = causes.causes.iter().filter(|row| row.cause == Cause::StackThreads);
        rows.map(|row| row.bytes).sum::<u64>()
    };
    let fit: Fit = document(&fit(&recorder.path, &["--fit=1GiB", "--json"]).stdout);
    let children: Vec<i32> =
        recording.processes().map(|it| it.pid).filter(|it| *it != target.pid()).collect();
    let all: u64 = children.iter().map(|pid| stacks(*pid)).sum();
    assert_eq!((fit.workers, children.len()), (2, 2), "{fit:?}");
    let each = fit.thread_stack_bytes.unwrap();
    assert!(each.abs_diff(all / (2 * fit.threads)) <= 4096, "{each} of {all}: {fit:?}");
    assert!(fit.threads >= 11 && each * fit.threads > 10 * 128 * 1024, "{fit:?}");
}

#[test]
fn bad_input_is_refused_with_a_reason() {
    let folder = TempDir::new().unwrap();
    let path = synthetic(folder.path(), "w");
    let path = path.to_str().unwrap();
    let own = std::process::id().to_string();
    for (arguments, words) in [
        (vec!["report", path, "--fit=much"], "write a size as 50MiB or 2GiB"),
        (vec!["report", path, "--fit=0"], "a limit is above 0"),
        (vec!["report", path, "--fit", "--fix"], "cannot be used with"),
        (
            vec!["report", path, "--fit", "--owners", "3"],
            "give no option but --output, --json and --fit",
        ),
        (vec!["report", "Cargo.toml", "--fit"], "--fit needs recordings"),
        (vec!["report", &own, "--fit", "--waste"], "no option but --output, --json and --tree"),
        (vec!["report", &own, "1", "--tree", "--fit"], "one process of a server"),
        (vec!["report", path, "--fit", "-o", "fit.txt"], "must end in"),
    ] {
        let output = rbloat().args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
}
