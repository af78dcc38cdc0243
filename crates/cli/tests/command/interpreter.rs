//! The interpreter's own memory, compared with Ruby's own figures for its bytecode.

use crate::{bytes, document, rbloat, report, run};
use formats::{Action, FileCode, GemCode, Interpreter, Report};
use ledger::{Cause, InterpreterKind};
use testkit::Target;

/// Ruby code that writes gems: `write_gem` returns the path of a new file in a gem, and `compile` runs such a file and
/// returns all of its iseqs.
const GEMS: &str = r##"
    require 'tmpdir'
    require 'json'
    require 'objspace'
    FOLDER = Dir.mktmpdir
    at_exit { require 'fileutils'; FileUtils.rm_rf(FOLDER) }

    def write_gem(name, version, methods, file = name)
      lib = "#{FOLDER}/gems/#{name}-#{version}/lib"
      lib.split('/')[1..].reduce('') { |path, part| "#{path}/#{part}".tap { |it| Dir.mkdir(it) unless Dir.exist?(it) } }
      body = (0...methods).map do |number|
        lines = (1..30).map { |line| "x = a.fetch(#{line}, b.to_s) + 'text' if x.size > #{number} && c.include?(x)" }
        "def m#{number}(a, b, c)\nx = 'start'\n#{lines.join("\n")}\nx\nend"
      end
      path = "#{lib}/#{file}.rb"
      File.write(path, "module #{file.capitalize}\n#{body.join("\n")}\nend\n")
      path
    end

    # The iseqs of a file that `write_gem` wrote: its own, its module's, and those of methods. (Ruby keeps a copy of an iseq
    # whose children are listed.)
    def compile(path)
      iseq = RubyVM::InstructionSequence.compile_file(path)
      iseq.eval
      all = [iseq]
      iseq.each_child { |child| all << child }
      mod = Object.const_get(File.basename(path, '.rb').capitalize)
      all + mod.instance_methods.map { |name| RubyVM::InstructionSequence.of(mod.instance_method(name)) }
    end

    def ready(truth)
      3.times { GC.start }
      puts "ready #{truth.to_json}"
      $stdout.flush
      $stdin.read
    end
"##;

fn program(code: &str) -> Target {
    Target::bare_ruby(&format!("{GEMS}\n{code}"))
}

fn interpreter(report: &Report) -> &Interpreter {
    report.interpreter.as_ref().unwrap()
}

fn gem<'a>(report: &'a Report, name: &str) -> &'a GemCode {
    let gems = interpreter(report).gems.as_ref().unwrap();
    gems.iter().find(|gem| gem.gem == name).unwrap_or_else(|| panic!("no gem {name}: {gems:#?}"))
}

fn file<'a>(report: &'a Report, path: &str) -> &'a FileCode {
    let files = interpreter(report).files.as_ref().unwrap();
    files.iter().find(|file| file.path.as_deref() == Some(path)).unwrap()
}

/// Kinds add up to the row and to the internal objects, and files and gems to bytecode.
fn assert_adds_up(report: &Report) {
    let Interpreter { kinds, gems, files } = interpreter(report);
    let sum: u64 = kinds.iter().map(|part| part.resident_bytes).sum();
    assert_eq!(sum, bytes(report, "ruby.vm"));
    let owners = report.owners.iter().flatten();
    let owners: Vec<_> = owners.filter(|owner| owner.cause == Some(Cause::RubyVm)).collect();
    let slots: u64 = kinds.iter().map(|part| part.slot_bytes).sum();
    assert_eq!(slots, owners.iter().map(|owner| owner.slot_bytes).sum::<u64>());
    let bytecode = kinds.iter().find(|part| part.kind == InterpreterKind::Bytecode).unwrap();
    let bytecode = (bytecode.objects, bytecode.slot_bytes, bytecode.resident_bytes);
    let [mut of_gems, mut of_files] = [(0, 0, 0); 2];
    for gem in gems.iter().flatten() {
        of_gems =
            (of_gems.0 + gem.iseqs, of_gems.1 + gem.slot_bytes, of_gems.2 + gem.resident_bytes);
    }
    for file in files.iter().flatten() {
        of_files = (
            of_files.0 + file.iseqs,
            of_files.1 + file.slot_bytes,
            of_files.2 + file.resident_bytes,
        );
    }
    assert_eq!((of_gems, of_files), (bytecode, bytecode));
}

/// Ruby's `memsize` differs from its allocations by less than a tenth: it counts four bytes for each instruction's
/// position, but replaces them by a table of less than a byte for each. malloc rounds each block up by at most 15
/// bytes.
#[test]
fn the_bytecode_of_a_file_is_what_ruby_reports_of_its_iseqs() {
    let target = program(
        "truth = { big: 1000, small: 100 }.to_h do |name, methods|
           path = write_gem(name.to_s, '1.2.3', methods)
           iseqs = compile(path)
           size = iseqs.sum { |it| ObjectSpace.memsize_of(it) }
           wrapper = ObjectSpace.memsize_of(Object.new)
           (KEPT ||= []) << iseqs.first
           [name, { path: path, iseqs: iseqs.size, bytes: size - wrapper * iseqs.size }]
         end
         ready(truth)",
    );
    let output = run(target.pid(), &["--json", "--owners", "100000"]);
    let report: Report = document(&output.stdout);
    assert_eq!(report.findings, []);
    assert_adds_up(&report);
    let mut ratios = Vec::new();
    for name in ["big", "small"] {
        let truth = &target.truth[name];
        let [iseqs, size] = ["iseqs", "bytes"].map(|field| truth[field].as_u64().unwrap());
        let file = file(&report, truth["path"].as_str().unwrap());
        assert_eq!(file.gem, name);
        assert_eq!((file.iseqs, file.slot_bytes), (iseqs, 40 * iseqs), "{name}");
        assert!(file.resident_bytes.abs_diff(size) * 10 <= size, "{name}: {size}, {file:?}");
        ratios.push(file.resident_bytes as f64 / size as f64);
        let gem = gem(&report, name);
        assert_eq!((gem.version.as_deref(), gem.files, gem.iseqs), (Some("1.2.3"), 1, iseqs));
        assert_eq!(gem.resident_bytes, file.resident_bytes);
    }
    // The methods of both are alike, so each differs from the truth by the same factor.
    assert!((ratios[0] / ratios[1] - 1.0).abs() < 0.01, "{ratios:?}");
    assert!(target.finish());
}

