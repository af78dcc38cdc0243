//! The target continues undisturbed, even if rbloat is killed.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::{rbloat, run};
use testkit::{ControlGroup, Target, compile};

/// Threads in every kind of work, which record errors: an exception, a wrong errno, a wrong checksum.
const BUSY: &str = r#"
require "digest"
$wrong = Queue.new
$done = 0
def busily
  Thread.new do
    loop { yield; $done += 1 }
  rescue Exception => e
    $wrong << e.inspect
  end
end
reader, writer = IO.pipe
queue = Queue.new
mutex = Mutex.new
busily { Array.new(500) { "x" * rand(4096) }; nil }
busily { sleep 0.001 }
busily { IO.select([reader], nil, nil, 0.001) }
busily { mutex.synchronize { sleep 0.0001 } }
busily { queue << 1; queue.pop }
busily { raise "wrong digest" unless Digest::MD5.hexdigest("a" * 10_000) == "0d0c9c4db6953fee9e03f528cafd7d3e" }
busily do
  child = IO.popen("exit 3") { |io| io.read; io.pid }
  # A second wait fails if something else has waited for the child.
  raise "wrong status: #{$?.inspect}, #{Process.wait(child) rescue $!.inspect}" unless $?&.exitstatus == 3
end
busily { Thread.new { 1 + 1 }.join }
busily { GC.start; sleep 0.01 }
trap("USR1") { $usr1 = $usr1.to_i + 1 }
Thread.new { loop { Process.kill("USR1", $$); sleep 0.01 } }
puts "ready {}"
$stdout.flush
while $stdin.gets
  wrong = []
  wrong << $wrong.pop until $wrong.empty?
  puts "ready {\"wrong\": #{wrong.size}, \"first\": #{wrong.first.inspect.dump}, \"done\": #{$done}}"
  $stdout.flush
end
exit!(0)
"#;

/// A busy Ruby with native threads beside Ruby's own. These end the process if a register, an errno or a signal mask is
/// wrong.
fn busy_with_natives() -> (tempfile::TempDir, Target) {
    busy_with_natives_named("natives")
}

/// Its command line has `word`.
fn busy_with_natives_named(word: &str) -> (tempfile::TempDir, Target) {
    let folder = tempfile::tempdir().unwrap();
    let library = compile("natives", folder.path(), &["-shared", "-fPIC", "-pthread"]);
    let mut command = testkit::ruby();
    command.args(["--disable-gems", "-e", BUSY, word]).env("LD_PRELOAD", library);
    (folder, Target::start(&mut command))
}

/// The number of times that rbloat runs or is killed: RBLOAT_TEST_KILLS, or a number for a quick test.
fn kills() -> u32 {
    std::env::var("RBLOAT_TEST_KILLS").map_or(10, |kills| kills.parse().expect("a number"))
}

/// Starts rbloat with `arguments` repeatedly and kills it at moments throughout its run.
fn kill_at_random(arguments: &[&str]) {
    let start = || {
        let (out, error) = (std::process::Stdio::null(), std::process::Stdio::null());
        rbloat()
            .args(arguments)
            .args(["--max-pause", "10s"])
            .stdout(out)
            .stderr(error)
            .spawn()
            .unwrap()
    };
    let started = std::time::Instant::now();
    start().wait().unwrap();
    let whole = started.elapsed().as_micros() as u64;
    // A linear congruential generator: moments throughout the run, the same in every test.
    let mut random = 1_u64;
    for _ in 0..kills() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut rbloat = start();
        std::thread::sleep(Duration::from_micros((random >> 33) % whole));
        rbloat.kill().unwrap();
        rbloat.wait().unwrap();
    }
}

