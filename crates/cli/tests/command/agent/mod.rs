//! The agent: its metrics agree with the kernel and with reports, and it does no harm.

mod access;
mod archive;
mod limits;
mod monitoring;
mod profiles;
mod server;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::{ControlGroup, Target};

use crate::rbloat;

/// Long enough for any machine. Nothing is concluded from the time that it takes.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    /// Starts an agent that leaves all processes alone but those of a group: other tests have some.
    fn start(group: &ControlGroup, more: &[&str]) -> Self {
        let arguments = ["agent", "--listen", "127.0.0.1:0", "--max-pause", "10s", "--cgroup"];
        Self::spawn(rbloat().args(arguments).arg(group.folder()).args(more))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving ").expect(&line);
        let address = address.split("://").nth(1).expect(&line);
        let address = address.strip_suffix("/metrics").expect(&line).to_owned();
        Self { child, address }
    }

    /// The head and the body of the answer to a request.
    fn ask(&self, request: &str) -> (String, String) {
        let (head, body) = ask(&self.address, request);
        (head, String::from_utf8(body).unwrap())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    /// The samples with this name and these labels, by their line without the value.
    fn samples(&self, name: &str, with: &str) -> BTreeMap<String, f64> {
        let (_, body) = self.get("/metrics");
        let lines = body.lines().filter(|line| line.starts_with(name) && line.contains(with));
        let parts = lines.map(|line| line.rsplit_once(' ').unwrap());
        parts.map(|(key, value)| (key.to_owned(), value.parse().unwrap())).collect()
    }

    /// Waits for such samples.
    pub(crate) fn await_samples(&self, name: &str, with: &str) -> BTreeMap<String, f64> {
        let until = Instant::now() + PATIENCE;
        loop {
            let samples = self.samples(name, with);
            if !samples.is_empty() {
                return samples;
            }
            assert!(Instant::now() < until, "no {name} with {with}: {}", self.get("/metrics").1);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Asks it to end.
    pub(crate) fn end(mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// The head and the body of a server's answer to a request.
fn ask(address: &str, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("an answer");
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end + 4..].to_vec())
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets an agent make at least so many captures of the processes in a group, half of them with owners.
pub(crate) fn examine(group: &ControlGroup, captures: u32) {
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let agent = Agent::start(group, &[&intervals[..], &["--cpu-percent", "100"]].concat());
    wait_until("they are captured", || {
        agent.samples("rbloat_captures_total", "outcome=\"forked\"").values().sum::<f64>()
            >= f64::from(captures)
    });
    assert!(!agent.samples("rbloat_owner_bytes", "").is_empty());
    agent.end();
}

/// A process in the group, with a role of its own, which keeps memory.
fn server(group: &ControlGroup, role: &str) -> Target {
    let code = format!(
        "Process.setproctitle('{role} '); $kept = Array.new(1000) {{ |i| 'x' * (1000 + i) }}; GC.start; \
         puts 'ready {{}}'; $stdout.flush; $stdin.read"
    );
    let target = Target::bare_ruby(&code);
    group.adopt(target.pid());
    target
}

/// Waits until this is true.
fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns false, and reports the test as skipped, if a program is not installed.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        testkit::skip(&format!("{program} is not installed"));
    }
    found
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{command:?}: {text:?}");
    text.concat()
}

#[test]
fn metrics_of_a_process_are_those_of_the_kernel_and_of_a_report() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agenttest");
    let agent = Agent::start(&group, &["--every", "1s", "--causes-every", "1s"]);
    let role = "role=\"agenttest\"";
    let causes = agent.await_samples("rbloat_memory_bytes{", role);
    let pid = target.pid().to_string();
    let arguments = ["report", &pid, "--owners", "0", "--json", "--max-pause", "10s"];
    // On a busy machine the agent may trace the process whenever the report tries to.
    let mut outputs = (0..20).map(|_| rbloat().args(arguments).output().unwrap());
    let output = outputs.find(|output| output.status.success()).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum: f64 = causes.values().sum();
    assert_eq!(sum, report["process"]["rss_bytes"].as_f64().unwrap(), "{causes:?}");
    for row in report["causes"].as_array().unwrap() {
        let label = format!("cause={}", row["cause"]);
        let found = causes.iter().find(|(key, _)| key.contains(&label)).expect(&label);
        assert_eq!(*found.1, row["bytes"].as_f64().unwrap(), "{label}");
    }
    let info = agent.samples("rbloat_verdict_info{", role);
    let info = info.keys().next().unwrap();
    let ruby = format!("ruby={}", report["process"]["ruby_version"]);
    let verdict = format!("verdict={}", report["verdict"]["cause"]);
    assert!(info.contains(&ruby) && info.contains(&verdict), "{info}");
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", target.pid())).unwrap();
    let bytes = |key: &str| {
        let row = rollup.lines().find(|line| line.starts_with(key)).unwrap();
        row.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
    };
    let metric = |name| agent.samples(name, role).into_values().next().unwrap();
    assert_eq!(metric("rbloat_resident_bytes"), bytes("Rss:"));
    assert_eq!(metric("rbloat_swap_bytes"), bytes("Swap:"));
    // Other processes begin and end to share its libraries, and for a moment a forked copy has half of the rest.
    let proportional = metric("rbloat_proportional_bytes");
    let bounds = bytes("Anonymous:") / 2.0..=bytes("Rss:");
    assert!(bounds.contains(&proportional), "{proportional}, {bounds:?}");
    assert!(
        agent.samples("rbloat_captures_total", "outcome=\"forked\"").values().sum::<f64>() > 0.0
    );
    agent.end();
    assert!(target.finish());
}

