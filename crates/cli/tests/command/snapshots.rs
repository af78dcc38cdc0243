//! `rbloat snapshot`, and the commands that read its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use formats::Snapshot;
use testkit::Target;

use crate::{complaint, rbloat, report_of};

/// `rbloat snapshot PID -o`, with a pause that is long enough on a slow machine. A path is to follow.
fn snapshot(pid: i32) -> Command {
    let mut command = rbloat();
    command.args(["snapshot", &pid.to_string(), "--max-pause", "10s", "-o"]);
    command
}

/// A snapshot of a process, in a folder of its own.
pub(crate) struct Kept {
    folder: tempfile::TempDir,
}

impl Kept {
    pub(crate) fn of(pid: i32) -> Self {
        let kept = Self { folder: tempfile::tempdir().unwrap() };
        let made = snapshot(pid).arg(kept.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        kept
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("a.rbloat")
    }

    pub(crate) fn read(&self) -> Snapshot {
        Snapshot::from_bytes(&fs::read(self.path()).unwrap()).unwrap()
    }

    /// Runs rbloat with a verb, the file, and further arguments.
    fn run(&self, verb: &str, arguments: &[&str]) -> Output {
        rbloat().arg(verb).arg(self.path()).args(arguments).output().unwrap()
    }
}

#[test]
fn a_report_on_a_snapshot_is_the_report_of_that_instant() {
    let target = Target::scenario("pin", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let report = report_of(&kept.run("report", &["--json"]));
    assert_eq!(report.process.pid, target.pid());
    // The process is idle meanwhile, so a later report on it differs only by its times.
    let mut live = crate::report(target.pid());
    live.capture = report.capture.clone();
    live.process.uptime_ms = report.process.uptime_ms;
    assert_eq!(report, live);

    let again = report_of(&kept.run("report", &["--json"]));
    assert_eq!(report, again);
    let few = report_of(&kept.run("report", &["--json", "--owners", "3"]));
    assert_eq!(few.owners.unwrap().len(), 4, "three, and the others in one row");
    let text = kept.run("report", &["--arenas"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("ARENA"));
}

#[test]
fn a_snapshot_of_a_snapshot_is_the_same_file() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let copy = kept.folder.path().join("b.rbloat");
    assert!(kept.run("snapshot", &["-o", copy.to_str().unwrap()]).status.success());
    assert_eq!(fs::read(kept.path()).unwrap(), fs::read(copy).unwrap());
}

#[test]
fn a_snapshot_into_a_pipe_is_nothing_but_the_snapshot() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    // As with /dev/stdout.
    let link = kept.folder.path().join("stdout");
    std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
    let output = kept.run("snapshot", &["-o", link.to_str().unwrap()]);
    assert!(output.status.success());
    assert_eq!(output.stdout, fs::read(kept.path()).unwrap());
    assert!(String::from_utf8(output.stderr).unwrap().contains("of RSS in"));
}

#[test]
fn the_atlas_shows_what_the_report_sums_up() {
    for scenario in ["pin", "objects", "huge_strings", "stacks"] {
        let target = Target::scenario(scenario, &["--scale", "0.1"]);
        let Snapshot { report, memory_map } = Kept::of(target.pid()).read();
        assert_eq!(memory_map.resident_bytes(), report.process.rss_bytes, "{scenario}");
        let pieces = || memory_map.areas.iter().flat_map(|area| memory_map.blocks(area));
        let ruby = report.ruby.unwrap();
        let objects = pieces().filter(|piece| piece.used.is_object()).count() as u64;
        assert_eq!(objects, ruby.slots_live, "{scenario}");
        let malloc = report.malloc.unwrap();
        let free = |used: ledger::Use| {
            pieces().filter(|piece| piece.used == used).map(|piece| piece.bytes).sum::<u64>()
        };
        assert_eq!(
            free(ledger::Use::Free) + free(ledger::Use::Top),
            malloc.free_bytes,
            "{scenario}"
        );
        assert_eq!(free(ledger::Use::Tcache), malloc.tcache_bytes, "{scenario}");
        let owners = report.owners.unwrap();
        let mut held = vec![0; owners.len()];
        for piece in pieces().filter(|piece| piece.used == ledger::Use::InUse) {
            held[piece.owner.unwrap() as usize] += piece.bytes;
        }
        // Heap pages of Ruby, which lie in chunks up to 2.7, are drawn as the slots in them.
        let owners = held.into_iter().zip(owners).filter(|(_, it)| it.owner != "(heap pages)");
        for (held, owner) in owners {
            assert_eq!(held, owner.exclusive_bytes + owner.shared_bytes, "{}", owner.owner);
        }
    }
}

/// Words that occur only in the target's strings, buffers and environment.
const SECRETS: [&str; 4] =
    ["tUlIp-in-a-string", "mArIgOlD-in-a-buffer", "dAhLiA-in-a-symbol", "oRcHiD-in-env"];

#[test]
fn no_data_of_the_process_is_in_the_file() {
    // In hexadecimal, since the command line is kept.
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [string, buffer, symbol, _] = SECRETS.map(hex);
    let program = format!(
        "SECRET = ['{string}'].pack('H*').freeze; BUFFER = ['{buffer}'].pack('H*') * 20_000
         SYMBOL = ['{symbol}'].pack('H*').to_sym; HASH = {{ SECRET => SYMBOL }}
         # The value of an ended thread is in its structure, where its name is, too.
         ENDED = Thread.new {{ ['{string}'].pack('H*') }}.join
         puts 'ready {{}}'; $stdout.flush; gets"
    );
    let mut command = testkit::ruby();
    command
        .args(["--disable-gems", "-e", &program])
        .env("API_KEY", SECRETS[3])
        .env("DYNO", SECRETS[3]);
    let target = Target::start(&mut command);
    let memory = fs::read(format!("/proc/{}/environ", target.pid())).unwrap();
    assert!(contains(&memory, SECRETS[3]), "the secret is there to be found");
    let kept = Kept::of(target.pid());
    // The unpacked parts as well as the packed file.
    let snapshot = kept.read();
    let columns = &snapshot.memory_map.columns;
    let report = formats::to_json(&snapshot.report, "").into_bytes();
    let html = kept.folder.path().join("a.html");
    assert!(kept.run("map", &["-o", html.to_str().unwrap()]).status.success());
    let files = [fs::read(kept.path()).unwrap(), fs::read(html).unwrap(), report];
    let roots = &snapshot.memory_map.roots.of_objects;
    let parts = [&columns.sizes, &columns.uses, &columns.owners, &columns.pages, roots];
    for bytes in files.iter().chain(parts) {
        for secret in SECRETS {
            assert!(!contains(bytes, secret), "{secret}");
            assert!(!contains(bytes, &secret[..6]), "{secret}");
        }
    }
    assert!(contains(&files[2], "HASH"), "names of constants are kept");
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_file_that_is_no_snapshot_gets_an_error_that_says_so() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let kept = Kept::of(target.pid());
    let whole = fs::read(kept.path()).unwrap();
    let mut altered = whole.clone();
    altered[whole.len() / 2] ^= 1;
    let mut newer = whole.clone();
    newer[8] = 77;
    let cases: [(&[u8], &str); 7] = [
        (b"", "it is empty"),
        (b"Hello, world, this is a text of some length\n", "snapshot` wrote, nor a core file"),
        // `rbloat report server.rb` in the folder of a program that runs.
        (
            b"puts 'ready'; loop { serve(accept) } # a program",
            "if you mean the process of this program",
        ),
        (&whole[..whole.len() / 3], "truncated or damaged"),
        (&whole[..9], "truncated or damaged"),
        (&altered, "truncated or damaged"),
        (&newer, "another version of rbloat wrote it (format 77"),
    ];
    for (bytes, words) in cases {
        fs::write(kept.path(), bytes).unwrap();
        for verb in ["report", "map"] {
            let arguments: &[&str] = if verb == "map" { &["-o", "/dev/null"] } else { &[] };
            let (status, complaint) = complaint(&kept.run(verb, arguments));
            assert_eq!(status, 3, "{complaint}");
            assert!(complaint.contains(words) && complaint.contains("a.rbloat"), "{complaint}");
        }
    }
    let nowhere = rbloat().args(["report", "/nowhere/a.rbloat"]).output().unwrap();
    let (status, words) = complaint(&nowhere);
    assert_eq!(status, 3);
    assert!(words.contains("cannot read /nowhere/a.rbloat: No such file"), "{words}");
    let (status, words) = complaint(&rbloat().args(["report", "/tmp"]).output().unwrap());
    assert_eq!(status, 3);
    assert!(words.contains("directory"), "{words}");
    // Without a slash it could be a word of a command line.
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("a.json"), "{}").unwrap();
    fs::write(folder.path().join("a.ndjson.gz"), "{}").unwrap();
    for (name, hint) in [
        ("folder", "cannot read folder: is a directory; give a process id"),
        ("a.json", "Samples of `rbloat who` are for --who"),
        ("a.ndjson.gz", "`rbloat diff` reads dumps"),
    ] {
        let output = rbloat().args(["report", name]).current_dir(folder.path()).output().unwrap();
        let (status, words) = complaint(&output);
        assert!(status == 3 && words.contains(hint), "{words}");
    }
    // The device has no end, and is not read to it.
    let (status, words) = complaint(&rbloat().args(["report", "/dev/zero"]).output().unwrap());
    assert_eq!(status, 3);
    assert!(words.contains("it is not a regular file"), "{words}");
}

