/// The depth to which an object space is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Slots, and their references to malloc'ed memory without its contents. There are no links between slots, and no bodies
    /// of iseqs.
    Memory,
    /// Everything.
    Graph,
}