#[test]
fn a_panic_about_one_process_does_not_end_the_agent() {
    let Some(group) = ControlGroup::make() else { return };
    if !cfg!(debug_assertions) || std::env::var_os("RBLOAT_TEST_BINARY").is_some() {
        return testkit::skip("only a debug build panics on request");
    }
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let arguments = ["agent", "--listen", "127.0.0.1:0", "--every", "1s", "--cgroup"];
    let mut agent = rbloat();
    agent.args(arguments).arg(group.folder());
    let agent = Agent::spawn(agent.env("RBLOAT_TEST_PANIC", target.pid().to_string()));
    group.adopt(target.pid());
    let other = server(&group, "agentother");
    let found = agent.await_samples("rbloat_processes{", "");
    assert!(found.len() == 1 && found.keys().all(|key| key.contains("agentother")), "{found:?}");
    agent.end();
    assert!(target.finish() && other.finish());
}

/// A panic about a report that a capture had returned ended the agent.
#[test]
fn a_panic_after_a_capture_does_not_end_the_agent() {
    let Some(group) = ControlGroup::make() else { return };
    if !cfg!(debug_assertions) || std::env::var_os("RBLOAT_TEST_BINARY").is_some() {
        return testkit::skip("only a debug build panics on request");
    }
    let mut agent = rbloat();
    agent.args(["agent", "--listen", "127.0.0.1:0", "--every", "1s", "--causes-every", "1s"]);
    agent.arg("--cgroup").arg(group.folder());
    let agent = Agent::spawn(agent.env("RBLOAT_TEST_PANIC", "after a capture"));
    let process = server(&group, "agentpanics");
    wait_until("two captures have failed", || {
        agent.samples("rbloat_captures_total", "outcome=\"failed\"").values().sum::<f64>() >= 2.0
    });
    assert_eq!(agent.samples("rbloat_processes{", "agentpanics").len(), 1);
    agent.end();
    assert!(process.finish());
}

