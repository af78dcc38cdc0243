//! The code that uses the constants and variables that retain much.

use formats::{Report, Why};
use testkit::Target;

use crate::{document, rbloat, run};

/// Each line that uses a root has its name behind it. Code that has not run has found no constant.
const PROGRAM: &str = r##"
    SOURCE = <<~'RUBY'
      module EventBus
        SUBSCRIBERS = []
      end
      module Others
        SUBSCRIBERS = []
      end
      class Audit
        def note(text)
          EventBus::SUBSCRIBERS << text # EventBus::SUBSCRIBERS
        end

        def never
          EventBus::SUBSCRIBERS.clear
        end

        def other(text)
          [1].each { [1].each { Others::SUBSCRIBERS << text } } # Others::SUBSCRIBERS
        end
      end
      class Cache
        @items = {}
        @@seen = {}
        def self.store(text)
          @items[text] = 1 # Cache.@items
        end

        def see(text)
          @@seen[text] = 1 # Cache@@seen
        end
      end
      class Pool
        @items = {}
        class << self
          def give(text)
            @items[text] = 1 # Pool.@items
          end
        end
      end
      class Base
        def keep(text)
          @rows << text # Registry#@rows
        end
      end
      class Registry < Base
        def self.instance
          @instance ||= new # Registry.@instance
        end

        def initialize
          @name = "a"
          @rows = [] # Registry#@rows
        end
      end
      class Others::Registry
        def see
          @rows
        end
      end
      $journal = [] # $journal
      def write(text)
        $journal << text # $journal
      end
      LAMBDA = ->(text) { TABLE[text] = [text] # TABLE
      }
      TABLE = Hash.new
      named = []
      HELD = named
      KEEP = ->(text) { named << text }
    RUBY
    eval(SOURCE, TOPLEVEL_BINDING, "/srv/app/audit.rb", 1)
    3_000.times do |i|
      text = -> { "#{i} " * 30 }
      audit = Audit.new
      audit.note(text.call)
      audit.other(text.call)
      Cache.store(text.call)
      Cache.new.see(text.call)
      Pool.give(text.call)
      write(text.call)
      LAMBDA.call(text.call)
      KEEP.call(text.call)
      Registry.instance.keep(text.call)
    end
    require "json"
    lines = SOURCE.lines.each_with_index.filter_map { |it, at| [it.split("# ")[1].chomp, at + 1] if it.include?("# ") }
    4.times { GC.start }
    puts "ready #{JSON.generate(lines)}"
    $stdout.flush
    $stdin.read
"##;

/// `diff` and `who --kept` name a line if ten samples have it, which takes thousands of objects. The code that uses a root is known without.
#[test]
fn the_code_that_uses_a_root_is_known() {
    let target = Target::ruby(PROGRAM);
    let lines: Vec<(String, u64)> = serde_json::from_value(target.truth.clone()).unwrap();
    let report: Report = document(&run(target.pid(), &["--json"]).stdout);
    let mut roots: Vec<&str> = lines.iter().map(|it| it.0.as_str()).collect();
    roots.dedup();
    // Up to 2.7 the operand is not the ID of the name.
    let has_globals = !report.process.ruby_version.as_deref().unwrap().starts_with("2.");
    for root in roots.into_iter().filter(|it| has_globals || !it.starts_with('$')) {
        let uses = report.root_uses.iter().find(|it| it.root == root);
        let uses = uses.unwrap_or_else(|| panic!("{root} {:#?}", report.root_uses));
        let true_lines: Vec<u64> = lines.iter().filter(|it| it.0 == root).map(|it| it.1).collect();
        let found: Vec<u64> = uses.places.iter().filter_map(|it| it.line).collect();
        assert_eq!((found, uses.lines), (true_lines.clone(), true_lines.len() as u64), "{uses:#?}");
        assert!(uses.places.iter().all(|it| it.path.as_deref() == Some("/srv/app/audit.rb")));
    }
    let method = |root: &str| {
        let uses = report.root_uses.iter().find(|it| it.root == root).unwrap();
        uses.places.last().unwrap().method.clone()
    };
    assert_eq!(method("EventBus::SUBSCRIBERS"), "Audit#note");
    assert_eq!(method("Others::SUBSCRIBERS"), "block (2 levels) in Audit#other");
    assert_eq!(method("Cache.@items"), "Cache.store");
    assert_eq!(method("Pool.@items"), "Pool.give");
    // It was given the Array, and no code has used the constant.
    assert!(report.root_uses.iter().all(|it| it.root != "HELD"), "{:#?}", report.root_uses);
    let pid = target.pid().to_string();
    let why = ["why", &pid, "String", "--max-pause", "10s", "--json"];
    let why: Why = document(&rbloat().args(why).output().unwrap().stdout);
    let text = render::why(&why, 400);
    for told in [
        "EventBus::SUBSCRIBERS is used in Audit#note (/srv/app/audit.rb:9)",
        "Registry.@instance → Registry → Array → String  (3,0",
        "; @rows of Registry is used in Base#keep (/srv/app/audit.rb:",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(target.finish());
}
