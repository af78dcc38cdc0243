//! Examining a process costs it no memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{complaint, rbloat};
use formats::CaptureMethod;
use testkit::{ControlGroup, Target};

/// A parent with the given MiB of strings and two children that share them, all of them idle. In each a thread waits
/// that has used its stack before, as threads of servers have: a signal frame on a stack that was never used needs up
/// to four new pages, once. The parent has pages of every kind that a reader must treat with care.
const FAMILY: &str = r##"
    require 'fiddle'
    libc = Fiddle.dlopen(nil)
    long, pointer, int = Fiddle::TYPE_LONG, Fiddle::TYPE_VOIDP, Fiddle::TYPE_INT
    MMAP = Fiddle::Function.new(libc['mmap'], [pointer, long, int, int, int, long], pointer)
    MADVISE = Fiddle::Function.new(libc['madvise'], [pointer, long, int], int)
    def map(bytes, protection: 3, flags: 0x22)
      MMAP.call(nil, bytes, protection, flags, -1, 0)
    end
    MIB = 1 << 20
    PAGE = 4096
    $kept = Array.new(Integer(ARGV[0]) * 100) { |i| i.to_s.ljust(10_400, 'x') }
    kinds = []
    zeros = map(MIB)
    0.step(MIB - 1, PAGE) { |at| zeros[at, 1] }
    map(64 * MIB)
    map(MIB, protection: 0)
    own = map(MIB)
    own[0, MIB] = 'x' * MIB
    kinds << 'MADV_DONTFORK' if MADVISE.call(own, MIB, 10).zero?
    guarded = map(MIB)
    guarded[0, MIB] = 'x' * MIB
    kinds << 'MADV_GUARD_INSTALL' if MADVISE.call(guarded, MIB / 2, 102).zero?
    # Private ones forbid a forked copy.
    huge = map(2 * MIB, flags: 0x21 | 0x40000)
    if huge.to_i != 2**64 - 1 && huge.to_i != -1
      huge[0, 1] = 'x'
      kinds << 'hugetlb'
    end
    GC.start
    wait = lambda do
      waits = Thread.new do
        # Array#each calls the interpreter anew, on the machine's stack.
        deep = ->(n) { [n].each { |left| deep.(left - 1) if left.positive? } }
        deep.(100)
        sleep
      end
      Thread.pass until waits.stop?
      waits
    end
    busy = ARGV[1] == 'busy'
    ended, ends = IO.pipe
    written, writes = IO.pipe
    children = Array.new(2) do
      fork do
        ends.close
        threads = [wait.call]
        if busy
          threads << Thread.new do
            write_all = lambda do
              $kept.each { |text| 0.step(text.bytesize - 1, PAGE) { |at| text.setbyte(at, 120) } }
            end
            write_all.call
            writes.write('.')
            loop { write_all.call }
          end
        else
          writes.write('.')
        end
        ended.read
        exit!(0)
      end
    end
    wait.call
    # By then the children have copies of all that they write.
    written.read(children.size)
    puts "ready {\"children\": #{children}, \"kinds\": \"#{kinds.join(', ')}\"}"
    $stdout.flush
    $stdin.read
    ends.close
    Process.waitall
    exit!(0)
"##;

fn family(megabytes: u32, kind: &str) -> Command {
    let mut command = testkit::ruby();
    command.args(["--disable-gems", "-e", FAMILY, &megabytes.to_string(), kind]);
    command
}

fn members(parent: &Target) -> Vec<i32> {
    let children = parent.truth["children"].as_array().unwrap();
    let pid = |child: &serde_json::Value| i32::try_from(child.as_i64().unwrap()).unwrap();
    std::iter::once(parent.pid()).chain(children.iter().map(pid)).collect()
}

