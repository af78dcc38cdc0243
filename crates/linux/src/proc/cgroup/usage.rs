use std::fs::File;
use std::os::unix::fs::FileExt;

use super::ControlGroup;

/// The open file with the use of a group, for who reads it hundreds of times a second.
#[derive(Debug)]
pub struct GroupUsage(File);

impl ControlGroup {
    /// Opens the use of the group; `None` if it does not count memory.
    #[must_use]
    pub fn usage(&self) -> Option<GroupUsage> {
        let folder = self.open()?;
        File::open(folder.path().join(self.hierarchy.usage)).ok().map(GroupUsage)
    }
}

impl GroupUsage {
    /// Returns the bytes that are charged to the group, caches of files included; `None` if the group is gone.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let mut text = [0; 32];
        let count = self.0.read_at(&mut text, 0).ok()?;
        str::from_utf8(&text[..count]).ok()?.trim().parse().ok()
    }
}
