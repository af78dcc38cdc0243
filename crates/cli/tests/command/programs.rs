//! Programs of many kinds: each must be read completely, without a finding, and its causes must add up.

use crate::{bytes, report};
use testkit::Target;

/// Reports on a Ruby program that has been stopped, and checks properties that hold for all programs.
fn check(program: &str) -> (Target, formats::Report) {
    // A report on a process that never collected garbage has a note about that.
    let target = Target::bare_ruby(&format!(
        "{program}\nGC.start if GC.count == 0\nputs 'ready {{}}'\n$stdout.flush\n$stdin.read"
    ));
    target.stop_asleep();
    let truth = target.rss_bytes();
    let report = report(target.pid());
    assert_eq!(report.findings, []);
    assert_eq!(report.process.rss_bytes, truth);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, truth);
    let unknown = bytes(&report, "unknown");
    assert!(unknown < 1 << 20, "{unknown} bytes are unknown");
    target.go_on();
    (target, report)
}

#[test]
fn a_forked_worker_whose_pages_are_its_parents_too() {
    // The target is the worker: its parent has exec'ed nothing and waits for it.
    let program = "
        $cache = Array.new(30_000) { |i| 'cached ' * 199 + i.to_s }
        master = $$
        if (pid = fork)
          Signal.trap('TERM') { Process.kill(:TERM, pid) }
          Process.wait(pid)
          exit!(0)
        end
        Array.new(1000) { |i| 'own ' * 999 + i.to_s }";
    let target = Target::bare_ruby(&format!(
        "{program}\nputs %(ready {{\"worker\": #{{$$}}}})\n$stdout.flush\n$stdin.read\nexit!(0)"
    ));
    let worker = i32::try_from(target.number("worker")).unwrap();
    let report = report(worker);
    assert_eq!(report.findings, []);
    assert!(bytes(&report, "ruby.malloc") > 30 << 20, "the shared strings count: {report:#?}");
    assert!(target.finish());
}

#[test]
fn fibers_have_stacks_of_their_own() {
    let (target, report) = check(
        "$fibers = Array.new(300) { Fiber.new { deep = ->(n) { n > 0 ? deep.(n - 1) : Fiber.yield }; deep.(40) } }
         $fibers.each(&:resume)",
    );
    let stacks = bytes(&report, "stack.fibers");
    assert!(stacks > 300 * 8192, "{stacks}");
    assert!(target.finish());
}

#[test]
fn hundreds_of_threads() {
    let (target, report) = check(
        "$threads = Array.new(300) { Thread.new { sleep } }; Thread.pass until $threads.all?(&:stop?)",
    );
    assert!(report.process.threads >= 300);
    let stacks = bytes(&report, "stack.threads");
    assert!(stacks > 300 * 8192, "{stacks}");
    assert!(target.finish());
}

#[test]
fn threads_that_have_ended_leave_stacks_that_glibc_keeps() {
    let (target, _) = check(
        "gate = Queue.new
         threads = Array.new(50) { Thread.new { gate.pop } }
         Thread.pass until threads.all?(&:stop?)
         gate.close
         threads.each(&:join)
         last = Thread.new { sleep }
         Thread.pass until last.stop?",
    );
    assert!(target.finish());
}