#[test]
fn code_without_a_file_of_its_own_has_a_group() {
    let target = program(
        "require 'set'
         require 'optparse'
         500.times { |number| eval(\"def eval#{number}; #{number}; end\") }
         ready({})",
    );
    let report = report(target.pid());
    assert!(gem(&report, "(eval)").iseqs >= 500);
    for group in ["(internal)", "(standard library)", "(application)"] {
        assert!(gem(&report, group).resident_bytes > 1000, "{group}");
    }
    let gems = interpreter(&report).gems.iter().flatten();
    assert!(gems.into_iter().all(|gem| gem.gem != "(unknown)" || gem.iseqs < 20));
}

#[test]
fn tables_of_names_are_told_from_other_tables() {
    let symbols = |code: &str| {
        let report = report(program(code).pid());
        let kinds = &interpreter(&report).kinds;
        kinds.iter().find(|part| part.kind == InterpreterKind::Symbols).unwrap().resident_bytes
    };
    let few = symbols("ready({})");
    let many = symbols("KEPT = Array.new(300_000) { |number| :\"name#{number}\" }; ready({})");
    // A table has at least a hash and a name for each symbol.
    assert!(many - few >= 300_000 * 16, "{few}, {many}");
    assert!(few < 4 << 20, "{few}");
}

#[test]
fn a_large_gem_is_worth_loading_later() {
    const GEM: &str =
        "paths = (1..30).map { |number| write_gem('huge', '3.0', 200, \"huge#{number}\") }";
    // With RubyGems, whose files are among those that are shown.
    let start = |code: &str| Target::ruby(&format!("{GEMS}\n{GEM}; {code}"));
    let with = start("paths.each { |path| require path }; ready({})");
    let without = start("ready({})");
    let [loaded, not] = [&with, &without].map(|target| report(target.pid()));
    assert_eq!(loaded.verdict.cause, Some(Cause::RubyVm), "{:?}", loaded.causes);
    let Action::LoadLessCode { gems } = &loaded.advice[0].action else {
        panic!("{:?}", loaded.advice)
    };
    let [huge] = &gems[..] else { panic!("{gems:?}") };
    assert_eq!(huge.gem, "huge");
    // "saves at least its bytecode"
    assert!(loaded.process.rss_bytes - not.process.rss_bytes >= huge.bytes, "{gems:?}");
    assert!(huge.bytes * 2 > bytes(&loaded, "ruby.vm"), "{gems:?}");
    assert!(!not.advice.iter().any(|it| matches!(it.action, Action::LoadLessCode { .. })));

    let text = |target: &Target, arguments: &[&str]| {
        String::from_utf8(run(target.pid(), arguments).stdout).unwrap()
    };
    let shown = text(&with, &[]);
    assert!(
        shown.contains("\n huge 3.0 ") && shown.contains("The bytecode of huge takes"),
        "{shown}"
    );
    let healthy = text(&without, &[]);
    assert!(!healthy.contains("INTERPRETER") && !healthy.contains("BYTECODE"), "{healthy}");
    let asked = text(&without, &["--owners", "0", "--code"]);
    assert!(asked.contains(" INTERPRETER, MiB") && !asked.contains("OWNER"), "{asked}");
    assert!(asked.contains("/rubygems/specification.rb\n"), "{asked}");
}

/// The way to check a verdict on the interpreter: its memory is the code's, even if the code has not run.
#[test]
fn a_process_that_only_loads_the_code_has_as_much_memory_of_the_interpreter() {
    const LOAD: &str = "path = write_gem('code', '1.0', 2000); require path";
    const RUN: &str = "object = Object.new.extend(Code)
         Code.instance_methods.each { |name| object.public_send(name, ['a'] * 31, nil, ['start']) }";
    let targets = ["", RUN].map(|run| program(&format!("{LOAD}; {run}; ready({{}})")));
    let [loaded, ran] = targets.map(|target| bytes(&report(target.pid()), "ruby.vm"));
    assert!(loaded > 8 << 20, "{loaded}");
    assert!(loaded.abs_diff(ran) * 10 <= loaded, "{loaded}, {ran}");
}

#[test]
fn a_snapshot_has_the_bytecode_of_all_files() {
    let target = program(
        "150.times { |number| compile(write_gem(\"gem#{number}\", '1.0', 3)) }
         ready({})",
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat");
    let pid = target.pid().to_string();
    let saved = rbloat().args(["snapshot", &pid, "-o"]).arg(&path).output().unwrap();
    assert!(saved.status.success());
    let files = |arguments: &[&str]| {
        let output = rbloat().arg("report").arg(&path).args(arguments).output().unwrap();
        let report: Report = document(&output.stdout);
        assert_adds_up(&report);
        let gems = interpreter(&report).gems.as_ref().unwrap().len();
        (interpreter(&report).files.as_ref().unwrap().len(), gems)
    };
    let (files, gems) = files(&["--json", "--owners", "100000"]);
    assert_eq!(files, 101, "the largest, and the sum of the others");
    assert!(gems >= 150, "{gems}");
}
