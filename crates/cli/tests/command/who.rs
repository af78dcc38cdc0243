//! The code that makes memory grow, compared with the program's design.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use formats::{
    Action, Diff, GrowthSample, MadeBy, Recording, Report, SamplingMethod, TaskKind, Who, WhoKind,
    WhoLine, WhoStack,
};
use ledger::Cause;
use serde_json::Value;

use crate::record::Recorder;
use crate::{bytes, document, limited, rbloat, report_of, run};
use testkit::{Browser, Server, Target};

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

/// The name of the descriptor of a counter.
const COUNTER: &str = "anon_inode:[perf_event]";

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
    let threads: u64 = who.threads.iter().map(|it| it.bytes).sum();
    let kinds: u64 = who.kinds.iter().map(|it| it.bytes).sum();
    let code: u64 = who.machine_code.iter().map(|it| it.bytes).sum();
    assert_eq!([threads, kinds, code].map(|it| it + who.unsampled_bytes), [who.growth_bytes; 3]);
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
    assert_eq!(largest.kind, WhoKind::Arena, "{:?}", found.kinds);
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

/// The recording of a program has the stacks of its growth, and the owners of its memory at a peak. A plot shows both.
#[test]
fn a_recording_has_the_code_of_each_rise_and_the_owners_of_a_peak() {
    let slow = GROWTH.replace("sleep 0.01", "sleep 0.05");
    let target = Target::ruby(&format!("{slow}; grow"));
    let options = ["--who", "--every", "100ms", "--causes-every", "0", "--max-pause", "10s"];
    let recorder = Recorder::of(&target, &options);
    let bytes_of = |growth: &GrowthSample, method: &str| -> u64 {
        let has = |stack: &&WhoStack| {
            let mut frames = stack.frames.iter().map(|&frame| &growth.frames[frame as usize]);
            frames.any(|frame| frame.method == method)
        };
        growth.stacks.iter().filter(has).map(|stack| stack.bytes).sum()
    };
    let [export, index] = ["ReportsController#export", "ReportsController#index"];
    // Its strings become the largest owner. At the first peak the interpreter itself may be larger.
    let largest_owner_of_peak = |recording: &Recording| {
        let owners = recording.causes().filter_map(|causes| causes.owners.clone()).last();
        owners.and_then(|owners| Some(owners.first()?.owner.clone()))
    };
    recorder.wait_for(|recording| {
        let grown: u64 = recording.growth().map(|growth| bytes_of(growth, export)).sum();
        grown > 8 << 20 && largest_owner_of_peak(recording).as_deref() == Some("String")
    });
    recorder.signal("INT");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("a.html");
    let _ = recorder.wait_for(|recording| recording.end().is_some());
    let output = rbloat().arg("plot").arg(&recorder.path).arg("-o").arg(&page).output().unwrap();
    let (status, recording) = recorder.end();
    assert_eq!(status, 0);
    assert!(target.finish());
    let mut end = 0;
    for growth in recording.growth() {
        let stacks: u64 = growth.stacks.iter().map(|stack| stack.bytes).sum();
        assert_eq!(stacks + growth.unknown_bytes + growth.other_bytes, growth.growth_bytes);
        assert!(growth.from_ms < growth.t_ms && growth.t_ms > end, "{growth:#?}");
        end = growth.t_ms;
    }
    let sum = |of: &dyn Fn(&GrowthSample) -> u64| recording.growth().map(of).sum::<u64>();
    let known = sum(&|growth| growth.growth_bytes - growth.unknown_bytes);
    let [exported, indexed] = [export, index].map(|method| sum(&|it| bytes_of(it, method)));
    assert!(exported * 2 > known && exported > 3 * indexed, "{exported} {indexed} {known}");
    assert_eq!(largest_owner_of_peak(&recording).as_deref(), Some("String"));

    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" grew by ") && text.contains(" peak of "), "{text}");
    let mut browser = Browser::open(&page, "", [1300, 1000]);
    browser.wait_until("document.documentElement?.dataset.drawnMs !== undefined");
    assert_eq!(browser.evaluate("growth.hidden"), true);
    let point = "(() => { const box = svg.getBoundingClientRect(), scale = svg.clientWidth / width, panel = panels[0];
        const rise = runs[0].rises.toSorted((a, b) => b.bytes - a.bytes)[0], t = (rise.from + rise.to) / 2;
        const x = panel.left + (panel.right - panel.left) * t / panel.seconds;
        return [box.left + x * scale, box.top + (panel.bottom - 3) * scale]; })()";
    let at = browser.evaluate(point);
    browser.click(at[0].as_f64().unwrap(), at[1].as_f64().unwrap());
    assert_eq!(browser.evaluate("growth.hidden"), false);
    let text = browser.evaluate("growth.innerText");
    let text = text.as_str().unwrap();
    assert!(text.contains(" grew by ") && text.contains("String"), "{text}");
    let row = browser.evaluate(
        "[...document.querySelectorAll('#methods tbody tr')].map(it => it.cells[2].textContent).join()",
    );
    assert!(row.as_str().unwrap().contains("ReportsController#export (reports.rb)"), "{row}");
    let button = "[...document.querySelectorAll('#graph button')].find(it => it.textContent.startsWith(\
         'ReportsController#export'))";
    let width = browser.evaluate(&format!("parseFloat({button}.style.width)"));
    assert!(width.as_f64().unwrap() > 40.0, "{width}");
    browser.evaluate(&format!("{button}.click()"));
    assert_eq!(browser.evaluate(&format!("{button}.style.width")), "100%");
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
    assert!(text.contains("page faults were counted every "), "{text}");
    assert!(text.contains("/srv/app/reports.rb:4"), "{text}");
    assert!(target.finish());
}

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
    let mut target = Target::ruby(&program);
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

