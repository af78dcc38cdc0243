use super::find::{Sought, group_of_memory};
use super::*;
use rustix::io::Errno;

static TWO: &Hierarchy = &HIERARCHIES[0];
static ONE: &Hierarchy = &HIERARCHIES[1];
const GROUPS: &str = "4:memory:/shop/web\n3:cpuset,cpu:/\n0::/shop\n";

#[test]
fn the_path_of_a_group_is_that_of_version_2_if_it_has_a_name() {
    let path = |groups| innermost_path(groups);
    assert_eq!(path(GROUPS).as_deref(), Some("/shop"));
    let hybrid = "3:memory:/docker/0123\n1:name=systemd:/docker/0123\n0::/\n";
    assert_eq!(path(hybrid).as_deref(), Some("/docker/0123"));
    let service =
        "3:memory:/much/longer/path/of/a/group\n1:name=systemd:/system.slice/a.service\n0::/\n";
    assert_eq!(path(service).as_deref(), Some("/system.slice/a.service"));
    assert_eq!(path("2:cpu:/\n0::/\nodd\n"), None);
    assert_eq!(path("0::/a:b\u{1b}[2J.service\n").as_deref(), Some("/a:b [2J.service"));
    // Beside the root of our namespace, and above it.
    assert_eq!(path("3:memory:/\n0::/../b.scope\n").as_deref(), Some("/../b.scope"));
    assert_eq!(path("3:memory:/docker/0123\n0::/../..\n").as_deref(), Some("/docker/0123"));
    assert_eq!(path("3:memory:/..\n0::/../..\n"), None);
}

#[test]
fn memory_is_counted_by_version_2_if_version_1_does_not_have_the_controller() {
    let found = |lines: &'static str| {
        let (hierarchy, path) = group_of_memory(lines.as_bytes())?;
        Some((hierarchy.filesystem, str::from_utf8(path).unwrap()))
    };
    assert_eq!(found(GROUPS), Some(("cgroup", "/shop/web")));
    assert_eq!(found("2:hugetlb,memory:/a:b\n0::/shop\n"), Some(("cgroup", "/a:b")));
    let named = "3:name=memory:/x\n2:memory2:/y\n1:cpu:/z\n0::/shop\n";
    assert_eq!(found(named), Some(("cgroup2", "/shop")));
    assert_eq!(found("1:cpu:/z\nodd\n:\n\n"), None);
}

/// The group at `path` of our own process, in mounts that are tested as folders of some other file system.
fn sought(path: &str) -> Sought {
    let pid = std::process::id().cast_signed();
    Sought::new(pid, TWO, path.as_bytes(), |_, _, _| Ok(true)).unwrap()
}

/// A folder with groups of version 2 that have a limit, the last one with our process.
struct Groups(tempfile::TempDir);

impl Groups {
    fn make(groups: &[(&str, u64)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, limit) in groups {
            let group = folder.path().join(name);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("memory.max"), limit.to_string()).unwrap();
            fs::write(group.join("memory.current"), "100").unwrap();
        }
        let last = folder.path().join(groups.last().unwrap().0);
        fs::write(last.join(PROCESSES), format!("1\n{}\n", std::process::id())).unwrap();
        Self(folder)
    }

    /// A line of mountinfo for the mount of the group `root` at `inside` of the folder.
    fn mounted(&self, root: &str, inside: &str) -> String {
        let point = self.0.path().join(inside);
        format!("31 20 0:27 {root} {} rw shared:9 - cgroup2 cgroup2 rw\n", point.display())
    }
}

fn limits(levels: &[ControlGroup]) -> Vec<Option<u64>> {
    let limit = |level: &ControlGroup| {
        let memory = level.memory()?;
        assert_eq!(level.room_bytes(), memory.room_bytes());
        memory.limit_bytes
    };
    levels.iter().map(limit).collect()
}

