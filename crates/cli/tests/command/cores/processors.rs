//! Reports on one processor and on all: parts of the work run at the same time, in an order that differs from run to run.
//!
//! Every kind of memory is in one of these scenarios. The other ones of `scenarios/owners` differ only in the extension or server that
//! they need; those of `growth`, `who` and `rails` test what several reports have in common.

use std::fs;
use std::process::Command;

use formats::Report;
use testkit::Target;

use super::{check_status, core_by_gdb, sysroot};
use crate::rbloat;

/// Asserts that a report on this scenario is the same on one processor as on all, except for the time that it took.
fn compare(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::scenario(name, &["--scale", "0.02"]);
    let core = core_by_gdb(&target, folder.path());
    assert!(target.finish());
    let report = |mut command: Command, arguments: &[&str]| {
        command.args(["report", "--json"]).args(arguments).arg(&core).args(sysroot());
        let output = command.output().unwrap();
        check_status(&output);
        let report: Report = crate::document(&output.stdout);
        let text = String::from_utf8(output.stdout).unwrap();
        let elapsed = format!("\"elapsed_ms\": {:?}", report.capture.elapsed_ms);
        assert!(text.contains(&elapsed), "{elapsed}");
        text.replacen(&elapsed, "", 1)
    };
    let processor = first_processor();
    for arguments in [&["--retained"][..], &["--owners", "0"]] {
        let rbloat = rbloat();
        let mut on_one = Command::new("taskset");
        on_one.args(["-c", &processor]).arg(rbloat.get_program()).args(rbloat.get_args());
        let (on_one, on_all) = (report(on_one, arguments), report(rbloat, arguments));
        let mut lines = on_one.lines().zip(on_all.lines());
        let difference = lines.find(|(on_one, on_all)| on_one != on_all);
        assert_eq!(difference, None, "{name} {arguments:?}");
        assert_eq!(on_one.len(), on_all.len(), "{name} {arguments:?}");
    }
}

/// Returns the first processor that this process may use.
fn first_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.unwrap().trim().split([',', '-']).next().unwrap().to_owned()
}

macro_rules! a_report_on_one_processor_is_the_same {
    (if $is_run:expr; $($name:ident $path:literal;)*) => { $(
        #[test]
        fn $name() {
            if $is_run {
                compare($path);
            }
        }
    )* };
}

a_report_on_one_processor_is_the_same! {
    if true;
    burst "burst";
    named_roots "owners/named_roots";
    native "native";
    stale_words "owners/stale_words";
    weak_tables "owners/weak_tables";
}

a_report_on_one_processor_is_the_same! {
    if testkit::is_nightly("reports on one processor, on more programs");
    big "big";
    churn "churn";
    free_slots "free_slots";
    healthy "healthy";
    huge_strings "huge_strings";
    leak "leak";
    mapped_file "mapped_file";
    objects "objects";
    pin "pin";
    sieve "sieve";
    stacks "stacks";
}
