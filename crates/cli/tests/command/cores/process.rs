//! Reports on cores, compared with reports on the live processes, as far as a core has the data.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use formats::{FindingKind, FindingRow, Report};
use image::{Frozen, Memory};
use linux::{Address, Backing, Mapping, PageState};

use super::{
    PROGRAM, SIGTRAP, core_by_gdb, core_by_kernel, kernel_writes_cores, report_on, start, sysroot,
};
use crate::{bytes, report_of, run};

const PAGE: u64 = linux::MIN_PAGE_SIZE;

/// The facts that a core contains about the resident bytes of a stopped process.
#[derive(Debug, Default)]
struct Knowable {
    /// Private memory, shared memory, and pages of files that differ from the file.
    bytes: u64,
    /// The pages of zeros among these bytes.
    zeros: u64,
    /// Private pages of files with the file's contents: gdb restores pages in which it set a breakpoint.
    as_in_file: u64,
    /// Pages of the kernel's cache.
    cached: u64,
    /// Pages that are not to be dumped (MADV_DONTDUMP): the pages of getrandom in the vDSO, from glibc 2.41 and Linux
    /// 6.11 on.
    undumped: u64,
}

impl Knowable {
    fn of(frozen: &Frozen) -> Self {
        let image = frozen.image();
        let mut knowable = Self::default();
        let undumped = not_to_be_dumped(image.state.process.pid);
        for mapping in &image.state.mappings {
            if undumped.contains(&mapping.range.start) {
                let pages = image.state.pages.as_ref().unwrap();
                knowable.undumped += pages.resident_bytes(&mapping.range);
                continue;
            }
            let pages = image.state.pages.as_ref().unwrap();
            let runs = pages.runs_in(&mapping.range).filter(|run| run.state.is_resident());
            for run in runs {
                let mut at = run.range.start.max(mapping.range.start);
                while at < run.range.end.min(mapping.range.end) {
                    let mut page = [0; PAGE as usize];
                    let is_read = image.read(at, &mut page) == page.len();
                    match (&mapping.backing, run.state) {
                        (Backing::File(_) | Backing::Kernel(_), PageState::File) => {
                            knowable.cached += PAGE;
                        }
                        (Backing::File(path), _) if is_in_file(path, mapping, at, &page) => {
                            knowable.as_in_file += PAGE;
                        }
                        (backing, _) => {
                            knowable.bytes += PAGE;
                            let is_of_file = matches!(backing, Backing::File(_));
                            let is_zeros = is_read && page.iter().all(|&byte| byte == 0);
                            knowable.zeros += if is_zeros && !is_of_file { PAGE } else { 0 };
                        }
                    }
                    at = at.offset(PAGE);
                }
            }
        }
        knowable
    }
}

/// The beginnings of private mappings that the kernel was told not to dump.
fn not_to_be_dumped(pid: i32) -> Vec<Address> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut start = Address(0);
    let mut found = Vec::new();
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((from, _)) = first.split_once('-') {
            start = Address(u64::from_str_radix(from, 16).unwrap());
        } else if first == "VmFlags:" && line.split_whitespace().any(|flag| flag == "dd") {
            found.push(start);
        }
    }
    found
}

fn is_in_file(path: &Path, mapping: &Mapping, at: Address, page: &[u8]) -> bool {
    let mut bytes = vec![0; page.len()];
    let offset = mapping.file_offset + (at - mapping.range.start);
    let file = fs::File::open(path).or_else(|_| {
        let within = path.strip_prefix("/").unwrap();
        fs::File::open(testkit::root().unwrap_or_else(|| "/".into()).join(within))
    });
    file.unwrap().read_at(&mut bytes, offset).unwrap();
    bytes == page
}

const OF_FILES: [&str; 3] = ["file.private", "file.shared", "file.shmem"];