/// A process that ended meanwhile was called a kernel thread, an error of rbloat's own (exit status 1), or a process whose
/// allocator exports no function.
#[test]
fn a_target_that_ends_meanwhile_is_said_to_have_ended() {
    let commands: [&[&str]; 4] = [
        &["report"],
        &["report", "--capture", "freeze"],
        &["snapshot", "--output", "/dev/null"],
        &["trim"],
    ];
    let mut target = Target::bare_ruby(
        r#"
        child = nil
        while $stdout.puts("ready {\"child\": #{child || 0}}") || $stdout.flush && $stdin.gets
          if child
            Process.kill(:KILL, child)
            child = nil
          else
            Process.detach(fork { sleep }).then { |it| child = it.pid }
          end
        end
        "#,
    );
    for command in commands {
        for microseconds in (0..40_000).step_by(3_200) {
            target.tell("fork");
            let child = target.next_truth()["child"].to_string();
            let (out, error) = (std::process::Stdio::null(), std::process::Stdio::piped());
            let arguments = [&command[..1], &[&*child], &command[1..]].concat();
            let rbloat = rbloat().args(arguments).stdout(out).stderr(error).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(microseconds));
            target.tell("kill");
            target.next_truth();
            let output = rbloat.wait_with_output().unwrap();
            let complaint = String::from_utf8(output.stderr).unwrap();
            let status = output.status.code();
            assert!(matches!(status, Some(0 | 3 | 5 | 6)), "{status:?}: {complaint}");
            let wrong = ["os error", "kernel thread", "knows no function"];
            assert!(!wrong.iter().any(|it| complaint.contains(it)), "{complaint}");
        }
    }
    assert!(target.finish());
}

/// If a process ends while its copy is read, the copy goes to the next reaper: one child that it does not know, which ends
/// when rbloat has read it.
#[test]
fn of_a_process_that_ends_at_most_its_copy_is_left_to_the_reaper() {
    let mut reaper = Target::bare_ruby(
        r#"
        require "fiddle"
        prctl = Fiddle::Function.new(Fiddle::Handle::DEFAULT["prctl"], [Fiddle::TYPE_INT] * 2, Fiddle::TYPE_INT)
        PR_SET_CHILD_SUBREAPER = 36
        prctl.call(PR_SET_CHILD_SUBREAPER, 1)
        loop do
          worker = fork { sleep }
          puts "ready {\"worker\": #{worker}}"
          $stdout.flush
          $stdin.gets or Process.kill(:KILL, worker).then { exit!(true) }
          Process.kill(:KILL, worker)
          ended = []
          # Until there is no child left.
          loop { ended << Process.wait } rescue Errno::ECHILD
          puts "ready {\"unknown\": #{(ended - [worker]).size}}"
        end
        "#,
    );
    let mut worker = reaper.number("worker");
    for milliseconds in (0..30).step_by(3) {
        let (out, error) = (std::process::Stdio::null(), std::process::Stdio::null());
        let mut command = rbloat();
        command.args(["report", &worker.to_string()]).stdout(out).stderr(error);
        let mut rbloat = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        reaper.tell("kill");
        assert!(reaper.next_truth()["unknown"].as_u64().unwrap() <= 1);
        let status = rbloat.wait().unwrap();
        assert!(matches!(status.code(), Some(0 | 3 | 5 | 6)), "{status}");
        worker = reaper.next_truth()["worker"].as_u64().unwrap();
    }
    assert!(reaper.finish());
}

/// The target's children that have ended and that it does not wait for by itself.
fn dead_clones(target: &Target) -> usize {
    let is_dead_clone = |stat: String| {
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<_> = rest.split(' ').collect();
        let [state, parent, signal] = [fields[0], fields[1], fields[35]];
        state == "Z" && parent == target.pid().to_string() && signal == "0"
    };
    let processes = linux::proc::processes().unwrap();
    processes
        .into_iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .filter(|stat| is_dead_clone(stat.clone()))
        .count()
}

