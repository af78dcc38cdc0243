//! The whole answer to a public report: the sentence, the path and the first step, and no sentence that was false once.

use formats::{Action, Report};
use testkit::Target;

use super::{case, lacks};
use crate::{rbloat, report};

/// An answer, as far as it does not depend on the release of Ruby.
struct Answer {
    case: &'static str,
    scale: &'static str,
    /// The releases that have the mechanism.
    releases: std::ops::Range<&'static str>,
    /// Parts of the verdict's sentence.
    verdict: &'static [&'static str],
    /// A class, and the path that retains most of it, up to the first place in a file.
    path: Option<(&'static str, &'static str)>,
    /// The beginning of the first step, and another part of it.
    step: [&'static str; 2],
    /// Words that no line of the report may have.
    never: &'static [&'static str],
}

const ALL: std::ops::Range<&str> = "2.7".."9";

const ANSWERS: [Answer; 9] = [
    // openSUSE/software-o-o#263
    Answer {
        case: "traced_allocations",
        scale: "1",
        releases: "3.1".."3.4",
        verdict: &["of native memory are held", " by 1 ObjectTracing/allocation_info_tracer."],
        path: Some(("String", "ROWS → Array → String")),
        step: ["Stop the tracing of allocations", ""],
        never: &["2 Object", "ENV → Object", "NameErrorCheckers"],
    },
    // rails/rails#31442
    Answer {
        case: "weak_subclasses",
        scale: "1",
        releases: ALL,
        verdict: &["garbage that the GC does not collect, because it is disabled (GC.disable)."],
        path: Some(("Class", "(garbage)")),
        step: ["Enable the GC: it is disabled", ""],
        never: &["Healthy", "Rational →"],
    },
    // ruby-concurrency/concurrent-ruby#958
    Answer {
        case: "thread_per_client",
        scale: "1",
        releases: "2.7".."3.3",
        verdict: &["are stacks: ", " of 301 threads"],
        path: None,
        step: ["Run fewer threads: ", "thread_per_client.rb:14 started 300 of them."],
        never: &["RAILS_MAX_THREADS", "Sidekiq"],
    },
    // hakanensari/structure#9
    Answer {
        case: "closures",
        scale: "8",
        releases: ALL,
        verdict: &[],
        path: Some(("Text::InBlock", "Kept::CLOSURES → Array → Proc")),
        step: ["", ""],
        never: &["Run the GC", "most of which are garbage"],
    },
    Answer {
        case: "last_match",
        scale: "1",
        releases: ALL,
        verdict: &[
            "held by live Ruby objects",
            " begin with (threads) → Thread \"tailer\" in Tailer#run (",
        ],
        path: Some(("String", "(threads) → Thread \"tailer\" in Tailer#run")),
        step: ["Release the largest of ", " → MatchData → String"],
        never: &["garbage that", "Run the GC"],
    },
    // No public report: envs of C frames have no bytecode.
    Answer {
        case: "method_procs",
        scale: "0.3",
        releases: ALL,
        verdict: &[],
        path: Some(("Proc", "Hooks::LIST → Array → Proc")),
        step: ["", ""],
        never: &["could not be derived", "(imemo 0)"],
    },
    // rubygems/rubygems.org#515
    Answer {
        case: "backtraces",
        scale: "1",
        releases: ALL,
        verdict: &[", most of them by 1,200 Thread::Backtrace.", " begin with Errors::RECENT."],
        path: Some((
            "Thread::Backtrace",
            "Errors::RECENT → Array → RuntimeError → Thread::Backtrace",
        )),
        step: ["Release the objects of class Thread::Backtrace", "retained by Errors::RECENT"],
        never: &["Find out what retains", "Run the GC"],
    },
    // aserafin/grape_logging#7
    Answer {
        case: "notifications",
        scale: "1",
        releases: ALL,
        verdict: &[],
        path: Some(("Dashboard", "ActiveSupport::Notifications")),
        step: ["Release the objects of class String", " → Dashboard → "],
        never: &["Find out what retains", "Run the GC"],
    },
    // ruby-concurrency/concurrent-ruby#671
    Answer {
        case: "queued_events",
        scale: "1.5",
        releases: ALL,
        verdict: &[],
        path: Some(("Event", "LOGGER → Processor → Thread::Queue → Event")),
        step: ["Release the objects of class ", "LOGGER → Processor → Thread::Queue → Event"],
        never: &["Find out what retains", "Run the GC"],
    },
];