#[test]
fn a_group_is_found_by_its_path_and_the_group_that_is_mounted() {
    let groups = Groups::make(&[("pod", 900), ("pod/other", 1), ("pod/web", 700)]);
    let find = |path: &str, root: &str, inside: &str| {
        limits(&sought(path).levels(groups.mounted(root, inside).as_bytes(), None).unwrap())
    };
    // From the host, and from a namespace whose root is `pod`, or beside `web`.
    assert_eq!(find("/pod/web", "/", ""), [Some(700), Some(900), None]);
    assert_eq!(find("/web", "/", "pod"), [Some(700), Some(900)]);
    assert_eq!(find("/", "/", "pod/web"), [Some(700)]);
    assert_eq!(find("/pod/web", "/pod", "pod"), [Some(700), Some(900)]);
    assert_eq!(find("/../../pod/web", "/../..", ""), [Some(700), Some(900), None]);
    assert_eq!(find("/../web", "/../web", "pod/web"), [Some(700)]);
    // The mount begins further up than the path: the process is listed in its group only.
    assert_eq!(find("/../web", "/../..", ""), [Some(700), Some(900), None]);
    assert_eq!(find("/", "/../..", ""), [Some(700), Some(900), None]);
    assert_eq!(find("/web", "/..", ""), [Some(700), Some(900), None]);
    fs::remove_file(groups.0.path().join("pod/web/cgroup.procs")).unwrap();
    assert_eq!(find("/../web", "/../..", ""), []);
    // A threaded group.
    let threads = format!("{}\n", std::process::id());
    fs::write(groups.0.path().join("pod/web/cgroup.threads"), threads).unwrap();
    assert_eq!(find("/../web", "/../..", ""), [Some(700), Some(900), None]);
}

/// The limit was unknown "since the control group could not be found".
#[test]
fn too_many_open_files_are_no_reason_to_look_elsewhere() {
    let groups = Groups::make(&[("pod", 900), ("pod/web", 700)]);
    let pid = std::process::id().cast_signed();
    let found = |is_genuine| {
        let sought = Sought::new(pid, TWO, b"/pod/web", is_genuine).unwrap();
        sought.levels(groups.mounted("/", "").as_bytes(), None).map_err(|it| it.raw_os_error())
    };
    assert_eq!(found(|_, _, _| Err(Errno::MFILE.into())), Err(Some(libc::EMFILE)));
    assert_eq!(found(|_, _, _| Err(Errno::NFILE.into())), Err(Some(libc::ENFILE)));
    assert_eq!(found(|_, _, _| Err(Errno::ACCESS.into())), Ok(vec![]));
}

#[test]
fn a_group_that_is_not_in_a_mount_is_not_mistaken_for_another() {
    let groups = Groups::make(&[("pod", 900), ("pod/web", 700)]);
    let find = |path: &str, root: &str| {
        limits(&sought(path).levels(groups.mounted(root, "").as_bytes(), None).unwrap())
    };
    for (path, root) in [
        ("/../pod", "/"),
        ("/pod", "/pod/web"),
        ("/pod", "/pad"),
        ("/../pod", "/../pad"),
        ("/pod", "/../pad"),
        ("/..", "/"),
        ("/pod/web (deleted)", "/"),
        ("/absent", "/"),
        ("/../absent", "/../../.."),
    ] {
        assert_eq!(find(path, root), [], "{path} {root}");
    }
    for path in ["", "pod", "/pod/../web", "/pod/..", "/.", "/../pod/../.."] {
        assert!(Sought::new(1, TWO, path.as_bytes(), |_, _, _| Ok(true)).is_none(), "{path}");
    }
}

#[test]
fn the_mount_that_shows_most_levels_counts_and_names_may_be_any_bytes() {
    let groups = Groups::make(&[("a b", 900), ("a b/web", 700)]);
    let mut mounts = b"odd\n24 20 0:21 / /mnt/caf\xe9 rw - ext4 /dev/sda rw\n".to_vec();
    let web = groups.mounted("/a\\040b/web", "a b/web").replace("a b", "a\\040b");
    mounts.extend(web.bytes());
    let path = "/a b/web";
    assert_eq!(limits(&sought(path).levels(&mounts, None).unwrap()), [Some(700)]);
    mounts.extend(groups.mounted("/", "").bytes());
    mounts.extend(web.bytes());
    assert_eq!(limits(&sought(path).levels(&mounts, None).unwrap()), [Some(700), Some(900), None]);
    assert_eq!(
        sought(path).levels(b"31 20 0:27 / \xff\\777\\1 rw - cgroup2 x rw", None).unwrap(),
        []
    );
}

