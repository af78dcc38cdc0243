/// The display of an examination's progress. It is never told anything while a process is paused.
pub trait Progress: Sync {
    /// The process `pid` with these resident bytes is about to be captured.
    fn capture(&self, pid: i32, resident_bytes: u64);
    /// The process is captured, and its memory is accounted for.
    fn account(&self, resident_bytes: u64);
    /// The examination of this process is over.
    fn end(&self);
}
