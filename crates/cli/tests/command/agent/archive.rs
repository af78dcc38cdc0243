//! The archive that the agent writes.

use std::path::Path;

use testkit::ControlGroup;

use super::{Agent, server, wait_until};
use crate::archive::{number, rows, text};

/// An agent that finds owners each second.
fn start(group: &ControlGroup, folder: &Path, more: &[&str]) -> Agent {
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s", "--archive"];
    Agent::start(group, &[&intervals[..], &[folder.to_str().unwrap()], more].concat())
}

#[test]
fn the_archive_has_each_process_by_its_names_when_the_agent_has_ended() {
    let Some(group) = ControlGroup::make() else { return };
    group.limit(2 << 30);
    let target = server(&group, "agentarchive");
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    let agent = start(&group, &archive, &["--cpu-percent", "100"]);
    let role = "role=\"agentarchive\"";
    agent.await_samples("rbloat_owner_bytes{", role);
    agent.end();
    assert!(target.finish());

    let looks = rows(&archive, "looks");
    let node = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for look in &looks {
        assert_eq!((text(look, "role"), text(look, "node")), ("agentarchive", node.trim_end()));
        assert_eq!(number(look, "limit_bytes"), Some(2 << 30));
        let (rss, pss) = (number(look, "rss_bytes").unwrap(), number(look, "pss_bytes").unwrap());
        assert!(pss > 0 && pss <= rss, "{pss} of {rss}");
        let of_look = |row: &_| number(row, "look") == number(look, "look");
        let causes = rows(&archive, "causes").into_iter().filter(of_look);
        assert_eq!(causes.filter_map(|row| number(&row, "bytes")).sum::<u64>(), rss);
        let mut owners = rows(&archive, "owners").into_iter().filter(of_look);
        assert!(owners.any(|row| text(&row, "owner") == "String"));
    }
    assert!(!looks.is_empty());
    let services = std::fs::read_dir(archive.join("looks")).unwrap().next().unwrap().unwrap();
    let services: Vec<_> =
        std::fs::read_dir(services.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(services, ["service=agentarchive"]);
}

#[test]
fn a_process_that_is_too_large_for_owners_is_in_the_archive_with_its_causes() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agentlarge");
    let folder = tempfile::tempdir().unwrap();
    let agent = start(&group, folder.path(), &["--cpu-percent", "100", "--max-memory", "1MiB"]);
    wait_until("it was captured twice", || {
        agent.samples("rbloat_captures_total", "outcome=\"forked\"").values().sum::<f64>() > 1.0
    });
    agent.end();
    assert!(target.finish());
    assert!(!rows(folder.path(), "causes").is_empty());
    assert!(!folder.path().join("owners").exists());
}
