use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::inotify;

use super::ControlGroup;

/// Reports events of control groups: limits that were met, and processes that were killed. Version 1 reports none.
#[derive(Debug)]
pub struct GroupEvents(OwnedFd);

impl GroupEvents {
    /// Returns `None` if the kernel or a limit on its resources forbids that.
    #[must_use]
    pub fn new() -> Option<Self> {
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok().map(Self)
    }

    /// Reports events of a group, too, until it is gone.
    pub fn follow(&self, group: &ControlGroup) {
        if let Some(folder) = group.open() {
            let file = folder.path().join(group.hierarchy.events);
            // Without it, the group is read as often as those of version 1.
            let _ = inotify::add_watch(&self.0, file, inotify::WatchFlags::MODIFY);
        }
    }

    /// Waits for an event, but not for longer than this.
    pub fn wait(&self, longest: Duration) {
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        let mut files = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        if poll(&mut files, timeout).is_ok_and(|ready| ready > 0) {
            let mut room = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(&self.0, &mut room);
            while events.next().is_ok() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Instant;

    use super::super::{GroupId, HIERARCHIES, open_folder};
    use super::*;

    /// A folder stands in for a group: files of version 2 report changes as others do.
    #[test]
    fn a_wait_ends_with_an_event() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(HIERARCHIES[0].events);
        std::fs::write(&file, "oom_kill 0\n").unwrap();
        let found = open_folder(None, folder.path()).unwrap();
        let group = ControlGroup {
            hierarchy: &HIERARCHIES[0],
            root: None,
            folder: PathBuf::from(folder.path()),
            id: GroupId::of(found.as_fd()).unwrap(),
        };
        let events = GroupEvents::new().unwrap();
        events.follow(&group);
        let writer = std::thread::spawn(move || std::fs::write(file, "oom_kill 1\n"));
        let started = Instant::now();
        events.wait(Duration::from_secs(3600));
        assert!(started.elapsed() < Duration::from_secs(3600));
        writer.join().unwrap().unwrap();
        assert_eq!(group.oom_kills(), Some(1));
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(group.oom_kills(), None);
    }
}
