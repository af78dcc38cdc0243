use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The files of a control group by the version of control groups.
#[derive(Clone, Copy)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// The peak of the usage. A write resets it.
    peak: &'static str,
    events: &'static str,
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};
const VERSION_2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    peak: "memory.peak",
    events: "memory.events",
};

/// A control group of the kernel that counts memory. Its processes must have ended before it is dropped.
pub struct ControlGroup {
    folder: PathBuf,
    files: Files,
}

impl ControlGroup {
    /// Makes a group without a limit. If that is not possible, the test is reported as skipped, and the result is
    /// `None`.
    #[must_use]
    pub fn make() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "rbloat-test-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let places = [("/sys/fs/cgroup/memory", VERSION_1), ("/sys/fs/cgroup", VERSION_2)];
        for (root, files) in places {
            let folder = PathBuf::from(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            if folder.join(files.usage).exists() {
                return Some(Self { folder, files });
            }
            let _ = fs::remove_dir(&folder);
        }
        crate::skip("no control group that counts memory can be made here");
        None
    }

    /// Makes a group inside of this one, which must have no processes itself. The inner group must be dropped first.
    ///
    /// # Panics
    /// If that is not possible.
    #[must_use]
    pub fn inner(&self, name: &str) -> Self {
        // Version 2 counts the memory of inner groups only on request.
        let _ = fs::write(self.folder.join("cgroup.subtree_control"), "+memory");
        let folder = self.folder.join(name);
        fs::create_dir(&folder).expect("a group can be made in a group");
        Self { folder, files: self.files }
    }

    /// The same command, run in the group.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.folder);
        inside.arg(command.get_program()).args(command.get_args());
        let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        inside.envs(variables);
        inside
    }

    /// Moves a process and all of its threads into the group. Memory that it has already is not counted there in version 1.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn adopt(&self, pid: i32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("it moves");
    }

    /// The folder of the group.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn number(&self, file: &str) -> u64 {
        let text = fs::read_to_string(self.folder.join(file)).expect("the group has it");
        text.trim().parse().expect("a number")
    }

    /// The bytes in use.
    #[must_use]
    pub fn usage(&self) -> u64 {
        self.number(self.files.usage)
    }

    /// Sets the limit in bytes.
    pub fn limit(&self, bytes: u64) {
        fs::write(self.folder.join(self.files.limit), bytes.to_string()).expect("a limit is set");
    }

    /// Sets the bytes from which on the kernel delays the processes (memory.high). In version 1, which has no such limit, the test is
    /// reported as skipped, and the result is `None`.
    #[must_use]
    pub fn delay_from(&self, bytes: u64) -> Option<()> {
        let set = fs::write(self.folder.join("memory.high"), bytes.to_string()).ok();
        if set.is_none() {
            crate::skip("control groups of version 1 have no memory.high");
        }
        set
    }

    /// Removes the limit.
    pub fn lift_limit(&self) {
        let none = if self.files.limit == VERSION_2.limit { "max" } else { "-1" };
        fs::write(self.folder.join(self.files.limit), none).expect("a limit is removed");
    }

    /// Resets the peak; `None` if the kernel counts none, or cannot reset it (before Linux 6.12 in version 2).
    #[must_use]
    pub fn reset_peak(&self) -> Option<()> {
        fs::write(self.folder.join(self.files.peak), "0").ok()
    }

    /// The maximum of the bytes in use since the last reset.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.number(self.files.peak)
    }

    /// The number of processes that the kernel killed because the group was full.
    #[must_use]
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.files.events)).expect("it has it");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).expect("the kernel counts kills")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that has just ended may still be in it for a moment.
        for _ in 0..1000 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