/// Programs with the root that retains their memory, and the end of the path. The public reports: vmware-archive/rbvmomi#156,
/// meh/ruby-thread#30, ruby/ruby#5973, getsentry/sentry-ruby#805, ruby/debug#899, matthewrudy/memoist#47 and socketry/async#90.
const PROGRAMS: [(&str, &str, &str); 8] = [
    (
        "class Conn; def initialize; @text = 'x' * 16_384; end; def keep; at_exit { @text.size }; end; end
         Fiber.new { 4500.times { Conn.new.keep } }.resume",
        "(at_exit)",
        "Proc (-e:1) → Conn → String",
    ),
    (
        "class Upload
           def initialize; @text = 'x' * 16_384; end
           def keep; ObjectSpace.define_finalizer(self, proc { @text.size }); end
         end
         Fiber.new { 4500.times { Upload.new.keep } }.resume",
        "(finalizers)",
        "Proc (-e:3) → Upload → String",
    ),
    (
        "abort unless defined?(Ractor)
         SINK = Ractor.new { loop { sleep } }
         4500.times { SINK.send('x' * 16_384) }",
        "SINK",
        "(queue) → String",
    ),
    (
        "POOL = Array.new(16) { Thread.new { Thread.current[:last_request] = Array.new(300) { 'x' * 16_384 }; sleep } }
         Thread.pass until POOL.all?(&:stop?)",
        "(threads)",
        "[:last_request] → Array → String",
    ),
    (
        "POOL = Array.new(16) do
           Thread.new { Thread.current.thread_variable_set(:audit, Array.new(300) { 'x' * 16_384 }); sleep }
         end
         Thread.pass until POOL.all?(&:stop?)",
        "(threads)",
        "[thread variable :audit] → Array → String",
    ),
    (
        "class Client; attr_reader :frames; def initialize; @frames = []; end; end
         module Session; CLIENTS = {}; end
         def work(client); rows = Array.new(50) { 'x' * 400 }; client.frames << binding; rows.size; end
         2500.times { Thread.new { work(Session::CLIENTS[Thread.current] = Client.new) }.join }",
        "Session::CLIENTS",
        "Array → String",
    ),
    (
        "class Person; def self.overdue(id); (@_memoized_overdue ||= {})[[id]] ||= 'x' * 16_384; end; end
         4500.times { |id| Person.overdue(id) }",
        "Person.@_memoized_overdue",
        "Hash → String",
    ),
    (
        "SCHEDULER = {}.compare_by_identity
         READER, WRITER = IO.pipe
         250_000.times { SCHEDULER[IO.for_fd(WRITER.fileno, autoclose: false)] = true }",
        "SCHEDULER",
        "Hash → IO",
    ),
];

/// The verdict names the root, and the step has the whole path.
#[test]
fn whatever_retains_the_memory_is_the_verdict() {
    let ruby = testkit::ruby().args(["-e", "print RUBY_VERSION"]).output().unwrap().stdout;
    let version = String::from_utf8(ruby).unwrap();
    for (code, root, end) in PROGRAMS {
        // Messages of 4.1 are no objects.
        if root == "SINK" && !("3.0".."4.1").contains(&version.as_str()) {
            continue;
        }
        let start = "3.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read";
        let target = Target::bare_ruby(&format!("{code}\n{start}"));
        let report = crate::report(target.pid());
        let verdict = render::words::verdict(&report);
        let is_right = verdict.summary.contains(", most of them by ")
            && verdict.summary.contains(&format!(" begin with {root}"));
        assert!(is_right, "{verdict:?}");
        // Copies of the messages are sent.
        assert!(root == "SINK" || !verdict.summary.contains("garbage"), "{verdict:?}");
        let step = render::words::advice(&report.advice[0], &report).action;
        assert!(step.contains(root) && step.contains(end), "{step}");
        assert!(target.finish());
    }
}

#[test]
fn public_reports_have_their_whole_answer() {
    for answer in &ANSWERS {
        if answer.case == "notifications" && lacks("active_support") {
            continue;
        }
        let (target, report) = case(answer.case, answer.scale);
        let version = target.truth["ruby_version"].as_str().unwrap();
        if answer.releases.contains(&version) {
            check(answer, &target, &report);
        }
        assert!(target.finish());
    }
}

