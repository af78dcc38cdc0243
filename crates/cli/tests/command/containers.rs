//! Targets in containers: mount, pid, user and network namespaces of their own, and another root.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{complaint, report_of};
use formats::Report;
use testkit::Container;

const PROGRAM: &str = "
    $kept = Array.new(20_000) { |i| 'kept ' * 200 + i.to_s }
    Array.new(50_000) { |i| 'dropped ' * 99 }.clear
    GC.start
    puts 'ready {}'
    $stdout.flush
    $stdin.read";

/// Runs rbloat in the container, in all its namespaces.
fn run_within(container: &Container, arguments: &[&str]) -> Output {
    let binary = std::env::var_os("RBLOAT_TEST_BINARY");
    let binary = binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_rbloat").into());
    container.install(Path::new(&binary)).args(patient(arguments)).output().unwrap()
}

/// Runs rbloat outside of all containers.
fn run_outside(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rbloat"))
        .env("NO_COLOR", "1")
        .args(patient(arguments))
        .output()
        .unwrap()
}

/// On a busy machine a report may need a longer pause than by default.
fn patient<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let reports = arguments.first() == Some(&"report");
    [arguments, if reports { &["--max-pause", "10s"] } else { &[] }].concat()
}

/// Compares the report of a stopped target with the kernel's count.
fn assert_whole(report: &Report, rss_bytes: u64) {
    assert_eq!(report.findings, []);
    assert_eq!(report.process.rss_bytes, rss_bytes);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    assert!(report.ruby.as_ref().unwrap().slots_live > 20_000);
    assert!(report.malloc.as_ref().unwrap().in_use_bytes > 20_000_000);
}

#[test]
fn reports_from_the_host_and_from_within_are_the_same() {
    let container = Container::ruby(4201, PROGRAM);
    container.target.stop_asleep();
    // From within, where map_files needs a capability of the host, pages of files that were absent are mapped in when
    // they are read. They count after the first such report.
    let rss_bytes = container.target.rss_bytes();
    let pid = container.target.pid().to_string();
    let outside = report_of(&run_outside(&["report", &pid, "--json"]));
    assert_whole(&outside, rss_bytes);
    let called = report_of(&run_outside(&["report", "--namespace-pid", "4201", "--json"]));
    let within = report_of(&run_within(&container, &["report", "4201", "--json"]));
    assert_whole(&within, rss_bytes);
    assert_eq!(within.process.pid, 4201);
    assert_eq!(called.process.pid, container.target.pid());
    for other in [called, within] {
        assert_eq!(other.causes, outside.causes);
        assert_eq!(other.malloc, outside.malloc);
        assert_eq!(other.ruby, outside.ruby);
    }
    container.target.go_on();
    assert!(container.target.finish());
}

#[test]
fn the_list_says_both_ids() {
    let container = Container::ruby(4202, PROGRAM);
    let line = |output: Output, id: &str| {
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(id));
        line.unwrap_or_else(|| panic!("no {id} in {text}")).to_owned()
    };
    let outside = line(run_outside(&[]), &container.target.pid().to_string());
    assert!(outside.split_whitespace().any(|word| word == "4202"), "{outside}");
    let within = line(run_within(&container, &[]), "4202");
    assert!(within.contains("ruby"), "{within}");
    assert!(container.target.finish());
}

/// The files that the target has mapped from its image, by their paths in the container.
fn mapped_files(container: &Container) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", container.target.pid())).unwrap();
    let paths = maps.lines().filter_map(|line| Some(&line[line.find(" /")? + 1..]));
    let image = container.outside("/");
    let image = image.to_str().unwrap().trim_end_matches('/');
    let mut files: Vec<_> =
        paths.map(|path| path.strip_prefix(image).unwrap_or(path).to_owned()).collect();
    files.sort();
    files.dedup();
    let has = |name: &str| files.iter().any(|file| file.contains(name));
    // A static Ruby has no libruby.
    assert!(has("/bin/ruby") && has("libc"), "{files:?}");
    files
}

/// Compares reports before and after a change to the files that the target runs from.
fn assert_same_without_files(namespace_pid: i32, change: impl Fn(&Path)) {
    let container = Container::ruby(namespace_pid, PROGRAM);
    container.target.stop_asleep();
    // From within, where map_files needs a capability of the host, pages of files that were absent are mapped in when
    // they are read. They count after the first such report.
    let rss_bytes = container.target.rss_bytes();
    let pid = container.target.pid().to_string();
    let before = report_of(&run_outside(&["report", &pid, "--json"]));
    for file in mapped_files(&container) {
        change(&container.outside(&file));
    }
    let after = report_of(&run_outside(&["report", &pid, "--json"]));
    let within =
        report_of(&run_within(&container, &["report", &namespace_pid.to_string(), "--json"]));
    assert_whole(&after, rss_bytes);
    assert_whole(&within, rss_bytes);
    for other in [after, within] {
        assert_eq!(other.causes, before.causes);
        assert_eq!(other.malloc, before.malloc);
        assert_eq!(other.ruby, before.ruby);
    }
    container.target.go_on();
    assert!(container.target.finish());
}

#[test]
fn programs_and_libraries_that_were_deleted() {
    assert_same_without_files(4203, |file| fs::remove_file(file).unwrap());
}

#[test]
fn programs_and_libraries_that_were_replaced_by_others() {
    assert_same_without_files(4204, |file| {
        // As package managers do: the new file has another name first.
        let new = file.with_extension("new");
        fs::copy("/bin/sh", &new).unwrap();
        fs::rename(&new, file).unwrap();
    });
}

#[test]
fn an_id_that_two_containers_use_is_an_error_with_both() {
    let [one, two] = [0, 1].map(|_| Container::ruby(4205, PROGRAM));
    let (status, line) = complaint(&run_outside(&["report", "--namespace-pid", "4205"]));
    assert_eq!(status, 3);
    for pid in [one.target.pid(), two.target.pid()] {
        assert!(line.contains(&format!("{pid} (")), "{line}");
    }
    // From within, each container's process is the only one with this id.
    for container in [one, two] {
        let report = report_of(&run_within(&container, &["report", "4205", "--json"]));
        assert_eq!(report.findings, []);
        assert!(container.target.finish());
    }
}

#[test]
fn an_id_that_no_container_uses() {
    let (status, line) = complaint(&run_outside(&["report", "--namespace-pid", "4299"]));
    assert_eq!(status, 3);
    assert!(line.contains("no Ruby process has the id 4299 inside a container"), "{line}");
}

#[test]
fn a_proc_of_another_pid_namespace_is_told_from_ones_own() {
    // Its /proc/4206 and its process 4206 would be two processes: here /proc is the host's.
    let container = Container::ruby(4206, PROGRAM);
    let mut command = container.enter(&["--user", "--pid"]);
    let output =
        command.arg(env!("CARGO_BIN_EXE_rbloat")).args(["report", "4206"]).output().unwrap();
    let (status, line) = complaint(&output);
    assert_eq!(status, 1);
    assert!(line.contains("nsenter --pid --mount"), "{line}");
    // And here it is the container's, with the host's ids.
    let script =
        format!("mount --bind /proc/{}/root/proc /proc && exec \"$@\"", container.target.pid());
    let output = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            &script,
            "sh",
            env!("CARGO_BIN_EXE_rbloat"),
            "report",
            "4206",
        ])
        .output()
        .unwrap();
    let (status, _) = complaint(&output);
    assert_eq!(status, 1);
    assert!(container.target.finish());
}
