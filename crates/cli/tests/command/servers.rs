//! Common servers, under load.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::{report_of, run};
use formats::Report;
use testkit::Target;

/// Reports on a target that never stops working. Returns the reports that are complete.
fn reports_under_load(target: &Target) -> Vec<Report> {
    let mut whole = Vec::new();
    let times = testkit::captures();
    for _ in 0..times {
        let output = run(target.pid(), &["--json"]);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        // If the heap was being changed at all attempts, the report is incomplete.
        assert!(matches!(output.status.code(), Some(0 | 6)), "{complaint}");
        let report: Report = crate::document(&output.stdout);
        let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, report.process.rss_bytes);
        if output.status.success() {
            whole.push(report);
        }
    }
    assert!(!whole.is_empty(), "not one of {times} reports was complete");
    whole
}

/// Reports on a target that has finished its work: exactly.
fn report_at_rest(target: &Target) -> Report {
    // It may still have to finish requests that it has begun.
    std::iter::repeat_with(|| {
        target.stop();
        let truth = target.rss_bytes();
        let output = run(target.pid(), &["--json"]);
        target.go_on();
        (truth, output)
    })
    .take(50)
    .find(|(_, output)| output.status.success())
    .map(|(truth, output)| {
        let report = report_of(&output);
        assert_eq!(report.findings, []);
        assert_eq!(report.process.rss_bytes, truth);
        let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, truth);
        report
    })
    .expect("it comes to rest")
}

/// Makes threads end when it is dropped, even if a test fails.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a request to an HTTP server and returns its whole answer.
pub(crate) fn ask(socket: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn puma_with_five_threads() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("puma.socket");
    let application = folder.path().join("config.ru");
    std::fs::write(
        &application,
        format!(
            "Thread.new {{ sleep 0.01 until File.socket?({socket:?}); puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(0) }}
             $kept = Array.new(50_000) {{ |i| 'kept ' * 200 }}
             run lambda {{ |_| [200, {{ 'content-type' => 'text/plain' }}, [Array.new(2000) {{ 'x' * rand(4096) }}.size.to_s]] }}"
        ),
    )
    .unwrap();
    let target = Target::start(
        testkit::ruby()
            .args(["-S", "puma", "--quiet", "--threads", "5:5", "--bind"])
            .arg(format!("unix://{}", socket.display()))
            .arg(&application),
    );
    // The socket exists before the server's threads do.
    assert!(ask(&socket).unwrap().contains("200 OK"));
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(&socket).unwrap();
                    assert!(answer.contains("200 OK"), "{answer}");
                    assert!(answer.ends_with("\r\n\r\n2000"), "{answer}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stopper = Stopper(&stop);
        for report in reports_under_load(&target) {
            assert!(report.process.threads >= 6, "{:?}", report.process);
            assert!(report.process.command.contains("puma"), "{:?}", report.process);
        }
    });
    assert!(answered.load(Ordering::Relaxed) > 0);
    let report = report_at_rest(&target);
    assert!(report.malloc.unwrap().in_use_bytes > 50_000 * 1000);
    assert!(ask(&socket).unwrap().contains("200 OK"));
    assert!(target.finish());
}

/// A process that is killed when this value is dropped.
pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Redis, which serves this socket.
pub(crate) fn redis(socket: &Path) -> Killed {
    let redis = testkit::command("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let redis = Killed(redis);
    while UnixStream::connect(socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    redis
}

#[test]
fn sidekiq_with_redis() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.socket");
    let redis = redis(&socket);
    let jobs = folder.path().join("jobs.rb");
    // At its end, each job asks for the next, until the first line of input.
    let source = r#"
        Thread.abort_on_exception = true
        $asked, $done, $failed, $lock = 0, 0, [], Mutex.new
        class Job
          include Sidekiq::Worker
          def self.ask(size)
            $lock.synchronize { $asked += 1 }
            perform_async(size)
          end
          def perform(size)
            text = Array.new(size) { "x" * rand(4096) }
            $failed << text.size unless text.size == size && text.all? { |part| part.count("x") == part.size }
            self.class.ask(size) unless $stop
          rescue Exception => error
            $failed << error.inspect
          ensure
            $lock.synchronize { $done += 1 }
          end
        end
        redis = { url: "unix://SOCKET" }
        Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
        Sidekiq.configure_client { |config| config.redis = redis }
        Sidekiq.configure_server do |config|
          config.redis = redis
          (config.respond_to?(:logger) ? config : Sidekiq).logger.level = Logger::ERROR
          config.on(:startup) do
            20.times { Job.ask(500) }
            Thread.new do
              loop do
                puts "ready {\"done\": #{$done}, \"failed\": #{$failed.size}, \"first\": #{$failed.first.inspect.dump}}"
                $stdout.flush
                break unless $stdin.gets
                $stop = true
                sleep 0.1 until $done == $asked
              end
              exit!(0)
            end
          end
        end"#;
    std::fs::write(&jobs, source.replace("SOCKET", socket.to_str().unwrap())).unwrap();
    let mut target = Target::start(
        testkit::ruby().args(["-S", "sidekiq", "-c", "5", "-r"]).arg(&jobs).current_dir("/"),
    );
    for report in reports_under_load(&target) {
        assert!(report.process.threads >= 6, "{:?}", report.process);
        assert!(report.process.command.contains("sidekiq"), "{:?}", report.process);
    }
    target.tell("");
    let truth = target.next_truth();
    assert_eq!(truth["failed"], 0, "{truth}");
    assert!(truth["done"].as_u64().unwrap() > 20, "{truth}");
    report_at_rest(&target);
    assert!(target.finish());
    drop(redis);
}
