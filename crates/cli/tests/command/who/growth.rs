//! Growth by method, request and job.

use std::fs;
use std::path::Path;

use formats::{GrowthSample, Recording, SamplingMethod, TaskKind, Who, WhoKind, WhoStack};
use serde_json::Value;
use testkit::{Browser, Target};

use super::{GROWTH, assert_adds_up, assert_design, document_of, share, watch_work, who};
use crate::rbloat;
use crate::record::Recorder;

#[test]
fn the_method_that_grows_has_most_of_the_growth() {
    let target = Target::bare_ruby(&format!("{GROWTH}; grow"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [page, folded, speedscope] = ["a.html", "a.folded", "a.json"].map(file);
    let pid = target.pid().to_string();
    let files = ["-o", &page, "-o", &folded, "-o", &speedscope];
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
    // speedscope recognizes its files by this word; `report --who` reads the same file.
    assert!(profile["$schema"].as_str().unwrap().contains("speedscope"));
    let words = ["report", &pid, "--who", &speedscope, "--max-pause", "10s"];
    let report = rbloat().args(words).output().unwrap();
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
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
    // The focus was lost, and only the lowest row showed everything again.
    assert_eq!(browser.evaluate(&format!("document.activeElement === {button}")), true);
    browser.press("Escape");
    assert!((width(&mut browser) - expected).abs() < 1.0, "{expected}");
    browser.evaluate(
        "search.value = 'string#*'; \
         search.dispatchEvent(new Event('input'))",
    );
    let found = browser.evaluate("document.querySelectorAll('.row button.found').length");
    assert!(found.as_u64().unwrap() > 0);
}

/// The growth by a method and all that it calls.
fn bytes_of(recording: &Recording, growth: &GrowthSample, method: &str) -> u64 {
    let has = |stack: &&WhoStack| {
        let mut frames = stack.frames.iter().map(|&frame| &recording.frames[frame as usize]);
        frames.any(|frame| frame.method == method)
    };
    growth.stacks.iter().filter(has).map(|stack| stack.bytes).sum()
}

/// The second and third rise of a program with deep stacks and long names of files were lost, or had the time at which the line was
/// written: a line of such stacks is so long that the next one has to wait.
#[test]
fn a_recording_has_each_rise_of_deep_stacks_with_its_time() {
    const STEP: u64 = 8 << 20;
    let mut target = Target::bare_ruby(
        r##"
        KEPT = []
        %w[first second third].each do |name|
          150.times do |n|
            path = "/srv/app/#{'callbacks_of_the_controllers_' * 6}#{n}.rb"
            eval("def #{name}_#{n} = #{name}_#{n + 1}", TOPLEVEL_BINDING, path)
          end
          eval("def #{name}_150 = 128.times { KEPT << 'x' * (64 << 10); sleep 0.005 }")
        end
        puts 'ready {}'; $stdout.flush
        while (name = $stdin.gets)
          send("#{name.chomp}_0")
          puts 'ready {}'; $stdout.flush
        end
        "##,
    );
    let recorder = Recorder::of(&target, &["--growth", "--every", "100ms", "--causes-every", "0"]);
    let sum = |recording: &Recording, method: &str| -> u64 {
        recording.growth().map(|growth| bytes_of(recording, growth, method)).sum()
    };
    // Ten samples are an interval. Growth before the layouts are derived has no method.
    let mut recording = recorder.wait_for_samples(1);
    while sum(&recording, "Object#first_150") == 0 {
        target.tell("first");
        target.next_truth();
        recording = recorder.wait_for_samples(11);
    }
    let before = recording.samples().last().unwrap().t_ms;
    target.tell("second");
    target.next_truth();
    let after = recorder.wait_for_samples(2).samples().last().unwrap().t_ms;
    recorder.wait_for_samples(25);
    target.tell("third");
    target.next_truth();
    recorder.wait_for_samples(2);
    recorder.signal("INT");
    let (status, recording) = recorder.end();
    assert_eq!(status, 0);
    assert!(target.finish());
    for method in ["Object#second_150", "Object#third_150"] {
        let bytes = sum(&recording, method);
        assert!(bytes > STEP / 4 * 3, "{bytes} by {method}");
    }
    let mut second =
        recording.growth().filter(|it| bytes_of(&recording, it, "Object#second_150") > 0);
    let is_then = |it: &GrowthSample| it.from_ms <= after && it.t_ms >= before;
    assert!(second.all(is_then), "{before} to {after}");
}

/// The recording of a program has the stacks of its growth, and the owners of its memory at a peak. A plot shows both.
#[test]
fn a_recording_has_the_code_of_each_rise_and_the_owners_of_a_peak() {
    let slow = GROWTH.replace("sleep 0.01", "sleep 0.05");
    let target = Target::bare_ruby(&format!("{slow}; grow"));
    let options = ["--growth", "--every", "100ms", "--causes-every", "0", "--max-pause", "10s"];
    let recorder = Recorder::of(&target, &options);
    let [export, index] = ["ReportsController#export", "ReportsController#index"];
    // Its strings become the largest owner. At the first peak the interpreter itself may be larger.
    let largest_owner_of_peak = |recording: &Recording| {
        let owners = recording.causes().filter_map(|causes| causes.owners.clone()).last();
        owners.and_then(|owners| Some(owners.first()?.owner.clone()))
    };
    recorder.wait_for(|recording| {
        let grown: u64 = recording.growth().map(|growth| bytes_of(recording, growth, export)).sum();
        grown > 8 << 20 && largest_owner_of_peak(recording).as_deref() == Some("String")
    });
    recorder.signal("INT");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("a.html");
    let _ = recorder.wait_for(|recording| recording.end().is_some());
    let output = rbloat().arg("report").arg(&recorder.path).arg("-o").arg(&page).output().unwrap();
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
    let [exported, indexed] =
        [export, index].map(|method| sum(&|it| bytes_of(&recording, it, method)));
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
    let target = Target::bare_ruby(&format!("{busy}; grow"));
    let pid = target.pid().to_string();
    // On a busy machine it grows more slowly.
    let watch = |time: &str| {
        let options = ["--poll", "--json", "--max-pause", "10s", "--for", time];
        document_of(&rbloat().args(["who", &pid]).args(options).output().unwrap())
    };
    let found = watch("3s");
    let found = if found.growth_bytes > 8 << 20 { found } else { watch("30s") };
    assert_eq!(found.sampling.method, SamplingMethod::Polling);
    assert_design(&found);
    let text = String::from_utf8(who(&[&pid, "--poll"]).stdout).unwrap();
    assert!(text.contains("page faults were counted every "), "{text}");
    assert!(text.contains("/srv/app/reports.rb:4"), "{text}");
    assert!(target.finish());
}

/// A fault of a transparent huge page adds all of its pages.
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
    let mut target = Target::bare_ruby(program);
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
    command.env("LD_PRELOAD", library).args(["--disable-gems", "-e", &format!("{GROWTH}; grow")]);
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
    fs::write(&page, render::Stacks::of_growth(&found).html()).unwrap();
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

/// Works for some seconds, in steps of the same length.
const RETAINS_OR_NOT: &str = r##"
    KEPT = []
    def retain; KEPT.concat(Array.new(4000) { |i| "kept #{i}" }); end
    def waste; 10.times { Array.new(4000) { |i| "garbage #{i}" * 9 } }; end
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
        let mut target = Target::bare_ruby(&RETAINS_OR_NOT.replace("WORK", work));
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
