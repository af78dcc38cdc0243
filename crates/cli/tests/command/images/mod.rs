//! Images of processes of Rubies that no registry has. `scripts/image` writes them from `testkit/images/program.rb`.

mod compact;

use std::fs;
use std::path::{Path, PathBuf};

use formats::{FindingKind, FindingRow, Report};
use serde_json::Value;
use tempfile::TempDir;

use crate::rbloat;

/// The image has the memory from which layouts are derived, and agrees with the counts of the process itself.
struct Process {
    core: PathBuf,
    truth: Value,
    folder: TempDir,
}

fn process(name: &str) -> Process {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testkit/images");
    let folder = tempfile::tempdir().unwrap();
    let core = folder.path().join("core");
    compact::expand(&images.join(format!("{name}.gz")), &core);
    let truth = fs::read_to_string(images.join(format!("{name}.json"))).unwrap();
    Process { core, truth: serde_json::from_str(&truth).unwrap(), folder }
}

impl Process {
    /// The output of a command on the image, without the files that the process had mapped.
    fn run(&self, verb: &str, arguments: &[&str]) -> Vec<u8> {
        let sysroot = self.folder.path();
        let mut command = rbloat();
        command.arg(verb).arg(&self.core).arg("--sysroot").arg(sysroot).args(arguments);
        let output = command.output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|it| [0, 6].contains(&it)), "{complaint}");
        output.stdout
    }

    fn report(&self) -> Report {
        let arguments = ["--json", "--owners", "1000", "--retained", "--waste"];
        crate::document(&self.run("report", &arguments))
    }

    fn counted(&self, class: &str) -> [u64; 2] {
        [0, 1].map(|at| self.truth["classes"][class][at].as_u64().unwrap())
    }
}

/// The classes of the program, and the paths that must lead to most of their objects.
const PATHS: [(&str, &str); 4] = [
    ("Item", "Kept::LIST → Array → Item"),
    ("Big", "Kept.@by_name → Hash → Big"),
    ("Row", "Kept@@rows → Array → Row"),
    ("Set", "$sets → Array → Set"),
];

#[track_caller]
fn check(name: &str) -> Report {
    let process = process(name);
    let report = process.report();
    assert_eq!(report.process.ruby_version.as_deref(), process.truth["version"].as_str());
    // No layout is unknown. Only files are missing, as they are on machines that read cores of others.
    let is_of_cores = |it: &&FindingRow| {
        matches!(
            it.kind,
            FindingKind::CoreFilesMissing { .. }
                | FindingKind::CoreResidencyEstimated { .. }
                | FindingKind::CoreFileResidencyUnknown { .. }
        )
    };
    let others: Vec<_> = report.findings.iter().filter(|it| !is_of_cores(it)).collect();
    assert!(others.is_empty(), "{others:?}");
    // The value of a Ractor that has ended was called garbage on 4.1.
    let ended = report.owners.iter().flatten().find(|it| it.owner == "Ended").unwrap();
    let path = ended.kept_by[0].path.as_deref();
    assert_eq!((path, ended.kept_by[0].objects), (Some("$ended → Ractor → Array → Ended"), 200));
    for (class, path) in PATHS {
        let owner = report.owners.iter().flatten().find(|it| it.owner == class).unwrap();
        assert_eq!(owner.objects, process.counted(class)[0], "{class}");
        assert_eq!(owner.kept_by[0].path.as_deref(), Some(path));
    }
    check_sizes(&process);
    check_threads(&report);
    report
}

/// The sizes of objects are those of `ObjectSpace.memsize_of_all`.
#[track_caller]
fn check_sizes(process: &Process) {
    let lines = process.folder.path().join("objects.ndjson");
    process.run("dump", &["-o", lines.to_str().unwrap()]);
    let lines = fs::read_to_string(lines).unwrap();
    let objects: Vec<Value> = lines.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    for (class, kind) in [("Item", "OBJECT"), ("Big", "OBJECT"), ("Row", "STRUCT")] {
        let is_class = |it: &&Value| it["name"] == class && it["type"] == "CLASS";
        let address = &objects.iter().find(is_class).unwrap()["address"];
        let its = objects.iter().filter(|it| it["class"] == *address && it["type"] == kind);
        let bytes: u64 = its.map(|it| it["memsize"].as_u64().unwrap()).sum();
        assert_eq!(bytes, process.counted(class)[1], "{class}");
    }
}

#[track_caller]
fn check_threads(report: &Report) {
    let threads = report.threads.as_ref().unwrap();
    let runs = |method: &str| {
        let its = threads.iter().filter(|it| it.method == method);
        its.map(|it| (it.threads, it.line.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(runs("Object#wait_here"), [(2, true)], "{threads:?}");
    assert_eq!(runs("<main>"), [(1, true)], "{threads:?}");
}

#[test]
fn ruby_4_0() {
    let report = check("ruby-4.0");
    let ruby = report.ruby.unwrap();
    let truth = &process("ruby-4.0").truth["slots"];
    for (kind, count) in ["TOTAL", "T_OBJECT"].iter().zip(truth.as_array().unwrap()) {
        assert_eq!(Some(ruby.objects[*kind]), count.as_u64(), "{kind}");
    }
    assert!(ruby.ractors.is_empty());
}

#[test]
fn ruby_4_1() {
    let report = check("ruby-4.1");
    let ruby = report.ruby.unwrap();
    let ractors = ruby.ractors.iter();
    let names: Vec<_> =
        ractors.map(|it| (it.number, it.name.as_deref(), it.place.as_deref())).collect();
    let place = Some("image.rb:45");
    let expected = [
        (Some(1), None, None),
        (Some(2), Some("first"), place),
        (Some(3), None, place),
        (Some(4), None, Some("image.rb:49")),
    ];
    assert_eq!(names, expected);
    // Each Ractor counts its own.
    let main = &ruby.ractors[0];
    let truth = process("ruby-4.1").truth["slots"][0].as_u64();
    assert_eq!(Some(main.slots_live + main.slots_free), truth);
    for (ractor, made) in ruby.ractors[1..].iter().zip([500, 500, 200]) {
        assert!(ractor.slots_live - ractor.garbage_objects.unwrap() > made, "{ractor:?}");
    }
    let pages: u64 = ruby.ractors.iter().map(|it| it.heap_pages).sum();
    assert_eq!(pages, ruby.heap_pages);
}