/// Two forked processes write to memory that they share with their parent, and grow.
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
    fork { go.close; wait.read; out.puts JSON.generate(work); exit!(0) }
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    go.close
    fork { out.puts JSON.generate(work); exit!(0) }
    sums = Array.new(2) { JSON.parse(answer.gets) }.transpose.map(&:sum)
    puts "ready #{{ 'copied' => sums[0], 'grown' => sums[1] }.to_json}"; $stdout.flush
    $stdin.read
"##;

#[test]
fn copies_of_shared_pages_are_told_apart_from_growth() {
    let mut target = Target::ruby(WORKERS);
    let (output, truth) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    let [copied, grown] = ["copied", "grown"].map(|key| truth[key].as_u64().unwrap());
    assert!(copied > 90 << 20 && grown > 16 << 20, "{truth}");
    let is_near = |found: u64, truth: u64| found.abs_diff(truth) * 100 <= truth * 15;
    assert!(is_near(found.copied_bytes, copied), "{} {truth}", found.copied_bytes);
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

/// A fault of a transparent huge page adds 512 pages.
#[test]
fn huge_pages_count_with_their_size() {
    let program = r##"
        require 'fiddle'
        all = Fiddle.dlopen(nil)
        pointer, number, int = Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT
        MAP = Fiddle::Function.new(all['mmap'], [pointer, number, int, int, int, number], number)
        ADVISE = Fiddle::Function.new(all['madvise'], [number, number, int], int)
        FILL = Fiddle::Function.new(all['memset'], [number, int, number], number)
        eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/pages.rb', 1)
          HUGE = 2 << 20
          class Pages
            def large(bytes)
              touch(bytes, 14)
            end
            def small(bytes)
              touch(bytes, 15)
            end
            def touch(bytes, advice)
              at = (MAP.call(0, bytes + HUGE, 3, 0x22, -1, 0) + HUGE - 1) / HUGE * HUGE
              ADVISE.call(at, bytes, advice)
              FILL.call(at, 1, bytes)
            end
          end
        RUBY
        pages = Pages.new
        def huge
          File.read('/proc/self/smaps_rollup')[/^AnonHugePages: +(\d+)/, 1].to_i * 1024
        end
        pages.large(HUGE)
        puts 'ready {}'; $stdout.flush
        $stdin.gets
        before = huge
        60.times { pages.large(2 * HUGE); pages.small(1 << 20); sleep 0.02 }
        puts 'ready {"huge": ' + (huge - before).to_s + '}'; $stdout.flush
        $stdin.read
    "##;
    let mut target = Target::ruby(program);
    let (output, truth) = watch_work(&mut target);
    let huge = truth["huge"].as_u64().unwrap();
    if huge == 0 {
        return testkit::skip("the kernel gives no transparent huge pages");
    }
    let found = document_of(&output);
    assert_adds_up(&found);
    let whole = (60 * (4 + 1)) << 20;
    assert!(found.growth_bytes > whole * 9 / 10, "{}", found.growth_bytes);
    // Without a huge page the kernel had to use small ones.
    let expected = (60 << 22).min(huge) as f64 / whole as f64;
    let large = share(&found, "Pages#large");
    assert!((large - expected).abs() < 0.1, "{large} {expected} {:#?}", found.methods);
    assert!(target.finish());
}

/// Stacks and growth do not depend on the allocator.
fn assert_design_under(library: &str) {
    let mut command = testkit::ruby();
    command.env("LD_PRELOAD", library).args(["-e", &format!("{GROWTH}; grow")]);
    let target = Target::start(&mut command);
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    if !maps.contains(library) {
        return testkit::skip("the allocator is not installed where targets run");
    }
    let found = document_of(&who(&[&target.pid().to_string(), "--json"]));
    assert_adds_up(&found);
    // On a busy machine more stacks are read when the thread sleeps already.
    let [export, index] =
        ["ReportsController#export", "ReportsController#index"].map(|method| share(&found, method));
    assert!(export > 0.4 && export > 3.0 * index, "{export} {index} {:#?}", found.methods);
    assert_eq!(found.lines[0].line, 4, "{:#?}", found.lines);
    assert!(target.finish());
}

#[test]
fn the_method_that_grows_has_most_of_the_growth_under_tcmalloc() {
    assert_design_under("libtcmalloc_minimal.so.4");
}

#[test]
fn the_method_that_grows_has_most_of_the_growth_under_mimalloc() {
    assert_design_under("libmimalloc.so.2");
}

/// The types of internal objects are derived from objects that a collection has marked, if there are few of them.
#[test]
fn a_program_without_a_collection_is_watched_or_refused_with_the_reason() {
    for (collect, is_collected) in [("", false), ("GC.start", true)] {
        let program = format!(
            "{collect}
             def work; 'x' * 100_000; end
             Thread.new {{ loop {{ ($kept ||= []) << work; sleep 0.01 }} }}
             puts 'ready {{}}'; $stdout.flush
             $stdin.read"
        );
        let target = Target::start(testkit::ruby().args(["--disable-gems", "-e", &program]));
        let output = who(&[&target.pid().to_string(), "--json"]);
        if !is_collected && !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(complaint.contains("Ruby has not collected garbage yet"), "{complaint}");
        } else {
            let found = document_of(&output);
            assert_adds_up(&found);
            assert!(share(&found, "Object#work") > 0.5, "{:#?}", found.methods);
        }
        assert!(target.finish());
    }
}

