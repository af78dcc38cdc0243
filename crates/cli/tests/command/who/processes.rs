//! Programs that fork, start others, or end while they are watched.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use formats::{Who, WhoLine};
use serde_json::Value;
use testkit::Target;

use super::{
    GROWTH, assert_adds_up, assert_design, document_of, share, wait_until_it_has_waited,
    wait_until_it_samples, watch_work, who,
};
use crate::{document, limited, rbloat};

/// A process that was forked before the observation, and one that is forked meanwhile.
#[test]
fn forked_processes_are_followed() {
    // They compute between two pieces of work: the stack of a thread that sleeps by then is unknown.
    let growth = GROWTH.replace("sleep 0.01", "x = 0; x += 1 while x < 400_000");
    let program = format!(
        "{growth}
         read, write = IO.pipe
         first = fork {{ $stdin.reopen(read); grow }}
         puts 'ready {{}}'; $stdout.flush
         sleep 1
         second = fork {{ $stdin.reopen(read); grow }}
         $stdin.read; write.close; Process.kill(:KILL, first, second)"
    );
    let mut target = Target::bare_ruby(&program);
    let pid_of = |truth: &Value| truth["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let first = pid_of(&target.truth);
    let first = first.or(pid_of(&target.next_truth())).unwrap();
    let found = document_of(&who(&[&target.pid().to_string(), "--json"]));
    let second = pid_of(&target.next_truth()).unwrap();
    assert_design(&found);
    let mut pids: Vec<i32> = found.processes.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    let mut expected = [target.pid(), first, second];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    for process in &found.processes {
        let grows = process.pid != target.pid();
        assert_eq!(process.growth_bytes > 1 << 20, grows, "{:?}", found.processes);
    }
    // The layouts were derived of the process that forked them.
    assert!(found.unknown_bytes * 5 < found.growth_bytes, "{found:#?}");
    assert!(target.finish());
}

/// Two forked processes write to memory that they share with their parent, and grow. They live until the parent ends, since a
/// process that ends at once may be gone before its growth was seen.
const WORKERS: &str = r##"
    require 'json'
    eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/workers.rb', 1)
      TEXTS = Array.new(48) { "x" * (1 << 20) }
      class Worker
        def write
          TEXTS.each { |text| 0.step(text.bytesize - 1, 4096) { |at| text.setbyte(at, 65) } }
        end
        def grow
          $kept = Array.new(9000) { |i| "y" * (1200 + i % 400) }
        end
      end
    RUBY
    def figures
      kib = Hash.new(0)
      File.read('/proc/self/smaps_rollup').scan(/^(Rss|Private)\w*: +(\d+) kB$/) { |name, size| kib[name] += size.to_i }
      kib
    end
    # The bytes that were copied and grown.
    def work
      before = figures
      Worker.new.write
      Worker.new.grow
      after = figures
      grown = after['Rss'] - before['Rss']
      [after['Private'] - before['Private'] - grown, grown].map { |kib| kib * 1024 }
    end
    figures
    answer, out = IO.pipe
    wait, go = IO.pipe
    stay, leave = IO.pipe
    fork { go.close; leave.close; wait.read; out.puts JSON.generate(work); stay.read; exit!(0) }
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    go.close
    fork { leave.close; out.puts JSON.generate(work); stay.read; exit!(0) }
    sums = Array.new(2) { JSON.parse(answer.gets) }.transpose.map(&:sum)
    puts "ready #{{ 'copied' => sums[0], 'grown' => sums[1] }.to_json}"; $stdout.flush
    $stdin.read
"##;

#[test]
fn copies_of_shared_pages_are_told_apart_from_growth() {
    let mut target = Target::bare_ruby(WORKERS);
    let (output, truth) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    let [copied, grown] = ["copied", "grown"].map(|key| truth[key].as_u64().unwrap());
    assert!(copied > 90 << 20 && grown > 16 << 20, "{truth}");
    let is_near = |found: u64, truth: u64| found.abs_diff(truth) * 100 <= truth * 15;
    assert!(is_near(found.copied_bytes, copied), "{} {truth}", found.copied_bytes);
    assert!(is_near(found.growth_bytes, grown), "{} {truth}", found.growth_bytes);
    let place = |line: &WhoLine| (line.path.clone(), line.line);
    let line = &found.copies[0];
    assert_eq!(place(line), ("/srv/app/workers.rb".to_owned(), 4), "{:#?}", found.copies);
    assert!(line.bytes * 10 > found.copied_bytes * 8, "{:#?}", found.copies);
    // Growth is that of the other method.
    let line = &found.lines[0];
    assert_eq!(place(line), ("/srv/app/workers.rb".to_owned(), 7), "{:#?}", found.lines);
    let written = share(&found, "Worker#write");
    assert!(line.bytes * 10 > found.growth_bytes * 7 && written < 0.15, "{:#?}", found.methods);
    let text = render::who(&found, 100);
    assert!(text.contains("LINE THAT COPIED SHARED MEMORY"), "{text}");
    assert!(target.finish());
}

/// A program that runs another one: the growth of both is in the sums, also that of threads between two samples.
#[test]
fn growth_before_an_exec_is_kept() {
    let program = "threads = 24.times.map { Thread.new { (0...9).map { |i| 'x' * (4096 * 9 + i) } } }
                   $kept = threads.map(&:value); $stderr.puts 'grown'; $stdin.gets; exec('sleep', '0.3')";
    let mut command = testkit::ruby();
    command.args(["-e", program]);
    let mut rbloat = rbloat();
    rbloat.args(["who", "--json", "--max-pause", "10s", "--"]);
    rbloat.arg(command.get_program()).args(command.get_args());
    rbloat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = rbloat.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "grown"));
    // No one can measure the memory of a program that has been replaced.
    wait_until_it_samples(&mut child);
    wait_until_it_has_waited(&mut child, 6);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let found: Who = document_of(&child.wait_with_output().unwrap());
    assert_adds_up(&found);
    // Each program has a row. The programs that enter another root are the first ones.
    let own = found.processes.iter().filter(|process| process.pid == found.pid);
    let rows: Vec<u64> = own.map(|process| process.growth_bytes).collect();
    let [first @ .., grown, last] = &rows[..] else { panic!("{:?}", found.processes) };
    let is_in_root = testkit::root().is_some();
    assert!(is_in_root || first.is_empty(), "{:?}", found.processes);
    assert!(*grown > 24 * 9 * 9 * 4096 && *last < grown / 2, "{:?}", found.processes);
}