/// A process may mount anything over the folder of its group.
#[test]
fn a_folder_of_another_file_system_is_no_group() {
    let groups = Groups::make(&[("", 700)]);
    let own = std::process::id().cast_signed();
    let genuine = Sought::new(own, TWO, b"/", find::is_genuine).unwrap();
    assert_eq!(genuine.levels(groups.mounted("/", "").as_bytes(), None).unwrap(), []);
    assert_eq!(ControlGroup::at(groups.0.path()), None);
    // Nor is a folder that took the place of a group.
    let [level] = &sought("/").levels(groups.mounted("/", "").as_bytes(), None).unwrap()[..] else {
        panic!("it is found");
    };
    assert!(level.memory().is_some());
    let folder = groups.0.path().to_owned();
    fs::rename(&folder, folder.with_extension("old")).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("memory.current"), "1").unwrap();
    assert_eq!(level.memory(), None);
    fs::remove_dir_all(folder.with_extension("old")).unwrap();
}

#[test]
fn our_own_group_is_the_same_through_the_mounts_of_others() {
    let own = std::process::id().cast_signed();
    let lines = read(own, "cgroup").unwrap();
    let Some((hierarchy, path)) = group_of_memory(&lines) else {
        return testkit::skip("the kernel has no control groups");
    };
    let sought = Sought::new(own, hierarchy, path, find::is_genuine).unwrap();
    let mounts = read(own, "mountinfo").unwrap();
    let levels = sought.levels(&mounts, None).unwrap();
    if levels.is_empty() {
        return testkit::skip("our own control group is not mounted");
    }
    let root = format!("/proc/{own}/root");
    assert_eq!(sought.levels(&mounts, Some(Path::new(&root))).unwrap(), levels);
    assert_eq!(ControlGroup::at(&levels[0].folder).as_ref(), levels.first());
    // The topmost group of version 2 has none.
    if let Some(memory) = levels[0].memory() {
        let usage = levels[0].usage().unwrap();
        let bytes = usage.bytes().zip(usage.bytes()).unwrap();
        let differs = |it: u64| it.abs_diff(memory.usage_bytes) > memory.usage_bytes / 2;
        assert!(!differs(bytes.0) && !differs(bytes.1), "{bytes:?} {memory:?}");
    }
    assert!(levels[0].processes().contains(&own));
}

#[test]
fn a_group_of_either_version_says_use_limit_and_kills() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    assert_eq!(TWO.memory(folder.path()), None);
    write("memory.max", "1000000\n");
    write("memory.current", "900000\n");
    write(
        "memory.stat",
        "anon 5\ninactive_file 50000\nshmem 3000\ntotal_inactive_file 70000\ntotal_shmem 4000\n",
    );
    write("memory.events", "low 0\nhigh 2\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n");
    let full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
    write(
        "memory.pressure",
        &format!("some avg10=0.25 avg60=0.05 avg300=0.01 total=7654321\n{full}"),
    );
    let memory = TWO.memory(folder.path()).unwrap();
    let expected = GroupMemory {
        usage_bytes: 900_000,
        limit_bytes: Some(1_000_000),
        cache_bytes: 50_000,
        shmem_bytes: 3000,
        oom_kills: Some(3),
        limit_hits: Some(11),
        stalled: Some(Duration::from_micros(7_654_321)),
    };
    assert_eq!(memory, expected);
    assert_eq!(memory.room_bytes(), Some(150_000));
    // At memory.high the kernel delays processes that take more.
    for (max, high, limit) in [
        ("1000000", "max", Some(1_000_000)),
        ("1000000", "950000", Some(950_000)),
        ("max", "950000", Some(950_000)),
        ("1000000", "2000000", Some(1_000_000)),
        ("max", "max", None),
    ] {
        write("memory.max", &format!("{max}\n"));
        write("memory.high", &format!("{high}\n"));
        let memory = TWO.memory(folder.path()).unwrap();
        assert_eq!(memory.limit_bytes, limit, "{max} {high}");
        // A group above memory.high had no room for rbloat itself, which was an error.
        assert_eq!(limit_bytes(&TWO.limits[..1], folder.path()), max.parse().ok(), "{max} {high}");
        assert_eq!(memory.room_bytes(), limit.map(|limit| limit - 850_000), "{max} {high}");
    }

    write("memory.usage_in_bytes", "800000\n");
    write("memory.limit_in_bytes", "9223372036854771712\n");
    // The soft limit delays nobody.
    write("memory.soft_limit_in_bytes", "1000\n");
    write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    write("memory.failcnt", "7\n");
    let memory = ONE.memory(folder.path()).unwrap();
    let expected = GroupMemory {
        usage_bytes: 800_000,
        limit_bytes: None,
        cache_bytes: 70_000,
        shmem_bytes: 4000,
        oom_kills: Some(2),
        limit_hits: Some(7),
        stalled: None,
    };
    assert_eq!(memory, expected);
}