/// A program that runs another one: the growth of both is in the sums, also that of threads between two samples.
#[test]
fn growth_before_an_exec_is_kept() {
    let program =
        "threads = 24.times.map { Thread.new { (0...9).map { |i| 'x' * (4096 * 9 + i) } } }
                   $kept = threads.map(&:value); sleep 0.3; exec('sleep', '0.3')";
    let mut command = testkit::ruby();
    command.args(["-e", program]);
    let mut rbloat = rbloat();
    rbloat.args(["who", "--json", "--max-pause", "10s", "--"]);
    rbloat.arg(command.get_program()).args(command.get_args());
    let found: Who = document_of(&rbloat.output().unwrap());
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
    let mut target = Target::ruby(&program);
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

/// Waits until rbloat has opened its counters of page faults and sleeps, since it has then read which pages are shared. Without
/// the right to such counters, until it has surely begun.
fn wait_until_it_samples(child: &mut Child) {
    let mut before = 0;
    for _ in 0..600 {
        let files = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
        let target = |file: fs::DirEntry| fs::read_link(file.path()).ok();
        let counters = files.flatten().filter_map(target).filter(|to| to.ends_with(COUNTER));
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let now = if stat.contains(") S ") { counters.count() } else { 0 };
        if (now > 0 && now == before) || child.try_wait().unwrap().is_some() {
            return;
        }
        before = now;
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Watches a program that works when it reads a line, until it is ready again. Returns the output of `rbloat who`, and what the
/// program reports.
fn watch_work(target: &mut Target) -> (Output, Value) {
    let mut child = rbloat()
        .args(["who", "--for", "1h", "--json", "--max-pause", "10s", &target.pid().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    target.tell("");
    let truth = target.next_truth();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    (child.wait_with_output().unwrap(), truth)
}

/// A controller of Rails and a job of Sidekiq, called as these do.
#[test]
fn requests_and_jobs_are_named() {
    let libraries = ["-raction_controller/railtie", "-rrack/mock", "-rsidekiq", "-e", ""];
    let can = testkit::ruby().args(libraries).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return testkit::skip("Rails or Sidekiq is not installed where targets run");
    }
    let program = r##"
        require 'action_controller/railtie'
        require 'rack/mock'
        require 'sidekiq'
        require 'sidekiq/processor'
        class Tiny < Rails::Application
          config.eager_load = false
          config.logger = Logger.new(File::NULL)
          config.secret_key_base = 'x' * 40
          config.hosts.clear
          routes.append { get '/export' => 'reports#export' }
        end
        eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/reports.rb', 1)
          KEPT = []
          class ReportsController < ActionController::Base
            before_action { KEPT << Array.new(1000) { |i| "f" * (1200 + i) } }
            def export
              KEPT << Array.new(8000) { |i| "x" * (1200 + i % 400) }
              render plain: 'done'
            end
          end
          class ReportJob
            include Sidekiq::Worker
            def perform
              KEPT << Array.new(4000) { |i| "y" * (1200 + i % 400) }
            end
          end
        RUBY
        Tiny.initialize!
        web = Thread.new { Thread.stop; 4.times { Rack::MockRequest.new(Tiny).get('/export').status == 200 or abort } }
        jobs = Thread.new { Thread.stop; 4.times { Sidekiq::Processor.allocate.send(:execute_job, ReportJob.new, []) } }
        sleep 0.01 until web.stop? && jobs.stop?
        puts 'ready {}'; $stdout.flush
        $stdin.gets
        [web, jobs].each(&:run).each(&:join)
        puts 'ready {}'; $stdout.flush
        $stdin.read
    "##;
    let mut target = Target::ruby(program);
    let found = document_of(&watch_work(&mut target).0);
    assert_adds_up(&found);
    let share = |kind, name: &str| {
        let task = found.tasks.iter().find(|task| task.kind == kind && task.name == name);
        task.map_or(0.0, |task| task.bytes as f64 / found.growth_bytes as f64)
    };
    let action = share(TaskKind::Action, "ReportsController#export");
    let job = share(TaskKind::Job, "ReportJob");
    assert!(action > 0.4 && job > 0.2 && action > job, "{:#?}", found.tasks);
    // Each stack of a task is in its sum.
    for (index, task) in found.tasks.iter().enumerate() {
        let own = found.stacks.iter().filter(|stack| stack.task == Some(index as u32));
        assert_eq!(own.map(|stack| stack.bytes).sum::<u64>(), task.bytes);
    }
    assert!(target.finish());
    // The flame graph has them as its second row, on request.
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("who.html");
    fs::write(&page, render::who_html(&found)).unwrap();
    let mut browser = Browser::open(&page, "", [1200, 800]);
    browser.wait_until("document.querySelectorAll('.row').length > 3");
    let names = "[...document.querySelectorAll('.row')[1].querySelectorAll('button')].map(it => it.textContent).join()";
    let before = browser.evaluate(names);
    browser.evaluate("document.getElementById('tasks').click()");
    let after = browser.evaluate(names);
    let [before, after] = [before, after].map(|names| names.as_str().unwrap().to_owned());
    for name in ["ReportsController#export", "job ReportJob"] {
        assert!(!before.contains(name) && after.contains(name), "{before} {after}");
    }
}

/// Threads build results at once, of which one kind is kept.
const BURST: &str = r##"
    eval(<<~'RUBY', TOPLEVEL_BINDING, '/srv/app/bursts.rb', 1)
      class Bursts
        def strings
          Array.new(5000) { |i| "x" * (900 + i % 7000) }
        end
        def arrays
          Array.new(4000) { |i| Array.new(400, i) }
        end
        def kept
          Array.new(9000) { |i| "y" * (900 + i % 300) }
        end
        def run(name, times = 2)
          results = Array.new(times) { send(name) }
          results if name == :kept
        end
      end
    RUBY
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    names = %i[strings arrays kept]
    $kept = WORK
    4.times { GC.start }
    puts 'ready {}'; $stdout.flush
    $stdin.read
"##;
/// Without collections: no method gets memory that another one touched first.
const THREADS: &str = "GC.disable.then { Array.new(20) { |n| Thread.new { Bursts.new.run(names[n % 3]) } }.map(&:value) }.tap { GC.enable }";
const RACTORS: &str =
    "Array.new(6) { |n| Ractor.new(names[n % 3]) { |name| Bursts.new.run(name, 6) } }
    .map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }";

/// The code is known for the memory that the ledger counts as free, and the code whose results are kept has none of it.
#[test]
fn the_code_that_left_free_memory_is_named() {
    let (target, output) = watch_burst(&mut testkit::ruby(), THREADS);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [samples, snapshot, page] = ["who.json", "a.rbloat", "a.html"].map(file);
    fs::write(&samples, &output.stdout).unwrap();
    let pid = target.pid().to_string();
    let output_of = |words: &[&str]| {
        let output = rbloat().args(words).args(["--max-pause", "10s"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    output_of(&["snapshot", &pid, "-o", &snapshot]);
    let report: Report = document(&output_of(&["report", &snapshot, "--who", &samples, "--json"]));
    let rows = report.made_by.clone().unwrap();
    let free = rows.iter().find(|row| row.cause == Some(Cause::MallocUnreturned)).unwrap();
    assert_eq!(free.bytes, bytes(&report, "malloc.unreturned"));
    assert!(free.bytes > 48 << 20, "{}", free.bytes);
    assert!(free.known_bytes * 100 >= free.bytes * 97, "{free:#?}");
    let [strings, arrays, kept] =
        ["Bursts#strings", "Bursts#arrays", "Bursts#kept"].map(|method| bytes_by(free, method));
    assert!((strings + arrays) * 100 >= free.bytes * 90, "{free:#?}");
    assert!(kept * 20 <= free.bytes, "{free:#?}");
    let live = rows.iter().find(|row| row.owner.as_deref() == Some("String")).unwrap();
    assert!(bytes_by(live, "Bursts#kept") * 100 >= live.known_bytes * 80, "{live:#?}");
    // The first step is to change the code.
    let Action::ChangeCode { code, .. } = &report.advice[0].action else {
        panic!("{:?}", report.advice)
    };
    assert_eq!(code.path.as_deref(), Some("/srv/app/bursts.rb"));
    let text = String::from_utf8(output_of(&["report", &snapshot, "--who", &samples])).unwrap();
    assert!(
        text.contains("MADE BY") && text.contains("first touched in block in Bursts#"),
        "{text}"
    );
    let diff: Diff =
        document(&output_of(&["diff", &snapshot, &snapshot, "--who", &samples, "--json"]));
    assert_eq!(diff.made_by.unwrap(), rows);
    let pictures = ["a.png", "b.png"].map(file);
    output_of(&["map", &snapshot, "--who", &samples, "-o", &page, "--png", &pictures[0]]);
    output_of(&["map", &snapshot, "--png", &pictures[1]]);
    let [by_code, by_use] = pictures.map(|picture| fs::read(picture).unwrap());
    assert_ne!(by_code, by_use);
    assert_code_of_pages(&page);
    // Samples of another process.
    let other = Target::ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let words = ["report", &other.pid().to_string(), "--who", &samples];
    let output = rbloat().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.contains(&format!("has no samples of process {}", other.pid())),
        "{complaint}"
    );
    // A comparison fails before its first capture.
    let words = ["diff", &other.pid().to_string(), "--every", "24h", "--who", &samples];
    assert_eq!(rbloat().args(words).output().unwrap().status.code(), Some(3));
    // Another document.
    fs::write(&samples, output_of(&["report", &snapshot, "--json"])).unwrap();
    let output = rbloat().args(["report", &snapshot, "--who", &samples]).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("it is the document of `rbloat report`"), "{complaint}");
    assert!(target.finish());
}

/// Runs [`BURST`], and checks that all three methods are among those that grow, and little code is unknown.
fn watch_burst(command: &mut Command, work: &str) -> (Target, Output) {
    let mut target = Target::start(command.args(["-e", &BURST.replace("WORK", work)]));
    let (output, _) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    assert!(found.unknown_bytes * 5 < found.growth_bytes, "{:?}", found.sampling);
    let shares = ["Bursts#strings", "Bursts#arrays", "Bursts#kept"].map(|name| share(&found, name));
    assert!(shares.iter().all(|&share| share > 0.04), "{shares:?}");
    assert!(shares.iter().sum::<f64>() > 0.75, "{shares:?}");
    (target, output)
}

/// The code that touched the memory of this row, as far as its method has this name.
fn bytes_by(row: &MadeBy, method: &str) -> u64 {
    let own = row.code.iter().filter(|code| code.method.ends_with(method));
    own.map(|code| code.bytes).sum()
}

#[test]
fn ractors_are_followed() {
    let can = testkit::ruby().args(["-e", "Ractor"]).output().unwrap().status.success();
    if !can {
        return testkit::skip("Ruby has Ractors from 3.0 on");
    }
    let (target, _) = watch_burst(&mut testkit::ruby(), RACTORS);
    assert!(target.finish());
}

/// From Ruby 3.3 on, threads can share native threads.
#[test]
fn threads_that_share_native_threads_are_followed() {
    let (target, _) = watch_burst(testkit::ruby().env("RUBY_MN_THREADS", "1"), THREADS);
    assert!(target.finish());
}

#[test]
fn the_code_that_left_free_memory_is_named_under_jemalloc() {
    let (target, output) =
        watch_burst(testkit::ruby().env("LD_PRELOAD", "libjemalloc.so.2"), THREADS);
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("who.json").display().to_string();
    fs::write(&samples, &output.stdout).unwrap();
    let report = report_of(&run(target.pid(), &["--who", &samples, "--json"]));
    if report.process.allocator != "jemalloc" {
        return testkit::skip("libjemalloc2 is not installed where targets run");
    }
    let rows = report.made_by.as_deref().unwrap();
    let free = rows.iter().find(|row| row.cause == Some(Cause::MallocUnreturned)).unwrap();
    assert!(free.known_bytes * 100 >= free.bytes * 95, "{free:#?}");
    assert!(bytes_by(free, "Bursts#kept") * 20 <= free.bytes, "{free:#?}");
    assert!(target.finish());
}

/// The map colours pages by their code, with the code in its legend.
fn assert_code_of_pages(page: &str) {
    let mut browser = Browser::open(Path::new(page), "", [1200, 800]);
    browser.wait_until("document.querySelector('[data-view=code]')?.hidden === false");
    browser.evaluate("document.querySelector('[data-view=code]').click()");
    let legend = browser.evaluate("document.getElementById('legend').textContent");
    let legend = legend.as_str().unwrap();
    for method in ["Bursts#strings", "Bursts#arrays", "Bursts#kept"] {
        assert!(legend.contains(method), "{legend}");
    }
    assert!(legend.contains("/srv/app/bursts.rb:3"), "{legend}");
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

/// A method that grows by mmap with MAP_POPULATE, which makes no page faults, and one that grows by strings.
const POPULATE: &str = r##"
    require 'fiddle'
    MMAP = Fiddle::Function.new(Fiddle.dlopen(nil)['mmap'], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, *[Fiddle::TYPE_INT] * 3, Fiddle::TYPE_LONG], Fiddle::TYPE_VOIDP)
    KEPT = []
    def small
      KEPT << Array.new(20) { "s" * 1000 }
    end
    # Private, anonymous, populated.
    def large
      MMAP.call(nil, 4 << 20, 3, 0x8022, -1, 0)
    end
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    50.times { small; large }
    puts 'ready {}'; $stdout.flush
    $stdin.read
"##;

#[test]
fn growth_without_page_faults_is_not_that_of_other_code() {
    let has_fiddle = testkit::ruby().args(["-e", "require 'fiddle'"]).output().unwrap();
    if !has_fiddle.status.success() {
        return testkit::skip("Ruby has no fiddle");
    }
    let mut target = Target::ruby(POPULATE);
    let (output, _) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    assert!(found.growth_bytes > 200 << 20, "{}", found.growth_bytes);
    assert!(share(&found, "Object#small") < 0.05, "{:#?}", found.methods);
    assert!(found.unsampled_bytes * 100 > found.growth_bytes * 90, "{}", found.unsampled_bytes);
    assert!(target.finish());
}

/// By the time at which the stack of a thread is read that allocates and sleeps in turn, it often sleeps.
#[test]
fn no_growth_is_that_of_a_method_that_only_waits() {
    let program = "KEPT = []
        def work; KEPT << ('x' * 60_000); end
        Thread.new { loop { work; sleep 0.002 } }
        puts 'ready {}'; $stdout.flush
        $stdin.read";
    let target = Target::ruby(program);
    let found = document_of(&who(&[&target.pid().to_string(), "--json"]));
    assert_adds_up(&found);
    assert!(found.growth_bytes > 4 << 20, "{}", found.growth_bytes);
    assert!(share(&found, "Kernel#sleep") < 0.05, "{:#?}", found.methods);
    assert!(found.sampling.prompt_bytes <= found.growth_bytes - found.unknown_bytes);
    assert!(target.finish());
}

/// Works for some seconds, in steps of the same length.
const RETAINS_OR_NOT: &str = r##"
    KEPT = []
    def retain; KEPT.concat(Array.new(4000) { |i| "kept #{i}" }); end
    def waste; 40.times { Array.new(4000) { |i| "garbage #{i}" * 9 } }; end
    GC.start
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    60.times { WORK; GC.start(full_mark: false); sleep 0.1 }
    puts 'ready {}'; $stdout.flush
    $stdin.read
"##;

#[test]
fn a_steady_rise_of_old_objects_is_noted() {
    for (work, retains) in [("retain", true), ("waste", false)] {
        let mut target = Target::ruby(&RETAINS_OR_NOT.replace("WORK", work));
        let (output, _) = watch_work(&mut target);
        let found = document_of(&output);
        assert_eq!(found.old_objects.is_some(), retains, "{work} {:?}", found.old_objects);
        if let Some(old) = &found.old_objects {
            // 240,000 objects are kept. In the first and the last quarter some are missing.
            assert_eq!(old.pid, target.pid());
            assert!((80_000..240_000).contains(&(old.last - old.first)), "{old:?}");
        }
        let text = render::who(&found, 100);
        assert_eq!(text.contains("rose steadily"), retains, "{text}");
        assert!(text.contains("to a peak of ") && text.contains("rbloat diff"), "{text}");
        assert!(target.finish());
    }
}

/// The share of growth in the wrong method, by the program's own truth, as `scripts/who` computes it.
fn wrong_share(who: &Who, truth: &Value) -> f64 {
    let own = truth["bytes"].as_object().unwrap();
    let mut growth = BTreeMap::from([(None, who.unknown_bytes)]);
    for stack in &who.stacks {
        let mut methods = stack.frames.iter().map(|&frame| &who.frames[frame as usize].method);
        let method = methods.rfind(|&method| own.contains_key(method));
        *growth.entry(method).or_default() += stack.bytes;
    }
    let whole: u64 = own.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    let difference = |method: Option<&String>| {
        let truth = method.map_or(0, |method| own[method].as_u64().unwrap());
        let found = growth.get(&method).copied().unwrap_or(0);
        (truth as f64 / whole as f64 - found as f64 / who.growth_bytes as f64).abs()
    };
    own.keys().map(Some).chain([None]).map(difference).sum::<f64>() / 2.0
}

/// Stacks that were read after the fault attributed 8 to 38 % of the growth of these programs to the wrong code: their threads
/// wait or end at once.
#[test]
fn the_kernel_copies_the_stacks_of_page_faults() {
    for program in ["who/pauses", "who/threads", "who/fibers", "who/native", "who/burst"] {
        let mut target = Target::scenario(program, &[]);
        let (output, truth) = watch_work(&mut target);
        let found = document_of(&output);
        if found.sampling.copied == 0 {
            return testkit::skip("the kernel loads no programs for page faults");
        }
        let sampling = &found.sampling;
        assert!(sampling.copied * 10 > sampling.samples * 9, "{program}: {sampling:?}");
        let wrong = wrong_share(&found, &truth);
        assert!(wrong < 0.08, "{program}: {wrong} {sampling:?} {truth} {:#?}", found.methods);
        let text = render::who(&found, 100);
        assert!(text.contains(" of the stacks were copied at the page fault"), "{text}");
        assert!(target.finish());
    }
}

/// Watches a scenario that counts its own growth by method. Skips aloud if the kernel copies no stacks.
fn assert_copied_stacks_are_right(mut target: Target) {
    let (output, truth) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    if found.sampling.copied == 0 {
        return testkit::skip("the kernel loads no programs for page faults");
    }
    let wrong = wrong_share(&found, &truth);
    assert!(wrong < 0.08, "{wrong} {:?} {truth} {:#?}", found.sampling, found.methods);
    assert!(target.finish());
}

/// A JIT compiler writes the program counter of a frame only where it must.
#[test]
fn stacks_are_right_with_a_jit_compiler() {
    let mut is_tested = false;
    for (option, name) in [("--yjit", "YJIT"), ("--zjit", "ZJIT")] {
        let has = format!("exit!(RubyVM.const_defined?(:{name}) && RubyVM::{name}.enabled?)");
        let enabled = testkit::ruby().args([option, "-e", &has]).output();
        if !enabled.is_ok_and(|output| output.status.success()) {
            continue;
        }
        for program in ["who/burst", "who/fibers", "who/pauses"] {
            let target = Target::start(testkit::scenario(program).env("RUBYOPT", option));
            assert_copied_stacks_are_right(target);
        }
        is_tested = true;
    }
    if !is_tested {
        testkit::skip("Ruby was built without a JIT compiler");
    }
}

/// The memory of libpq, and of strings that are copied from it. The function that waits for a result runs without the GVL.
#[test]
fn results_of_a_database_are_those_of_the_method_that_asked() {
    let can = testkit::ruby().args(["-rpg", "-e", ""]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return testkit::skip("ruby-pg is not installed where targets run");
    }
    let server = Server::postgres();
    let variables = server.variables().iter().map(|(name, value)| (name, value));
    let target = Target::start(testkit::scenario("who/postgres").envs(variables));
    assert_copied_stacks_are_right(target);
}

/// Without CAP_BPF stacks are read after the fault.
#[test]
fn stacks_are_read_if_the_kernel_copies_none() {
    let target = Target::ruby(&format!("{GROWTH}; grow"));
    let rbloat = rbloat();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-bpf,-sys_admin", rbloat.get_program().to_str().unwrap(), "who"])
        .args(["--for", "3s", "--max-pause", "10s", "--json", &target.pid().to_string()])
        .output()
        .unwrap();
    let found = document_of(&output);
    assert_eq!(found.sampling.copied, 0);
    assert_ne!(found.sampling.method, SamplingMethod::Polling, "the tests run as root");
    assert_adds_up(&found);
    assert!(share(&found, "ReportsController#export") > 0.4, "{:#?}", found.methods);
    assert!(target.finish());
}

/// A process with more threads than rbloat may open counters for.
#[test]
fn too_few_descriptors_are_an_error_with_advice() {
    let target = Target::ruby(
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
    let mut target = Target::ruby(
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
        for command in [&["who"][..], &["record", "--who", "--every", "100ms", "-o", "/dev/null"]] {
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
            let words = ["record", "--who", "-o", "/dev/null", "--", program];
            assert_eq!(rbloat().args(words).output().unwrap().status.code(), Some(expected));
        }
    }
}

#[test]
fn a_signal_ends_the_observation_and_not_the_program() {
    let target = Target::ruby(&format!("{GROWTH}; grow"));
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