/// A process whose main thread has ended lives on, and grows.
#[test]
fn a_process_without_its_main_thread_is_watched() {
    let program = format!(
        "require 'fiddle'
         {GROWTH}
         Thread.new {{ work }}
         puts 'ready {{}}'; $stdout.flush
         $stdin.gets
         Fiddle::Function.new(Fiddle.dlopen(nil)['pthread_exit'], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOID).call(nil)"
    );
    let mut target = Target::bare_ruby(&program);
    let mut child = rbloat()
        .args(["who", "--for", "4s", "--json", "--max-pause", "10s", &target.pid().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    target.tell("");
    let found = document_of(&child.wait_with_output().unwrap());
    assert!(found.elapsed_ms > 3900.0, "{}", found.elapsed_ms);
    assert_adds_up(&found);
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

/// A process with more threads than rbloat may open counters for.
#[test]
fn too_few_descriptors_are_an_error_with_advice() {
    let target = Target::bare_ruby(
        "40.times { Thread.new { sleep } }
         puts 'ready {}'; $stdout.flush
         $stdin.read",
    );
    let mut rbloat = limited("-n 40");
    rbloat.args(["who", "--for", "1s", "--max-pause", "10s", &target.pid().to_string()]);
    let output = rbloat.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{complaint}");
    assert!(complaint.contains("raise the limit of open files (ulimit -Hn)"), "{complaint}");
    assert!(target.finish());
}

/// Each process took two descriptors of rbloat until the observation ended.
#[test]
fn a_process_that_starts_many_others_does_not_exhaust_the_descriptors() {
    let mut target = Target::bare_ruby(
        "puts 'ready {}'; $stdout.flush
         $stdin.gets
         150.times { system('true') }
         puts 'ready {}'; $stdout.flush
         $stdin.read",
    );
    let limited = "ulimit -n 64; exec \"$0\" \"$@\"";
    let mut child = Command::new("sh")
        .args(["-c", limited, rbloat().get_program().to_str().unwrap()])
        .args(["who", "--for", "1h", "--json", "--max-pause", "10s", &target.pid().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    target.tell("");
    target.next_truth();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let _ = document_of(&child.wait_with_output().unwrap());
    assert!(descriptors < 40, "{descriptors}");
    assert!(target.finish());
}

/// The capture of a program's layouts begins after 100 ms. A program that ended during it had its status taken by the tracer,
/// and rbloat waited for it without end.
#[test]
fn a_program_that_ends_during_the_capture_keeps_its_status() {
    for milliseconds in (60..=180).step_by(6) {
        let word = format!("sleep {}; exit 7", f64::from(milliseconds) / 1e3);
        for command in
            [&["who"][..], &["record", "--growth", "--every", "100ms", "-o", "/dev/null"]]
        {
            let mut rbloat = rbloat();
            rbloat.args(command).arg("--");
            rbloat.arg(testkit::ruby().get_program()).args(testkit::ruby().get_args());
            let output = rbloat.args(["-e", &word]).output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{word} {command:?}: {complaint}");
        }
    }
}

#[test]
fn a_program_that_ends_before_the_observation_keeps_its_status() {
    for _ in 0..10 {
        for (program, expected) in [("true", 0), ("false", 1)] {
            let output = rbloat().args(["who", "--json", "--", program]).output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(expected), "{complaint}");
            let found: Who = document(&output.stdout);
            assert!(found.command.contains(program), "{}", found.command);
            let words = ["record", "--growth", "-o", "/dev/null", "--", program];
            assert_eq!(rbloat().args(words).output().unwrap().status.code(), Some(expected));
        }
    }
}

#[test]
fn a_signal_ends_the_observation_and_not_the_program() {
    let target = Target::bare_ruby(&format!("{GROWTH}; grow"));
    let pid = target.pid().to_string();
    let mut child = rbloat()
        .args(["who", "--for", "1h", "--json", "--max-pause", "10s", &pid])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_adds_up(&document_of(&child.wait_with_output().unwrap()));
    assert!(target.finish());
}