#[test]
fn ractors() {
    let (target, _) = check(
        "$VERBOSE = nil
         if defined?(Ractor)
           $reader, $writer = IO.pipe
           $ractors = Array.new(4) { |i| Ractor.new(i, $writer.fileno) { |n, ready|
             kept = Array.new(1000) { |j| \"#{n} #{j}\" * 9 }
             IO.for_fd(ready, autoclose: false).syswrite('.'); sleep; kept } }
           $reader.read(4)
         end",
    );
    assert!(target.finish());
}

#[test]
fn a_heap_that_was_compacted() {
    let (target, _) = check(
        "$kept = Array.new(200_000) { |i| i % 3 == 0 ? i.to_s * 3 : Object.new }
         $kept.map!.with_index { |object, i| i % 5 == 0 ? object : nil }
         GC.compact if GC.respond_to?(:compact)",
    );
    assert!(target.finish());
}

#[test]
fn many_kinds_of_objects() {
    let (target, _) = check(
        "require 'set'; require 'json'; require 'digest'; require 'zlib'; require 'stringio'
         begin; require 'bigdecimal'; rescue LoadError; end
         $kept = [10**400, 3.7e300, 1r, 2i, /a+/, 'x'.match(/x/), :sym, 'dynamic'.to_sym, Set.new(1..99),
                  StringIO.new('y' * 9999), Zlib::Deflate.new, Digest::SHA256.new, Struct.new(:a).new(1),
                  (1..9).lazy, [1, 2, 3].each, method(:puts), proc { 1 }, binding, $stdout, ObjectSpace::WeakMap.new,
                  Class.new, Module.new, Class.new(String).new('z' * 999), Random.new, Time.now, Thread.current,
                  JSON.parse('{\"a\": [1, {\"b\": null}]}'), Hash.new { |h, k| h[k] = k }, { 1 => 2 }.compare_by_identity]
         def $kept.singleton; end",
    );
    assert!(target.finish());
}

#[test]
fn irb() {
    let mut target = Target::start(testkit::ruby().args([
        "-e",
        "require 'irb'; puts 'ready {}'; $stdout.flush; IRB.start",
        "--",
        "-f",
        "--noprompt",
        "--noecho",
    ]));
    target.tell("$kept = Array.new(20_000) { |i| 'kept ' * 200 + i.to_s }; puts %(\\nready {}); $stdout.flush");
    target.next_truth();
    // It reads its input again at once, and waits.
    let report = report(target.pid());
    assert_eq!(report.findings, []);
    assert!(bytes(&report, "ruby.malloc") >= 20_000 * 1000);
    assert!(target.finish());
}

#[test]
fn more_than_4_gb_in_one_arena_and_in_one_chunk() {
    if !testkit::is_nightly("more than 4 GB") || !testkit::has_free_memory(10 << 30) {
        return;
    }
    // Strings smaller than the threshold of mmap lie in the main arena, which brk extends.
    let (target, report) = check("$kept = Array.new(45_000) { 'x' * 100_000 }");
    let main = report.arenas.iter().flatten().find(|arena| arena.main).unwrap();
    assert!(main.in_use_bytes > 45_000 * 100_000, "{main:?}");
    assert!(bytes(&report, "ruby.malloc") > 45_000 * 100_000);
    assert!(target.finish());

    let (target, report) = check("$kept = 'x' * 4_500_000_000");
    let malloc = report.malloc.as_ref().unwrap();
    assert!(malloc.mmapped_bytes > 4_500_000_000, "{malloc:?}");
    assert!(bytes(&report, "ruby.malloc") > 4_500_000_000);
    assert!(target.finish());
}

#[test]
fn mappings_that_are_larger_than_any_memory() {
    let (target, _) = check(
        "require 'fiddle'
         map = Fiddle::Function.new(Fiddle.dlopen(nil)['mmap'], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_INT, Fiddle::TYPE_LONG], Fiddle::TYPE_VOIDP)
         private_anonymous, no_reserve = 0x22, 0x4000
         [0, 1, 3].each do |protection|
           at = map.call(nil, 1 << 40, protection, private_anonymous | no_reserve, -1, 0)
           raise 'no mapping' if at.to_i == -1
         end",
    );
    assert!(target.finish());
}

/// glibc's memory with huge pages: under `glibc.malloc.hugetlb=1` by madvise, under 2 from hugetlbfs.
#[test]
fn with_the_tunables_for_huge_pages() {
    for value in [1, 2] {
        let mut ruby = testkit::ruby();
        ruby.env("GLIBC_TUNABLES", format!("glibc.malloc.hugetlb={value}"));
        ruby.args([
            "-e",
            "$kept = Array.new(20_000) { |i| 'kept ' * 200 + i.to_s }
            Array.new(8) { Thread.new { Array.new(5000) { 'x' * 3000 }.clear; sleep } }
            sleep 0.01 until Thread.list.count { |thread| thread.status == 'sleep' } == 8
            puts 'ready {}'; $stdout.flush; $stdin.read",
        ]);
        let target = Target::start(&mut ruby);
        if value == 2 && target.status("HugetlbPages:") == "0 kB" {
            return testkit::skip("no huge pages of hugetlbfs are free");
        }
        target.stop_asleep();
        let truth = target.rss_bytes();
        let report = report(target.pid());
        assert_eq!(report.findings, [], "hugetlb={value}");
        assert!(report.malloc.as_ref().unwrap().in_use_bytes > 20 << 20, "{:?}", report.malloc);
        assert_eq!(report.process.rss_bytes, truth);
        let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, truth);
        target.go_on();
        assert!(target.finish());
    }
}
