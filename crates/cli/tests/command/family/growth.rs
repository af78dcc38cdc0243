//! Accounts in files, and the growth between two of them.

use std::fs;
use std::path::Path;

use formats::{Family, FamilyDiff, Group, Outlook, WorkerGrowth};
use ledger::{Cause, Write};
use testkit::Target;

use super::{account, account_of, family};
use crate::{complaint, document, rbloat};

/// A snapshot of the family of a process, in this file.
fn keep(pid: i32, path: &Path) -> Family {
    let mut command = rbloat();
    command.args(["snapshot", "--tree", "--max-pause", "10s", &pid.to_string(), "-o"]);
    let output = command.arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Family::from_bytes(&fs::read(path).unwrap()).unwrap()
}

/// The snapshot of a family has its account. Other commands name the option that reads it.
#[test]
fn a_family_is_kept_in_a_file() {
    let target = family(&["small", "idle", "write", "load"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("family.rbloat");
    account(target.pid(), &[]);
    let kept = keep(target.pid(), &path);
    let live = account(target.pid(), &[]);
    let file = path.to_str().unwrap();
    let read = account_of(&[file]);
    assert_eq!(read, kept);
    let private = |family: &Family| -> Vec<(i32, u64, u64)> {
        let members = family.members.iter();
        members.map(|it| (it.pid, it.private_bytes, it.copied_bytes)).collect()
    };
    assert_eq!(private(&kept), private(&live));
    assert_eq!((&kept.late_code, &kept.steps), (&live.late_code, &live.steps));
    for member in &kept.members {
        let written: u64 = member.writes.iter().map(|row| row.bytes).sum();
        assert_eq!(written, member.copied_bytes, "{member:?}");
    }
    let run = |words: &[&str]| complaint(&rbloat().args(words).output().unwrap());
    let wrong = folder.path().join("wrong.rbloat");
    let damaged = Family { memory_bytes: kept.memory_bytes + 1, ..kept.clone() };
    fs::write(&wrong, damaged.to_bytes()).unwrap();
    let (status, line) = run(&["report", "--tree", wrong.to_str().unwrap()]);
    assert!(status == 3 && line.contains("add up to"), "{status} {line}");
    for words in [["report", file], ["map", file]] {
        let (status, line) = run(&words);
        assert!(status == 3 && line.contains("snapshot of a family"), "{words:?} {status} {line}");
    }
    let (status, line) = run(&["map", "--tree", file]);
    assert!(status == 2 && line.contains("needs a live process"), "{status} {line}");
    let one = crate::snapshots::Kept::of(target.pid());
    let (status, line) = run(&["report", "--tree", one.path().to_str().unwrap()]);
    assert!(status == 3 && line.contains("leave out --tree"), "{status} {line}");
    assert!(target.finish());
}

/// A parent and two workers. At each step, a worker writes to 1000 strings of the parent, and makes one of 500 kB.
const ERODING: &str = r#"
    KEPT = Array.new(20_000) { |i| 'x' * (1000 + i % 8) }
    3.times { GC.start }
    done, write = IO.pipe
    workers = Array.new(2) do
      steps, step = IO.pipe
      fork do
        step.close
        own = []
        from = 0
        while steps.gets
          KEPT[from, 1000].each { |text| text.setbyte(0, 121) }
          from += 1000
          own << 'y' * 500_000
          write << '.'
        end
        exit!(0)
      end
      step.sync = true
      step
    end
    loop do
      puts 'ready {}'
      $stdout.flush
      break unless $stdin.gets
      workers.each { |step| step.puts }
      done.read(2)
    end
    exit!(0)
"#;

const MINUTE_MS: u64 = 60_000;

/// The diff of these accounts, taken at these minutes, of a family with this limit.
fn family_diff(
    accounts: &[Family],
    minutes: &[u64],
    limit_bytes: Option<u64>,
) -> (FamilyDiff, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (number, (account, minute)) in accounts.iter().zip(minutes).enumerate() {
        let mut account = account.clone();
        for capture in account.members.iter_mut().filter_map(|it| it.capture.as_mut()) {
            capture.unix_ms = 1_700_000_000_000 + minute * MINUTE_MS;
        }
        let usage_bytes = account.memory_bytes;
        let group = Group { usage_bytes, limit_bytes, cache_bytes: 0, oom_kills: None };
        account.group = Some(group);
        let path = folder.path().join(format!("{number}.rbloat"));
        fs::write(&path, account.to_bytes()).unwrap();
        paths.push(path);
    }
    let run = |words: &[&str]| {
        let output = rbloat().args(["diff", "--tree"]).args(words).args(&paths).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    (document(&run(&["--json"])), String::from_utf8(run(&[])).unwrap().replace('\n', " "))
}

/// The growth of workers, by reason, and the time until the limit, only if the growth is steady.
#[test]
fn the_erosion_of_workers_has_a_rate_and_reasons() {
    let mut target = Target::bare_ruby(ERODING);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat");
    account(target.pid(), &[]);
    let mut accounts = vec![keep(target.pid(), &path)];
    for _ in 0..3 {
        target.tell("step");
        target.next_truth();
        accounts.push(keep(target.pid(), &path));
    }
    let last = accounts[3].memory_bytes;
    let (diff, text) = family_diff(&accounts, &[0, 1, 2, 3], Some(last + 60_000_000));
    let worker = diff.worker.unwrap();
    assert_eq!(worker.workers, 2);
    // With the headers of chunks, and pages that are only partly written to.
    let WorkerGrowth { private_bytes_per_minute: private, copied_bytes_per_minute: copied, .. } =
        worker;
    assert!((1e6..1.5e6).contains(&copied), "{diff:?}");
    assert!((4.5e5..7e5).contains(&(private - copied)), "{diff:?}");
    assert_eq!(diff.writes[0].reason, Write::Contents);
    assert!((diff.writes[0].bytes.change as f64 / 6.0 - copied).abs() < 1e5, "{diff:?}");
    assert_eq!(diff.causes[0].cause, Cause::RubyMalloc);
    let Outlook::Grows { bytes_per_minute, seconds_to_limit: Some(seconds) } = diff.outlook else {
        panic!("{:?}", diff.outlook)
    };
    assert!((bytes_per_minute - 2.0 * private).abs() < 3e5, "{diff:?}");
    assert!((seconds / 60.0 - 60e6 / bytes_per_minute).abs() < 0.1, "{diff:?}");
    for words in ["per minute (mean of 2 workers)", "reaches the limit of", "REASON OF THE COPY"] {
        assert!(text.contains(words), "{text}");
    }
    let outlook = |accounts: &[Family], minutes: &[u64], limit| {
        let (diff, text) = family_diff(accounts, minutes, limit);
        (diff.outlook, text)
    };
    let (no_limit, text) = outlook(&accounts, &[0, 1, 2, 3], None);
    assert!(matches!(no_limit, Outlook::Grows { seconds_to_limit: None, .. }), "{no_limit:?}");
    assert!(text.contains("No memory limit is known"), "{text}");
    // Whatever the order of the files, the oldest comes first.
    let turned: Vec<Family> = accounts.iter().rev().cloned().collect();
    assert!(matches!(outlook(&turned, &[3, 2, 1, 0], None).0, Outlook::Grows { .. }));
    let (early, text) = outlook(&accounts[2..], &[0, 1], Some(last));
    assert!(early == Outlook::TooEarly && text.contains("needs three snapshots"), "{text}");
    let (slower, text) = outlook(&accounts, &[0, 1, 2, 60], Some(last));
    assert!(slower == Outlook::LevelsOff && text.contains("more and more slowly"), "{text}");
    let (faster, text) = outlook(&accounts, &[0, 60, 61, 62], Some(last));
    assert!(faster == Outlook::Uneven && text.contains("from snapshot to snapshot"), "{text}");
    let same = vec![accounts[0].clone(); 3];
    let (idle, text) = outlook(&same, &[0, 1, 2], Some(last));
    assert!(idle == Outlook::NoGrowth && text.contains("does not grow"), "{text}");
    let mut others = accounts.clone();
    let worker = &mut others[1].members[1];
    worker.pid += 100_000;
    let pid = worker.pid;
    let (restarted, text) = outlook(&others, &[0, 1, 2, 3], Some(last));
    assert!(restarted == Outlook::OtherWorkers, "{restarted:?}");
    assert!(text.contains("started or ended"), "{text}");
    let (new, _) = family_diff(&others[..2], &[0, 1], None);
    assert_eq!(
        (&new.started[..], new.ended.len(), new.worker.unwrap().workers),
        (&[pid][..], 1, 1)
    );
    assert!(target.finish());
}

/// One command takes the accounts by itself, and the limit of growth holds for the whole family.
#[test]
fn a_family_is_compared_with_itself_later() {
    let target = family(&["small", "idle", "write"]);
    let run = |words: &[&str]| {
        let mut command = rbloat();
        command.args(["diff", "--tree", "--json", "--max-pause", "10s"]).args(words);
        command.output().unwrap()
    };
    let pid = target.pid().to_string();
    let output = run(&["--every", "1s", "--times", "3", &pid]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let diff: FamilyDiff = document(&output.stdout);
    assert_eq!((diff.points.len(), diff.members.len(), diff.outlook), (3, 3, Outlook::NoGrowth));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat");
    let mut smaller = keep(target.pid(), &path);
    let strings = smaller.causes.iter_mut().find(|row| row.cause == Cause::RubyMalloc).unwrap();
    smaller.memory_bytes -= std::mem::take(&mut strings.shared_by_some_bytes);
    smaller.memory_bytes -= std::mem::take(&mut strings.shared_by_all_bytes);
    fs::write(&path, smaller.to_bytes()).unwrap();
    let output = run(&["--fail-over", "10MiB", path.to_str().unwrap(), &pid]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{complaint}");
    assert!(complaint.contains("memory of the family grew by"), "{complaint}");
    assert!(target.finish());
}
