/// A Ractor, and its object space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ractor {
    /// Its number, as `Ractor#inspect` prints it, from the main one's 1 on; `None` if it could not be read.
    pub number: Option<u32>,
    /// Its name.
    pub name: Option<String>,
    /// The file and line that created it; `None` for the main one.
    pub place: Option<String>,
    /// Its object space: [`HeapPage::space`](crate::HeapPage::space) of its pages.
    pub space: u32,
}
