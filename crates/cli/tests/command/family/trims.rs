//! The trim of a family.

use std::fs;

use formats::FamilyTrim;

use super::{account, child, family};
use crate::{document, rbloat};

/// The trim of a family returns the free memory of each member, and breaks no sharing.
#[test]
fn a_family_is_trimmed() {
    let target = family(&["free", "idle"]);
    let run = |words: &[&str]| -> FamilyTrim {
        let mut command = rbloat();
        command.args(["trim", "--tree", "--json", "--max-pause", "10s"]).args(words);
        let output = command.arg(target.pid().to_string()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        document(&output.stdout)
    };
    let expected = run(&["--dry-run"]);
    assert_eq!(expected.members.len(), 3);
    assert!(expected.pss_bytes_after.is_none() && expected.findings.is_empty(), "{expected:?}");
    let private = expected.expected_private_bytes.unwrap();
    assert!((60_000_000..100_000_000).contains(&private), "{expected:?}");
    let trimmed = run(&[]);
    let returned = trimmed.pss_bytes_before - trimmed.pss_bytes_after.unwrap();
    // Shared pages that no member needs are returned, too.
    assert!(returned * 20 > private * 19, "{trimmed:?}");
    let account = account(target.pid(), &["--owners", "0"]);
    let [_, free, idle] = &account.members[..] else { panic!("{account:?}") };
    assert!(free.private_bytes < 20_000_000 && idle.private_bytes < 4_000_000, "{account:?}");
    assert_eq!(account.steps, []);
    assert!(target.finish());
}

/// The line about a member that could not be trimmed had its id twice.
#[test]
fn a_member_that_cannot_be_trimmed_is_named_once() {
    let target = family(&["idle", "idle"]);
    let stopped = child(&target, 0);
    let signal = |name: &str| {
        let words = [format!("-{name}"), stopped.to_string()];
        assert!(std::process::Command::new("kill").args(words).status().unwrap().success());
    };
    signal("STOP");
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{stopped}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    };
    while !is_stopped() {
        std::thread::yield_now();
    }
    let output = rbloat()
        .args(["trim", "--tree", "--max-pause", "10s", &target.pid().to_string()])
        .output()
        .unwrap();
    signal("CONT");
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    let [line] = lines[..] else { panic!("{text}") };
    assert_eq!(line.matches(&stopped.to_string()).count(), 1, "{line}");
    assert!(line.contains("stopped by a signal"), "{line}");
    assert!(text.contains("2 processes: PSS "), "{text}");
    assert!(target.finish());
}
