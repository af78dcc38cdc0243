//! The advice for programs whose workers could share more.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use formats::{Family, FamilyStep, Server};
use testkit::Target;

use super::{account, family};
use crate::rbloat;

/// Only a program whose workers load the same code is advised to load it before.
#[test]
fn code_that_workers_load_is_named() {
    let report = |words: &[&str]| {
        let target = family(words);
        let account = account(target.pid(), &[]);
        assert!(target.finish());
        account
    };
    let late = report(&["small", "puma", "load", "load", "objects"]);
    let code = late.late_code.as_ref().unwrap();
    let gem = &code.gems[0];
    assert_eq!((&gem.name[..], gem.version.as_deref(), gem.files), ("late", Some("1.0"), 100));
    assert!(code.largest_files[0].path.starts_with("/app/gems/late-1.0/lib/late"), "{code:?}");
    assert_eq!(code.largest_files[0].members, 2);
    let step = |account: &Family| {
        let is_load = |it: &&FamilyStep| matches!(it, FamilyStep::LoadBeforeFork { .. });
        account.steps.iter().find(is_load).cloned()
    };
    let Some(FamilyStep::LoadBeforeFork { repeated_bytes, has_application }) = step(&late) else {
        panic!("{:?} {code:?}", late.steps)
    };
    assert!(!has_application && repeated_bytes > 1 << 20);
    // Half of it: two processes have it.
    assert!(repeated_bytes.abs_diff(code.bytes / 2) < code.bytes / 20, "{code:?}");
    // The objects that one of them changed cannot be helped by preparing the heap.
    let [_, FamilyStep::Refork { worker, shared_bytes, workers: 2 }] = late.steps[..] else {
        panic!("{:?}", late.steps)
    };
    // The other one of the two that load, if it had been forked from this one: as it is with the child of one that loads.
    let reforked = report(&["small", "load", "refork"]);
    let [parent, loads, forks, child] = &reforked.members[..] else { panic!("{reforked:?}") };
    assert_eq!((loads.parent, child.parent), (Some(parent.pid), Some(forks.pid)));
    let saved = loads.private_bytes - child.private_bytes;
    assert!((saved / 2..saved * 21 / 20).contains(&shared_bytes), "{shared_bytes} {saved}");
    let parent = &late.members[0];
    assert!(late.members.iter().any(|it| it.pid == worker && it.parent == Some(parent.pid)));
    // No known server, so no line that would fork again.
    assert!(reforked.steps.iter().all(|it| !matches!(it, FamilyStep::Refork { .. })));
    let early = report(&["small", "puma", "loaded", "load", "idle"]);
    assert!(early.late_code.as_ref().is_some_and(|code| code.files == 0), "{early:?}");
    assert_eq!(early.steps, []);
}

/// Only if malloc keeps much free memory is a setting of malloc a cure.
#[test]
fn free_memory_of_workers_is_named() {
    let target = family(&["free", "write"]);
    let account = account(target.pid(), &["--owners", "0"]);
    assert!(target.finish());
    let child = account.members[1].pid;
    let [FamilyStep::ReturnFreeMemory { free_bytes, member }] = account.steps[..] else {
        panic!("{:?} {:?}", account.steps, account.causes)
    };
    assert!((70_000_000..100_000_000).contains(&free_bytes), "{free_bytes}");
    assert_eq!(member, child);
}

/// Writes files with classes of 50 methods into a folder, for 80 parts of an application.
fn write_parts(folder: &Path) {
    let method = |number: u32| {
        // Ruby 2.7 has no endless methods.
        format!(
            "def run{number}(a, *c); c.map {{ |d| [a.to_s, d.size, d.inspect] }}.sort.first; end\n"
        )
    };
    let methods: String = (0..50).map(method).collect();
    for number in 0..80 {
        let path = folder.join(format!("part{number}.rb"));
        fs::write(path, format!("class Part{number}\n{methods}end\n")).unwrap();
    }
}

