//! Memory limits of processes in other control groups, from private control group namespaces.

use std::fs;
use std::process::{Command, Output};

use formats::{CaptureMethod, Family, FindingKind, NoCopy};
use testkit::{ControlGroup, Target};

use crate::agent::Agent;
use crate::{complaint, document, rbloat, report_of};

const LIMIT: u64 = 200 << 20;
const PROGRAM: &str = "puts 'ready {}'; $stdout.flush; $stdin.read";

/// Returns false, and reports the test as skipped, if such namespaces cannot be made here.
fn can_unshare(namespaces: &[&str]) -> bool {
    let tried = Command::new("unshare").args(namespaces).args(["--fork", "true"]).output();
    let can = tried.is_ok_and(|it| it.status.success());
    if !can {
        testkit::skip("unshare(1) cannot make the namespaces");
    }
    can
}

/// The command, run in a group and in new namespaces after a shell script. The group is the root of the
/// control group namespace.
fn within(group: &ControlGroup, namespaces: &[&str], script: &str, command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(namespaces).args(["sh", "-c", &format!("{script}\nexec \"$@\""), "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    group.command(&inside)
}

/// `rbloat report --tree` on a process.
fn tree(pid: i32) -> Command {
    let mut command = rbloat();
    command.args(["report", "--tree", "--json", "--owners", "0", "--max-pause", "10s"]);
    command.arg(pid.to_string());
    command
}

fn limit(output: &Output) -> Option<u64> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let family: Family = document(&output.stdout);
    assert_eq!(family.findings, []);
    family.group.expect("its group is known").limit_bytes
}

/// Everything was the root of the mount, without a limit.
#[test]
fn the_limit_of_a_group_outside_of_our_namespace_counted_as_none() {
    let Some(pod) = ControlGroup::make() else { return };
    let Some(other) = ControlGroup::make() else { return };
    if !can_unshare(&["-C"]) {
        return;
    }
    let (sidecar, web) = (pod.inner("sidecar"), pod.inner("web"));
    let inmost = sidecar.inner("inmost");
    let target = Target::bare_ruby(PROGRAM);
    web.adopt(target.pid());
    // Their common group is the root, their pod, or the group itself, whose name the namespace does not show.
    let ours = [&other, &inmost, &web];
    for (limit_of_pod, limit_of_web) in [(2 * LIMIT, LIMIT), (LIMIT, 2 * LIMIT)] {
        pod.limit(limit_of_pod);
        web.limit(limit_of_web);
        for group in ours {
            let found = within(group, &["-C"], "", &tree(target.pid())).output().unwrap();
            assert_eq!(limit(&found), Some(LIMIT), "from {}", group.folder().display());
        }
    }
    // A forked copy is made only if there is room.
    web.limit(web.usage() + 500_000);
    for group in [&other, &inmost] {
        let mut report = rbloat();
        report.args(["report", "--capture", "fork", &target.pid().to_string()]);
        let (_, line) = complaint(&within(group, &["-C"], "", &report).output().unwrap());
        assert!(line.contains("the memory limit leaves "), "{line}");
    }
    assert!(target.finish());
    // Those inside first.
    drop(inmost);
    drop((sidecar, web));
}

/// A forked copy was made, and the kernel delayed the process by what it copied.
#[test]
fn memory_high_counted_as_room() {
    let Some(group) = ControlGroup::make() else { return };
    let mut ruby = testkit::ruby();
    ruby.args(["--disable-gems", "-e", PROGRAM]);
    let target = Target::start(&mut group.command(&ruby));
    group.limit(2 * LIMIT);
    if group.delay_from(LIMIT).is_none() {
        return;
    }
    assert_eq!(limit(&tree(target.pid()).output().unwrap()), Some(LIMIT));
    let nearly_full = group.delay_from(group.usage() + 500_000);
    assert_eq!(nearly_full, Some(()));
    let mut report = rbloat();
    report.args(["report", "--capture", "fork", &target.pid().to_string()]);
    let (_, line) = complaint(&report.output().unwrap());
    assert!(line.contains("the memory limit leaves "), "{line}");
    let mut report = rbloat();
    report.args(["report", "--json", "--max-pause", "10s", &target.pid().to_string()]);
    let capture = report_of(&report.output().unwrap()).capture;
    assert_eq!(capture.method, CaptureMethod::Freeze, "{capture:?}");
    assert!(target.finish());
}

/// As in a container that has the processes of the host, but not its control groups.
#[test]
fn a_group_that_only_the_target_has_mounted_is_found() {
    let Some(group) = ControlGroup::make() else { return };
    let Some(other) = ControlGroup::make() else { return };
    if !can_unshare(&["-C", "-m"]) {
        return;
    }
    let target = Target::bare_ruby(PROGRAM);
    group.adopt(target.pid());
    group.limit(LIMIT);
    let own_group_only = format!(
        "set -e
         mount -t tmpfs none /mnt && mkdir /mnt/own && mount --bind {} /mnt/own
         umount -R -l /sys/fs/cgroup
         test \"$(grep -c ' - cgroup' /proc/self/mountinfo)\" = 1",
        other.folder().display()
    );
    let command = within(&other, &["-C", "-m"], &own_group_only, &tree(target.pid()));
    assert_eq!(limit(&{ command }.output().unwrap()), Some(LIMIT));
    assert!(target.finish());
}

/// Neither rbloat nor the target has control groups mounted, or the target has mounted something else over them.
#[test]
fn an_unknown_limit_is_reported_and_no_forked_copy_is_made() {
    let Some(group) = ControlGroup::make() else { return };
    if !can_unshare(&["-m", "-p"]) {
        return;
    }
    group.limit(LIMIT);
    let name = group.folder().file_name().unwrap().to_str().unwrap();
    let covered = format!(
        "mount -t tmpfs none /sys/fs/cgroup
         for folder in /sys/fs/cgroup /sys/fs/cgroup/memory; do
             mkdir -p $folder/{name}
             for file in memory.max memory.current memory.limit_in_bytes memory.usage_in_bytes; do
                 echo 4096 >$folder/{name}/$file
             done
         done"
    );
    for script in ["umount -R -l /sys/fs/cgroup", &covered] {
        let script = format!("set -e\n{script}");
        let mut ruby = testkit::ruby();
        ruby.args(["--disable-gems", "-e", PROGRAM]);
        let namespaces = ["-m", "-p", "--fork", "--kill-child", "--mount-proc"];
        let target = Target::start(&mut within(&group, &namespaces, &script, &ruby));
        let outside = target.pid().to_string();
        let children = fs::read_to_string(format!("/proc/{outside}/task/{outside}/children"));
        let first = children.unwrap().trim().to_owned();
        let run = |command: &Command| {
            let mut inside = Command::new("nsenter");
            inside.args(["--target", &first, "--mount", "--pid", "--"]);
            inside.arg(command.get_program()).args(command.get_args()).output().unwrap()
        };
        let found = run(&tree(1));
        assert_eq!(found.status.code(), Some(6), "{}", String::from_utf8_lossy(&found.stderr));
        let family: Family = document(&found.stdout);
        assert_eq!(family.group, None);
        let finding = FindingKind::GroupLimitUnknown;
        assert!(family.findings.contains(&finding.into()), "{:?}", family.findings);

        let mut report = rbloat();
        report.args(["report", "1", "--json", "--max-pause", "10s"]);
        let capture = report_of(&run(&report)).capture;
        assert_eq!(capture.method, CaptureMethod::Freeze);
        assert!(capture.reason.contains("memory limit of the process is unknown"), "{capture:?}");
        assert_eq!(capture.no_copy, Some(NoCopy::UnknownLimit));
        let file = format!("/tmp/rbloat-unknown-limit-{outside}.jsonl");
        let mut record = rbloat();
        record.args(["record", "1", "--for", "1s", "--causes-every", "0", "-o", &file]);
        let recorded = run(&record);
        assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
        let recording = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let unknown = "so its memory limit is unknown";
        assert_eq!(recording.matches(unknown).count(), 1, "{recording}");
        // From the host it is known.
        assert_eq!(limit(&tree(first.parse().unwrap()).output().unwrap()), Some(LIMIT));
        assert!(target.finish());
    }
}

/// The mounts, namespaces and capabilities of the pods in deploy/kubernetes/daemonset.yaml.
#[test]
fn an_agent_in_a_daemonset_finds_the_limits_of_containers() {
    let Some(pods) = ControlGroup::make() else { return };
    if !can_unshare(&["-C", "-m"]) {
        return;
    }
    let [pod, agents] = ["pod", "agents"].map(|name| pods.inner(name));
    let manifest = include_str!("../../../../deploy/kubernetes/daemonset.yaml");
    assert!(manifest.contains("hostPID: true") && manifest.contains("path: /sys/fs/cgroup"));
    let added = manifest.lines().find_map(|line| line.trim().strip_prefix("add: [")).unwrap();
    let added = added.trim_end_matches(']').replace('"', "").replace(", ", ",+");
    let bounds = format!("-all,+{}", added.to_lowercase());
    let container = pod.inner("container");
    let target = Target::bare_ruby(PROGRAM);
    container.adopt(target.pid());
    container.limit(LIMIT);

    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", &bounds]).arg(rbloat().get_program());
    command.args(["agent", "--listen", "127.0.0.1:0", "--max-pause", "10s", "--every", "1s"]);
    command.args(["--causes-every", "1s", "--cgroup"]).arg(container.folder());
    let read_only = "mount --rbind -o ro /sys/fs/cgroup /sys/fs/cgroup";
    let agent = Agent::spawn(&mut within(&agents, &["-C", "-m"], read_only, &command));
    let limits = agent.await_samples("rbloat_group_limit_bytes", "");
    assert_eq!(limits.into_values().collect::<Vec<_>>(), [LIMIT as f64]);
    agent.await_samples("rbloat_captures_total", "outcome=\"forked\"");
    agent.end();
    assert!(target.finish());
    // Those inside first.
    drop(container);
    drop((pod, agents));
}

/// The command for an alert, which names the pod.
#[test]
fn a_process_is_found_by_its_container_or_pod() {
    let Some(pod) = ControlGroup::make() else { return };
    if !can_unshare(&["-m"]) {
        return;
    }
    let id = "5f".repeat(32);
    let container = pod.inner(&id);
    let target = Target::bare_ruby(PROGRAM);
    container.adopt(target.pid());
    // A word that no other process of the tests has.
    let name = format!("container{}", target.pid());
    let logs = format!(
        "set -e
         mount -t tmpfs none /var/log && mkdir /var/log/containers
         touch /var/log/containers/web-7d9f-x2_shop_{name}-{id}.log"
    );
    // Docker's commands print twelve digits.
    for (name, script) in [
        ("shop/web-7d9f-x2", logs.as_str()),
        (&format!("shop/web-7d9f-x2/{name}"), &logs),
        ("web-7d9f-x2", &logs),
        (&name, &logs),
        (&id, ""),
        (&id[..12], ""),
    ] {
        let mut report = rbloat();
        report.args(["report", name, "--json", "--owners", "0", "--max-pause", "10s"]);
        let mut inside = Command::new("unshare");
        inside.args(["-m", "sh", "-c", &format!("{script}\nexec \"$@\""), "sh"]);
        inside.arg(report.get_program()).args(report.get_args());
        assert_eq!(report_of(&inside.output().unwrap()).process.pid, target.pid(), "{name}");
    }
    let mut report = rbloat();
    let (status, line) = complaint(&report.args(["report", "shop/no-such-pod"]).output().unwrap());
    assert!(status == 3 && line.contains("in a container of that name"), "{line}");
    assert!(target.finish());
    drop(container);
    drop(pod);
}