/// Fails if an error occurred in the target, or if it no longer works.
fn check(target: &mut Target) {
    target.tell("");
    let before = target.next_truth();
    assert_eq!(before["wrong"], 0, "{before}");
    // On a busy machine its threads may not run for a while.
    let goes_on = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        target.tell("");
        target.next_truth()["done"].as_u64() > before["done"].as_u64()
    });
    assert!(goes_on, "{before}");
    assert_eq!(target.status("TracerPid:"), "0");
}

#[test]
fn a_busy_target_lives_on_after_reports() {
    let mut target = Target::bare_ruby(BUSY);
    for _ in 0..kills() {
        let output = run(target.pid(), &["--json"]);
        // Occasionally, a thread in the middle of vfork does not stop in time, or a heap that is being changed is
        // reported as such. Neither must harm the target.
        let status = output.status.code();
        assert!(matches!(status, Some(0 | 5 | 6)), "{}", String::from_utf8_lossy(&output.stderr));
    }
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn a_busy_target_lives_on_after_rbloat_is_killed() {
    let mut target = Target::bare_ruby(BUSY);
    // A linear congruential generator: moments throughout the run, the same in every test.
    let mut random = 1_u64;
    for _ in 0..kills() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut rbloat = rbloat()
            .args(["report", &target.pid().to_string(), "--json"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros((random >> 33) % 60_000));
        rbloat.kill().unwrap();
        rbloat.wait().unwrap();
    }
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn a_busy_target_lives_on_after_rbloat_is_killed_in_fork_captures() {
    let (_folder, mut target) = busy_with_natives();
    let pid = target.pid().to_string();
    kill_at_random(&["report", &pid, "--capture", "fork", "--json"]);
    check(&mut target);
    // A capture that completes leaves nothing, and removes copies that earlier captures left.
    let clean = (0..50).any(|_| {
        let output = run(target.pid(), &["--capture", "fork", "--json"]);
        matches!(output.status.code(), Some(0 | 6)) && dead_clones(&target) == 0
    });
    assert!(clean, "{} dead clones are left", dead_clones(&target));
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn a_request_to_end_in_a_fork_capture_leaves_no_dead_clone() {
    let target = Target::bare_ruby(
        "$kept = Array.new(200_000) { 'x' * 100 }
         Thread.new { sleep }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let pid = target.pid().to_string();
    let has_clone = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.flatten().any(|task| {
            let children = std::fs::read_to_string(task.path().join("children"));
            children.is_ok_and(|children| !children.is_empty())
        })
    };
    // A shell makes its background processes ignore some signals. Then this process and rbloat ignore them, too.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        if ignored >> (number - 1) & 1 == 1 {
            continue;
        }
        // rbloat may end before the signal arrives.
        let ended = (0..50).any(|_| {
            let mut rbloat = rbloat()
                .args(["report", &pid, "--capture", "fork", "--json"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            while !has_clone() {
                if rbloat.try_wait().unwrap().is_some() {
                    return false;
                }
            }
            let kill = format!("kill -{name} {}", rbloat.id());
            let told = testkit::command("sh").args(["-c", &kill]).output().unwrap();
            let status = rbloat.wait().unwrap();
            assert_eq!(dead_clones(&target), 0, "{name}");
            told.status.success() && status.signal() == Some(number)
        });
        assert!(ended, "{name}");
    }
    assert!(target.finish());
}

#[test]
fn a_busy_target_lives_on_after_rbloat_is_killed_in_trims() {
    let (_folder, mut target) = busy_with_natives();
    let pid = target.pid().to_string();
    kill_at_random(&["trim", &pid, "--json"]);
    check(&mut target);
    assert!(target.finish());
}

/// The agent captures each process every second, with owners and without, and trims.
#[test]
fn a_busy_target_lives_on_after_agents_are_killed() {
    let Some(group) = ControlGroup::make() else { return };
    let (_folder, mut target) = busy_with_natives();
    group.adopt(target.pid());
    let mut random = 1_u64;
    for _ in 0..kills() / 4 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut agent = rbloat()
            .args(["agent", "--listen", "127.0.0.1:0", "--every", "1s", "--causes-every", "1s"])
            .args(["--owners-every", "1s", "--treat", "--treat-above", "1", "--cgroup"])
            .arg(group.folder())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Captures begin after a second.
        std::thread::sleep(Duration::from_millis(900 + (random >> 33) % 1500));
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn a_busy_target_lives_on_after_rbloat_top_is_killed() {
    // Of this test only: the targets of others, which run at the same time, are none of its business.
    let word = crate::top::word("survival");
    let (_folder, mut target) = busy_with_natives_named(&word);
    // A linear congruential generator: moments throughout the first captures, the same in every test.
    let mut random = 1_u64;
    for _ in 0..kills() / 4 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut top = crate::top::Top::start(&word, (80, 24));
        top.wait(|screen| screen.contains("LIMIT %"));
        // A report, and a trim.
        top.press("\rqty");
        std::thread::sleep(Duration::from_micros((random >> 33) % 1_500_000));
        let kill = format!("kill -KILL {}", top.pid());
        testkit::command("sh").args(["-c", &kill]).output().unwrap();
        assert_eq!(top.end().0, 128 + 9);
    }
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn ten_fork_captures_and_ten_trims_at_once_neither_hang_nor_do_harm() {
    let (_folder, mut target) = busy_with_natives();
    let pid = target.pid().to_string();
    let start = |arguments: &[&str]| {
        let (out, error) = (std::process::Stdio::null(), std::process::Stdio::piped());
        rbloat().args(arguments).stdout(out).stderr(error).spawn().unwrap()
    };
    let report = ["report", &pid, "--capture", "fork", "--json"];
    let both = || [start(&report), start(&["trim", &pid, "--json"])];
    let all: Vec<_> = (0..10).flat_map(|_| both()).collect();
    for rbloat in all {
        let output = rbloat.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 5 | 6)), "{complaint}");
    }
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn ten_reports_at_once_neither_hang_nor_do_harm() {
    let mut target = Target::bare_ruby(BUSY);
    let start = || {
        rbloat()
            .args(["report", &target.pid().to_string(), "--json"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let all: Vec<_> = (0..10).map(|_| start()).collect();
    for rbloat in all {
        let output = rbloat.wait_with_output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0 | 6) => {}
            // Others traced it, or the threads did not stop in time.
            Some(5) => assert_eq!(complaint.lines().count(), 1, "{complaint}"),
            status => panic!("{status:?}: {complaint}"),
        }
    }
    check(&mut target);
    assert!(target.finish());
}

#[test]
fn a_target_that_becomes_another_program_all_the_time_is_never_mixed_up() {
    // Each program execs the next, some at once. The first one reports that it is ready.
    let source = "puts 'ready {}' if ARGV.size == 1
                  $stdout.flush
                  sleep rand / 5
                  exec 'ruby', '--disable-gems', '-e', ARGV[0], ARGV[0], 'again'";
    let target = Target::start(testkit::ruby().args(["--disable-gems", "-e", source, source]));
    let (mut tries, mut reports) = (0, 0);
    // On a slow machine, few reports take no longer than a program.
    while tries < 3 * testkit::captures() || reports == 0 && tries < 1000 {
        tries += 1;
        let output = run(target.pid(), &["--json"]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0 | 6) => {
                let report: formats::Report = crate::document(&output.stdout);
                let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
                assert_eq!(sum, report.process.rss_bytes);
                reports += 1;
            }
            // The target may be between two programs, without libruby yet.
            Some(1 | 3 | 5) => assert_eq!(complaint.lines().count(), 1, "{complaint}"),
            status => panic!("{status:?}: {complaint}"),
        }
    }
    assert!(reports > 0);
    assert_eq!(target.status("TracerPid:"), "0");
}