/// Asserts that all parts agree that do not depend on the resident pages.
fn assert_same_parts(core: &Report, alive: &Report) {
    assert_eq!(core.ruby, alive.ruby);
    assert_eq!(
        core.malloc.as_ref().unwrap().in_use_bytes,
        alive.malloc.as_ref().unwrap().in_use_bytes
    );
    let parts = |report: &Report| {
        let owners = report.owners.clone().unwrap();
        let mut owners: Vec<_> = owners
            .into_iter()
            .map(|it| {
                (
                    it.owner,
                    it.kind,
                    it.cause,
                    it.objects,
                    it.chunks,
                    it.exclusive_bytes,
                    it.shared_bytes,
                    it.memsize,
                )
            })
            .collect();
        owners.sort_by(|one, other| one.0.cmp(&other.0));
        owners
    };
    assert_eq!(parts(core), parts(alive));
    // Those that retain most are listed, by resident bytes.
    let kept = |report: &Report| -> BTreeMap<(String, Option<String>), u64> {
        let owners = report.owners.iter().flatten();
        let kept = |owner: &formats::Owner| {
            let name = owner.owner.clone();
            let row = |it: formats::KeptBy| ((name.clone(), it.path), it.objects);
            owner.kept_by.clone().into_iter().map(row).collect::<Vec<_>>()
        };
        owners.flat_map(kept).collect()
    };
    let (of_core, of_process) = (kept(core), kept(alive));
    let both = of_core.iter().filter(|(path, _)| of_process.contains_key(path));
    let same =
        both.inspect(|(path, count)| assert_eq!(of_process[*path], **count, "{path:?}")).count();
    assert!(same * 2 > of_process.len(), "{of_core:?} {of_process:?}");
    let (of_core, process) = (&core.process, &alive.process);
    assert_eq!((of_core.pid, &of_core.command), (process.pid, &process.command));
    assert_eq!((&of_core.libc, &of_core.ruby_version), (&process.libc, &process.ruby_version));
    assert_eq!(of_core.threads, process.threads);
    assert_eq!(core.capture.method, formats::CaptureMethod::Core);
    assert_eq!(core.capture.pause_ms, 0.0);
    let sum: u64 = core.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, core.process.rss_bytes);
    assert!(
        core.findings.iter().all(|finding| finding.severity == formats::FindingSeverity::Note),
        "{:?}",
        core.findings
    );
}

#[test]
fn a_core_says_of_a_process_what_was_said_while_it_lived() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = start(PROGRAM, folder.path());
    let alive =
        report_of(&run(target.pid(), &["--json", "--owners", "1000", "--capture", "freeze"]));
    let by_gdb = core_by_gdb(&target, folder.path());
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let knowable = Knowable::of(&frozen);
    frozen.thaw().unwrap();
    assert!(knowable.zeros >= 4_900_000 && knowable.cached > 0, "{knowable:?}");

    let core = report_on(&by_gdb, &[]);
    let is_missing = |it: &FindingRow| matches!(it.kind, FindingKind::CoreStacksMissing { .. });
    if core.findings.iter().any(is_missing) {
        testkit::skip("this gdb cannot read stacks whose guard pages are no mappings");
    } else {
        assert_as_by_gdb(&core, &alive, &knowable);
    }
    if !kernel_writes_cores() {
        return;
    }
    let by_kernel = core_by_kernel(&mut target, SIGTRAP, folder.path());
    assert_as_by_kernel(&report_on(&by_kernel, &sysroot()), &alive, &knowable);
}

fn assert_as_by_gdb(core: &Report, alive: &Report, knowable: &Knowable) {
    assert_same_parts(core, alive);
    // Only the pages of zeros are missing, and pages that are not the process's own.
    assert_eq!(core.process.rss_bytes, knowable.bytes - knowable.zeros, "{knowable:?}");
    let mut missing = 0;
    for row in alive.causes.iter().filter(|row| !OF_FILES.contains(&row.cause.name())) {
        missing += row.bytes.checked_sub(bytes(core, row.cause.name())).unwrap();
    }
    assert!(missing <= knowable.zeros + knowable.undumped, "{missing} bytes, {knowable:?}");
    assert!(core.capture.reason.ends_with("written by a debugger"), "{}", core.capture.reason);
}

fn assert_as_by_kernel(core: &Report, alive: &Report, knowable: &Knowable) {
    assert_same_parts(core, alive);
    // The holes of the core distinguish absent pages from pages of zeros.
    assert_eq!(core.process.rss_bytes, knowable.bytes, "{knowable:?}");
    for row in alive.causes.iter().filter(|row| !OF_FILES.contains(&row.cause.name())) {
        let undumped = if row.cause.name() == "unknown" { knowable.undumped } else { 0 };
        assert_eq!(bytes(core, row.cause.name()) + undumped, row.bytes, "{}", row.cause.name());
    }
    assert_eq!(bytes(core, "file.shared"), 0);
    assert_eq!((&core.malloc, &core.arenas), (&alive.malloc, &alive.arenas));
    let resident = |report: &Report| -> Vec<_> {
        let owners = report.owners.iter().flatten();
        owners.map(|owner| (owner.owner.clone(), owner.resident_bytes)).collect()
    };
    assert_eq!(resident(core), resident(alive));
    let reason = &core.capture.reason;
    assert!(reason.ends_with("by the kernel when signal 5 ended the process"), "{reason}");
}
