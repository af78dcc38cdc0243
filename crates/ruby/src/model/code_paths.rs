use crate::layout::iseq_location::{FirstLine, IseqLocation};
use crate::layout::line_tables::LineTables;

/// The paths that bytecode was compiled from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodePaths {
    /// The paths, each once, as Ruby has them: of files, and `<internal:kernel>`, `(eval)`, `-e`.
    pub paths: Vec<String>,
    /// The slots of iseqs, ascending, and the index of each one's path.
    pub(crate) iseqs: Vec<(u32, u32)>,
    /// The places of paths and labels, and of lines, for [`backtraces`](crate::backtraces) and
    /// [`closures`](crate::closures()).
    pub(crate) location: Option<IseqLocation>,
    pub(crate) first_line: Option<FirstLine>,
    pub(crate) lines: Option<LineTables>,
}

impl CodePaths {
    /// The index of the path of the iseq in this slot; `None` for other slots, and if its path could
    /// not be read.
    #[must_use]
    pub fn of(&self, slot: u32) -> Option<u32> {
        let found = self.iseqs.binary_search_by_key(&slot, |it| it.0).ok()?;
        Some(self.iseqs[found].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_iseq_has_its_own_path() {
        let paths = vec!["/a.rb".to_owned(), "/b.rb".to_owned()];
        let code = CodePaths { paths, iseqs: vec![(3, 1), (5, 0), (9, 1)], ..CodePaths::default() };
        let found = [2, 3, 4, 5, 9, 10].map(|slot| code.of(slot));
        assert_eq!(found, [None, Some(1), None, Some(0), Some(1), None]);
    }
}
