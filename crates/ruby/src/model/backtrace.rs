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
