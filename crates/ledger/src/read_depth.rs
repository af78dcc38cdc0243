/// The parts of a process that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadDepth {
    /// The memory by cause.
    Causes,
    /// The pointers between blocks too, so that blocks behind other blocks have owners.
    Owners,
    /// Also the fields of each object, for a dump.
    Objects,
    /// Also the texts of strings, for a dump.
    Values,
    /// The pointers between blocks, and what objects contain, to compare it.
    Contents,
    /// Also the texts of which there are most copies.
    Texts,
}