#[test]
fn a_process_that_has_ended_is_gone_and_one_in_its_place_has_the_same_labels() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &["--every", "1s", "--causes-every", "1s"]);
    let role = "role=\"agentshort\"";
    assert!(agent.samples("rbloat_processes", role).is_empty());
    let mut labels = Vec::new();
    for _ in 0..2 {
        let process = server(&group, "agentshort");
        let found = agent.await_samples("rbloat_processes", role);
        assert_eq!(found.values().sum::<f64>(), 1.0);
        // Other series have small numbers as labels.
        let pid = format!("\"{}\"", process.pid());
        let has_pid = |key: &String| key.contains(&pid);
        assert!(!agent.samples("rbloat_", role).keys().any(has_pid), "a process id is no label");
        labels.push(found.into_keys().collect::<Vec<_>>());
        assert!(process.finish());
        wait_until("it is gone", || agent.samples("rbloat_", role).is_empty());
    }
    assert_eq!(labels[0], labels[1]);
    agent.end();
}

#[test]
fn scrapers_get_their_format_and_others_a_reason() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &[]);
    let (head, body) = agent.get("/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"), "{head}");
    assert!(body.contains("\n# TYPE rbloat_captures_total counter\n"), "{body}");
    let request = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let (head, body) = agent.ask(request);
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("\n# EOF\n") && body.contains("\n# TYPE rbloat_captures counter\n"));
    assert_eq!(agent.get("/healthz").1, "ok\n");
    assert!(agent.get("/proc/1/environ").0.starts_with("HTTP/1.1 404"));
    let (head, _) = agent.ask("DELETE /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405") && head.contains("\r\nAllow: GET, HEAD"), "{head}");
    assert!(agent.ask("\u{16}\u{3}\u{1}").0.starts_with("HTTP/1.1 400"));
    // One that says nothing keeps nobody else waiting.
    let silent = TcpStream::connect(&agent.address).unwrap();
    assert_eq!(agent.get("/healthz").1, "ok\n");
    drop(silent);
    agent.end();
}

#[test]
fn metrics_have_the_owners_of_a_report() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agentowners");
    let agent =
        Agent::start(&group, &["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"]);
    let role = "role=\"agentowners\"";
    let owners = agent.await_samples("rbloat_owner_bytes{", role);
    let strings = agent.samples("rbloat_objects{", role);
    let states: f64 = agent.samples("rbloat_allocator_bytes{", role).values().sum();
    // Two cannot trace a process at the same time.
    agent.end();
    let report = crate::report(target.pid());
    for (labels, bytes) in &owners {
        let is_it = |it: &&formats::Owner| labels.contains(&format!("owner=\"{}\"", it.owner));
        let owner = report.owners.as_ref().unwrap().iter().find(is_it).expect(labels);
        assert_eq!(*bytes, owner.bytes() as f64, "{labels}");
    }
    assert!(owners.keys().any(|labels| labels.contains("owner=\"String\"")), "{owners:?}");
    let strings = strings.iter().find(|(key, _)| key.contains("type=\"T_STRING\"")).unwrap();
    assert_eq!(*strings.1, report.ruby.as_ref().unwrap().objects["T_STRING"] as f64);
    let arenas = report.arenas.as_ref().unwrap().iter();
    let in_use: u64 = arenas.map(|arena| arena.in_use_bytes).sum();
    assert!(states >= in_use as f64 && states <= report.process.rss_bytes as f64, "{states}");
    assert!(target.finish());
}