#[test]
fn a_full_disk_leaves_no_half_file_and_the_old_one_as_it_was() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("old.rbloat");
    fs::write(&old, "what was there before").unwrap();
    // A limit on the size of files fails as a full disk does: in the middle of a write.
    let mut command = crate::limited("-f 1; trap '' XFSZ");
    let output =
        command.args(["snapshot", &target.pid().to_string(), "-o"]).arg(&old).output().unwrap();
    let (status, words) = complaint(&output);
    assert_eq!(status, 1);
    assert!(words.contains("cannot write") && words.contains("old.rbloat"), "{words}");
    assert_eq!(fs::read_to_string(&old).unwrap(), "what was there before");
    assert_eq!(names(folder.path()), ["old.rbloat"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_is_no_regular_file_is_written_to_and_not_replaced() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::write(&real, "old").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    for path in [Path::new("/dev/null"), &link] {
        let made = snapshot(target.pid()).arg(path).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(Snapshot::from_bytes(&fs::read(&real).unwrap()).is_ok());
}

#[test]
fn a_snapshot_has_less_than_a_hundredth_of_rss() {
    let target = Target::scenario("objects", &["--scale", "0.2"]);
    let kept = Kept::of(target.pid());
    let rss = kept.read().report.process.rss_bytes;
    let bytes = fs::metadata(kept.path()).unwrap().len();
    assert!(bytes * 100 <= rss, "{bytes} bytes for {rss} of RSS");
}
