//! The methods that threads run, compared with the threads' own backtraces.

use std::collections::BTreeMap;

use crate::{report, report_of, run};
use testkit::Target;

/// Threads in the application, in a gem that the application called, and in a gem only.
const PROGRAM: &str = r##"
    require 'json'
    eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/export.rb', 1)
      module Billing
        class Export
          def run
            pop
          end
          def pop
            Queue.new.pop
          end
          def in_gem
            Gem1.wait { nil }
          end
        end
      end
    RUBY
    eval("module Gem1\n def self.wait\n yield; Queue.new.pop\n end\nend", TOPLEVEL_BINDING, '/srv/gems/gem1-1.0/lib/gem1.rb', 1)
    export = Billing::Export.new
    threads = Array.new(5) { Thread.new { export.run } } + Array.new(3) { Thread.new { export.in_gem } }
    threads.each_with_index { |thread, index| thread.name = "worker-#{index}" if index < 5 }
    Thread.pass until threads.all?(&:stop?)
    places = threads.map do |thread|
      place = thread.backtrace_locations.find { |it| it.path == '/srv/app/export.rb' }
      "#{place.path}:#{place.lineno}"
    end
    puts "ready #{places.tally.to_json}"
    $stdout.flush
    $stdin.read
"##;

/// One of 901 threads was listed: the others had no method.
#[test]
fn threads_that_c_code_started_are_listed_by_their_class() {
    let target = Target::bare_ruby(
        "reader, writer = IO.pipe
         child = spawn('cat', in: reader, out: File::NULL, err: File::NULL)
         waiters = Array.new(40) { Process.detach(child) }
         Thread.pass until waiters.all?(&:stop?)
         puts %(ready {\"child\": #{child}}); $stdout.flush
         $stdin.read
         writer.close",
    );
    let report = report(target.pid());
    let row = report.threads.as_ref().unwrap().first().unwrap();
    assert_eq!((row.method.as_str(), row.threads), ("Process::Waiter, in C", 40));
    // The timer thread.
    assert!(report.kept_stacks.unwrap().other_threads.unwrap() <= 1, "{:?}", report.kept_stacks);
    assert!(target.finish());
}

#[test]
fn a_report_has_what_each_thread_runs() {
    let target = Target::bare_ruby(PROGRAM);
    let truth: BTreeMap<String, u64> = serde_json::from_value(target.truth.clone()).unwrap();
    let found = report(target.pid()).threads.unwrap();
    let in_application = found.iter().filter_map(|row| {
        let path = row.path.as_deref().filter(|path| path.starts_with("/srv/app/"))?;
        Some((format!("{path}:{}", row.line?), row.threads))
    });
    assert_eq!(in_application.collect::<BTreeMap<_, _>>(), truth);
    // The innermost method of the application, not the gem's or Ruby's that it called.
    assert_eq!((found[0].method.as_str(), found[0].threads), ("Billing::Export#pop", 5));
    assert_eq!(found[0].names, ["worker-0", "worker-1", "worker-2", "worker-3", "worker-4"]);
    assert_eq!((found[1].method.as_str(), found[1].threads), ("Billing::Export#in_gem", 3));
    assert!(found[1].names.is_empty(), "{:?}", found[1]);
    let text = String::from_utf8(run(target.pid(), &[]).stdout).unwrap();
    assert!(text.contains("      5  Billing::Export#pop"), "{text}");
    // Without owners the program's names are not read.
    assert_eq!(report_of(&run(target.pid(), &["--json", "--owners", "0"])).threads, None);
    assert!(target.finish());
}