#[test]
fn a_process_is_trimmed_only_on_request_and_by_as_much_as_was_said() {
    let Some(group) = ControlGroup::make() else { return };
    let target = Target::scenario("burst", &["--scale", "0.3"]);
    group.adopt(target.pid());
    let is_burst = "burst.rb";
    let before = target.rss_bytes();
    let options = ["--every", "1s", "--causes-every", "1s", "--treat-above", "10MiB"];
    let agent = Agent::start(&group, &options);
    let treatable: f64 = agent.await_samples("rbloat_treatable_bytes", is_burst).values().sum();
    assert!(treatable > f64::from(50 << 20), "{treatable}");
    assert_eq!(agent.samples("rbloat_trims_total", "").values().sum::<f64>(), 0.0);
    agent.end();
    // A trim would return more than 50 MiB. Captures may touch pages of stacks, and the kernel counts pages for each processor.
    let now = target.rss_bytes();
    assert!(now.abs_diff(before) < 8 << 20, "{before} {now}");

    let agent = Agent::start(&group, &[&options[..], &["--treat"]].concat());
    wait_until("it is trimmed", || target.rss_bytes() + (50 << 20) < before);
    wait_until("it is counted", || {
        agent.samples("rbloat_trimmed_bytes_total", "").values().sum::<f64>() > 0.0
    });
    let returned = (before - target.rss_bytes()) as f64;
    assert!((returned / treatable - 1.0).abs() < 0.02, "{returned} of {treatable}");
    wait_until("the metrics know", || {
        agent.samples("rbloat_treatable_bytes", is_burst).values().sum::<f64>() == 0.0
    });
    agent.end();
    assert!(target.finish());
}

/// The wall clock jumps back and forth by many years. All intervals are of the monotonic clock.
#[test]
fn jumps_of_the_clock_change_nothing_but_timestamps() {
    let Some(group) = ControlGroup::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let library = testkit::compile("jumping_clock", folder.path(), &["-shared", "-fPIC"]);
    let target = server(&group, "agentclock");
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let mut command = rbloat();
    command.env("LD_PRELOAD", &library).args(["agent", "--listen", "127.0.0.1:0"]);
    command.args(["--max-pause", "10s", "--cgroup"]).arg(group.folder()).args(intervals);
    let agent = Agent::spawn(&mut command);
    let role = "role=\"agentclock\"";
    let mut times = std::collections::BTreeSet::new();
    wait_until("the clock has jumped", || {
        let samples = agent.samples("rbloat_capture_timestamp_seconds{", role);
        times.extend(samples.values().map(|seconds| *seconds as u64 / 100_000_000));
        times.len() > 1
    });
    agent.await_samples("rbloat_owner_bytes{", role);
    agent.end();
    assert!(target.finish());
}

/// A server to which something is pushed. It gives each request the same answer.
struct TakingServer {
    address: String,
    requests: Receiver<(String, Vec<u8>)>,
}

impl TakingServer {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    stream.read_line(&mut head).unwrap();
                }
                let length = head.to_lowercase();
                let length = length.split("content-length: ").nth(1).expect(&head);
                let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                if sender.send((head, body)).is_err() {
                    return;
                }
            }
        });
        Self { address, requests }
    }
}

/// Metrics add up processes with the same names, so an alert did not lead to the process.
#[test]
fn the_processes_behind_a_series_have_their_ids() {
    let Some(group) = ControlGroup::make() else { return };
    let targets = [server(&group, "agenttwin"), server(&group, "agenttwin")];
    let agent = Agent::start(&group, &["--every", "1s", "--causes-every", "1s"]);
    agent.await_samples("rbloat_memory_bytes{", "role=\"agenttwin\"");
    let mut expected: Vec<i64> = targets.iter().map(|it| it.pid().into()).collect();
    expected.sort_unstable();
    wait_until("both have a verdict", || {
        let (head, body) = agent.get("/processes");
        assert!(head.contains("Content-Type: application/json"), "{head}");
        let document: serde_json::Value = serde_json::from_str(&body).unwrap();
        let rows = document["processes"].as_array().unwrap().iter();
        let twins: Vec<_> = rows.filter(|it| it["role"] == "agenttwin").collect();
        let mut pids: Vec<_> = twins.iter().filter_map(|it| it["pid"].as_i64()).collect();
        pids.sort_unstable();
        pids == expected
            && twins.iter().all(|it| it["resident_bytes"].as_u64() > Some(1 << 20))
            && twins.iter().all(|it| it["verdict"] == "healthy")
    });
    agent.end();
}
