//! The code that makes memory grow, compared with the program's design.

mod free_memory;
mod growth;
mod kept;
mod processes;
mod stacks;

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use formats::Who;
use serde_json::Value;
use testkit::Target;

use crate::{document, rbloat};

/// Two methods that keep memory, one eight times as much as the other, each with a line of its own, until the standard input
/// ends. A thread calls them, and another one is idle.
const GROWTH: &str = r##"
    require 'json'
    eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/reports.rb', 1)
      KEPT = []
      class ReportsController
        def export
          KEPT << Array.new(400) { |i| "x" * (1200 + i) }
        end
        def index
          KEPT << Array.new(50) { |i| "y" * (1200 + i) }
        end
      end
    RUBY
    def work
      reports = ReportsController.new
      loop { reports.export; reports.index; sleep 0.01 }
    end
    def grow
      threads = [Thread.new { work }, Thread.new { sleep }]
      threads[0].name = 'worker'
      puts "ready #{{ 'pid' => $$ }.to_json}"
      $stdout.flush
      $stdin.read
      exit!(0)
    end
"##;

/// The options of the JIT compilers that Ruby was built with, and whose frames are in the VM stack, unlike those of ZJIT from 4.1 on. Without
/// one, the test is skipped.
fn jit_options() -> Vec<&'static str> {
    let compilers = [("--yjit", "YJIT", "true"), ("--zjit", "ZJIT", "RUBY_VERSION < '4.1'")];
    let compilers =
        compilers.into_iter().filter(|&(option, name, also)| has_jit(option, name, also));
    let options: Vec<_> = compilers.map(|it| it.0).collect();
    if options.is_empty() {
        testkit::skip("Ruby was built without a JIT compiler");
    }
    options
}

/// The option of ZJIT where its frames are not in the VM stack. Without it, the test is skipped.
fn hidden_jit_option() -> Option<&'static str> {
    let has_it = has_jit("--zjit", "ZJIT", "RUBY_VERSION >= '4.1'");
    if !has_it {
        testkit::skip("this Ruby has all frames in the VM stack");
    }
    has_it.then_some("--zjit")
}

/// Returns true if this option enables the compiler of this name, and the condition is met.
fn has_jit(option: &str, name: &str, condition: &str) -> bool {
    let has =
        format!("exit!(RubyVM.const_defined?(:{name}) && RubyVM::{name}.enabled? && {condition})");
    let enabled = testkit::ruby().args([option, "-e", &has]).output();
    enabled.is_ok_and(|output| output.status.success())
}

/// The name of the descriptor of a counter.
const COUNTER: &str = "anon_inode:[perf_event]";

/// `rbloat who` with these arguments, for long enough on a busy machine.
fn who(arguments: &[&str]) -> Output {
    rbloat().args(["who", "--for", "3s", "--max-pause", "10s"]).args(arguments).output().unwrap()
}

fn document_of(output: &Output) -> Who {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    document(&output.stdout)
}

/// The growth of a method with all that it calls, as a share of all growth.
fn share(who: &Who, method: &str) -> f64 {
    let row = who.methods.iter().find(|row| row.method == method);
    row.map_or(0.0, |row| row.total_bytes as f64 / who.growth_bytes as f64)
}

/// Every byte of growth is in one row of each table, or unknown.
fn assert_adds_up(who: &Who) {
    let own: u64 = who.methods.iter().map(|row| row.self_bytes).sum();
    assert_eq!(own + who.unknown_bytes, who.growth_bytes);
    let stacks: u64 = who.stacks.iter().map(|stack| stack.bytes).sum();
    assert_eq!(stacks + who.unknown_bytes, who.growth_bytes);
    let threads: u64 = who.threads.iter().map(|it| it.bytes).sum();
    let kinds: u64 = who.kinds.iter().map(|it| it.bytes).sum();
    let code: u64 = who.machine_code.iter().map(|it| it.bytes).sum();
    assert_eq!([threads, kinds, code].map(|it| it + who.unsampled_bytes), [who.growth_bytes; 3]);
    let processes: u64 = who.processes.iter().map(|process| process.growth_bytes).sum();
    assert_eq!(processes, who.growth_bytes);
}

/// The program grows as designed.
fn assert_design(who: &Who) {
    assert_adds_up(who);
    assert!(who.growth_bytes > 4 << 20, "{}", who.growth_bytes);
    let [export, index] =
        ["ReportsController#export", "ReportsController#index"].map(|method| share(who, method));
    assert!(export > 0.6 && export > 3.0 * index, "{export} {index} {:#?}", who.methods);
    let line = &who.lines[0];
    assert_eq!((line.path.as_str(), line.line), ("/srv/app/reports.rb", 4));
    assert_eq!(line.method, "block in ReportsController#export");
    assert_eq!(who.threads[0].name, "worker");
}

/// Waits until rbloat has opened its counters of page faults and sleeps, since it has then read which pages are shared. Without
/// the right to such counters, until it has surely begun.
fn wait_until_it_samples(child: &mut Child) {
    let mut before = 0;
    for _ in 0..600 {
        let files = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
        let target = |file: fs::DirEntry| fs::read_link(file.path()).ok();
        let counters = files.flatten().filter_map(target).filter(|to| to.ends_with(COUNTER));
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let now = if stat.contains(") S ") { counters.count() } else { 0 };
        if (now > 0 && now == before) || child.try_wait().unwrap().is_some() {
            return;
        }
        before = now;
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Waits until rbloat has waited so many times for samples, or has ended. Meanwhile it has read the RSS of processes with new samples.
fn wait_until_it_has_waited(child: &mut Child, times: u64) {
    let pid = child.id();
    let waits = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    };
    let before = waits();
    while child.try_wait().unwrap().is_none() && waits() < before + times {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Watches a program that works when it reads a line, until it is ready again. Returns the output of `rbloat who`, and what the
/// program reports.
fn watch_work(target: &mut Target) -> (Output, Value) {
    let mut child = rbloat()
        .args(["who", "--for", "1h", "--json", "--max-pause", "10s", &target.pid().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    target.tell("");
    let truth = target.next_truth();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    (child.wait_with_output().unwrap(), truth)
}
