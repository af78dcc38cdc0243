use std::ops::Range;

use linux::Address;

/// The VM stack of a thread: that of the fiber that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmStack {
    /// The slot of the Thread object.
    pub thread: u32,
    /// The address of the structure that the object wraps (`rb_thread_t`).
    pub structure: Address,
    /// The address of the execution context (`rb_execution_context_t`), which lies in the fiber's structure.
    pub context: Address,
    /// Its first word.
    pub start: Address,
    /// The middle, which is not in use: values grow from the start, control frames from the end.
    pub unused: Range<Address>,
}
