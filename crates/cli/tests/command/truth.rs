//! The whole command, compared with the Ruby processes' own figures, to the byte.

use std::process::Command;

use crate::{bytes, report};
use testkit::{Target, compile};

/// Starts Ruby with `program`, which calls `stop_then_trim` when its heap is ready.
fn trimming(program: &str) -> (tempfile::TempDir, Target) {
    let folder = tempfile::tempdir().unwrap();
    let library = compile("trim", folder.path(), &["-shared", "-fPIC"]);
    let source = format!(
        "require 'fiddle'
         library = Fiddle.dlopen({:?})
         $trim = Fiddle::Function.new(library['stop_then_trim'], [], Fiddle::TYPE_LONG)
         {program}
         GC.start
         puts 'ready {{}}'
         $stdout.flush
         drop = $trim.call
         puts \"ready {{\\\"drop\\\": #{{drop}}}}\"
         $stdout.flush
         $stdin.read",
        library.to_str().unwrap()
    );
    (folder, Target::bare_ruby(&source))
}

/// Compares the report's prediction with the effect of a trim in the process.
fn assert_trim_is_predicted((_folder, mut target): (tempfile::TempDir, Target)) {
    if testkit::preload().is_some() {
        return testkit::skip("malloc_trim is glibc's; the tests of jemalloc have its purge");
    }
    target.wait_until_stopped();
    let report = report(target.pid());
    assert_eq!(report.findings, []);
    target.go_on();
    let drop = target.next_truth()["drop"].as_u64().unwrap();
    assert_eq!(report.malloc.as_ref().unwrap().trim_yield_bytes, drop);
    assert_eq!(bytes(&report, "malloc.unreturned"), drop);
    assert!(drop > 10 << 20, "{drop} bytes are no test");
    assert!(target.finish());
}

#[test]
fn the_yield_of_a_trim_after_a_burst_of_threads() {
    assert_trim_is_predicted(trimming(
        "threads = 12.times.map do |i|
           Thread.new do
             random = Random.new(i)
             kept = []
             3.times { a = Array.new(3000) { 'x' * random.rand(64..8255) }; kept << a[7]; a.clear }
             Thread.current[:kept] = kept
           end
         end
         threads.each(&:join)
         # Ruby keeps ended threads for some seconds. None may end, and give back what it has cached, during
         # the trim. From 3.3 on a thread of Ruby's own stays.
         own = RUBY_VERSION.to_f < 3.3 ? 1 : 2
         sleep 0.05 while Dir.children('/proc/self/task').size > own",
    ));
}

#[test]
fn the_yield_of_a_trim_of_the_main_arena_and_its_top() {
    assert_trim_is_predicted(trimming(
        "a = Array.new(60_000) { |i| 'x' * (i % 1500) }
         $kept = a.select.with_index { |_, i| i % 300 == 0 }
         a.clear # a stale word on the stack may keep the array itself alive",
    ));
}

#[test]
fn the_yield_of_a_trim_of_one_free_chunk_of_more_than_4_gb() {
    if !testkit::is_nightly("more than 4 GB") || !testkit::has_free_memory(6 << 30) {
        return;
    }
    // The strings lie side by side in the main arena. The last one keeps the break in place.
    assert_trim_is_predicted(trimming(
        "a = Array.new(45_000) { 'x' * 100_000 }
         $last = 'x' * 100_000
         a = nil",
    ));
}

#[test]
fn the_yield_of_a_trim_while_threads_stand_in_their_work() {
    assert_trim_is_predicted(trimming(
        "8.times do |i|
           Thread.new do
             random = Random.new(i)
             Array.new(5000) { 'x' * random.rand(64..4000) }.clear
             sleep
           end
         end
         sleep 0.01 until Thread.list.count { |thread| thread.status == 'sleep' } == 8",
    ));
}

#[test]
fn the_report_names_the_class_that_holds_the_memory() {
    let target = Target::bare_ruby(
        "module Shop; class Order; def initialize(i); @a = @b = @c = @d = @e = i.to_s * 9; end; end; end
         $orders = Array.new(50_000) { |i| Shop::Order.new(i) }
         puts 'ready {}'
         $stdout.flush
         $stdin.read",
    );
    let report = report(target.pid());
    let classes = &report.ruby.as_ref().unwrap().classes;
    let orders = classes.iter().find(|class| class.name == "Shop::Order").unwrap();
    assert_eq!(orders.objects, 50_000);
    assert!(target.finish());
}

