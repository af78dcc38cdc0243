//! `rbloat report --fix`: its lines are right on every platform, and following them has the promised effect.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use formats::{Action, Platform, Report, Server};
use testkit::Target;

use crate::{bytes, complaint, rbloat, report};

/// Tests wait at most this long for an effect.
const PATIENCE: Duration = Duration::from_secs(120);
const PLATFORMS: [&str; 7] =
    ["container", "kubernetes", "systemd", "systemd-user", "heroku", "procfile", "shell"];

fn fix(source: &str, option: &str) -> Output {
    rbloat().args(["report", source, option, "--max-pause", "10s"]).output().unwrap()
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The lines to paste, without lines that only measure the effect, for each step and each alternative, without their
/// indentation.
fn lines_to_paste(text: &str) -> Vec<Vec<String>> {
    let mut steps: Vec<Vec<String>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("STEP ") || line.starts_with("INSTEAD OF STEP ") {
            steps.push(Vec::new());
        } else if let Some(line) = line.strip_prefix("    ")
            && !line.starts_with("rbloat compare")
        {
            steps.last_mut().expect("lines belong to a step").push(line.into());
        }
    }
    steps
}

/// Runs a command with this input, and returns its output.
fn piped(command: &mut Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{input}");
    String::from_utf8(output.stdout).unwrap()
}