/// The kernel's sums over a process's anonymous mappings (the figures of files depend on other processes that use
/// them), and its RSS, in kB.
fn memory(pid: i32) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut is_anonymous = false;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [key, kilobytes, "kB"] if key.ends_with(':') => {
                let wanted = ["Pss:", "Private_", "Shared_", "Swap:", "Anonymous:"];
                if key == "Rss:"
                    || is_anonymous && wanted.iter().any(|prefix| key.starts_with(prefix))
                {
                    *sums.entry(key.to_owned()).or_default() += kilobytes.parse::<u64>().unwrap();
                }
            }
            // All processes of the machine share the pages of the kernel's vdso.
            [range, _, _, _, inode, ref name @ ..] if range.contains('-') => {
                is_anonymous =
                    inode == "0" && !matches!(name, ["[vdso]" | "[vvar]" | "[vvar_vclock]"]);
            }
            _ => {}
        }
    }
    sums
}

/// Each way to examine a process, with `PID` in place of its id.
fn ways(folder: &Path) -> Vec<Vec<String>> {
    let file = |name: &str| folder.join(name).display().to_string();
    let ways: [&[&str]; 21] = [
        &["report", "--capture", "freeze", "--max-pause", "10s"],
        &["report", "--capture", "fork", "--max-pause", "10s"],
        &["report", "--tree", "--identical", "--max-pause", "10s"],
        &["snapshot", "--tree", "--max-pause", "10s", "-o", &file("b.rbloat")],
        &["map", "--tree", "--max-pause", "10s", "-o", &file("b.html")],
        &["diff", "--kept", "--max-pause", "10s", "--every", "1s", "--times", "3"],
        &["diff", "--tree", "--max-pause", "10s", "--every", "1s", "--times", "2"],
        &["report", "--fix", "--max-pause", "10s"],
        &["snapshot", "--max-pause", "10s", "-o", &file("a.rbloat")],
        &["map", "--max-pause", "10s", "-o", &file("a.html")],
        &["diff", "--max-pause", "10s", "--every", "1s", "--times", "2"],
        &[
            "record",
            "--max-pause",
            "10s",
            "--for",
            "2s",
            "--causes-every",
            "1s",
            "-o",
            &file("a.jsonl"),
        ],
        &["record", "--max-pause", "10s", "--for", "2s", "--growth", "-o", &file("b.jsonl")],
        &["record", "--max-pause", "10s", "--for", "2s", "--kept", "-o", &file("c.jsonl")],
        &["trim", "--max-pause", "10s", "--dry-run"],
        &["why", "--max-pause", "10s", "PID", "String"],
        &["dump", "--max-pause", "10s", "--values", "-o", &file("a.ndjson")],
        &["who", "--max-pause", "10s", "--for", "2s"],
        &["who", "--kept", "--max-pause", "10s", "--for", "2s", "--older-than", "1s"],
        // On a terminal, with a report.
        &["top"],
        // Causes and owners of each, several times.
        &["agent"],
    ];
    let with_pid = |words: &[&str]| {
        let has_pid = words.contains(&"PID");
        let last = if has_pid { &[][..] } else { &["PID"] };
        words.iter().chain(last).map(|&word| word.to_owned()).collect()
    };
    ways.map(with_pid).into()
}

/// A process that runs code for the first time maps pages of its file, 64 KiB at a time. rbloat wakes it up by a signal.
const OWN_FILE_KILOBYTES: u64 = 256;

/// The memory that processes no longer share. All else has to be as before.
fn copied_kilobytes(before: &[BTreeMap<String, u64>], after: &[BTreeMap<String, u64>]) -> u64 {
    let pairs = || before.iter().zip(after);
    let copied = |(before, after): (&BTreeMap<String, u64>, &BTreeMap<String, u64>)| {
        after["Private_Dirty:"].saturating_sub(before["Private_Dirty:"])
    };
    let most = pairs().map(copied).max().unwrap_or(0);
    // A page that one of them has copied is shared by fewer of the others, which have a larger part of it.
    let all: u64 = pairs().map(copied).sum();
    for (before, after) in pairs() {
        let copied = copied((before, after));
        let mut expected = before.clone();
        *expected.get_mut("Private_Dirty:").unwrap() += copied;
        *expected.get_mut("Shared_Dirty:").unwrap() -= copied;
        expected.insert("Pss:".into(), after["Pss:"]);
        let of_files = after["Rss:"].saturating_sub(before["Rss:"]);
        assert!(of_files <= OWN_FILE_KILOBYTES, "{before:?} {after:?}");
        *expected.get_mut("Rss:").unwrap() += of_files;
        assert_eq!(after, &expected);
        assert!(after["Pss:"].abs_diff(before["Pss:"]) <= all, "{before:?} {after:?}");
    }
    most
}