/// Resident bytes of the executable memory that no file backs, as the kernel counts them.
fn resident_code(pid: i32) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut is_code = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, permissions, _, "00:00", "0", ref name @ ..] => {
                let is_named = name.first().is_some_and(|it| !it.starts_with("[anon:"));
                is_code = permissions == "r-xp" && !is_named;
            }
            ["Rss:", kb, "kB"] if is_code => bytes += kb.parse::<u64>().unwrap() << 10,
            [first, ..] if !first.ends_with(':') => is_code = false,
            _ => {}
        }
    }
    bytes
}

#[test]
fn code_that_was_compiled_is_what_the_kernel_has_of_it() {
    for option in ["--yjit", "--zjit"] {
        let program = "
            300.times { |i| eval(\"def m#{i}(a, b) = [a, b].map { |x| x * #{i} }.sum + b.to_s.size\") }
            100.times { 300.times { |i| send(\"m#{i}\", i, 2) } }
            statistics = defined?(RubyVM::YJIT.runtime_stats) && RubyVM::YJIT.runtime_stats || {}
            puts %(ready {\"allocated\": #{statistics[:yjit_alloc_size] || 0}}); $stdout.flush
            $stdin.read";
        let probe = testkit::ruby().args([option, "-e", "exit"]).output();
        // A Ruby that was built without it prints a warning and continues.
        if !probe.is_ok_and(|output| output.status.success() && output.stderr.is_empty()) {
            testkit::skip(&format!("this Ruby has no {option}"));
            continue;
        }
        let target = Target::start(testkit::ruby().args([option, "-e", program]));
        target.stop_asleep();
        let truth = resident_code(target.pid());
        let report = report(target.pid());
        assert!(truth > 100 << 10, "{truth} bytes are no test");
        // The compiler's own data, in addition to the code, in chunks with headers of 8 bytes.
        let owners = report.owners.iter().flatten();
        let tables = owners.into_iter().find(|owner| owner.owner == "(JIT)");
        let tables = tables.unwrap_or_else(|| panic!("{option}: {:?}", report.findings));
        let headers = if testkit::preload().is_some() { 0 } else { 8 * tables.chunks };
        let in_chunks = tables.exclusive_bytes + tables.shared_bytes - headers;
        // A chunk may have pages that were never written to.
        let resident = tables.resident_bytes.unwrap() - headers;
        assert_eq!(bytes(&report, "ruby.jit"), truth + resident, "{option}");
        match target.number("allocated") {
            0 => testkit::skip(&format!("this Ruby does not count what {option} allocates")),
            // Chunks that its variables refer to belong to libruby. malloc rounds up, to 32 bytes at least.
            allocated => {
                let is_about = allocated * 8 / 10..allocated * 2;
                assert!(is_about.contains(&in_chunks), "{option}: {in_chunks} of {allocated}");
            }
        }
        target.go_on();
        assert!(target.finish());
    }
}

#[test]
fn the_manual_and_the_completions_name_every_command() {
    for arguments in [&["manual"][..], &["completions", "bash"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_rbloat")).args(arguments).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        for word in ["report", "json", "arenas", "pid"] {
            assert!(text.contains(word), "{arguments:?} lack {word}");
        }
    }
}

#[test]
fn each_command_has_a_manual_page_and_colours_on_request() {
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_rbloat")).args(arguments).output().unwrap()
    };
    let page = String::from_utf8(run(&["manual", "trim"]).stdout).unwrap();
    assert!(
        page.contains("rbloat-trim")
            && page.contains("rbloat trim")
            && page.contains("color")
            && page.contains("dry\\-run")
            && !page.contains("arenas")
    );
    assert_eq!(run(&["manual", "frob"]).status.code(), Some(2));
    let coloured = |when: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rbloat"));
        for variable in ["CLICOLOR_FORCE", "CLICOLOR", "NO_COLOR"] {
            command.env_remove(variable);
        }
        let output = command.args(["explain", "arena", "--color", when]).output().unwrap();
        output.stdout.contains(&0x1b)
    };
    assert_eq!(["always", "never", "auto"].map(coloured), [true, false, false]);
}
