//! The lines that allocate what stays, compared with programs whose lines are known to keep it or not.

use std::process::{Command, Output, Stdio};

use formats::{Kept, KeptClass, KeptJudgement};
use testkit::Target;

use super::wait_until_it_samples;
use crate::{document, rbloat};

/// Watches a scenario while it does so many rounds.
fn watch(scenario: &str, rounds: u64) -> Option<Kept> {
    let mut target = Target::scenario(&format!("kept/{scenario}"), &[]);
    let pid = target.pid().to_string();
    let arguments = ["--kept", "--json", "--for", "1h", "--rate", "1000", "--older-than", "1s"];
    let mut child = rbloat()
        .args(["who", &pid, "--max-pause", "10s"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_samples(&mut child);
    if child.try_wait().unwrap().is_none() {
        target.tell(&rounds.to_string());
        target.next_truth();
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let output = child.wait_with_output().unwrap();
    is_possible(&output).then(|| document(&output.stdout))
}

/// Returns false, and reports the test as skipped, if the kernel refuses clocks with programs.
fn is_possible(output: &Output) -> bool {
    let complaint = String::from_utf8_lossy(&output.stderr);
    let is_refused = output.status.code() == Some(4) && complaint.contains("ticks of the clocks");
    if is_refused {
        testkit::skip(complaint.trim());
    }
    assert!(is_refused || output.status.success(), "{complaint}");
    !is_refused
}

fn class<'a>(kept: &'a Kept, name: &str) -> &'a KeptClass {
    kept.classes.iter().find(|it| it.class == name).unwrap_or_else(|| panic!("{name} {kept:#?}"))
}

/// The samples of lines of this method, with those of its blocks.
fn samples(class: &KeptClass, method: &str) -> u64 {
    class.lines.iter().filter(|it| it.method.ends_with(method)).map(|it| it.samples).sum()
}

#[test]
fn the_lines_that_keep_what_they_make_are_named() {
    let rounds =
        if testkit::is_nightly("the lines of what stays, for longer") { 60_000 } else { 15_000 };
    let Some(kept) = watch("lines", rounds) else { return };
    assert_eq!(kept.unknown, None);
    assert!(kept.collections > 2 && kept.ticks > 0, "{kept:#?}");
    let truth = [
        ("Event", &["Tracker#track"][..]),
        ("Row", &["Import.reader"]),
        ("Array", &["Cache#hot", "Cache#cold", "Feed.load"]),
        // Two samples are enough if Feed::KEPT has ten in all.
        ("String", &["Feed.load"]),
    ];
    for row in &kept.classes {
        let Some((_, methods)) = truth.iter().find(|it| it.0 == row.class) else {
            assert_ne!(row.judgement, KeptJudgement::Named, "{row:#?}");
            continue;
        };
        let right: u64 = methods.iter().map(|method| samples(row, method)).sum();
        // About 1 sample in 140 is wrong (docs/who.md), and a class may have few.
        assert!((right + 1) * 100 >= row.samples * 95, "{row:#?}");
    }
    for name in ["Event", "Array"] {
        assert_eq!(class(&kept, name).judgement, KeptJudgement::Named, "{kept:#?}");
    }
    assert_eq!(class(&kept, "Event").roots[0].name, "Tracker::SEEN");
    let arrays = class(&kept, "Array");
    let [hot, cold] = ["Cache#hot", "Cache#cold"].map(|method| samples(arrays, method));
    assert!(hot > cold && cold > 0, "{arrays:#?}");
}

/// A full cache, and results that live for some collections.
#[test]
fn a_program_that_does_not_keep_more_and_more_has_no_line() {
    let rounds = if testkit::is_nightly("a healthy program, for longer") { 60_000 } else { 10_000 };
    let Some(kept) = watch("healthy", rounds) else { return };
    assert!(kept.unknown.is_none() && kept.seen > 100 && kept.collections > 2, "{kept:#?}");
    let named = kept.classes.iter().filter(|it| it.judgement == KeptJudgement::Named);
    assert_eq!(named.count(), 0, "{kept:#?}");
}

#[test]
fn without_collections_nothing_is_said() {
    let target = Target::ruby("4.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read");
    let output = rbloat()
        .args(["who", &target.pid().to_string(), "--kept", "--for", "1s", "--max-pause", "10s"])
        .output()
        .unwrap();
    assert!(is_possible(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("It is not known what process"), "{text}");
    assert!(text.contains("it has collected no garbage meanwhile"), "{text}");
}

#[test]
fn a_program_without_the_right_to_run_programs_of_the_kernel_gets_the_reason() {
    let target = Target::scenario("kept/healthy", &[]);
    let mut command = Command::new("setpriv");
    // Without CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN.
    command.arg("--bounding-set=-bpf,-perfmon,-sys_admin");
    let rbloat = rbloat();
    command.arg(rbloat.get_program()).args(rbloat.get_args());
    let pid = target.pid().to_string();
    let output = command
        .args(["who", &pid, "--kept", "--for", "1h", "--max-pause", "10s"])
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{complaint}");
    assert!(
        complaint.contains("cannot run a program at ticks of the clocks of process"),
        "{complaint}"
    );
    assert!(complaint.contains("run rbloat as root"), "{complaint}");
}