/// The environment that lines set, as the platform reads them.
fn environment(platform: &str, lines: &[String]) -> BTreeMap<String, String> {
    let prefix = match platform {
        "kubernetes" => return manifest_environment(lines),
        "container" => "ENV ",
        "systemd" | "systemd-user" => "Environment=",
        "heroku" => "heroku config:set ",
        "procfile" => "",
        _ => "export ",
    };
    let assignments = lines.iter().filter_map(|line| line.strip_prefix(prefix));
    // All of these platforms read words as a shell does.
    let assignments = assignments.filter(|line| line.contains('=') && !line.starts_with("gem "));
    let script: String = assignments.map(|line| format!("export {line}\n")).collect();
    let mut shell = Command::new("sh");
    let printed = piped(shell.env_clear().env("PATH", "/usr/bin:/bin"), &format!("{script}env"));
    let variables = printed.lines().filter_map(|line| line.split_once('='));
    let own = ["PATH", "PWD", "OLDPWD", "SHLVL", "_"];
    variables
        .filter(|(name, _)| !own.contains(name))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// The environment in the manifest of a pod, whose values must be strings.
fn manifest_environment(lines: &[String]) -> BTreeMap<String, String> {
    let manifest: Vec<_> =
        lines.iter().filter(|it| *it == "env:" || it.starts_with("  ")).cloned().collect();
    let script = "require 'json'
        puts JSON.generate(YAML.safe_load($stdin.read)['env'].to_h { |it| [it['name'], it['value']] })";
    let json = piped(testkit::ruby().args(["-ryaml", "-e", script]), &manifest.join("\n"));
    serde_json::from_str(&json).unwrap()
}

fn pairs(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Starts scenarios/burst.rb with these variables.
fn burst(scale: &str, variables: &BTreeMap<String, String>) -> Target {
    let mut command = testkit::scenario("burst");
    Target::start(command.args(["--scale", scale]).envs(variables))
}

/// The first line of `rbloat report` shows the allocator.
fn allocator(report: &Report) -> &str {
    &report.process.allocator
}

/// Takes reports until one meets a condition.
fn report_until(pid: i32, what: &str, is_met: impl Fn(&Report) -> bool) -> Report {
    let started = Instant::now();
    loop {
        let report = report(pid);
        if is_met(&report) {
            return report;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: {report:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_lines_of_every_platform_set_the_same_variables() {
    let target = burst("0.3", &BTreeMap::new());
    let source = target.pid().to_string();
    let gem = [("RUBYOPT", "-rrbloat/core"), ("RBLOAT_AUTO_TRIM", "1")];
    let jemalloc = [("LD_PRELOAD", "libjemalloc.so.2"), ("MALLOC_CONF", "background_thread:true")];
    let arenas = [("MALLOC_ARENA_MAX", "2")];
    for platform in PLATFORMS {
        let text = text_of(&fix(&source, &format!("--fix={platform}")));
        let headings: Vec<_> = text.lines().filter(|line| line.contains("STEP ")).collect();
        let expected = ["STEP 1", "INSTEAD OF STEP 1", "INSTEAD OF STEP 1", "STEP 2"];
        assert_eq!(headings, expected, "{text}");
        let steps = lines_to_paste(&text);
        assert_eq!(environment(platform, &steps[0]), pairs(&gem), "{text}");
        assert_eq!(environment(platform, &steps[1]), pairs(&jemalloc), "{text}");
        assert_eq!(environment(platform, &steps[2]), pairs(&arenas), "{text}");
        assert_eq!(steps[3], [format!("rbloat trim {source}")], "{text}");
    }
    assert!(target.finish());
}

#[test]
fn two_arenas_are_in_effect() {
    let target = burst("0.3", &pairs(&[("MALLOC_ARENA_MAX", "2")]));
    let report = report(target.pid());
    assert_eq!(report.arenas.as_ref().unwrap().len(), 2);
    assert!(!report.advice.iter().any(|it| matches!(it.action, Action::LimitArenas { .. })));
    assert!(target.finish());
}

#[test]
fn jemalloc_is_in_effect() {
    let target = burst("0.1", &pairs(&diagnosis::JEMALLOC));
    let report = report_without_malloc(target.pid());
    if allocator(&report) == "glibc" {
        return testkit::skip("libjemalloc2 is not installed where targets run");
    }
    assert_eq!(allocator(&report), "jemalloc");
    assert!(has_thread(target.pid(), "jemalloc_bg_thd"));
    assert!(target.finish());
}

/// A report on a process whose allocator rbloat cannot read, which is therefore incomplete.
fn report_without_malloc(pid: i32) -> Report {
    crate::document(&crate::run(pid, &["--json"]).stdout)
}

fn has_thread(pid: i32, name: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut names =
        threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap());
    names.any(|it| it.trim_end().starts_with(name))
}

/// The advice used to ignore forked workers, which have no background thread.
#[test]
fn a_forked_worker_has_no_background_thread_of_jemalloc() {
    let source = "
        pid = fork { Array.new(200_000) { 'x' * 600 }.clear; 4.times { GC.start }; puts %(ready {\"worker\": #{$$}}); $stdout.flush; $stdin.read; exit!(0) }
        Process.wait(pid)";
    let mut ruby = testkit::ruby();
    let target = Target::start(
        ruby.args(["--disable-gems", "-e", source]).envs(pairs(&diagnosis::JEMALLOC)),
    );
    if !has_thread(target.pid(), "jemalloc_bg_thd") {
        return testkit::skip("libjemalloc2 is not installed where targets run");
    }
    let worker = i32::try_from(target.number("worker")).unwrap();
    assert!(!has_thread(worker, "jemalloc_bg_thd"));
    // The variable is set, and no such thread runs: setting it once more would not help.
    let report = crate::report(worker);
    assert!(!report.advice.iter().any(|it| it.action == formats::Action::DecayInBackground));
    assert!(target.finish());
}

/// Builds and installs the gem in a folder, as `gem install rbloat` does; false if this machine cannot.
fn install_gem(folder: &Path) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gem").canonicalize().unwrap();
    let ruby_in = |folder: &Path, arguments: &[&str]| {
        let mut command = testkit::ruby();
        command.arg("-C").arg(folder).args(arguments).output().unwrap().status.success()
    };
    if !ruby_in(folder, &["-rmkmf", "-e", "exit(have_header('ruby.h'))"]) {
        return false;
    }
    let package = folder.join("rbloat.gem");
    let (place, package) = (folder.to_str().unwrap(), package.to_str().unwrap());
    let options = ["--local", "--no-document", "--install-dir", place, package];
    assert!(ruby_in(&source, &["-S", "gem", "build", "rbloat.gemspec", "--output", package]));
    assert!(ruby_in(folder, &[&["-S", "gem", "install"][..], &options].concat()));
    true
}

#[test]
fn the_gem_is_in_effect() {
    let folder = tempfile::tempdir().unwrap();
    if !install_gem(folder.path()) {
        return testkit::skip("the gem's extension cannot be built where targets run");
    }
    let mut variables = pairs(&diagnosis::GEM);
    variables.insert("GEM_PATH".into(), folder.path().to_str().unwrap().into());
    let mut command = testkit::scenario("burst");
    // The gem needs RubyGems.
    command.args(["--scale", "0.2"]).envs(&variables).env("RUBYOPT", "-rrubygems -rrbloat/core");
    let target = Target::start(&mut command);
    assert!(has_thread(target.pid(), "rbloat-trim"));
    // A look at its RSS is cheaper than a report.
    let (most, started) = (target.number("rss_bytes"), Instant::now());
    while target.rss_bytes() > most / 2 && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(200));
    }
    let report = report_until(target.pid(), "AutoTrim trims", |report| {
        bytes(report, "malloc.unreturned") < 16 << 20
    });
    assert!(!report.advice.iter().any(|it| it.action == Action::AutoTrim));
    assert!(target.finish());
}

#[test]
fn a_snapshot_has_what_fix_needs() {
    let mut command = testkit::scenario("burst");
    let target =
        Target::start(command.args(["--scale", "0.3"]).env("DYNO", "web.1").env("RUBYOPT", "-W0"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat").to_str().unwrap().to_owned();
    let taken =
        rbloat().args(["snapshot", &target.pid().to_string(), "-o", &path]).output().unwrap();
    assert!(taken.status.success());
    assert!(target.finish());
    let text = text_of(&fix(&path, "--fix"));
    assert!(text.contains("dyno of Heroku"), "{text}");
    assert!(text.contains("    heroku config:set MALLOC_ARENA_MAX=\"2\"\n"), "{text}");
    assert!(text.contains("RUBYOPT is set now: keep its value"), "{text}");
    assert!(!text.contains("MALLOC_CONF is set now"), "{text}");
}

#[test]
fn a_healthy_process_has_nothing_to_fix() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let text = text_of(&fix(&target.pid().to_string(), "--fix"));
    assert!(text.contains("There is nothing to fix."), "{text}");
    assert!(!text.contains("STEP"), "{text}");
    assert!(target.finish());
}

#[test]
fn what_cannot_be_fixed_has_the_exit_status_of_a_report() {
    let (status, line) = complaint(&fix("/nowhere/a.rbloat", "--fix"));
    assert_eq!(status, 3, "{line}");
    assert_eq!(fix("1073741823", "--fix").status.code(), Some(3));
    let preloaded = crate::errors::foreign_malloc();
    let target = burst("0.05", &pairs(&[("LD_PRELOAD", preloaded.to_str().unwrap())]));
    let output = fix(&target.pid().to_string(), "--fix");
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stdout).contains("could not be read"));
    assert!(target.finish());
}

/// Reports on a Ruby program that loads libraries first; `None` if they are not installed.
fn deployment_of(library: &str, program: &str) -> Option<formats::Deployment> {
    let target = Target::ruby(&format!(
        "require 'logger'
         has_library = begin
           require '{library}'
           true
         rescue LoadError
           false
         end
         if has_library
           {program}
         end
         puts \"ready {{\\\"has_library\\\": #{{has_library}}}}\"; $stdout.flush; $stdin.read; exit!(0)"
    ));
    if target.truth["has_library"] == false {
        testkit::skip(&format!("{library} is not installed where targets run"));
        return None;
    }
    let deployment = report(target.pid()).process.deployment;
    assert!(target.finish());
    Some(deployment)
}

#[test]
fn servers_rails_and_bundler_are_recognized() {
    let plain = deployment_of("json", "require 'json'").unwrap();
    assert_eq!((plain.server, plain.rails, plain.bundler), (None, false, false));
    let bundler = "
        require 'tmpdir'
        folder = Dir.mktmpdir
        File.write(\"#{folder}/Gemfile\", \"source 'https://rubygems.org'\\n\")
        ENV['BUNDLE_GEMFILE'] = \"#{folder}/Gemfile\"
        require 'bundler/setup'";
    if let Some(found) = deployment_of("bundler", bundler) {
        assert_eq!((found.server, found.rails, found.bundler), (None, false, true));
    }
    let puma = "
        require 'puma'
        require 'puma/server'
        SERVER = Puma::Server.new(->(env) { [200, {}, []] })
        SERVER.run";
    if let Some(found) = deployment_of("puma", puma) {
        assert_eq!((found.server, found.rails), (Some(Server::Puma), false));
    }
    // A manager that starts jobs needs Redis.
    let sidekiq = "
        require 'sidekiq'
        require 'sidekiq/manager'
        MANAGER = Sidekiq::Manager.allocate";
    if let Some(found) = deployment_of("sidekiq", sidekiq) {
        assert_eq!((found.server, found.rails), (Some(Server::Sidekiq), false));
    }
    // A program that only enqueues jobs.
    if let Some(found) =
        deployment_of("sidekiq", "require 'sidekiq'; CLIENT = Sidekiq::Client.allocate")
    {
        assert_eq!(found.server, None);
    }
    let rails = "
        require 'logger'
        require 'rails'
        class Shop < Rails::Application
          config.eager_load = false
          config.logger = Logger.new(IO::NULL)
        end
        Shop.initialize!";
    if let Some(found) = deployment_of("rails", rails) {
        assert_eq!((found.server, found.rails), (None, true));
    }
}

#[test]
fn a_process_in_a_container_is_recognized() {
    let container = testkit::Container::ruby(4242, "puts 'ready {}'; $stdout.flush; $stdin.read");
    let deployment = report(container.target.pid()).process.deployment;
    assert_eq!(deployment.platform, Some(Platform::Container));
}
