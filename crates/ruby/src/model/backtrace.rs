/// The methods that a thread runs, innermost first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backtrace {
    /// The slot of the Thread object.
    pub thread: u32,
    /// Its frames. If there are very many, the outermost are left out.
    pub frames: Vec<Frame>,
}

/// One method or block that runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    /// Its name as Ruby 3.4 and later write it, on all releases: `Billing::Export#run`,
    /// `block in Billing::Export.all`, `<main>`.
    pub label: String,
    /// The path of its file, as [`CodePaths`](crate::CodePaths) has it; `None` for functions in C.
    pub path: Option<String>,
    /// The line that runs; `None` for functions in C, and if lines could not be derived.
    pub line: Option<u32>,
}

/// Methods of Ruby itself that wait, and allocate next to nothing.
const WAITING: [&str; 34] = [
    "ConditionVariable#wait",
    "IO#wait",
    "IO#wait_readable",
    "IO#wait_writable",
    "IO.select",
    "Kernel#select",
    "Kernel#sleep",
    "Kernel.select",
    "Kernel.sleep",
    "Monitor#enter",
    "Monitor#wait_for_cond",
    "Mutex#lock",
    "Mutex#sleep",
    "Process.wait",
    "Process.wait2",
    "Process.waitall",
    "Process.waitpid",
    "Process.waitpid2",
    "Process::Status.wait",
    "Queue#pop",
    "SizedQueue#pop",
    "SizedQueue#push",
    "Thread#join",
    "Thread#value",
    "Thread.pass",
    "Thread.stop",
    "Thread::ConditionVariable#wait",
    "Thread::Mutex#lock",
    "Thread::Mutex#sleep",
    "Thread::Queue#pop",
    "Thread::SizedQueue#pop",
    "Thread::SizedQueue#push",
    "Thread::Queue#shift",
    "Thread::Queue#deq",
];

impl Frame {
    /// Returns true if it is a method of Ruby itself that waits, and makes memory grow by next to nothing.
    #[must_use]
    pub fn only_waits(&self) -> bool {
        let is_own = self.path.as_deref().is_none_or(|path| path.starts_with("<internal:"));
        is_own && WAITING.contains(&self.label.as_str())
    }
}