/// The account of a Puma cluster.
fn cluster(number: usize, preloads: bool) -> (Family, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_parts(folder.path());
    let socket = path("puma.socket");
    fs::write(
        path("config.ru"),
        "80.times { |number| require_relative \"part#{number}\" }
         run lambda { |_| sleep 0.05; [200, { 'content-type' => 'text/plain' }, [Process.pid.to_s]] }",
    )
    .unwrap();
    // When the master has ended, a worker of Puma 4 writes a line, and stays if nobody reads it: it kept the standard error of this
    // test open, and whatever waited for that to end waited forever.
    fs::write(
        path("puma.rb"),
        format!(
            "workers {number}; threads 1, 1; preload_app! {preloads}
             bind 'unix://{0}'; rackup '{1}'; stdout_redirect '/dev/null', nil, true
             out = $stdout.dup
             Thread.new {{ sleep 0.01 until File.socket?('{0}'); out.puts 'ready {{}}'; out.flush; $stdin.read; exit!(0) }}",
            socket.display(),
            path("config.ru").display()
        ),
    )
    .unwrap();
    let mut command = testkit::ruby();
    command.args(["-S", "puma", "--quiet", "--config"]).arg(path("puma.rb"));
    let target = Target::start(&mut command);
    // Until all workers have answered.
    let mut workers = BTreeSet::new();
    while workers.len() < number {
        std::thread::scope(|scope| {
            let ask = || crate::servers::ask(&socket).unwrap_or_default();
            let answers: Vec<_> = (0..number).map(|_| scope.spawn(ask)).collect();
            let answers = answers.into_iter().map(|answer| answer.join().unwrap());
            workers.extend(answers.filter_map(|it| it.lines().last()?.parse::<i32>().ok()));
        });
    }
    let words = target.pid().to_string();
    let text = rbloat().args(["report", "--tree", "--max-pause", "10s", &words]).output().unwrap();
    let account = account(*workers.first().unwrap(), &[]);
    assert!(workers.iter().all(|pid| account.members.iter().any(|it| it.pid == *pid)));
    assert!(target.finish());
    (account, String::from_utf8(text.stdout).unwrap())
}

/// Puma's workers load the program by themselves unless the master does.
#[test]
fn a_puma_cluster_is_advised_to_preload_unless_it_does() {
    let (account, text) = cluster(2, false);
    assert_eq!((account.members.len(), account.server), (3, Some(Server::Puma)));
    let is_preload =
        |it: &FamilyStep| matches!(it, FamilyStep::LoadBeforeFork { has_application: true, .. });
    assert!(account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(text.contains("preload_app!"), "{text}");
    let (account, text) = cluster(5, true);
    assert_eq!(account.members.len(), 6);
    assert!(!account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(!text.contains("preload_app!"), "{text}");
}

/// The account of a parent with workers that are Sidekiq's, which sidekiqswarm would start: it loads the application before or after it
/// forks them.
fn sidekiqs(number: usize, preloads: bool) -> (Family, String) {
    let folder = tempfile::tempdir().unwrap();
    write_parts(folder.path());
    let path = |name: &str| folder.path().join(name);
    let socket = path("redis.socket");
    let redis = crate::servers::redis(&socket);
    let jobs = format!(
        "80.times {{ |number| require_relative \"part#{{number}}\" }}
         redis = {{ url: 'unix://{}' }}
         Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
         Sidekiq.configure_server do |config|
           config.redis = redis
           (config.respond_to?(:logger) ? config : Sidekiq).logger.level = Logger::ERROR
           config.on(:startup) {{ $started.write('.') }}
         end",
        socket.display()
    );
    fs::write(path("jobs.rb"), jobs).unwrap();
    let script = format!(
        "require 'sidekiq/cli'
         ready, $started = IO.pipe
         {preloads} && 80.times {{ |number| require '{folder}/part' + number.to_s }}
         3.times {{ GC.start }}
         workers = Array.new({number}) do
           fork do
             $stdin.reopen('/dev/null')
             cli = Sidekiq::CLI.instance
             cli.parse(['-c', '2', '-r', '{folder}/jobs.rb'])
             cli.run
           end
         end
         ready.read({number})
         puts 'ready {{}}'; $stdout.flush; $stdin.read
         Process.kill(:KILL, *workers); exit!(0)",
        folder = folder.path().display()
    );
    let target = Target::ruby(&script);
    let account = account(target.pid(), &[]);
    let words = target.pid().to_string();
    let text = rbloat().args(["report", "--tree", "--max-pause", "10s", &words]).output().unwrap();
    assert!(target.finish());
    drop(redis);
    (account, String::from_utf8(text.stdout).unwrap())
}

/// Sidekiq's workers are known by their titles, and advised as Puma's are.
#[test]
fn workers_of_sidekiq_are_advised_to_preload_unless_they_do() {
    let is_preload =
        |it: &FamilyStep| matches!(it, FamilyStep::LoadBeforeFork { has_application: true, .. });
    let (account, text) = sidekiqs(2, false);
    assert_eq!((account.members.len(), account.server), (3, Some(Server::Sidekiq)));
    assert!(account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(text.contains("SIDEKIQ_PRELOAD_APP=1"), "{text}");
    let (account, text) = sidekiqs(3, true);
    assert_eq!((account.members.len(), account.server), (4, Some(Server::Sidekiq)));
    assert!(!account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(!text.contains("SIDEKIQ_PRELOAD_APP"), "{text}");
    assert!(account.memory_bytes < account.rss_bytes / 3 * 2, "{text}");
}