#[test]
fn no_command_changes_what_a_family_of_processes_shares() {
    let Some(group) = ControlGroup::make() else { return };
    let parent = Target::start(&mut group.command(&family(60, "idle")));
    let made = parent.truth["kinds"].as_str().unwrap();
    for kind in ["MADV_DONTFORK", "MADV_GUARD_INSTALL", "hugetlb"] {
        if !made.contains(kind) {
            testkit::skip(&format!("in part: the family has no memory of {kind}"));
        }
    }
    let members = members(&parent);
    let all = || members.iter().map(|&pid| memory(pid)).collect::<Vec<_>>();
    // The target's last steps before it waits for its input copy a page, too.
    members.iter().for_each(|&pid| testkit::wait_until_asleep(pid));
    let mut before = all();
    assert!(before[1]["Shared_Dirty:"] > 58_000, "{:?}", before[1]);
    let folder = tempfile::tempdir().unwrap();
    let mut copied = 0;
    let on_all = testkit::is_nightly("every command on every process of a family, not on one");
    for (number, way) in ways(folder.path()).into_iter().enumerate() {
        let one = number % members.len();
        for &pid in if on_all { &members[..] } else { &members[one..=one] } {
            if way[0] == "top" {
                // The end of their command lines. It captures all of them.
                crate::top::examine("\"60 idle\"");
                break;
            }
            if way[0] == "agent" {
                crate::agent::examine(&group, 10);
                break;
            }
            let words = way.iter().map(|word| word.replace("PID", &pid.to_string()));
            let output = rbloat().args(words).output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{way:?}: {complaint}");
            for file in fs::read_dir(folder.path()).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        }
        let after = all();
        copied += copied_kilobytes(&before, &after);
        // docs/effects.md: the first frame of a signal handler may need four pages of stack.
        assert!(copied <= 16, "after {way:?}: {before:?} became {after:?}");
        before = after;
    }
    assert!(parent.finish());
}

/// The number of reports on each process in a control group that is nearly full; set RBLOAT_TEST_REPORTS=100 for
/// 100.
fn reports() -> u32 {
    let count = std::env::var("RBLOAT_TEST_REPORTS").ok().and_then(|count| count.parse().ok());
    count.unwrap_or(2)
}

/// The limit leaves the group this fraction of its usage.
const LEFT: u64 = 20;

