//! The code that makes memory grow, compared with the program's design.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use formats::{SamplingMethod, Who};
use serde_json::Value;

use crate::{document, rbloat};
use testkit::{Browser, Target};

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
    for shares in [&who.threads, &who.kinds, &who.libraries] {
        let sum: u64 = shares.iter().map(|share| share.bytes).sum();
        assert_eq!(sum + who.unsampled_bytes, who.growth_bytes);
    }
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

#[test]
fn the_method_that_grows_has_most_of_the_growth() {
    let target = Target::ruby(&format!("{GROWTH}; grow"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [page, folded, speedscope] = ["a.html", "a.folded", "a.json"].map(file);
    let pid = target.pid().to_string();
    let files = ["-o", &page, "--folded", &folded, "--speedscope", &speedscope];
    let output = who(&[&[pid.as_str(), "--json"], &files[..]].concat());
    let found = document_of(&output);
    assert_design(&found);
    assert_ne!(found.sampling.method, SamplingMethod::Polling, "the tests run as root");
    let largest = found.kinds.iter().max_by_key(|kind| kind.bytes).unwrap();
    assert_eq!(largest.name, "arena", "{:?}", found.kinds);
    // In other formats it is the same growth.
    let lines = fs::read_to_string(&folded).unwrap();
    let bytes = lines.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(bytes.sum::<u64>(), found.growth_bytes);
    assert!(lines.contains("block in ReportsController#export (reports.rb:4)"), "{lines}");
    let profile: Value = serde_json::from_str(&fs::read_to_string(&speedscope).unwrap()).unwrap();
    assert_eq!(profile["profiles"][0]["endValue"], found.growth_bytes);
    let frames = profile["shared"]["frames"].as_array().unwrap().len() as u64;
    let samples = profile["profiles"][0]["samples"].as_array().unwrap().iter();
    let mut indices = samples.flat_map(|sample| sample.as_array().unwrap());
    assert!(indices.all(|index| index.as_u64().unwrap() < frames));
    assert!(fs::read_to_string(&page).unwrap().contains("default-src 'none'"));
    assert!(target.finish());
    assert_flame_graph(&page, &found);
}

/// The page draws all growth in the lowest row, enlarges a method that is clicked, and marks those that are searched for.
fn assert_flame_graph(page: &str, who: &Who) {
    let mut browser = Browser::open(Path::new(page), "", [1200, 800]);
    browser.wait_until("document.querySelectorAll('.row').length > 3");
    let text =
        |browser: &mut Browser| browser.evaluate("document.getElementById('tip').textContent");
    let all = text(&mut browser);
    assert!(all.as_str().unwrap().starts_with("all growth: "), "{all}");
    let button = "[...document.querySelectorAll('.row button')].find(it => it.textContent.startsWith(\
         'ReportsController#export'))";
    let width = |browser: &mut Browser| {
        let width = browser.evaluate(&format!("parseFloat({button}.style.width)"));
        width.as_f64().unwrap()
    };
    let expected = 100.0 * share(who, "ReportsController#export");
    assert!((width(&mut browser) - expected).abs() < 1.0, "{expected}");
    browser.evaluate(&format!("{button}.click()"));
    assert!((width(&mut browser) - 100.0).abs() < 0.01);
    browser.evaluate(
        "search.value = 'string#*'; \
         search.dispatchEvent(new Event('input'))",
    );
    let found = browser.evaluate("document.querySelectorAll('.row button.found').length");
    assert!(found.as_u64().unwrap() > 0);
}

#[test]
fn without_events_the_method_that_grows_has_most_of_the_growth() {
    // Counting shows what a thread runs most of the time: so it computes there.
    let busy = GROWTH.replace("sleep 0.01", "");
    let busy = busy.replace("{ |i| \"x\"", "{ |i| x = 0; x += 1 while x < 2000; \"x\"");
    let target = Target::ruby(&format!("{busy}; grow"));
    let pid = target.pid().to_string();
    let found = document_of(&who(&[&pid, "--poll", "--json"]));
    assert_eq!(found.sampling.method, SamplingMethod::Polling);
    assert_design(&found);
    let text = String::from_utf8(who(&[&pid, "--poll"]).stdout).unwrap();
    assert!(text.contains("page faults were counted every 20 ms"), "{text}");
    assert!(text.contains("/srv/app/reports.rb:4"), "{text}");
    assert!(target.finish());
}

/// A process that was forked before the observation, and one that is forked meanwhile.
#[test]
fn forked_processes_are_followed() {
    let program = format!(
        "{GROWTH}
         read, write = IO.pipe
         first = fork {{ $stdin.reopen(read); grow }}
         puts 'ready {{}}'; $stdout.flush
         sleep 1
         second = fork {{ $stdin.reopen(read); grow }}
         $stdin.read; write.close; Process.kill(:KILL, first, second)"
    );
    let mut target = Target::ruby(&program);
    let first = target.truth["pid"].as_u64();
    let other = target.next_truth()["pid"].as_u64();
    let found = document_of(&who(&[&target.pid().to_string(), "--json"]));
    let child = first.or(other).and_then(|pid| i32::try_from(pid).ok()).unwrap();
    assert_design(&found);
    let grown = found.processes.iter().filter(|process| process.growth_bytes > 1 << 20);
    let grown: Vec<i32> = grown.map(|process| process.pid).collect();
    assert!(grown.len() >= 2 && grown.contains(&child), "{child} {:?}", found.processes);
    assert!(target.finish());
}

#[test]
fn a_program_is_watched_until_it_ends() {
    let body = GROWTH.replace("loop {", "150.times {");
    let mut command = testkit::ruby();
    command.args(["-e", &format!("{body}; sleep 1.5; Thread.new {{ work }}.join; exit!(3)")]);
    let mut rbloat = rbloat();
    rbloat.args(["who", "--json", "--max-pause", "10s", "--"]);
    rbloat.arg(command.get_program()).args(command.get_args());
    let output = rbloat.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Who = document(&output.stdout);
    assert_adds_up(&found);
    assert_eq!(found.lines[0].path, "/srv/app/reports.rb", "{:?}", found.lines);
}

#[test]
fn a_signal_ends_the_observation_and_not_the_program() {
    let target = Target::ruby(&format!("{GROWTH}; grow"));
    let pid = target.pid().to_string();
    let child = rbloat()
        .args(["who", "--for", "1h", "--json", "--max-pause", "10s", &pid])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_adds_up(&document_of(&child.wait_with_output().unwrap()));
    assert!(target.finish());
}