fn check(answer: &Answer, target: &Target, report: &Report) {
    let Answer { case, verdict, path, step, never, .. } = answer;
    let words = render::words::verdict(report);
    for part in *verdict {
        assert!(words.summary.contains(part), "{case}: {}", words.summary);
    }
    if let Some((class, path)) = path {
        let (found, objects, all) = super::path_to(target, class);
        assert!(found.starts_with(path), "{case}: {found} ({objects} of {all})");
    }
    let first = report.advice.first().map(|it| render::words::advice(it, report).action);
    let first = first.unwrap_or_default();
    assert!(first.starts_with(step[0]) && first.contains(step[1]), "{case}: {first}");
    let pid = target.pid().to_string();
    let output = rbloat().args(["report", &pid, "--max-pause", "10s"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in *never {
        assert!(!text.contains(part), "{case}: {part} in {text}");
    }
}

/// "Make fewer symbols" was the only step of a process of which a Hash of classes retained most.
#[test]
fn classes_in_a_hash_are_released_first() {
    let target = Target::bare_ruby(
        "module Api; CLASSES = {}; end
         15_000.times { |n| (Api::CLASSES[n] = Struct.new(:id, :\"a#{n}\", :\"b#{n}\", :\"c#{n}\")).new }
         3.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = crate::report(target.pid());
    let Action::ReleaseObjects { class, path, .. } = &report.advice[0].action else {
        panic!("{:#?}", report.advice)
    };
    let path = path.as_deref().unwrap_or_default();
    assert!(class == "Class" && path.starts_with("Api::CLASSES → Hash → Class"), "{path}");
    assert!(target.finish());
}

/// A Hash has the fibers of ended threads as keys, and these have the variables of their threads (ruby/logger#135).
#[test]
fn fibers_of_ended_threads_retain_their_variables() {
    let target = Target::bare_ruby(
        "class Leveled; def initialize; @levels = {}; end
           def with(level); @levels[Fiber.current] = level; yield; ensure @levels[Fiber.current] = nil; end; end
         class Payload; def initialize; @text = rand.to_s.ljust(2000, 'x'); end; end
         begin; Fiber.current; rescue NoMethodError; require 'fiber'; end
         LOGGER = Leveled.new
         500.times { Thread.new { Thread.current[:data] = Payload.new; LOGGER.with(3) { 1 } }.join }
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (path, objects, all) = super::path_to(&target, "Payload");
    let is_right =
        path.starts_with("LOGGER → Leveled → Hash → Fiber ") && path.ends_with(" → Payload");
    assert!(is_right && all == 500 && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    assert!(target.finish());
}

/// Exceptions for a thread that handles them later wait in a list of the interpreter's (`Thread.handle_interrupt`).
#[test]
fn exceptions_that_wait_for_a_thread_are_retained_by_it() {
    let target = Target::bare_ruby(
        "class Cancel < RuntimeError; def initialize; @context = rand.to_s.ljust(2000, 'x'); super('x'); end; end
         ready = Queue.new
         WORKER = Thread.new { Thread.handle_interrupt(Cancel => :never) { ready << 1; loop { sleep } } }
         ready.pop
         500.times { WORKER.raise(Cancel.new) }
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let (path, objects, all) = super::path_to(&target, "Cancel");
    let is_right = path.starts_with("(threads) → Thread in block ") && path.ends_with(" → Cancel");
    assert!(is_right && all == 500 && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    assert!(target.finish());
}

/// A hash with threads as keys, such as that of Rails' executor, seemed to retain what is on their stacks.
#[test]
fn what_a_thread_holds_is_retained_by_no_constant() {
    let target = Target::bare_ruby(
        "class Row; def initialize; @text = rand.to_s.ljust(2000, 'x'); end; end
         def request(ready) rows = Array.new(500) { Row.new }; ready << 1; sleep; rows end
         ready = Queue.new
         module Executor; ACTIVE = {}; end
         Executor::ACTIVE[Thread.new { request(ready) }] = true
         ready.pop
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let (path, objects, all) = super::path_to(&target, "Row");
    assert!(path.starts_with("(threads) → Thread in Object#request "), "{path}");
    assert_eq!((objects, all), (500, 500));
    let report = crate::report_of(&crate::run(target.pid(), &["--retained", "--json"]));
    let active = report.dominators.iter().flatten().find(|it| it.name == "Executor::ACTIVE");
    assert!(active.is_none_or(|it| it.retained_bytes < 10_000), "{active:?}");
    assert!(target.finish());
}

/// The literals of generated code are retained by its class, and the path named neither its file nor its line.
#[test]
fn literals_are_retained_by_the_bytecode_of_a_line() {
    let target = Target::bare_ruby(
        "module Views; end
         code = (1..500).map { |i| %(x = 'literal #{i} #{'y' * 200}') }.join(';')
         9.times { |n| Views.module_eval(%(def self.page#{n}(x = nil) #{code} end), 'app/views/page.erb', 10) }
         code = nil
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (path, objects, _) = super::path_to(&target, "String");
    assert_eq!(path, "Views → Module → Class → bytecode (app/views/page.erb:10) → String");
    assert!(objects >= 500, "{objects}");
    assert!(target.finish());
}

/// "Release the objects of class Class (7.1 MiB)" stood below 62 MiB of classes: the size was that of a hidden array of each.
#[test]
fn classes_of_structs_are_released_with_all_that_they_have() {
    let target = Target::bare_ruby(
        "$VERBOSE = nil
         members = ('a'..'l').map(&:to_sym)
         8000.times { |query| Struct.new(%(Row#{query}), *members).new(1) }
         4.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let of_classes =
        |it: &Action| matches!(it, Action::ReleaseObjects { class, .. } if class == "Class");
    let step = report.advice.iter().find(|it| of_classes(&it.action));
    let Some(Action::ReleaseObjects { path, bytes, .. }) = step.map(|it| &it.action) else {
        panic!("{:#?}", report.advice)
    };
    assert!(path.as_deref().is_some_and(|it| it.starts_with("Struct::… → Class")), "{path:?}");
    assert!(2 * bytes > crate::bytes(&report, "ruby.vm"), "{bytes} {:#?}", report.causes);
    assert!(target.finish());
}