#[test]
fn a_control_group_that_is_nearly_full_stays_as_it_is() {
    let Some(group) = ControlGroup::make() else { return };
    let parent = Target::start(&mut group.command(&family(500, "idle")));
    let members = members(&parent);
    let usage = group.usage();
    group.limit(usage + usage / LEFT);
    let counts_anew = group.reset_peak().is_some();
    for _ in 0..reports() {
        for &pid in &members {
            let output = rbloat()
                .args(["report", "--owners", "0", "--max-pause", "10s", "--json"])
                .arg(pid.to_string())
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    assert_eq!(group.kills(), 0);
    if counts_anew {
        let peak = group.peak();
        assert!(peak <= usage + usage / 50, "{usage} bytes were in use, and at most {peak}");
    } else {
        testkit::skip("in part: this kernel cannot reset the peak of a control group");
    }
    // In the group itself there is not enough room for rbloat to read such a process.
    let mut command = rbloat();
    command.args(["report", &parent.pid().to_string()]);
    let (status, line) = complaint(&group.command(&command).output().unwrap());
    assert_eq!(status, 5);
    assert!(line.contains("Run rbloat outside of the control group"), "{line}");
    assert!(parent.finish());
    assert_eq!(group.kills(), 0);
}

/// While a forked copy exists, pages that the original process writes to are copied.
#[test]
fn a_control_group_that_is_nearly_full_of_busy_processes_loses_none() {
    let Some(group) = ControlGroup::make() else { return };
    let parent = Target::start(&mut group.command(&family(100, "busy")));
    let members = members(&parent);
    let usage = group.usage();
    group.limit(usage + usage / LEFT);
    for _ in 0..reports() {
        for &pid in &members {
            let mut command = rbloat();
            command.args(["report", "--owners", "0", "--json"]).arg(pid.to_string());
            let output = once_it_stops(command);
            // Within 50 ms a freeze may not read everything.
            let status = output.status.code().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!([0, 6].contains(&status), "{status}: {complaint}");
        }
    }
    assert_eq!(group.kills(), 0);
    assert!(parent.finish());
}

/// The search for functions in a library used to map pages of its file into the process: RSS was a page higher after a
/// report than before it.
#[test]
fn a_report_maps_in_no_page_of_a_library() {
    let target = Target::bare_ruby(
        "require 'fiddle'
         types = [Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG, Fiddle::TYPE_INT]
         madvise = Fiddle::Function.new(Fiddle.dlopen(nil)['madvise'], types, Fiddle::TYPE_INT)
         GC.start
         # What is never written of libraries: symbols, and where to find them. MADV_DONTNEED is 4.
         File.readlines('/proc/self/maps').each do |line|
           next unless line =~ /^(\\h+)-(\\h+) r--p 00000000 .*(ruby|libc)/
           madvise.call($1.hex, $2.hex - $1.hex, 4)
         end
         puts 'ready {}'; $stdout.flush; Process.kill(:STOP, $$); $stdin.read",
    );
    target.wait_until_stopped();
    let before = target.rss_bytes();
    let report = crate::report(target.pid());
    assert_eq!(report.process.rss_bytes, before);
    assert_eq!(target.rss_bytes(), before);
    target.go_on();
    assert!(target.finish());
}

/// Runs rbloat again if the threads of the target did not stop within a short limit, as on a busy machine.
fn once_it_stops(mut command: Command) -> Output {
    let mut outputs = (0..50).map(|_| command.output().unwrap());
    outputs.find(|output| output.status.code() != Some(5)).expect("its threads stop in time")
}

/// `ruby -e 'loop {}'` was not read: no thread of it can make a forked copy, and the walks took longer than the limit.
#[test]
fn a_process_that_only_computes_is_read_by_default() {
    let target =
        Target::bare_ruby("puts 'ready {}'; $stdout.flush; loop { $count = $count.to_i + 1 }");
    let mut command = rbloat();
    command.args(["report", "--json"]).arg(target.pid().to_string());
    let report = crate::report_of(&once_it_stops(command));
    // Newer releases have a thread that waits, and can make a forked copy.
    assert_eq!(report.capture.unread, None);
    assert!(report.ruby.is_some() && report.malloc.is_some());
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
}

/// "Allow more with --max-pause" left the user to guess.
#[test]
fn a_copy_that_would_take_too_long_names_a_limit_that_is_enough() {
    if !testkit::has_free_memory(2 << 30) {
        return;
    }
    let target =
        Target::bare_ruby("KEPT = 'x' * 900_000_000; puts 'ready {}'; $stdout.flush; $stdin.read");
    let copy = |limit: &str| {
        let mut command = rbloat();
        command.args(["report", "--capture", "fork", "--max-pause", limit]);
        command.arg(target.pid().to_string());
        command
    };
    let (status, line) = complaint(&copy("10ms").output().unwrap());
    assert_eq!(status, 5, "{line}");
    let limit = line.trim_end().rsplit(' ').next().unwrap();
    assert!(line.contains(&format!("; allow more: --max-pause {limit}")), "{line}");
    assert!(once_it_stops(copy(limit)).status.success(), "{limit} was not enough");
    assert!(target.finish());
}

/// A freeze used to end when the walks were done, even if that took seconds on a busy machine.
#[test]
fn a_freeze_ends_at_its_deadline() {
    let target = Target::scenario("big", &["--scale", "0.2"]);
    let mut command = rbloat();
    command.args(["report", "--capture", "freeze", "--max-pause", "10ms", "--json"]);
    command.arg(target.pid().to_string());
    let output = once_it_stops(command);
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let report: formats::Report = crate::document(&output.stdout);
    assert!(report.malloc.is_none() && report.ruby.is_none());
    let unread = report.capture.unread.expect("nothing was read");
    assert_eq!((unread.method, unread.max_pause_ms), (CaptureMethod::Freeze, 10.0));
    assert!(unread.expected_ms >= 10.0 && unread.enough_ms as f64 >= 2.0 * unread.expected_ms);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    assert!(target.finish());
}

/// All of its memory was "unknown", which seemed to grow, and what the other snapshot has seemed to be freed.
#[test]
fn a_snapshot_of_memory_that_was_not_read_was_compared() {
    let target = Target::scenario("big", &["--scale", "0.2"]);
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    let [whole, unread] = ["whole", "unread"].map(|name| folder.path().join(name));
    let mut complete = rbloat();
    complete.args(["snapshot", &pid, "--max-pause", "10s", "-o"]).arg(&whole);
    assert!(once_it_stops(complete).status.success());
    let mut incomplete = rbloat();
    incomplete.args(["snapshot", &pid, "--capture", "freeze", "--max-pause", "10ms", "-o"]);
    incomplete.arg(&unread);
    let saved = once_it_stops(incomplete);
    assert_eq!(saved.status.code(), Some(6));
    let text = String::from_utf8(saved.stdout).unwrap();
    assert!(text.contains("was not read, and `rbloat diff` will not compare it"), "{text}");
    let compared = rbloat().arg("diff").args([&whole, &unread]).output().unwrap();
    let (status, line) = crate::complaint(&compared);
    assert!(status == 2 && line.contains("its process was not read"), "{line}");
    // Nor is it one of the looks at a live process. It is not read in that time, or does not stop in that time.
    let mut watched = rbloat();
    watched.args(["diff", &pid, "--capture", "freeze", "--max-pause", "10ms", "--times", "2"]);
    watched.args(["--every", "1s"]);
    let (status, line) = crate::complaint(&watched.output().unwrap());
    assert_eq!(status, 5, "{line}");
    assert!(target.finish());
}

/// Reports on processes of more than 2.7 GB used to need --max-pause. The advice was the limit of a freeze, many times that of a
/// forked copy, below a verdict on memory that was not read.
#[test]
fn a_large_process_is_read_by_default_or_the_verdict_names_the_cheapest_limit() {
    if !testkit::has_free_memory(5 << 30) {
        return;
    }
    let target = Target::bare_ruby(
        "KEPT = 'x' * 3_300_000_000
         puts 'ready {}'
         $stdout.flush
         $stdin.read",
    );
    let pid = target.pid().to_string();
    let report = |options: &[&str]| {
        let mut command = rbloat();
        command.args(["report", &pid]).args(options);
        let output = once_it_stops(command);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let capture = |options: &[&str]| {
        let (status, document) = report(&[&["--json"], options].concat());
        (status, crate::document::<formats::Report>(document.as_bytes()).capture)
    };
    let (status, default) = capture(&[]);
    match default.unread {
        None => assert_eq!((status, default.method), (Some(0), CaptureMethod::Fork)),
        // A busy machine, and no right to a real-time priority.
        Some(unread) => {
            assert_eq!(status, Some(6));
            let limit = unread.max_pause_ms;
            assert!(limit > 120.0 && unread.expected_ms > limit, "{unread:?}");
        }
    }
    let (status, short) = capture(&["--max-pause", "10ms"]);
    let unread = short.unread.unwrap();
    assert_eq!((status, unread.method), (Some(6), CaptureMethod::Fork));
    let limit = format!("{}ms", unread.enough_ms);
    let (_, text) = report(&["--max-pause", "10ms"]);
    let verdict = text.split("\n\n").nth(1).unwrap();
    assert!(verdict.starts_with("Not read: "), "{text}");
    assert!(text.contains(&format!("--max-pause {limit}")) && !text.contains("cannot account"));
    let (status, enough) = capture(&["--max-pause", &limit]);
    assert_eq!((status, enough.method), (Some(0), CaptureMethod::Fork));
    assert!(target.finish());
}
